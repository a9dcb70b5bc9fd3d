"""A job's identity, for stores and disks; its id is for people.

Ids such as `digits-3` are counted by each coordinator's store, so two stores give the same ones.
An identity also names the store, the time, and a hash of the settings that make a state what it
is.  Checkpoints carry it and lie in a directory of its own; workers and coordinator compare it
before they take anything of a job for theirs.  Pure; the rest of dtd handles it as text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

HASH_CHARACTERS: Final = 16
TAG_CHARACTERS: Final = 10


def spec_hash(spec: Mapping[str, Any]) -> str:
    """Hash of the settings that no continuation of a job may change.

    The task with its arguments, the seed, the batch and the optimizer: with others the same step
    is another state.  How long a job trains, on how many workers, what it saves and how it learns
    from here on may change.  Named one by one, so that a setting which a later dtd adds does not
    make a stranger of a job.

    Args:
        spec: the job file as a map of tables.
    """
    job = spec.get("job", {})
    fixed = {name: job.get(name) for name in ("task", "seed", "global_batch_size")}
    fixed["arguments"] = spec.get("task", {})
    fixed["optimizer"] = spec.get("optimizer", {}).get("name")
    return _hash(json.dumps(fixed, sort_keys=True, default=str), HASH_CHARACTERS)


def identity_of(store_id: str, submitted_s: int, job_id: str, spec: Mapping[str, Any]) -> str:
    """A job's identity: STORE.TIME.JOB.HASH.

    Args:
        store_id: of the coordinator's store that it was submitted to.
        submitted_s: when; a store that was restored from a backup may give an id again.
        job_id: its id.
        spec: the job file as a map of tables.
    """
    return f"{store_id}.{submitted_s}.{job_id}.{spec_hash(spec)}"


def folder_of(job_id: str, identity: str) -> str:
    """Name of the directory of a job's checkpoints; of a job without identity (0.1.0), its id."""
    return f"{job_id}.{_hash(identity, TAG_CHARACTERS)}" if identity else job_id


def _hash(text: str, characters: int) -> str:
    return hashlib.blake2b(text.encode()).hexdigest()[:characters]
