"""The state of a replica: its tensors, its hash, and its transfer between workers."""
