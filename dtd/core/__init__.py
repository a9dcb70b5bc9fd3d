"""All decisions: events and a clock value in, effects out.  No I/O, no torch, no clock access."""
