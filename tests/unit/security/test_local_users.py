"""Users of this host: by numbers that the kernel states, with names that were looked up."""

from __future__ import annotations

import os
import socket

import pytest

from dtd.security.identity import LocalUsers, peer_groups, peer_uid

NO_GROUPS: frozenset[int] = frozenset()


@pytest.fixture
def users() -> LocalUsers:
    return LocalUsers(
        own_uid=1000,
        uids={"operator": {1001, 1004}, "worker": {1002, 1004}},
        gids={"viewer": {50}, "worker": {60}},
    )


@pytest.mark.parametrize(
    ("uid", "groups", "role"),
    [
        (0, set(), "local"),
        (1000, set(), "local"),
        (1000, {50}, "local"),
        (1001, set(), "operator"),
        (1002, {50}, "worker"),
        (1003, {50, 51}, "viewer"),
        (1003, {50, 60}, "worker"),
        (1004, set(), "operator"),
        (1003, {51}, "outsider"),
        (65534, set(), "outsider"),
    ],
)
def test_the_first_list_that_names_a_user_counts(users, uid, groups, role) -> None:
    who = users.identity(uid, frozenset(groups))
    assert (who.role, who.uid, who.name) == (role, uid, f"uid {uid}")
    assert who.is_known == (role != "outsider")
    assert who.serial == ""


def test_the_kernel_says_who_is_at_the_other_end() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert peer_uid(here) == os.geteuid()
        assert peer_groups(here) == {os.getegid(), *os.getgroups()}
