"""A job, an operator and the coordinator's memory under attack: `scripts/under_attack`."""
