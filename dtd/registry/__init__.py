"""Registered models: their versions, the holders of copies, and their cards."""
