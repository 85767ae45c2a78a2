"""The loop: epochs of steps, each epoch scored, everything that counts in checkpoints."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import DataLoader

from qnnkit import checks, workspace
from qnnkit.checkpoint import Store, own_generators, random_state, seed_all, set_random_state, weights
from qnnkit.settings import Settings
from qnnkit.tasks import Step, Task
from qnnkit.train import memory
from qnnkit.train.evaluation import totals_of
from qnnkit.train.finite import not_finite
from qnnkit.train.groups import Group, optimizer_of, trainable
from qnnkit.train.observer import Observer
from qnnkit.train.portions import Portions, joined, samples
from qnnkit.train.processes import Shares, accelerated, summed
from qnnkit.train.progress import Moment, Part, Progress, require_fit
from qnnkit.train.recompute import recomputing
from qnnkit.train.schedule import step_size
from qnnkit.train.stop import deferred
from qnnkit.train.totals import Counted, Totals


def fit(
    model: nn.Module,
    task: Task,
    loaders: dict[str, DataLoader],
    config: Settings,
    *,
    groups: Sequence[Group] | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    folder: Path | None = None,
    identity: dict[str, Any] | None = None,
    log: Callable[[dict[str, Any]], None] | None = None,
    watch: Observer | None = None,
    on_update: Callable[[Moment], None] | None = None,
    tell: Callable[[str], None] | None = None,
    built: weights.Built | None = None,
) -> Progress:
    """Trains `model` in place; afterwards it holds the weights of the best validation epoch.

    With a `folder`, checkpoints go there: one at the end of every epoch, others between as the configuration
    asks, and one when SIGINT or SIGTERM comes, which then do what they always do. A folder that holds some is
    gone on with where they end, in the middle of an epoch too, and on a CPU ends in the same bits.

    Under `accelerate launch` or `notebook_launcher`, n processes with batches of b samples train as one does
    with batches of n b; only the first writes. Their checkpoints serve any number of processes.

    The gradient of an update is that of the mean over all that its batches count (`Step.count`: samples, or
    tokens), on however many processes: a batch that counts half as many weighs half as much.

    Where memory runs out and the configuration says `on_oom="shrink"`, the update begins anew with each batch
    computed in 2, 4, 8, ... parts one after the other, and so does every batch from then on, in a training
    that is gone on with too. The update is the same to rounding; only what looks at a batch as a whole (batch
    normalisation, a contrastive loss) sees the parts, and random numbers (dropout, augmentation) are others.
    Attempts that failed leave no trace in these and in running statistics. Where there is batch normalisation
    to train, parts keep two samples at least.

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
        on_update: Called after every update, with what it was.
        tell: Called with a sentence on what whoever trains should know.
        built: How whoever resumes has frozen weights anew, see `checkpoint.weights.kept`; None keeps them.

    Raises:
        OutOfMemory: Memory ran out; told are where, and the next remedy. As above, the same call goes on.
        FloatingPointError: The loss or a gradient is not finite; told are the layer, epoch and batch. The
            checkpoints before stay: once the cause is mended, the same call goes on from there.
        ValueError: The precision cannot be had on the device, a loader is empty, or nothing can be trained;
            or several processes go on with a training that computes batches in parts.
        OSError: A checkpoint cannot be written.
    """
    device = torch.device(device)
    again = recomputing(model) if config.gradient_checkpointing else contextlib.nullcontext()
    with own_generators(), deferred() as stop, again, accelerated(model, device, config) as accelerator:
        tell = tell or (lambda sentence: None)
        loop = _Loop(model, task, loaders, config, groups, accelerator, seed, stop, watch, on_update, tell)
        loop.built = built
        store = Store(folder, identity, config.keep_checkpoints) if folder else None
        return loop.run(store, log or (lambda row: None))


class _Done(NamedTuple):
    """A batch whose gradient has been added."""

    index: int
    batch: Any
    step: Step
    own: bool
    """Whether it counts in this process."""
    random: dict[str, Any] | None
    """The generators before it, where it may be computed again."""


class _Loop:
    def __init__(self, model, task, loaders, config, groups, accelerator, seed, stop, watch, on_update, tell):
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
        self.model, self.optimizer = model, optimizer
        self.train_loader = Shares(loaders["train"], accelerator)
        self.validation_loader = Shares(loaders["validation"], accelerator)
        processes = accelerator.num_processes
        if config.on_oom == "shrink" and processes > 1:
            step = "Use on_oom=stop and a smaller batch_size, or one process."
            rule = f"be stop where {processes} processes train together"
            raise ValueError(checks.message("on_oom", rule, config.on_oom, step))
        self.updates_per_epoch = math.ceil(len(self.train_loader) / config.accumulation)
        self.progress, self.part = Progress(), Part()
        self.best_weights: dict[str, torch.Tensor] = {}
        self.saved_at, self.owed = time.monotonic(), False
        self.counted, self.on_update = Counted(), on_update
        self.built: weights.Built | None = None
        shrinks = config.on_oom == "shrink"
        self.portions = Portions(self.progress, shrinks, model, accelerator.device, tell)

    def run(self, store: Store | None, log: Callable[[dict[str, Any]], None]) -> Progress:
        device, processes = self.accelerator.device, self.accelerator.num_processes

        def told() -> str:
            n = 0 if self.portions.batch is None else samples(self.portions.batch)
            return memory.stopped(self.portions.where, n, self.config, device, processes)

        return memory.telling(lambda: self._run(store, log), told, device)

    def _run(self, store: Store | None, log: Callable[[dict[str, Any]], None]) -> Progress:
        self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)  # to the device
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
            store.load_best(self._bare(), self.built)
        else:
            weights.load(Path("best"), self._bare(), self.best_weights)
        return self.progress

    def _epoch(self) -> dict[str, Any]:
        self.model.train()
        part, batches = self.part, self._batches()
        if self.watch:
            self.watch.load(part.watched)
        self.started = self.tick = time.perf_counter()
        done: list[_Done] = []  # of one update
        for index, batch in enumerate(batches, start=part.batch):
            last = (index + 1) % self.config.accumulation == 0 or index + 1 == len(self.train_loader)
            with contextlib.nullcontext() if last else self.accelerator.no_sync(self.model):
                due, stop = self._add_gradient(done, index, batch)
            if last:
                loss = self._update(done)
                part.batch = index + 1
                self._tell_update(done, loss)
                done.clear()
                if stop:
                    self._save_part()
                    self.stop.now()
                if due:
                    self._save_part()
        self.portions.at(f"the end of epoch {self.progress.epoch + 1}")
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
        self.part = Part()
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

    def _add_gradient(self, done: list[_Done], index: int, batch: Any) -> tuple[bool, bool]:
        """Adds the gradient of a batch to those of its update; says whether to save after it, and to stop.

        Where memory runs out, the update begins anew: part of this gradient may have been added already, and
        running statistics and random numbers have moved on.
        """
        if not done:
            self.portions.begin()
        random = random_state() if self.portions.may_shrink else None
        batches = [*((each.index, each.batch, each.random) for each in done), (index, batch, random)]
        todo, again = batches[-1:], False
        while True:
            try:
                for index, batch, random in todo:
                    self.portions.at(f"epoch {self.progress.epoch + 1}, batch {index}", batch)
                    if again and random:
                        set_random_state(random)
                    step, own, due, stop = self._gradient(index, batch)
                    done.append(_Done(index, batch, step, own, random))
                return due, stop
            except (RuntimeError, MemoryError) as error:
                if not self.portions.shrink(error):
                    raise
            self.optimizer.zero_grad()
            self.counted = Counted()
            done.clear()
            self.portions.back()
            todo, again = batches, True
            memory.release(self.accelerator.device)

    def _gradient(self, index: int, batch: Any) -> tuple[Step, bool, bool, bool]:
        """What a batch gives, its gradient added; whether it counts here, whether to save and to stop."""
        steps, counts, due, stop = [], False, False, False
        parts = self.portions.of(batch)
        for part in parts:
            step = self._step(part)
            own = self.train_loader.own_count(index, step.count)
            together, due, stop = self._agree(own)
            weight = own * self.counted.weight(together, len(parts) * self._together(index))
            self.accelerator.backward(step.loss * (weight * self.accelerator.num_processes))
            steps.append(joined([step]))
            counts |= bool(own)
        return joined(steps), counts, due, stop

    def _step(self, batch: Any) -> Step:
        with self.accelerator.autocast():
            return self.task(self.model, batch)

    def _together(self, index: int) -> int:
        """Batches that share the update of this one; the last of an epoch may be fewer."""
        first = index - index % self.config.accumulation
        return min(self.config.accumulation, len(self.train_loader) - first)

    def _agree(self, own: int) -> tuple[float, bool, bool]:
        """Over all processes: what this batch counts, whether to save after it, whether to stop."""
        due = self._is_due() and self.accelerator.is_main_process  # clocks differ: one decides
        together, due, stop = summed(self.accelerator, [own, due, bool(self.stop)])
        return together, bool(due), bool(stop)

    def _is_due(self) -> bool:
        steps, minutes = self.config.save_every_steps, self.config.save_every_minutes
        if self.store is None:
            return False
        self.owed |= bool(steps) and (self.progress.updates + 1) % steps == 0
        self.owed |= bool(minutes) and time.monotonic() - self.saved_at >= 60 * minutes
        return self.owed and not self.store.busy  # a slow disk gets its checkpoint a few steps later

    def _update(self, done: list[_Done]) -> float:
        """Moves the weights by the gradients that were added; returns the mean loss of their samples."""
        # By place, not by updates: a fork with other batches, or more processes, has another number of those.
        share = self.part.batch // self.config.accumulation / self.updates_per_epoch
        scale = step_size(self.config, self.progress.epoch + share, self.updates_per_epoch)
        self.accelerator.unscale_gradients()  # once for all groups: a gradient scaler refuses a second time
        self.counted.mend(self.model.parameters())
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
        losses = [float(each.step.loss) for each in done]  # the norms have been waited for: these are there
        for each, loss in zip(done, losses, strict=True):
            if not math.isfinite(loss):
                compute = functools.partial(self.portions.measured, self._step)
                what, place = "training loss", f"{where}{each.index}"
                raise not_finite(what, place, self._bare(), compute, each.batch)
        scaled = self.accelerator.scaler is not None  # a scaler skips steps that overflow by itself
        finite = all(map(math.isfinite, latest.values()))
        if not scaled and not finite:
            worst = next(name for name, norm in latest.items() if not math.isfinite(norm))
            raise FloatingPointError(
                f"The gradient of the {worst} weights is not finite at {where}{done[-1].index}. Lower the "
                "learning rate, or set clip_norm and quantum_clip_norm."
            )
        for name, norm in latest.items():
            total, count = self.part.norms.get(name, [0.0, 0])
            self.part.norms[name] = [total + norm, count + 1] if math.isfinite(norm) else [total, count]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.progress.updates += 1
        for each in done:
            if each.own:
                self.part.totals.add(each.step)
        if watch and finite:
            watch.after(self.progress.updates)
        counts = [each.step.count for each in done]
        return sum(map(operator.mul, losses, counts)) / sum(counts)

    def _tell_update(self, done: list[_Done], loss: float) -> None:
        seconds, self.tick = time.perf_counter() - self.tick, time.perf_counter()
        if self.on_update is None:
            return
        moment = Moment(
            epoch=self.progress.epoch + 1,
            epochs=self.config.epochs,
            step=math.ceil(self.part.batch / self.config.accumulation),
            steps=self.updates_per_epoch,
            updates=self.progress.updates,
            samples=sum(each.step.count for each in done),
            loss=loss,
            learning_rate=self.optimizer.param_groups[0]["lr"],
            seconds=seconds,
            at_once=self.progress.at_once,
        )
        self.on_update(moment)
        self.tick = time.perf_counter()

    def _validate(self) -> dict[str, float]:
        self.model.eval()
        self.part.seconds += time.perf_counter() - self.started
        before, alone = random_state(), self.accelerator.num_processes == 1

        def compute(batch: Any) -> Step:
            if self.stop and alone:
                self.started = time.perf_counter()  # validation is no part of an epoch's seconds
                self._save_part(before)
                self.stop.now()
            self.portions.at(f"{where}a validation batch", batch)
            return self.portions.measured(self._step, batch)

        where, own = f"epoch {self.progress.epoch + 1}, ", self.validation_loader.own_count
        totals = totals_of(self._bare(), compute, self.validation_loader, "validation ", where, own)
        self.portions.at(f"the end of epoch {self.progress.epoch + 1}")
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
            self.best_weights = copy.deepcopy(weights.kept(self._bare()))
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
        self.tick = time.perf_counter()

    def _state(self, random: dict[str, Any] | None) -> dict[str, Any]:
        own = random or random_state()
        if self.accelerator.num_processes > 1:
            from accelerate.utils import gather_object

            states = gather_object([own])
        else:
            states = [own]
        scaler = self.accelerator.scaler
        return {
            "model": weights.kept(self._bare(), self.built),
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
            self.store.save(state, best=best)
        self.saved_at, self.owed = time.monotonic(), False

    def _resume(self, store: Store) -> None:
        if self.accelerator.is_main_process:
            workspace.clear_drafts(store.folder)
        to = self._bare(), self.optimizer, self.config.optimizer
        if (state := store.restore(lambda state: require_fit(state, *to))) is None:
            return
        progress = Progress(**state["progress"])
        processes = self.accelerator.num_processes
        if progress.at_once and processes > 1:  # they would disagree on the number of parts, and wait forever
            rule = "be 1 where batches are computed in parts since memory ran out"
            step = "Go on with one process, or in another run_dir with a smaller batch_size."
            raise ValueError(checks.message("processes", rule, processes, step))
        weights.load(store.folder, self._bare(), state["model"])
        if state["optimizer_name"] == self.config.optimizer:
            groups = self.optimizer.state_dict()["param_groups"]  # settings are the configuration's
            for group, saved in zip(groups, state["optimizer"]["param_groups"], strict=True):
                group["lr"] = saved["lr"]
            self.optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
        if state["scaler"] and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])
        self.progress = self.portions.progress = progress
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
        totals = Totals({name: torch.zeros(()) for name in part["sums"]})
        if rank == 0:
            sums = {name: value.to(self.accelerator.device) for name, value in part["sums"].items()}
            totals = Totals(sums, part["count"])
        self.part = Part(part["batch"], totals, part["norms"], part["seconds"], random, part["watched"])
