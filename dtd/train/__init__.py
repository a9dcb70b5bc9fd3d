"""The only users of torch: loop, gradients, optimizer, data loading, checkpoints, state."""
