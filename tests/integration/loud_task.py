"""A gated task that prints what a page must not take for markup."""

from __future__ import annotations

from typing import Any

from gated_task import Gated
from torch import nn

MARKUP = '<img src=x onerror="window.taken=1"><script>window.taken=1</script>\u202edlrow'


class Loud(Gated):
    def build_model(self) -> nn.Module:
        print(MARKUP)
        print("a quiet line")
        return super().build_model()

    def metrics(self, model: Any, batch: Any) -> Any:
        return super().metrics(model, batch)
