"""What the coordinator must not forget: its SQLite file, backup and restore."""
