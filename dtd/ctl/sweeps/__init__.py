"""dtdctl's commands about sweeps."""
