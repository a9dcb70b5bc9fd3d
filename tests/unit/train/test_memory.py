"""Peaks of allocation, and what is skipped."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from dtd.train.memory import activation_peak, process_bytes

CPU = torch.device("cpu")
MIB = 1 << 20


def test_the_peak_on_a_cpu_is_what_is_saved_for_backward_at_once():
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3)))
    with activation_peak(model, CPU) as peak:
        for rows in (8, 64, 16):
            model(torch.zeros(rows, 4)).sum().backward()
    # the input and the outputs of all three tanh, of the largest batch; weights are not counted
    assert peak == [4 * 64 * 4 * 4]


def test_what_saves_nothing_has_no_peak():
    with activation_peak(nn.Linear(4, 4), CPU) as peak, torch.no_grad():
        torch.zeros(MIB // 4)
    assert peak == []


def test_a_compiled_model_is_left_alone():
    class OptimizedModule(nn.Linear):
        pass

    model = OptimizedModule(4, 4)
    with activation_peak(model, CPU) as peak:
        model(torch.zeros(8, 4)).sum().backward()
    assert peak == []


def test_on_a_gpu_the_allocator_counts(monkeypatch):
    said = []
    cuda = SimpleNamespace(
        reset_peak_memory_stats=said.append,
        memory_allocated=lambda device: 100,
        max_memory_allocated=lambda device: 350,
    )
    monkeypatch.setattr(torch, "cuda", cuda)
    gpu = torch.device("cuda:1")
    with activation_peak(nn.Linear(1, 1), gpu) as peak:
        assert said == [gpu]
        assert peak == []
    assert peak == [250]
    assert process_bytes(gpu) == 350


def test_the_peak_of_the_process_is_the_kernels():
    held = torch.ones(16 * MIB // 4)
    before = process_bytes(CPU)
    assert before > held.nbytes
    more = torch.ones(256 * MIB // 4)
    del more
    assert process_bytes(CPU) >= before
