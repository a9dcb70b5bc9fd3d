"""Which states a job has left behind."""

from __future__ import annotations

from dtd.cluster.generation.branches import MAX_BRANCHES, Branch, is_left, left, told_by
from dtd.wire import messages as m


def test_what_was_committed_after_the_state_by_earlier_generations_is_left() -> None:
    branches = left((), (1, 100), 4)
    assert branches == (Branch(1, 100, 4),)
    assert [is_left(key, branches) for key in [(1, 90), (1, 100), (1, 101), (2, 50), (3, 400)]] == [
        *(False, False),
        *(True, True, True),
    ]
    assert not is_left((4, 101), branches)
    assert not is_left((3, 400), ())


def test_going_further_back_covers_what_was_left_before() -> None:
    assert left(left((), (1, 100), 4), (0, 0), 6) == (Branch(0, 0, 6),)


def test_going_back_on_the_new_branch_leaves_both() -> None:
    branches = left(left((), (1, 100), 4), (4, 120), 6)
    assert branches == (Branch(1, 100, 4), Branch(4, 120, 6))
    assert is_left((3, 400), branches)
    assert is_left((5, 130), branches)
    assert not is_left((4, 110), branches)


def test_taking_a_branch_up_again_leaves_the_other_one() -> None:
    branches = left(left((), (1, 100), 4), (3, 400), 7)
    assert is_left((4, 110), branches)
    assert is_left((6, 500), branches)
    assert not is_left((7, 401), branches)


def test_a_state_that_is_taken_up_again_is_not_left_any_more() -> None:
    branches = left(left((), (1, 100), 4), (3, 400), 7)
    assert branches == (Branch(1, 100, 3), Branch(3, 400, 7))
    assert not is_left((3, 400), branches)
    assert not is_left((3, 390), branches)
    assert is_left((3, 401), branches)
    assert is_left((2, 200), branches)  # rather too much is kept than too little


def test_going_back_and_forth_leaves_the_first_branch_again() -> None:
    branches = left((), (0, 0), 2)  # generation 2 begins afresh
    branches = left(branches, (1, 50), 4)  # whoever has the first branch is back
    assert not is_left((1, 50), branches)
    branches = left(branches, (2, 50), 6)
    assert is_left((1, 50), branches)
    assert is_left((4, 51), branches)
    assert not is_left((2, 40), branches)


def test_the_first_branch_is_known_when_its_own_generation_is_taken_up_again() -> None:
    branches = left((), (1, 100), 2)
    branches = left(branches, (1, 150), 3)
    branches = left(branches, (2, 130), 5)
    assert is_left((1, 150), branches)
    assert not is_left((1, 100), branches)
    assert not is_left((2, 120), branches)


def test_very_many_are_told_as_fewer_that_cover_the_same() -> None:
    branches: tuple[Branch, ...] = ()
    keys = []
    for number in range(1, 3 * MAX_BRANCHES):
        branches = left(branches, (10 * number, number), 10 * number + 5)
        keys.append((10 * number + 1, number + 1))
    assert len(branches) == MAX_BRANCHES
    assert all(is_left(key, branches) for key in keys)


def test_a_member_knows_also_what_its_own_generation_leaves() -> None:
    assign = m.Assign(
        job="j",
        generation=9,
        roster_id=1,
        rank=0,
        roster=(),
        held_generation=6,
        held_step=120,
        branches=(m.Branch(generation=1, step=100, before=4),),
    )
    assert told_by(assign) == (Branch(1, 100, 4), Branch(6, 120, 9))
