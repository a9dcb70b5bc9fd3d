"""A small job of the synthetic task, to measure steps and codecs of."""

from __future__ import annotations

from dtd.job import parse_job, to_mapping

JOB = """
[job]
name = "a"
task = "synthetic"
steps = 6
global_batch_size = 8
[task]
parameters = 4000
layers = 2
rows = 64
[optimizer]
name = "adamw"
[sync]
first_bucket_mib = 0.001
bucket_mib = 0.001
"""


def spec(*overrides):
    """The job as SUBMIT_JOB carries it, with settings as `--set` takes them."""
    return to_mapping(parse_job(JOB, source="test", overrides=overrides))
