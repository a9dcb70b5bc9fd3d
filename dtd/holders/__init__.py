"""Fetching weights from the workers that hold them."""
