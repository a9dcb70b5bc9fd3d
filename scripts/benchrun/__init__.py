"""Benchmarks: dtd against torch.distributed with Gloo, and both against the machine's limit.

`allreduce`, `steps` and `memory` measure and keep JSON in docs/benchmarks; `report` makes the
tables of docs/benchmarks.md from it.  Measured processes end with the benchmark.
"""
