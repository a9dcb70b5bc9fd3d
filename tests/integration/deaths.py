"""Jobs of `dying_task`, whose workers die where they are told to and are not started again."""

from __future__ import annotations

import json


def run_with_deaths(start_daemons, directory, names, *, workers, job, servers=0, device="cpu"):
    """Run a job to its end; returns the daemons, its id and what became of it.

    Args:
        start_daemons: the fixture.
        directory: for the orders to die.
        names: "PHASE-STEP" of each death.
        workers: how many.
        servers: how many parameter servers besides.
        device: of all workers.
        job: its text.
    """
    for name in names:
        (directory / name).touch()
    daemons = start_daemons(workers, servers, device=device)
    number = daemons.submit(f"task.deaths={str(directory)!r}", text=job)
    answer = daemons.wait(number)
    assert list(directory.iterdir()) == [], answer
    return daemons, number, answer


def assert_no_step_was_lost(ended, *, steps, deaths):
    """The job is done, and every worker that died was missed."""
    daemons, job, answer = ended
    result = answer["result"]
    assert (answer["state"], result["steps"], result["steps_lost"]) == ("done", steps, 0)
    assert (result["rows_missing"], result["rows_repeated"]) == (0, 0)
    assert len(daemons.events("worker_lost", job)) == deaths
    assert daemons.events("steps_lost", job) == []


def assert_survivors_are_equal(answer, count):
    """So many workers are left, with one digest; returns their names."""
    digests = answer["result"]["replica_digests"]
    assert len(digests) == count
    assert len(set(digests.values())) == 1
    return list(digests)


def logged(daemons, name):
    """A worker's log, without the lines that C++ libraries print to its standard error."""
    lines = daemons.child(name).log_path.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]
