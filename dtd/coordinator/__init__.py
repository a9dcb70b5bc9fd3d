"""The coordinator daemon: the membership core, a SQLite store and a server around it."""
