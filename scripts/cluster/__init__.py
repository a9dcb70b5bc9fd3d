"""The harness: daemons, networks and disks between them, their logs, and faults of them all."""
