"""A sharded job of some workers, and what they report."""

from __future__ import annotations

from typing import Any

from dtd.engine.shards import ShardSet
from dtd.wire import messages as m
from tests.shards import held_shards

FOUR = ("a", "b", "c", "d")
THREE = ("a", "c", "d")


def wire(part: ShardSet) -> tuple[int, ...]:
    return tuple(part.to_wire())


def share(name: str, names: tuple[str, ...] = FOUR, mirrors: int = 1) -> tuple[int, ...]:
    return wire(held_shards(names.index(name), len(names), mirrors))


def at(
    generation: int, step: int, part: tuple[int, ...], where: str = "memory", job: str = "j-1"
) -> m.Held:
    return m.Held(job=job, generation=generation, step=step, digest="", where=where, part=part)


def running(driver: Any, *, mirrors: int = 1, **more: Any) -> int:
    """Four workers run a sharded job."""
    strategy = {"name": "sharded", "mirrors": mirrors}
    driver.submit(strategy=strategy, **{"min_workers": 2, **more})
    driver.warm_up(*FOUR)
    return int(driver.all_run(*FOUR))


def froze(driver: Any, name: str, number: int, step: int, *more: m.Held, **values: Any) -> None:
    """A member leaves with its share of what its generation has committed."""
    by = values.pop("by", number if step else 0)
    held = (at(by, step, values.pop("part", share(name))), *more)
    driver.froze(name, generation=number, step=step, held_generation=by, held=held, **values)


def saved(
    driver: Any,
    name: str,
    key: tuple[int, int],
    part: tuple[int, ...] | None = None,
    digest: str = "",
) -> None:
    driver.say(
        name,
        m.CheckpointSaved(
            job="j-1",
            generation=key[0],
            step=key[1],
            digest=digest,
            size_bytes=1,
            directory="",
            metrics={},
            kept=(),
            part=share(name) if part is None else part,
        ),
    )


def finished(driver: Any, name: str, number: int, step: int = 10) -> None:
    driver.finished(name, generation=number, step=step, saved=False, part=share(name))
