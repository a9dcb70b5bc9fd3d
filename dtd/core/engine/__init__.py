"""What decides in a training thread: which state is live, which is prepared, what comes next."""
