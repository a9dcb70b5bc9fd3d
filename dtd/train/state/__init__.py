"""The state of a replica: its tensors, its hash, and its way between workers."""
