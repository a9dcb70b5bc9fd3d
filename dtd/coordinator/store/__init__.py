"""The coordinator's durable state: its SQLite file, backup and restore."""
