"""`dtdctl doctor`: what is measured, what follows, and how fast a job would be."""
