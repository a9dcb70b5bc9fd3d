"""The update of a model: optimizers, schedules and hooks on gradients."""
