"""`dtdctl doctor`: measurements, findings, and a forecast of a job's speed."""
