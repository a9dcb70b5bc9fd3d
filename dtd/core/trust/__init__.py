"""Trust in peers' reports: what each may report, what is confirmed, and what is contradicted."""
