"""Training jobs put together by chance, and their judges: dtd and plain torch."""
