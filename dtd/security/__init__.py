"""Who is who: the cluster's authority, credentials, join tokens, and keys of the data plane."""
