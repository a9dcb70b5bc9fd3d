"""Figures for an MLflow tracking server: a job is a run of one experiment.

Runs are found by a tag with the job's identity, so that a coordinator that starts again continues
them.  User name, password or token are read by MLflow itself, from MLFLOW_TRACKING_* in the
environment or from its own file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from dtd.job.differences import shown_value
from dtd.observe.sinks.entries import Began, Ended, Figures

JOB_TAG: Final = "dtd.job"
IDENTITY_TAG: Final = "dtd.identity"
REQUEST_TIMEOUT_S: Final = 10
_MAX_METRICS: Final = 1000
_MAX_PARAMETERS: Final = 100
"""Most of one request, as MLflow has it."""

_STATUS: Final[Mapping[str, str]] = {"done": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}
_UNFIT: Final = re.compile(r"[^\w\-. :/]", re.ASCII)
_TEMPORARY: Final = frozenset({408, 425, 429})
_SERVER_ERRORS: Final = 500


def make(settings: Mapping[str, Any]) -> MlflowSink:
    """The sink of these settings: `address` of the server, `experiment`."""
    os.environ |= {
        "MLFLOW_HTTP_REQUEST_TIMEOUT": str(REQUEST_TIMEOUT_S),
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "GIT_PYTHON_REFRESH": "quiet",
    }
    from mlflow.tracking import MlflowClient

    return MlflowSink(MlflowClient(tracking_uri=settings["address"]), settings["experiment"])


class MlflowSink:
    """Jobs as runs of an experiment, which is made if there is none."""

    def __init__(self, client: Any, experiment: str) -> None:
        self._client = client
        self._experiment = experiment
        self._experiment_id = ""
        self._runs: dict[str, str] = {}

    def begin(self, entry: Began) -> None:
        from mlflow.entities import Param

        run = self._found(entry.identity)
        if run is None:
            tags = {**entry.tags, JOB_TAG: entry.job, IDENTITY_TAG: entry.identity}
            run = self._client.create_run(
                self._experiment_here(),
                run_name=entry.job,
                start_time=_millis(entry.unix_s),
                tags=tags,
            )
        else:
            self._client.update_run(run.info.run_id, status="RUNNING")
        self._runs[entry.job] = run.info.run_id
        known = run.data.params
        texts = (
            (_key(name), value if isinstance(value, str) else shown_value(value))
            for name, value in entry.settings.items()
        )
        fresh = [Param(key, text) for key, text in texts if key not in known]
        for part in _parts(fresh, _MAX_PARAMETERS):
            self._client.log_batch(run.info.run_id, params=part)

    def figures(self, job: str, entries: Sequence[Figures]) -> None:
        self._log(self._runs[job], entries)

    def end(self, entry: Ended) -> None:
        run_id = self._runs.pop(entry.job, "")
        if not run_id:
            run = self._found(entry.identity)
            if run is None:
                return
            run_id = run.info.run_id
        step = int(entry.result.get("steps", 0))
        last = {f"final/{name}": value for name, value in entry.result.items()}
        figures = Figures(job=entry.job, step=step, unix_s=entry.unix_s, scalars=last)
        self._log(run_id, [figures])
        self._client.set_terminated(
            run_id, _STATUS.get(entry.state, "FAILED"), _millis(entry.unix_s)
        )

    def may_pass(self, error: Exception) -> bool:
        """Whether a retry may succeed: the server is unreachable, busy or broken."""
        status = getattr(error, "get_http_status_code", None)
        if status is None:
            return isinstance(error, OSError)
        code = status()
        return code >= _SERVER_ERRORS or code in _TEMPORARY

    def close(self) -> None:
        """Leave runs open: a restarted coordinator continues them."""

    def _log(self, run_id: str, entries: Sequence[Figures]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(_key(name), value, _millis(one.unix_s), one.step)
            for one in entries
            for name, value in one.scalars.items()
        ]
        for part in _parts(metrics, _MAX_METRICS):
            self._client.log_batch(run_id, metrics=part)

    def _experiment_here(self) -> str:
        if not self._experiment_id:
            found = self._client.get_experiment_by_name(self._experiment)
            self._experiment_id = (
                found.experiment_id
                if found is not None
                else self._client.create_experiment(self._experiment)
            )
        return self._experiment_id

    def _found(self, identity: str) -> Any:
        runs = self._client.search_runs(
            [self._experiment_here()], f"tags.`{IDENTITY_TAG}` = '{identity}'", max_results=1
        )
        return runs[0] if runs else None


def _millis(unix_s: float) -> int:
    return round(1000 * unix_s)


def _key(name: str) -> str:
    """Return the name with characters that MLflow accepts."""
    return _UNFIT.sub("_", name)[:250]


def _parts(values: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    for first in range(0, len(values), size):
        yield values[first : first + size]
