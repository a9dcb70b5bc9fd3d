"""Commands of the repository: the local launcher and what it is made of."""
