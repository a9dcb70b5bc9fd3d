"""The environment that a worker reports is this one."""

from __future__ import annotations

import platform

import torch

from dtd.train import fingerprints as module


def test_what_this_process_runs_with():
    found = module.environment("cpu")
    assert found["torch"] == torch.__version__
    assert found["python"] == platform.python_version()
    assert found["device"] == "cpu"
    assert "cuda" not in found
    assert all(isinstance(value, str) for value in found.values())


def test_a_processor_without_a_name(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_CPUINFO", tmp_path / "none")
    assert module.environment("cpu")["processor"] == ""
    (tmp_path / "none").write_text("bogomips : 1\nmodel name\t: Fast CPU\nmodel name : x\n")
    assert module.environment("cpu")["processor"] == "Fast CPU"
