"""What the operating system gives: memory, files that last, paths, streams, the service manager."""
