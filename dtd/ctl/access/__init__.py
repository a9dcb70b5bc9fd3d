"""Commands for access control and the audit log."""
