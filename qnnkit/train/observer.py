"""What looks on while a net trains: the loop calls it, and knows no more of it."""

from __future__ import annotations

from typing import Any, Protocol


class Observer(Protocol):
    """Looks on while a net trains, at some of its updates; see `gradients.Watch`."""

    def wants(self, epoch: int, update: int, updates: int) -> bool:
        """Whether to look at an update of an epoch, counted from 0, of `updates`."""
        ...

    def before(self) -> None:
        """Called before such an update: gradients are unscaled and not yet clipped."""

    def after(self, step: int) -> None:
        """Called after it, unless a gradient scaler has skipped it; steps are counted from 1."""

    def end(self, epoch: int, updates: int) -> Any:
        """Called at the end of every epoch, counted from 1, where this process writes."""

    def state(self) -> dict[str, Any] | None:
        """What is to be kept of an unfinished epoch."""
        ...

    def load(self, state: dict[str, Any] | None) -> None:
        """Begins an epoch: from what was kept of it, or from nothing."""
