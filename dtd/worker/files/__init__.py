"""Files that a worker keeps for others: checkpoints, registered models, jobs' data."""
