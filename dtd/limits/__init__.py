"""Limits on what one peer may use: rates, shares, connections, refusals."""
