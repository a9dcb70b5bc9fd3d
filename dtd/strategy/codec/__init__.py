"""In which form gradients travel: one codec a file."""
