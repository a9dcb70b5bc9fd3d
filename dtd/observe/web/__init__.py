"""The coordinator's web page; nothing here is imported unless it is served."""
