"""Which names a host can ask for."""

from __future__ import annotations

import pytest

from dtd.errors import RequestRefused
from dtd.security.identity import MAX_NAMES, check_names, worker_names


def test_a_host_asks_for_its_own_name_and_one_for_each_instance() -> None:
    assert worker_names("h", ("cpu", "cuda0", "cpu")) == ("h", "h-cpu", "h-cuda0")
    usual = worker_names("host7")
    assert (usual[:2], usual[-1], len(usual)) == (("host7", "host7-cpu"), "host7-server", 19)
    check_names("host7", usual)
    assert worker_names("x" * 64) == ("x" * 64,)


@pytest.mark.parametrize("name", ["host70", "host", "other", "host7-", "host7-a/b", "host7" * 20])
def test_names_of_others_are_refused(name: str) -> None:
    with pytest.raises(RequestRefused, match="host7 cannot be given the name"):
        check_names("host7", ("host7", name))


def test_their_number_is_bounded() -> None:
    names = worker_names("h", [str(number) for number in range(MAX_NAMES)])
    check_names("h", names[:MAX_NAMES])
    with pytest.raises(RequestRefused, match="asks for 65 names"):
        check_names("h", names)
