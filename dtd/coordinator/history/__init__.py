"""The metrics store: what jobs reported of their steps, and workers of themselves, in SQLite."""
