"""The ring of a generation: how buckets are cut, sent, summed and lent."""
