"""Which rows a step trains on, and the ledger of those that were used."""
