"""The operating system's services: memory, lasting files, paths, streams, the service manager."""
