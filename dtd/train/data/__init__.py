"""Rows of a job: their selection and order, loaded ahead of the step that uses them."""
