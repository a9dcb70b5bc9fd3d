"""Curves that stay bounded, and figures of workers and links as they are told."""

from __future__ import annotations

from dtd.coordinator.figures import MAX_POINTS, Curve, Figures
from dtd.wire import messages as m


def progress(step, *, job="a-1", loss=0.5, step_s=0.1):
    return m.Progress(
        job=job,
        generation=1,
        step=step,
        epoch=0,
        loss=loss,
        learning_rate=0.01,
        grad_norm=2.0,
        rows=64,
        step_s=step_s,
        compute_s=0.0,
        comm_s=0.0,
        exposed_s=0.0,
        skipped=False,
        skipped_steps=0,
    )


def test_a_curve_is_thinned_out_and_keeps_its_newest_point():
    curve = Curve()
    for step in range(10_000):
        curve.add(step, float(step))
    values = curve.values()
    assert MAX_POINTS / 2 < len(values) <= MAX_POINTS + 1
    assert values[0] == [0, 0.0]
    assert values[-1] == [9999, 9999.0]
    steps = [step for step, _ in values]
    assert steps == sorted(set(steps))


def test_steps_that_are_done_again_replace_the_old_ones():
    curve = Curve()
    for step in (1, 2, 3):
        curve.add(step, 1.0)
    curve.add(2, 5.0)
    assert curve.values() == [[1, 1.0], [2, 5.0]]


def test_an_empty_curve():
    assert Curve().values() == []


def test_the_figures_of_a_job():
    figures = Figures()
    figures.progress(progress(1, loss=0.9))
    figures.progress(progress(2, step_s=0.0))
    beats = {
        "w0": m.Heartbeat(
            state="running", step_s=0.1, compute_s=0.06, rtt_s=0.001, link_bytes_per_s=5.0
        ),
        "w1": m.Heartbeat(state="idle"),
        "w2": None,
    }
    answer = figures.answer(beats, ["w0", "w2"])
    assert answer["job"] == "a-1"
    assert answer["loss"] == [[1, 0.9], [2, 0.5]]
    assert answer["rates"] == [[1, 640.0]]
    assert (answer["learning_rate"], answer["grad_norm"]) == (0.01, 2.0)
    [worker] = answer["workers"]
    assert (worker["name"], worker["compute_s"], worker["data_s"]) == ("w0", 0.06, 0.0)
    assert answer["links"] == [{"from": "w0", "to": "w2", "rtt_s": 0.001, "bytes_per_s": 5.0}]


def test_another_job_begins_afresh():
    figures = Figures()
    figures.progress(progress(1))
    figures.progress(progress(7, job="b-2"))
    assert figures.answer({}, ["alone"])["loss"] == [[7, 0.5]]
    assert Figures().answer({}, [])["learning_rate"] is None
