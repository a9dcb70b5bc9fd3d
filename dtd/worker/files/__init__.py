"""What a worker keeps on its disk for others: checkpoints, registered models, jobs' data."""
