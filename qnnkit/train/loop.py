"""The training loop: epochs of updates, a validation after each, and checkpoints of the whole state."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from qnnkit import checks, words
from qnnkit.checkpoint import Store, own_generators, seed_all, set_random_state
from qnnkit.settings import Settings
from qnnkit.tasks import Step, Task, complete
from qnnkit.train.evaluation import not_finite, totals_of
from qnnkit.train.optimizer import Group, clip, step_size
from qnnkit.train.out_of_memory import out_of_memory, ran_out
from qnnkit.train.processes import Processes, Share, n_processes, wait_for_all
from qnnkit.train.progress import Part, Progress
from qnnkit.train.resume import Checkpoints
from qnnkit.train.stepper import Stepper, joined, samples
from qnnkit.train.stop import Stop, deferred


def fit(
    model: nn.Module,
    task: Task,
    loaders: dict[str, DataLoader],
    config: Settings,
    *,
    groups: Sequence[Group] | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    folder: str | Path | None = None,
    identity: dict[str, Any] | None = None,
    log: Callable[[dict[str, Any]], None] | None = None,
    watch: Any = None,
    on_update: Callable[[dict[str, Any]], None] | None = None,
) -> Progress:
    """Trains `model` in place; afterwards it holds the weights of the best validation epoch.

    With a `folder`, checkpoints are written there: at the end of every epoch, in between as the settings say,
    and on SIGINT or SIGTERM, which then take their usual effect. The same call resumes from the newest
    checkpoint in `folder`, also in the middle of an epoch. On a CPU the result is bit-for-bit that of an
    uninterrupted training, even if a dataset draws random numbers, unless it does so in a loader's workers.

    Each batch makes one update. `micro_batch` samples are computed at once and their gradients summed: the
    update equals that of the whole batch up to rounding. Only batch normalisation acts on the pieces, and
    random numbers (dropout) differ.

    Under `accelerate launch` or `notebook_launcher`, n processes with batches of b samples train like one
    process with batches of n b; only the first process writes. Any number of processes can resume from their
    checkpoints. The gradient of an update is that of the mean over everything that its batch counts
    (`Step.count`: samples, or tokens). A task with `whole` needs a single process (NotImplementedError).

    Args:
        model: Any module.
        task: Loss and metrics.
        loaders: "train" and "validation". Before each epoch the generators of Python, NumPy and torch are
            seeded by `seed` and the epoch, and `set_epoch` is called if it exists, so that both alone
            determine an epoch's order.
        config: Epochs, learning rates, precision and so on.
        groups: Parameters by learning rate and clipping; all in one by default.
        device: Where to compute.
        seed: Fixes the random numbers of training (order, dropout); the caller's generators do not change.
        folder: Folder of the checkpoints; None writes none.
        identity: Plain values that, with `seed`, distinguish this training; each needs its own folder.
        log: Called after every epoch with its row of plain numbers, as in `Progress.rows`.
        watch: A `gradients.Watch`, which observes gradients and updates.
        on_update: Called after every update with one row of plain numbers: `epoch` of `epochs`, `step` of
            `steps` in the epoch, total `updates`, `samples` (or tokens, on this process) with their mean
            `loss`, and the `learning_rate` of the first group.

    Raises:
        OutOfMemory: Memory ran out; the message says where, and what to do next. The same call resumes.
        FloatingPointError: The loss or a gradient is not finite; the message names epoch and batch.
            Once the cause is fixed, the same call resumes from the earlier checkpoints.
        ValueError: A loader is missing or empty, nothing can be trained, or no checkpoint in `folder` fits.
        OSError: A checkpoint cannot be written.
    """
    with own_generators(), deferred() as stop:
        arguments = model, complete(task), loaders, config, groups, torch.device(device), folder
        loop = _Loop(*arguments, {"seed": seed} | (identity or {}), stop, seed, watch, on_update)
        return _with_remedies(loop, log or (lambda row: None))


@dataclass
class _Loop:
    """One training: its arguments and its progress."""

    model: Any
    task: Task
    loaders: dict[str, DataLoader]
    config: Settings
    groups: Sequence[Group] | None
    device: torch.device
    folder: str | Path | None
    identity: dict[str, Any] | None
    stop: Stop
    seed: int
    watch: Any
    on_update: Callable[[dict[str, Any]], None] | None
    where: str = "the beginning"
    batch: Any = None
    """The batch being computed, for the message when memory runs out."""

    def run(self, log: Callable[[dict[str, Any]], None]) -> Progress:
        if n_processes() > 1 and getattr(self.task, "whole", False):  # each would have a part of the batch
            rule, step = "be 1 for a loss of the whole batch", "Use one, with a smaller micro_batch."
            raise NotImplementedError(checks.message("processes", rule, n_processes(), step))
        for name in ("train", "validation"):
            checks.positive(f"the number of {name} batches", len(self.loaders.get(name, ())), "Give it data.")
        self.processes = Processes(self.device)
        self.stepper = Stepper(self.model, self.task, self.config, self.groups, self.processes.device)
        step = "Make a part of the model trainable."
        checks.positive("the number of weights to train", len(self.stepper.groups), step)
        self.train = Share(self.loaders["train"], self.processes)
        self.validation = Share(self.loaders["validation"], self.processes)
        store = Store(Path(self.folder), self.identity, self.config.keep_checkpoints) if self.folder else None
        self.checkpoints = Checkpoints(store, self.stepper, self.train, self.processes)
        self.model, self.steps = self.processes.spread(self.model), len(self.train)
        self.stepper.optimizer.zero_grad()  # removes the caller's gradients
        try:
            self.progress, self.part = self.checkpoints.restore()
            while self.progress.epoch < self.config.epochs and not self._out_of_patience():
                row = self._epoch()
                if self.processes.main:
                    log(row)
                    if self.watch:
                        self.watch.end(row["epoch"], self.steps)
                self.checkpoints.save(self.progress)
                if any(self.processes.sums(bool(self.stop))):
                    self.stop.now()
        finally:
            if store:
                store.wait()
        wait_for_all()
        self.checkpoints.load_best()
        return self.progress

    def _epoch(self) -> dict[str, Any]:
        """Trains and validates the remainder of an epoch; returns its row."""
        part, progress, epoch = self.part, self.progress, self.progress.epoch + 1
        if self.watch:
            self.watch.load(part.watched)
        self.started = time.perf_counter()
        for batch, counts in self._batches():
            step = self._update(batch, counts)
            if self.on_update:
                self.on_update(self._row(step))
            due = self.processes.main and self.checkpoints.due(progress.updates)  # clocks differ: one decides
            due, stop = self.processes.sums(due, bool(self.stop))
            if due or stop:
                with self._paused():
                    part.watched = self.watch.state() if self.watch else None
                    self.checkpoints.save(progress, part)
            if stop:
                self.stop.now()
        self.where, self.batch = f"the end of epoch {epoch}", None
        train = part.totals.over(self.processes).means()  # waits for the device, so the time is complete
        with self._paused():
            validation = self._validate()
        progress.epoch = epoch
        progress.seconds.append(part.seconds)
        score = [validation[self.stepper.task.monitor], -validation["loss"]]
        if not progress.best_score or score > progress.best_score:
            progress.best_score, progress.best_epoch = score, epoch
        row = {"epoch": epoch, "updates": progress.updates, "seconds": part.seconds}
        row |= {f"train_{name}": value if math.isfinite(value) else None for name, value in train.items()}
        row |= {f"validation_{name}": value for name, value in validation.items()}
        for name, (total, count) in part.norms.items():
            row[f"gradient_norm_{name}"] = total / count if count else None
        row |= {"learning_rate": self._learning_rate, "best": progress.best_epoch == epoch}
        progress.rows.append(row)
        self.part = Part()
        return row

    def _batches(self) -> Iterator[tuple[Any, bool]]:
        """The remaining batches of the epoch; sets the generators to their state at this position."""
        epoch, part, rank = self.progress.epoch, self.part, self.processes.rank

        def begin() -> None:
            if part.random is not None:
                set_random_state(part.random)
            elif rank or part.batch:  # own numbers per process, also after a save by other processes
                seed_all(self.seed, epoch, part.batch, rank)

        seed_all(self.seed, epoch)
        self.train.set_epoch(epoch, torch.initial_seed())
        return self.train.batches(part.batch, begin)

    def _update(self, batch: Any, counts: bool) -> Step:
        """Updates the weights with a batch; returns its loss and metrics."""
        stepper, progress, index = self.stepper, self.progress, self.part.batch
        optimizer, scaler = stepper.optimizer, stepper.scaler
        if not (self.model.training and stepper.model.training):
            self.model.train()
        self.where, self.batch = f"epoch {progress.epoch + 1}, batch {index}", batch
        step = stepper.add_gradient(batch, counts, self.model, self.processes)
        self.batch = None  # smaller pieces would not save memory from here on
        checks.choice("monitor", stepper.task.monitor, step.sums)
        scaler.unscale_(optimizer)
        wanted = self.watch and self.watch.wants(progress.epoch, index, self.steps)
        if wanted:
            self.watch.before()
        # By position, not by updates, whose number differs in a fork with other batches or more processes.
        place = progress.epoch + index / self.steps
        norms = clip(stepper.groups, optimizer, step_size(self.config, place, self.steps))
        if not math.isfinite(step.loss):  # the norms are known, so the loss is too
            raise not_finite(f"training loss at {self.where}")
        broken = [name for name, norm in norms.items() if not math.isfinite(norm)]
        if broken and not scaler.is_enabled():  # the scaler itself skips steps that overflow
            raise not_finite(f"gradient of the {broken[0]} weights at {self.where}")
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        progress.updates += 1
        self.part.add(step, counts, norms)
        if wanted and not broken:
            self.watch.after(progress.updates)
        return step

    def _row(self, step: Step) -> dict[str, Any]:
        """The row of the latest update; epochs and steps are counted from 1."""
        return {
            "epoch": self.progress.epoch + 1, "epochs": self.config.epochs,
            "step": self.part.batch, "steps": self.steps, "updates": self.progress.updates,
            "samples": step.count, "loss": float(step.loss), "learning_rate": self._learning_rate,
        }  # fmt: skip

    @contextlib.contextmanager
    def _paused(self) -> Iterator[None]:
        """A context whose time does not count as training time of the epoch."""
        self.part.seconds += time.perf_counter() - self.started
        yield
        self.started = time.perf_counter()

    def _validate(self) -> dict[str, float]:
        """The task's metrics on the validation split; the next epoch seeds the generators again."""
        self.model.eval()
        epoch = f"epoch {self.progress.epoch + 1}"

        def compute(batch: Any) -> Step:
            self.where, self.batch = f"{epoch}, a validation batch", batch
            return joined([step() for step in self.stepper.passes(batch)])

        totals = totals_of(compute, self.validation.batches(), f"{epoch}'s validation ")
        self.where, self.batch = f"the end of {epoch}", None
        return totals.over(self.processes).means()

    @property
    def _learning_rate(self) -> float:
        return self.stepper.optimizer.param_groups[0]["lr"]

    def _out_of_patience(self) -> bool:
        waited = self.progress.epoch - self.progress.best_epoch
        return bool(self.config.patience) and waited >= self.config.patience


def _with_remedies(loop: _Loop, log: Callable[[dict[str, Any]], None]) -> Progress:
    """Runs the loop; if memory runs out, raises an error that says where, and what to do next."""
    try:
        return loop.run(log)
    except (RuntimeError, MemoryError) as error:
        if not ran_out(error):
            raise
        what = words.first_line(error)
    from accelerate.utils.memory import clear_device_cache

    # Outside the handler the error is gone, and with it the frames that hold the computed tensors.
    clear_device_cache(garbage_collection=True)
    n = None if loop.batch is None else samples(loop.batch)
    raise out_of_memory(loop.where, what, loop.config, n and min(n, loop.config.micro_batch or n))
