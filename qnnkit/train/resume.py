"""What a training saves and when, and how it resumes."""

from __future__ import annotations

import copy
import time
from typing import Any

import torch

from qnnkit.checkpoint import Store, random_state, set_random_state, weights
from qnnkit.train.processes import Processes, Share
from qnnkit.train.progress import Part, Progress, Totals
from qnnkit.train.stepper import Stepper

GONE = ("micro_batch", "asked")
"""Fields of a training's progress that only earlier versions saved."""


class Checkpoints:
    """The checkpoints of a training: one at the end of each epoch, and others in between as the settings say.

    Args:
        store: Store of the checkpoints; None keeps only the weights of the best epoch, in memory.
        stepper: Model, optimizer, scaler and settings.
        share: The training batches of this process.
        processes: All processes that train together; the first writes.
    """

    def __init__(self, store: Store | None, stepper: Stepper, share: Share, processes: Processes):
        self.store = store
        self.stepper, self.share, self.processes = stepper, share, processes
        self.saved_at, self.owed = time.monotonic(), False
        self.best: dict[str, Any] = {}

    def due(self, updates: int) -> bool:
        """Whether to write a checkpoint within the epoch after this number of updates."""
        steps, minutes = self.stepper.config.save_every_steps, self.stepper.config.save_every_minutes
        self.owed |= bool(steps) and updates % steps == 0
        self.owed |= bool(minutes) and time.monotonic() - self.saved_at >= 60 * minutes
        waits = self.store is None or self.store.busy  # with a slow disk, the checkpoint is written later
        return self.owed and not waits

    def save(self, progress: Progress, part: Part | None = None) -> None:
        """Writes a checkpoint in the background; every process must call this.

        Args:
            progress: The finished epochs.
            part: The unfinished epoch; None at the end of an epoch.

        Raises:
            OSError: The previous checkpoint could not be written.
        """
        best = part is None and progress.best_epoch == progress.epoch
        if self.store is None:
            self.best = copy.deepcopy(weights.saved_state(self.stepper.model)) if best else self.best
            return
        state = {
            "model": weights.saved_state(self.stepper.model),
            "optimizer": self.stepper.optimizer.state_dict(),
            "optimizer_name": self.stepper.config.optimizer,
            "scaler": self.stepper.scaler.state_dict(),
            "progress": vars(progress),  # the schedule is a function of its updates
            "part": part and self._state_of(part),
            "random": self.processes.gathered(random_state()),
        }
        if self.processes.main:
            self.store.save(state, best=best)
        self.saved_at, self.owed = time.monotonic(), False

    def _state_of(self, part: Part) -> dict[str, Any]:
        totals = part.totals.over(self.processes)
        fields = {name: getattr(part, name) for name in ("batch", "norms", "seconds", "watched")}
        return fields | {"sums": totals.sums, "count": totals.count, "loader": self.share.signature()}

    def restore(self) -> tuple[Progress, Part]:
        """Loads the newest checkpoint that fits into model, optimizer and scaler; returns the progress."""
        loaded = [(Progress(), Part())]
        if self.store is None:
            return loaded[0]
        self.store.restore(lambda state: loaded.append(self._loaded(state)))
        progress, part = loaded[-1]
        if self.store.best_lost and progress.rows:  # the newest weights count as the best
            last, monitor = progress.rows[-1], self.stepper.task.monitor
            progress.best_score = [last[f"validation_{monitor}"], -last["validation_loss"]]
            progress.best_epoch = last["epoch"]
        return progress, part

    def load_best(self) -> None:
        """Loads the weights of the best epoch into the model."""
        if self.store is None:
            return weights.load(self.stepper.model, self.best)
        if not self.processes.main:
            self.store.best = None  # read again from the first process's files
        self.store.load_best(self.stepper.model)

    def _loaded(self, state: dict[str, Any]) -> tuple[Progress, Part]:
        """Loads a checkpoint's state; raises one of `checkpoint.store.MISFIT` if it does not fit."""
        weights.load(self.stepper.model, state["model"])
        if state["optimizer_name"] == self.stepper.config.optimizer:
            _load_optimizer(self.stepper.optimizer, state["optimizer"])
        if state["scaler"] and self.stepper.scaler.is_enabled():
            self.stepper.scaler.load_state_dict(state["scaler"])
        for random in state["random"]:  # a test that each can be set; the epoch sets its own
            set_random_state(random)
        fields = {name: value for name, value in state["progress"].items() if name not in GONE}
        progress, part, processes = Progress(**fields), state["part"], self.processes
        if part is None or part["loader"] != self.share.signature():  # its position refers to other samples
            return progress, Part()
        random = state["random"][processes.rank] if len(state["random"]) == processes.world else None
        totals = Totals({name: torch.zeros(()) for name in part["sums"]})
        if processes.main:
            sums = {name: value.to(processes.device) for name, value in part["sums"].items()}
            totals = Totals(sums, part["count"])
        return progress, Part(part["batch"], totals, part["norms"], part["seconds"], random, part["watched"])


def _load_optimizer(optimizer: Any, state: dict[str, Any]) -> None:
    """Loads moments and learning rates; other options come from the configuration."""
    groups = [
        current | {name: saved[name] for name in ("lr", "params")}
        for current, saved in zip(optimizer.state_dict()["param_groups"], state["param_groups"], strict=True)
    ]
    optimizer.load_state_dict({**state, "param_groups": groups})
