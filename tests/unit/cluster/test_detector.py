from dtd.cluster.detector import Detector


def watching(*names: str) -> Detector:
    detector = Detector(timeout_s=5.0, tick_s=0.5)
    for name in names:
        detector.watch(name, 0.0)
    return detector


def look_until(detector: Detector, now: float) -> list[tuple[str, str]]:
    """Look as often as a driver does, so that no gap is our own."""
    tick = 0
    while tick * 0.5 < now:
        detector.suspects(tick * 0.5)
        tick += 1
    return detector.suspects(now)


def test_silence_beyond_the_time_out_is_suspect_and_says_for_how_long() -> None:
    assert look_until(watching("a"), 5.5) == [("a", "no heartbeat for 5.5 s (limit 5 s)")]


def test_silence_of_just_the_time_out_is_not() -> None:
    assert look_until(watching("a"), 5.0) == []


def test_suspects_come_in_name_order() -> None:
    assert [name for name, _ in look_until(watching("b", "c", "a"), 6.0)] == ["a", "b", "c"]


def test_sign_of_life_begins_the_silence_anew() -> None:
    detector = watching("a", "b")
    look_until(detector, 4.0)
    detector.heard("a", 4.0)
    assert [name for name, _ in look_until(detector, 6.0)] == ["b"]
    assert detector.silence_s("a", 6.0) == 2.0


def test_sign_of_life_of_a_stranger_does_not_begin_a_watch() -> None:
    detector = watching()
    detector.heard("a", 1.0)
    assert detector.next_deadline(1.0) is None
    assert detector.silence_s("a", 9.0) == 0.0


def test_longer_patience_is_for_one_watch() -> None:
    detector = watching("a")
    detector.watch("a", 0.0, timeout_s=30.0)
    assert look_until(detector, 20.0) == []
    detector.watch("a", 20.0)
    assert [name for name, _ in look_until(detector, 26.0)] == ["a"]


def test_nobody_is_watched_after_forget() -> None:
    detector = watching("a")
    detector.forget("a")
    detector.forget("a")
    assert look_until(detector, 9.0) == []
    assert detector.next_deadline(9.0) is None


def test_it_wants_to_look_every_tick() -> None:
    assert watching("a").next_deadline(3.0) == 3.5


def test_gap_in_our_pause_detector_is_given_back() -> None:
    detector = watching("a")
    look_until(detector, 2.0)
    assert detector.suspects(100.0) == []
    assert detector.silence_s("a", 100.0) == 2.0 + 2 * 0.5


def test_gap_does_not_reach_into_the_future() -> None:
    detector = watching("a")
    look_until(detector, 2.0)
    detector.heard("a", 50.0)
    detector.suspects(100.0)
    assert detector.silence_s("a", 100.0) == 0.0
