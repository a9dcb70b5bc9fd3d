"""Pages and tables of the documentation that are written from the code."""
