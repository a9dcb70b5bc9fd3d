"""Fetching weights from the workers that hold them, for whoever needs them."""
