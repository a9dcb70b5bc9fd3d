"""A whole cluster in one process and in virtual time, driving the very cores the daemons use."""
