"""Commands of the repository: the local launcher and its parts."""
