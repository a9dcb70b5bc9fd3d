"""The coordinator's registry of models: versions, and where their copies are."""
