"""Identity and access: the cluster's authority, credentials, join tokens, and data plane keys."""
