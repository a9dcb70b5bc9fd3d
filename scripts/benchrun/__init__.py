"""Benchmarks: dtd against torch.distributed with Gloo, and both against the machine's limit.

`allreduce`, `train` and others measure and keep JSON in docs/benchmarks; `report` makes the
tables and plots of docs/benchmarks.md from it.  Whoever measures runs in processes of its own,
which `ranks` starts and asks; everything here leaves nothing behind, whatever becomes of it.
"""
