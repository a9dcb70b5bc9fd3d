"""What the coordinator remembers of a job's figures: decisions only, no file and no clock."""
