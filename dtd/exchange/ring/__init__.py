"""The ring of a generation: how buckets are divided, sent, summed and shared."""
