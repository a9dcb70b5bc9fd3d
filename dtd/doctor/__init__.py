"""The forecast of a job: bytes sent, time of a step, memory of a worker."""
