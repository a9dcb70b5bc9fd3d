"""The metrics store: reports of jobs' steps and of workers, in SQLite."""
