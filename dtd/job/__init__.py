"""The job file that a user submits, validated as a whole.

`tables` and `strategy_table` declare every field, `checks` compares fields with one another, and
`parse` turns TOML text or a map from the wire into a `JobSpec`, or raises `JobSpecError` with all
that is wrong at once.  Nothing here imports torch or the task: whether the task's own arguments
make sense is found out by the worker that builds it.  From here a spec goes to the coordinator as
a map (`to_mapping`), into its store, and on to every worker of the job.
"""

from dtd.job.parse import MAX_JOB_BYTES, from_mapping, load_job, overridden, parse_job, to_mapping
from dtd.job.strategy_table import StrategyTable
from dtd.job.tables import (
    BUILT_IN_TASKS,
    JobSpec,
    OptimizerTable,
    Precision,
    ScheduleTable,
    SyncTable,
    TrainTable,
)

__all__ = [
    "BUILT_IN_TASKS",
    "MAX_JOB_BYTES",
    "JobSpec",
    "OptimizerTable",
    "Precision",
    "ScheduleTable",
    "StrategyTable",
    "SyncTable",
    "TrainTable",
    "from_mapping",
    "load_job",
    "overridden",
    "parse_job",
    "to_mapping",
]
