"""`dtdctl status --watch`: the live display."""
