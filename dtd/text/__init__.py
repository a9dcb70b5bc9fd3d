"""Text of people and of other processes: read, checked, and made safe to show.  Pure."""
