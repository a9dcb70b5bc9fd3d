"""Before the first step: the model is built, checked, measured and compared."""
