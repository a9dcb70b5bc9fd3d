"""Sweeps: many trials of one job, chosen by Optuna, each of them a job in the queue."""
