"""Several jobs at once: how many workers each of them gets, and which workers move."""
