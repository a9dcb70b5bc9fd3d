"""The memory of a job: what there is, what it takes by calculation, and by measurement."""
