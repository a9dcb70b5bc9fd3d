"""The training step: rows, step protocol, control word, rounds, shards.  Pure."""
