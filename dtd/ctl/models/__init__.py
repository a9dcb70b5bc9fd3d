"""dtdctl's commands about registered models."""
