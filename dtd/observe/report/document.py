"""A report as sections of texts, tables and charts, for HTML and for Markdown.  Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dtd import __version__
from dtd.job.differences import changed_settings
from dtd.observe.report import charts, words
from dtd.observe.report.facts import Facts, World
from dtd.observe.report.render import (
    Block,
    Bullets,
    Chart,
    Document,
    Section,
    Table,
    Text,
    Tiles,
)
from dtd.observe.step_parts import STEP_PARTS
from dtd.packages.limits import short
from dtd.text import figures

MOST_INCIDENTS: Final = 200
MOST_CARDS: Final = 20
MOST_CHECKPOINTS: Final = 20
_COMPUTED: Final = """\
Figures of steps are those of rank 0 in every committed step, as the coordinator remembers them; \
long jobs are drawn as means with the least and the greatest value of each stretch.
A rate is the number of rows divided by the time of their steps; evaluations, checkpoints and \
recoveries are not in it. Efficiency compares the rate of each worker with that in the smallest \
group of workers.
Times of other workers are means of what their heartbeats told. Exposed communication is the time \
in which training was blocked by it.
"""


def document_of(facts: Facts, against: Facts | None, *, made: str) -> Document:
    """The report of a job, perhaps compared with another one; `made`: when, in words."""
    other = f", against {against.id}" if against is not None else ""
    sections = [_summary(facts, against)]
    if facts.has_trained:
        sections += [_convergence(facts, against), _throughput(facts, against)]
        sections += [_step_time(facts), _communication(facts)]
    sections += [_incidents(facts), _environment(facts), _configuration(facts)]
    sections += [_card(facts), _notes(facts)]
    return Document(
        title=f"{facts.id}",
        subtitle=f"Report of a training job{other} · {made} · dtd {__version__}",
        sections=[one for one in sections if one.blocks],
    )


def as_mapping(facts: Facts, against: Facts | None) -> dict[str, Any]:
    """The report for programs: all facts under their names, and the sentences about them."""
    found = {"summary": words.interpretation(facts, against), **dataclasses.asdict(facts)}
    return found if against is None else {**found, "against": dataclasses.asdict(against)}


def _summary(facts: Facts, against: Facts | None) -> Section:
    job = facts.job
    tiles = [("state", job["state"]), ("steps", figures.steps(job["step"], job["total_steps"]))]
    if job["started_s"]:
        ended = job["ended_s"] or job["started_s"]
        took = figures.duration(ended - job["started_s"]) if job["ended_s"] else "not ended"
        tiles.append(("duration", took))
    if facts.worlds:
        best = max(facts.worlds, key=lambda one: one.rows_per_s)
        tiles.append(("rows, best", figures.rate(best.rows_per_s)))
        tiles.append(("workers", " to ".join(_range([one.workers for one in facts.worlds]))))
    if facts.has_trained:
        tiles.append(("last loss", figures.number(facts.last_loss)))
    best_of = {name: words.best_of(facts, name).mean for name in sorted(facts.evaluations)[:2]}
    tiles += [(f"best {name}", figures.number(value)) for name, value in best_of.items()]
    said = words.interpretation(facts, against)
    note = [Text(job["note"])] if job.get("note") else []
    return Section("Summary", [Tiles(tiles), *note, Bullets(said)])


def _range(values: Sequence[int]) -> list[str]:
    low, high = min(values), max(values)
    return [str(low)] if low == high else [str(low), str(high)]


def _convergence(facts: Facts, against: Facts | None) -> Section:
    runs = [facts] if against is None or not against.has_trained else [facts, against]
    blocks: list[Block] = [charts.loss(runs)]
    blocks += [charts.evaluation(runs, name) for name in sorted(facts.evaluations)]
    if against is not None and len(runs) > 1:
        blocks.append(charts.loss_over_time(runs))
    blocks += [charts.single(facts, "learning_rate", "learning rate")]
    blocks += [charts.single(facts, "gradient_norm", "gradient norm")]
    return Section("Convergence", _known(blocks))


def _throughput(facts: Facts, against: Facts | None) -> Section:
    blocks: list[Block] = [charts.rate(facts)]
    rows = [(facts.id, one) for one in facts.worlds]
    if against is not None:
        rows += [(against.id, one) for one in against.worlds]
    if rows:
        headings = ("job", "workers", "steps", "rows/s", "step", "exposed", "efficiency")
        blocks.append(Table(headings, [_world(*row) for row in rows], numbers=1))
    if len(facts.worlds) > 1:
        blocks.append(charts.scaling(facts.worlds))
    return Section("Throughput and scaling", _known(blocks))


def _world(job: str, one: World) -> tuple[str, ...]:
    exposed = None if one.exposed_s is None else one.exposed_s / one.step_s
    return (
        job,
        str(one.workers),
        str(one.steps),
        figures.rate(one.rows_per_s),
        figures.span(one.step_s),
        share(exposed),
        share(one.efficiency),
    )


def share(value: float | None) -> str:
    """A share in percent."""
    return figures.NOTHING if value is None else f"{100 * value:.1f} %"


def _step_time(facts: Facts) -> Section:
    known = [one for one in facts.workers if one.step_s]
    headings = ("worker", "step", *(part.name for part in STEP_PARTS), "memory", "cores")
    rows = [
        (
            one.name,
            figures.span(one.step_s),
            *(figures.span(one.parts.get(part.field)) for part in STEP_PARTS),
            figures.NOTHING if one.memory_bytes is None else figures.size(round(one.memory_bytes)),
            figures.number(None if one.cores is None else round(one.cores, 2)),
        )
        for one in facts.workers
    ]
    blocks: list[Block] = [charts.split(known)]
    if rows:
        blocks.append(Table(headings, rows, numbers=1))
    return Section("Where a step's time goes", _known(blocks))


def _communication(facts: Facts) -> Section:
    step_s, comm_s, exposed_s = (facts.mean(name) for name in ("step_s", "comm_s", "exposed_s"))
    blocks: list[Block] = []
    if step_s and comm_s and exposed_s is not None:
        rows = [
            ("exchange, mean of a step", figures.span(comm_s)),
            ("of it exposed", figures.span(exposed_s)),
            ("of it hidden behind computing", share(words.hidden_share(exposed_s, comm_s))),
            ("exposed, share of a step", share(exposed_s / step_s)),
        ]
        sent = facts.mean("sent_bytes")
        if sent:
            rows.append(("sent by rank 0, mean of a step", figures.size(round(sent))))
        blocks.append(Table(("communication", ""), rows, numbers=1))
        blocks.append(charts.times(facts))
    links = [
        (
            one.source,
            one.to,
            figures.span(one.round_trip_s),
            figures.bandwidth(one.bytes_per_s),
        )
        for one in facts.links
    ]
    if links:
        blocks.append(Table(("from", "to", "round trip", "while sending"), links, numbers=2))
    return Section("Communication", _known(blocks))


def _incidents(facts: Facts) -> Section:
    headings = ("time", "kind", "worker", "step", "event")
    rows = [_incident(one) for one in facts.incidents[-MOST_INCIDENTS:]]
    if not rows:
        return Section("Incidents", [Text("No incidents.")])
    recoveries = [one for one in facts.incidents if one["kind"] == "recovered"]
    cards = [_recovery(one, facts) for one in recoveries[-MOST_CARDS:]]
    left = len(facts.incidents) - len(rows)
    more = [Text(f"{left} earlier ones are left out: `dtdctl events`.")] if left else []
    return Section("Incidents", [*cards, Table(headings, rows), *more])


def _recovery(one: Mapping[str, Any], facts: Facts) -> Tiles:
    """One incident as a card: what it was, and what it cost."""
    details = one["details"]
    items = [
        ("detected in", figures.span(details.get("detected_after_s"))),
        ("recovered in", figures.span(details.get("recovered_after_s"))),
        ("steps redone", figures.number(details.get("steps_redone"))),
        ("steps lost", figures.number(details.get("steps_lost"))),
    ]
    digests = facts.job["result"].get("replica_digests")
    if digests:
        same = "equal" if len(set(digests.values())) == 1 else "differ"
        items.append(("replicas at the end", same))
    cause = details.get("cause") or one["message"]
    return Tiles(items, title=f"Step {one['step']}: {cause} ({figures.moment(one['time_s'])})")


def _incident(one: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        figures.moment(one["time_s"]),
        one["kind"],
        one["worker"] or figures.NOTHING,
        str(one["step"] or figures.NOTHING),
        one["message"],
    )


def _environment(facts: Facts) -> Section:
    job = facts.job
    rows = list(job.get("environment", {}).items())
    rows += [("workers", ", ".join(job["workers"]))] if job["workers"] else []
    return Section("Environment", [Table(("", ""), rows)] if rows else [])


def _configuration(facts: Facts) -> Section:
    rows = list(changed_settings(facts.job["spec"]))
    heading = Text("Settings that differ from their defaults:")
    return Section("Configuration", [heading, Table(("setting", "value"), rows)])


def _card(facts: Facts) -> Section:
    job = facts.job
    data = f"{job['dataset_rows']:,} rows" if job["dataset_rows"] else "not known"
    if job["dataset_fingerprint"]:
        data += f", fingerprint {short(job['dataset_fingerprint'])}"
    rows = [("task", job["task"]), ("data", data), ("seed", str(job["spec"]["job"]["seed"]))]
    if job["package"]:
        rows.append(("code package", short(job["package"])))
    if job["from_job"]:
        rows.append(("starts from", f"{job['from_job']} at step {job['from_step']}"))
    result = list(_result(job["result"]))
    blocks: list[Block] = [Table(("", ""), rows)]
    if result:
        blocks.append(Table(("result", "value"), result, numbers=1))
    blocks += _checkpoints(job)
    return Section("Model card", blocks)


def _result(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a job's results; the parts of a step's time have a section of their own."""
    for name, value in result.items():
        title = name.replace("_per_s", "/s").replace("_", " ")
        if name == "replica_digests":
            if value:
                yield "replicas", _replicas(value)
        elif name == "metrics":
            if value:
                yield title, figures.metrics(value)
        elif value is not None and name != "traceback" and not name.startswith("mean_"):
            yield title, figures.number(value) if isinstance(value, int | float) else str(value)


def _replicas(digests: Mapping[str, str]) -> str:
    different = set(digests.values())
    if len(different) > 1:
        return f"{len(digests)}, NOT equal: {len(different)} different digests"
    return f"{len(digests)}, all equal ({short(different.pop())})"


def _checkpoints(job: Mapping[str, Any]) -> list[Block]:
    rows = [
        (
            str(one["step"]),
            figures.size(one["size_bytes"]),
            one["worker"],
            figures.metrics(one["metrics"]),
            "verified" if one["verified"] else str(one["confirmation"]),
        )
        for one in job["checkpoints"][:MOST_CHECKPOINTS]
    ]
    if not rows:
        return []
    headings = ("checkpoint of step", "size", "stored on", "metrics", "")
    return [Table(headings, rows), Text(f"To get the weights: `dtdctl fetch {job['id']}`.")]


def _notes(facts: Facts) -> Section:
    said = _COMPUTED.splitlines()
    if facts.stopped:
        said.append(f"Figures are not stored at present: {facts.stopped}.")
    if facts.dropped:
        said.append(f"{facts.dropped} rows of figures were lost since the coordinator started.")
    return Section("How these figures are made", [Bullets(said)])


def _known(blocks: Sequence[Block]) -> list[Block]:
    """Drop empty charts."""
    return [one for one in blocks if not isinstance(one, Chart) or one.svg]
