"""The coordinator's registry of models: versions, and the places of their copies."""
