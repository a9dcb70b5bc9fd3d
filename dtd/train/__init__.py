"""The only torch: the loop, gradients, optimizer, data loading, checkpoints, state."""
