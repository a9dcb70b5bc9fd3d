"""What happens before the first step: the model is built, checked, measured and compared."""
