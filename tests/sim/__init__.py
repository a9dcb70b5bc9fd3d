"""A whole cluster in one process and in virtual time, driving the same cores as the daemons."""
