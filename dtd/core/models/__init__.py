"""Registered models: what a version is, where its copies are kept, what its card says."""
