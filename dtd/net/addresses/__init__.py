"""Addresses: this host's own, a peer's, and the one at which the peer answers."""
