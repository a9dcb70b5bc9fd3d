"""The job of a worker: its threads, the rings of its generations, its state, output and reports."""
