"""Selection of the rows of a step, and the ledger of the rows used."""
