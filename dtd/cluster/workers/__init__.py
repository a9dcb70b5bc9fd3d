"""Workers: how they come and go, and how the coordinator judges whether they work."""
