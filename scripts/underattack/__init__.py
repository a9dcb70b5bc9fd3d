"""How a job, an operator and the coordinator's memory fare under attack: `scripts/under_attack`."""
