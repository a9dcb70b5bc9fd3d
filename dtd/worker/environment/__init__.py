"""The code of a job on a worker: its task's package, what it requires, programs that it starts."""
