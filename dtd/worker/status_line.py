"""What a worker does, in the one line that `systemctl status` shows.  Pure."""

from __future__ import annotations

from dtd.wire import messages as m


def status_line(
    beat: m.Heartbeat, assign: m.Assign | None, *, coordinator: str, trouble: str = ""
) -> str:
    """Job, step, loss and peers, or what is waited for.

    Args:
        beat: what the coordinator would be told now.
        assign: the newest generation of this process.
        coordinator: its address while it cannot be reached, else empty.
        trouble: what is wrong, and what to do; empty when nothing is.
    """
    words = [_doing(beat), *_peers(beat, assign)]
    if coordinator and not trouble:
        words.append(f"calls the coordinator at {coordinator}")
    line = ", ".join(words)
    return f"{line}; {trouble}" if trouble else line


def _doing(beat: m.Heartbeat) -> str:
    if not beat.job:
        return beat.waiting
    if beat.waiting:
        return f"job {beat.job}: {beat.waiting}"
    return f"job {beat.job}: step {beat.step}, loss {beat.loss:.4g}"


def _peers(beat: m.Heartbeat, assign: m.Assign | None) -> list[str]:
    if assign is None or beat.waiting:
        return []
    names = [member.name for member in assign.roster]
    if len(names) == 1:
        return ["alone"]
    before, after = names[assign.rank - 1], names[(assign.rank + 1) % len(names)]
    return [f"rank {assign.rank} of {len(names)} between {before} and {after}"]
