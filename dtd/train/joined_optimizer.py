"""Several optimizers seen as one: their groups in a row, their states together.

Whatever looks at a job's optimizer (its schedule, the state, digests, callbacks) looks at all parts
alike; only an update is made by one of them.  Each part keeps what is its own, so nothing is stored
here but the row of groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class JoinedOptimizer(torch.optim.Optimizer):
    """A torch optimizer, as far as others look at it.

    Args:
        parts: the optimizers by name; no parameter is in two of them.
    """

    def __init__(self, parts: Mapping[str, torch.optim.Optimizer]) -> None:
        # Not that of torch, which would take groups and state to be this object's.
        self.parts = dict(parts)
        self.defaults: dict[str, Any] = {}
        self._gather()

    def _gather(self) -> None:
        self.param_groups = [group for part in self.parts.values() for group in part.param_groups]

    @property
    def state(self) -> dict[Any, Any]:  # type: ignore[override]
        """State of each parameter, of all parts."""
        return {
            parameter: values
            for part in self.parts.values()
            for parameter, values in part.state.items()
        }

    def step(self, name: Any = None) -> None:  # type: ignore[override]
        """Let one part update its parameters."""
        self.parts[name].step()

    def state_dict(self) -> dict[str, Any]:
        """As torch has it, with parameters numbered through."""
        state: dict[int, Any] = {}
        groups: list[dict[str, Any]] = []
        first = 0
        for part in self.parts.values():
            own = part.state_dict()
            state |= {first + index: values for index, values in own["state"].items()}
            groups += [
                {**group, "params": [first + index for index in group["params"]]}
                for group in own["param_groups"]
            ]
            first += sum(len(group["params"]) for group in own["param_groups"])
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Give each part its own."""
        groups, first = list(state_dict["param_groups"]), 0
        for part in self.parts.values():
            own, groups = groups[: len(part.param_groups)], groups[len(part.param_groups) :]
            count = sum(len(group["params"]) for group in own)
            part.load_state_dict(
                {
                    "state": {
                        index - first: values
                        for index, values in state_dict["state"].items()
                        if first <= index < first + count
                    },
                    "param_groups": [
                        {**group, "params": [index - first for index in group["params"]]}
                        for group in own
                    ],
                }
            )
            first += count
        self._gather()
