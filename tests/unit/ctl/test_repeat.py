"""`dtdctl submit --like JOB` against a scripted coordinator."""

from __future__ import annotations

import pytest

from dtd.job import parse_job, to_mapping
from dtd.wire import messages as m

SPEC = to_mapping(
    parse_job(
        '[job]\nname="own"\ntask="package.module:Task"\nepochs=2\nglobal_batch_size=64\n',
        source="test",
    )
)
KNOWN = {
    "id": "own-1",
    "spec": SPEC,
    "package": "ab" * 32,
    "from_job": "",
    "from_step": 0,
    "from_newest": 0,
    "from_mode": "",
    "weights": "",
    "strict": True,
}


@pytest.fixture
def known(server, result):
    """Has the coordinator know a job."""

    def make(**changed):
        def serve(message):
            shown = isinstance(message, m.ShowJob)
            return result({**KNOWN, **changed} if shown else {"job": "own-2"})

        server.script = serve
        return server.received

    return make


def test_a_job_is_repeated_with_its_package_and_other_settings(dtdctl, known):
    received = known()
    code, out, err = dtdctl("submit", "--like", "own-1", "--set", "job.seed=7")
    assert (code, out) == (0, "own-2\n")
    assert err == "job own-2 is as own-1 with its package abababababab, but job.seed=7\n"
    request = received[-1]
    assert request.spec == {**SPEC, "job": {**SPEC["job"], "seed": 7}}
    assert (request.package, request.from_job, request.weights) == ("ab" * 32, "", "")
    dtdctl("submit", "--like", "own-1", "--no-ship")
    assert received[-1].package == ""


def test_it_starts_where_the_other_one_did(dtdctl, known):
    received = known(from_job="own-0", from_newest=40, from_mode="weights", strict=False)
    dtdctl("submit", "--like", "own-1")
    request = received[-1]
    assert (request.from_job, request.from_step, request.from_mode) == ("own-0", 40, "weights")
    assert request.strict is False
    dtdctl("submit", "--like", "own-1", "--resume-from", "own-5@3")
    request = received[-1]
    assert (request.from_job, request.from_step, request.from_mode) == ("own-5", 3, "resume")


def test_what_does_not_go_together(dtdctl, known):
    known()
    for words in (("submit",), ("submit", "job.toml", "--like", "own-1")):
        code, _out, err = dtdctl(*words)
        assert code == 2
        assert "either from a file or like an earlier job" in err
    code, _out, err = dtdctl("submit", "--like", "own-1", "--weights-from", "w.safetensors")
    assert code == 2
    assert "w.safetensors cannot be sent along with --like" in err
    code, _out, err = dtdctl("submit", "--like", "own-1", "--set", "job.sead=7")
    assert code == 2
    assert 'did you mean "seed"?' in err
