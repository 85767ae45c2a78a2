"""The loop: epochs of steps, each epoch scored, everything that counts in checkpoints."""

from __future__ import annotations

import contextlib
import copy
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from qnnkit import checks
from qnnkit.checkpoint import Store, own_generators, random_state, seed_all, set_random_state
from qnnkit.checkpoint.file import load_model
from qnnkit.config import TrainingConfig
from qnnkit.tasks import Step, Task
from qnnkit.train.finite import not_finite
from qnnkit.train.groups import Group, optimizer_of, trainable
from qnnkit.train.observer import Observer
from qnnkit.train.processes import Shares, accelerated, summed
from qnnkit.train.recompute import recomputing
from qnnkit.train.schedule import step_size
from qnnkit.train.stop import deferred


@dataclass
class Progress:
    """How far a training has come; kept in every checkpoint."""

    epoch: int = 0
    """Epochs finished."""
    updates: int = 0
    """Optimizer steps taken."""
    best_epoch: int = 0
    best_score: list[float] = field(default_factory=list)
    """(monitored number, minus the loss) of the best epoch on the validation split."""
    seconds: list[float] = field(default_factory=list)
    """Duration of each epoch's training, without validation and writing."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """What was logged of each epoch."""

    @property
    def seconds_per_epoch(self) -> float:
        """Median over the epochs, without the first where there are more: it warms up."""
        return statistics.median(self.seconds[1:] or self.seconds)


def fit(
    model: nn.Module,
    task: Task,
    loaders: dict[str, DataLoader],
    config: TrainingConfig,
    *,
    groups: Sequence[Group] | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    folder: Path | None = None,
    identity: dict[str, Any] | None = None,
    log: Callable[[dict[str, Any]], None] | None = None,
    watch: Observer | None = None,
) -> Progress:
    """Trains `model` in place; afterwards it holds the weights of the best validation epoch.

    With a `folder`, checkpoints go there: one at the end of every epoch, others between as the configuration
    asks, and one when SIGINT or SIGTERM comes, which then do what they always do. A folder that holds some is
    gone on with where they end, in the middle of an epoch too, and on a CPU ends in the same bits.

    Under `accelerate launch` or `notebook_launcher`, n processes with batches of b samples train as one does
    with batches of n b; only the first writes. Their checkpoints serve any number of processes.

    Args:
        model: Any module.
        task: Loss and metrics.
        loaders: "train" and "validation". Before each epoch the generators of Python, NumPy and torch are
            seeded by `seed` and the epoch, and `set_epoch` is called where there is one, so that an epoch's
            order follows from both alone.
        config: Epochs, step sizes, precision and so on.
        groups: Parameters by step size and clipping; all in one by default.
        device: Where to compute.
        seed: Fixes what is drawn while training (order, dropout); the caller's generators are left alone.
        folder: Where checkpoints go.
        identity: Plain values that tell this training from others; a checkpoint of another is not taken.
        log: Called after every epoch with one row of plain numbers.
        watch: Looks at gradients and updates.

    Raises:
        FloatingPointError: The loss or a gradient is not finite; told are the layer, epoch and batch. The
            checkpoints before stay: once the cause is mended, the same call goes on from there.
        ValueError: The precision cannot be had on the device, a loader is empty, or nothing can be trained.
        OSError: A checkpoint cannot be written.
    """
    device = torch.device(device)
    again = recomputing(model) if config.gradient_checkpointing else contextlib.nullcontext()
    with own_generators(), deferred() as stop, again, accelerated(model, device, config) as accelerator:
        loop = _Loop(model, task, loaders, config, groups, accelerator, seed, stop, watch)
        store = Store(folder, identity, config.keep_checkpoints) if folder else None
        return loop.run(store, log or (lambda row: None))


def evaluate(
    model: nn.Module, task: Task, loader: DataLoader, device: torch.device | str = "cpu"
) -> dict[str, float]:
    """The task's numbers on a loader: means over all samples.

    Raises:
        FloatingPointError: One of them is not finite; told are the layer and the batch.
    """
    from accelerate.utils import send_to_device

    model.to(device).eval()
    with own_generators():  # a plain DataLoader draws a number per pass
        return _evaluate(model, lambda batch: task(model, send_to_device(batch, device)), loader).means()


class _Totals:
    """Sums over samples, kept on the device: no wait per batch."""

    def __init__(self, sums: dict[str, torch.Tensor] | None = None, count: float = 0) -> None:
        self.sums, self.count = sums or {}, count

    def add(self, step: Step) -> None:
        self.count += step.count
        for name, value in step.sums.items():
            self.sums[name] = self.sums.get(name, 0) + value

    def over_processes(self, accelerator: Any) -> _Totals:
        """What all processes have added up, the same in each."""
        if accelerator.num_processes == 1:
            return self
        *sums, count = summed(accelerator, [*map(float, self.sums.values()), self.count])
        return _Totals(
            {name: torch.tensor(value) for name, value in zip(self.sums, sums, strict=True)}, count
        )

    def means(self) -> dict[str, float]:
        return {name: float(value) / self.count for name, value in self.sums.items()}


def _evaluate(
    model: nn.Module,
    compute: Callable[[Any], Step],
    batches: Iterable[Any],
    kind: str = "",
    where: str = "",
    own: Callable[[int, int], int] = lambda index, count: count,
) -> _Totals:
    """Sums over batches; `own` says how many samples of a batch count here."""
    totals = _Totals()
    with torch.no_grad():
        for index, batch in enumerate(batches):
            step = compute(batch)
            if own(index, step.count):
                totals.add(step)
        for name, value in totals.sums.items():
            if math.isfinite(value):
                continue
            for index, batch in enumerate(batches):  # again, now that waiting for each is no matter
                if not math.isfinite(compute(batch).sums[name]):
                    raise not_finite(f"{kind}{name}", f"{where}batch {index}", model, compute, batch)
            raise FloatingPointError(f"The sum of the {kind}{name} is not finite, though each batch is.")
    return totals


@dataclass
class _Part:
    """How far an unfinished epoch has come, always between two updates."""

    batch: int = 0
    """Batches done."""
    totals: _Totals = field(default_factory=_Totals)
    norms: dict[str, list[float]] = field(default_factory=dict)
    """Group -> sum and number of its finite gradient norms; a step that a scaler skips has none."""
    seconds: float = 0.0
    random: dict[str, Any] | None = None
    """State of the generators where a resumed epoch goes on; None at its beginning."""
    watched: dict[str, Any] | None = None
    """What the observer had kept where a resumed epoch goes on; None at its beginning."""


class _Loop:
    def __init__(self, model, task, loaders, config, groups, accelerator, seed, stop, watch):
        self.task, self.config, self.accelerator = task, config, accelerator
        self.seed, self.stop, self.watch = seed, stop, watch
        for name in ("train", "validation"):
            checks.positive(f"the number of {name} batches", len(loaders[name]), "Give it data to load.")
        groups = groups or [Group("all", list(model.parameters()), config.learning_rate)]
        self.groups = trainable(groups)
        if not self.groups:
            raise ValueError(
                checks.message(
                    "model", "have a weight to train", "all frozen", "Make a part of it trainable."
                )
            )
        self.rates = [group.learning_rate for group in self.groups]
        optimizer = optimizer_of(self.groups, config)
        optimizer.zero_grad()  # what the caller has left there is not of this training
        self.model, self.optimizer = accelerator.prepare(model, optimizer)
        self.train_loader = Shares(loaders["train"], accelerator)
        self.validation_loader = Shares(loaders["validation"], accelerator)
        self.updates_per_epoch = math.ceil(len(self.train_loader) / config.accumulation)
        self.progress, self.part = Progress(), _Part()
        self.best_weights: dict[str, torch.Tensor] = {}
        self.saved_at, self.owed = time.monotonic(), False

    def run(self, store: Store | None, log: Callable[[dict[str, Any]], None]) -> Progress:
        self.store = store
        if store:
            self._resume(store)
        try:
            while self.progress.epoch < self.config.epochs and not self._out_of_patience():
                row = self._epoch()
                if self.accelerator.is_main_process:
                    log(row)
                    if self.watch:
                        self.watch.end(row["epoch"], self.updates_per_epoch)
                self._end_epoch()
        finally:
            if store:
                store.wait()
        if store:
            self.accelerator.wait_for_everyone()
            if not self.accelerator.is_main_process:
                store.best = None  # which one it is, the files tell
            store.load_best(self._bare())
        else:
            self._bare().load_state_dict(self.best_weights)
        return self.progress

    def _epoch(self) -> dict[str, Any]:
        self.model.train()
        part, batches = self.part, self._batches()
        if self.watch:
            self.watch.load(part.watched)
        self.started = time.perf_counter()
        waiting: list[tuple[int, Any, torch.Tensor]] = []  # of one update: (index, batch, loss)
        for index, batch in enumerate(batches, start=part.batch):
            last = (index + 1) % self.config.accumulation == 0 or index + 1 == len(self.train_loader)
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.model):
                step = self._step(batch)
                own = self.train_loader.own_count(index, step.count)
                together, due, stop = self._agree(own)
                share = own * self.accelerator.num_processes / together
                self.accelerator.backward(step.loss * (share / self._together(index)))
            if own:
                part.totals.add(step)
            waiting.append((index, batch, step.loss.detach()))
            if last:
                self._update(waiting)
                waiting.clear()
                part.batch = index + 1
                if stop:
                    self._save_part()
                    self.stop.now()
                if due:
                    self._save_part()
        train = part.totals.over_processes(self.accelerator).means()  # waits for the device: the whole time
        seconds = part.seconds + time.perf_counter() - self.started
        validation = self._validate()
        self.progress.epoch += 1
        self.progress.seconds.append(seconds)
        self._note_best(validation)
        row = {"epoch": self.progress.epoch, "seconds": seconds}
        row |= {f"train_{name}": value for name, value in train.items()}
        row |= {f"validation_{name}": value for name, value in validation.items()}
        for name, (total, count) in part.norms.items():
            row[f"gradient_norm_{name}"] = total / count if count else None
        row |= {"learning_rate": self.optimizer.param_groups[0]["lr"], "best": self._is_best()}
        self.progress.rows.append(row)
        self.part = _Part()
        return row

    def _batches(self) -> Iterator[Any]:
        """The epoch's batches, from where it stands; the generators are then as they were there."""
        epoch, part, rank = self.progress.epoch, self.part, self.accelerator.process_index
        seed_all(self.seed, epoch)
        self.train_loader.set_epoch(epoch)
        batches, first = iter(self.train_loader), []
        if part.batch < len(self.train_loader):
            for _ in range(part.batch):
                next(batches)
            first = [next(batches)]  # samplers draw the order when they are first asked: before what follows
        if part.random is not None:
            set_random_state(part.random)
        elif rank or part.batch:  # each process draws its own; so does a position that others have saved
            seed_all(self.seed, epoch, part.batch, rank)
        yield from first
        if first:
            yield from batches

    def _step(self, batch: Any) -> Step:
        with self.accelerator.autocast():
            return self.task(self.model, batch)

    def _together(self, index: int) -> int:
        """Batches that share the update of this one; the last of an epoch may be fewer."""
        first = index - index % self.config.accumulation
        return min(self.config.accumulation, len(self.train_loader) - first)

    def _agree(self, own: int) -> tuple[float, bool, bool]:
        """Over all processes: samples in this batch, whether to save after it, whether to stop."""
        due, stop = self._is_due(), bool(self.stop)
        if self.accelerator.num_processes == 1:
            return own, due, stop
        due = due and self.accelerator.is_main_process  # clocks differ: one decides
        together, due_sum, stop_sum = summed(self.accelerator, [own, due, stop])
        return together, bool(due_sum), bool(stop_sum)

    def _is_due(self) -> bool:
        steps, minutes = self.config.save_every_steps, self.config.save_every_minutes
        if self.store is None:
            return False
        self.owed |= bool(steps) and (self.progress.updates + 1) % steps == 0
        self.owed |= bool(minutes) and time.monotonic() - self.saved_at >= 60 * minutes
        return self.owed and not self.store.busy  # a slow disk gets its checkpoint a few steps later

    def _update(self, batches: list[tuple[int, Any, torch.Tensor]]) -> None:
        # By place, not by updates: a fork with other batches, or more processes, has another number of those.
        done = self.part.batch // self.config.accumulation / self.updates_per_epoch
        scale = step_size(self.config, self.progress.epoch + done, self.updates_per_epoch)
        self.accelerator.unscale_gradients()  # once for all groups: a gradient scaler refuses a second time
        place = self.progress.epoch, self.part.batch // self.config.accumulation, self.updates_per_epoch
        watch = self.watch if self.watch and self.watch.wants(*place) else None
        if watch:
            watch.before()
        latest = {}
        for group, rate, parameters in zip(self.groups, self.rates, self.optimizer.param_groups, strict=True):
            parameters["lr"] = rate * scale
            norm = nn.utils.clip_grad_norm_(group.parameters, group.clip_norm or math.inf)
            latest[group.name] = float(norm)
        where = f"epoch {self.progress.epoch + 1}, batch "
        for index, batch, loss in batches:
            if not math.isfinite(loss):  # the norms have been waited for, so this one is there
                raise not_finite("training loss", f"{where}{index}", self._bare(), self._step, batch)
        scaled = self.accelerator.scaler is not None  # a scaler skips steps that overflow by itself
        finite = all(map(math.isfinite, latest.values()))
        if not scaled and not finite:
            worst = next(name for name, norm in latest.items() if not math.isfinite(norm))
            raise FloatingPointError(
                f"The gradient of the {worst} weights is not finite at {where}{batches[-1][0]}. Lower the "
                "learning rate, or set clip_norm and quantum_clip_norm."
            )
        for name, norm in latest.items():
            total, count = self.part.norms.get(name, [0.0, 0])
            self.part.norms[name] = [total + norm, count + 1] if math.isfinite(norm) else [total, count]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.progress.updates += 1
        if watch and finite:
            watch.after(self.progress.updates)

    def _validate(self) -> dict[str, float]:
        self.model.eval()
        self.part.seconds += time.perf_counter() - self.started
        before, alone = random_state(), self.accelerator.num_processes == 1

        def compute(batch: Any) -> Step:
            if self.stop and alone:
                self.started = time.perf_counter()  # validation is no part of an epoch's seconds
                self._save_part(before)
                self.stop.now()
            return self._step(batch)

        where, own = f"epoch {self.progress.epoch + 1}, ", self.validation_loader.own_count
        totals = _evaluate(self._bare(), compute, self.validation_loader, "validation ", where, own)
        return totals.over_processes(self.accelerator).means()

    def _note_best(self, validation: dict[str, float]) -> None:
        score = [validation[self.task.monitor], -validation["loss"]]
        if not self.progress.best_score or score > self.progress.best_score:
            self.progress.best_score, self.progress.best_epoch = score, self.progress.epoch

    def _is_best(self) -> bool:
        return self.progress.best_epoch == self.progress.epoch

    def _out_of_patience(self) -> bool:
        waited = self.progress.epoch - self.progress.best_epoch
        return bool(self.config.patience) and waited >= self.config.patience

    def _bare(self) -> nn.Module:
        return self.accelerator.unwrap_model(self.model)

    def _end_epoch(self) -> None:
        if self.store is None and self._is_best():
            self.best_weights = copy.deepcopy(self._bare().state_dict())
        self._save(self._state(None), best=self._is_best())
        _, _, stop = self._agree(0)
        if stop:
            self.stop.now()

    def _save_part(self, random: dict[str, Any] | None = None) -> None:
        """Writes a checkpoint inside an epoch."""
        part, now = self.part, time.perf_counter()
        part.seconds, self.started = part.seconds + now - self.started, now
        totals = part.totals.over_processes(self.accelerator)
        state = self._state(random)
        state["part"] = {
            "batch": part.batch,
            "sums": totals.sums,
            "count": totals.count,
            "norms": part.norms,
            "seconds": part.seconds,
            "loader": self._signature(),
            "watched": self.watch.state() if self.watch else None,
        }
        self._save(state)

    def _state(self, random: dict[str, Any] | None) -> dict[str, Any]:
        own = random or random_state()
        if self.accelerator.num_processes > 1:
            from accelerate.utils import gather_object

            states = gather_object([own])
        else:
            states = [own]
        scaler = self.accelerator.scaler
        return {
            "model": self._bare().state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "optimizer_name": self.config.optimizer,
            "scaler": scaler.state_dict() if scaler is not None else None,
            "progress": vars(self.progress),  # the schedule is a function of its updates
            "part": None,
            "random": states,
        }

    def _signature(self) -> list[int | None]:
        """What must be equal for a position in an epoch to mean the same samples and updates."""
        return [*self.train_loader.signature(), self.config.accumulation]

    def _save(self, state: dict[str, Any], best: bool = False) -> None:
        if self.store is not None and self.accelerator.is_main_process:
            self.store.save(self.progress.updates, state, best=best)
        self.saved_at, self.owed = time.monotonic(), False

    def _resume(self, store: Store) -> None:
        if self.accelerator.is_main_process:
            store.clear_drafts()
        state = store.restore()
        if state is None:
            return
        load_model(store.folder, self._bare(), state["model"])
        if state["optimizer_name"] == self.config.optimizer:
            groups = self.optimizer.state_dict()["param_groups"]  # settings are the configuration's
            for group, saved in zip(groups, state["optimizer"]["param_groups"], strict=True):
                group["lr"] = saved["lr"]
            self.optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
        if state["scaler"] and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.progress = Progress(**state["progress"])
        if store.best_lost and self.progress.rows:  # its own weights stand for the best
            last = self.progress.rows[-1]
            score = [last[f"validation_{self.task.monitor}"], -last["validation_loss"]]
            self.progress.best_score, self.progress.best_epoch = score, last["epoch"]
        self._resume_part(state)

    def _resume_part(self, state: dict[str, Any]) -> None:
        """Goes on inside the epoch, if a position in it still means the same samples."""
        part, rank = state["part"], self.accelerator.process_index
        if part is None or part["loader"] != self._signature():
            return
        random = state["random"][rank] if len(state["random"]) == self.accelerator.num_processes else None
        totals = _Totals()
        if rank == 0:
            sums = {name: value.to(self.accelerator.device) for name, value in part["sums"].items()}
            totals = _Totals(sums, part["count"])
        else:
            totals = _Totals({name: torch.zeros(()) for name in part["sums"]})
        watched = part.get("watched")  # checkpoints of earlier versions have none
        self.part = _Part(part["batch"], totals, part["norms"], part["seconds"], random, watched)
