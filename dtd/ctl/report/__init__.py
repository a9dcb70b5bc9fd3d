"""Reports of jobs: one file with curves, rates, incidents and words about them."""
