"""What updates a model: optimizers, schedules and hooks on gradients."""
