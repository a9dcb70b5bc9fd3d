"""How the members of a generation exchange bytes: one contract (`api`), a file for each way."""
