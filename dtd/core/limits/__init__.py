"""How much one peer may take: rates, shares, connections, refusals."""
