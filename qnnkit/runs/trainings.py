"""How the nets of a run are trained: what `train.fit` is given, and the rows and sentences it leaves."""

from __future__ import annotations

import contextlib
import inspect
import math
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import device, gradients, layers, measure, recipes, tasks, train, words, workspace
from qnnkit.checkpoint import Store, own_generators, seed_all, weights
from qnnkit.data import Splits
from qnnkit.data.splits import SPLITS
from qnnkit.measure import Placement
from qnnkit.models.causal_lm import in_four_bits
from qnnkit.runs.folder import Run
from qnnkit.runs.lock import alone, mirrored
from qnnkit.runs.nets import build, seen_by
from qnnkit.runs.placing import placed
from qnnkit.runs.rows import number, trainings
from qnnkit.runs.trackers import tracked
from qnnkit.train.out_of_memory import out_of_memory, ran_out
from qnnkit.train.processes import is_main, n_processes, wait_for_all

EVERY = 5.0
"""Seconds between two rows of a training, at least."""


class Stopped(KeyboardInterrupt):
    """A person has stopped a training: a notebook shows the sentence, and nothing of where it was stopped."""

    def _render_traceback_(self) -> list[str]:  # which IPython asks for
        return [str(self)]


class Training:
    """The training of one net of a run from one seed; `training` gives these.

    Example:
        ::

            with runs.training(run) as untrained:
                for one in untrained:
                    model = runs.build(run, one.net, one.seed)
                    loaders, kept = one.prepare(model)
                    progress = train.fit(model, run.task, loaders, one.config, **kept)
                    one.test(model, progress)

    Rows of metrics.jsonl are "begin", "step" every few seconds, "epoch", "warning" and "test", the last; of
    several processes, the first writes them. A disk that fails "begin", "step" or "warning" stops nothing.
    """

    def __init__(
        self, run: Run, net: str, seed: int, place: torch.device, on_row: Any = None, on_warning: Any = None
    ):
        measure.reset_peak(place)
        self.run, self.net, self.seed, self.place, self.main = run, net, seed, place, is_main()
        self.config, self.whose = run.config.of_net(net), {"net": net, "seed": seed}
        self.on_row, self.on_warning = on_row or (lambda row: None), on_warning or (lambda sentence: None)
        self.warned: set[str] = set()
        rows = [row for row in run.rows("metrics") if self.whose.items() <= row.items()] if self.main else []
        same = [row for row in rows if row.get("device") == str(place)]
        self.peak = max((number(row, "peak_memory") or 0 for row in same), default=0)
        self.samples, self.since = 0, -math.inf
        # At once: the first update may be a minute away.
        self._timed("begin", counted=getattr(run.task, "counted", "samples"))

    def prepare(self, model: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
        """What `train.fit` is given to train `model`, an untrained net, such that the run keeps it all.

        Returns:
            Loaders "train", "validation" and "test"; keyword arguments: where to compute, folder and
            identity of the checkpoints, groups of parameters, and what is called with rows and warnings.
        """
        run, config, net, seed = self.run, self.config, self.net, self.seed
        folder, identity = workspace.make_folder(run.checkpoints(net, seed)), run.identity(net, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # `fit` says what is damaged
            begun = Store(folder, identity).restore()
        if begun is not None:
            weights.load(model, begun["model"])  # frozen weights count from here on
        self.splits: Splits = seen_by(run, model, self.place)
        self.loaders = {
            split: self.splits.batches(split, config.batch_size, shuffle=split == "train", seed=seed)
            for split in SPLITS
        }
        groups, watch = recipes.parameter_groups(model, config), None
        if n := config.gradient_samples:
            watch = gradients.Watch(model, groups, per_epoch=n, log=self._gradients)
        return self.loaders, {
            "groups": groups,
            "device": self.place,
            "seed": seed,
            "folder": folder,
            "identity": identity,
            "log": self._epoch,
            "watch": watch,
            "on_update": self._update,
        }

    def test(self, model: nn.Module, progress: train.Progress) -> dict[str, Any]:
        """Tests a net that `train.fit` has trained; adds the final row to metrics.jsonl and returns it."""
        run = self.run
        loader, size = self.loaders["test"], run.config.micro_batch
        with own_generators():
            seed_all(self.seed, "test")  # of circuits with shots, whatever ran before
            found = tested(model, run.task, loader, self.splits, self.place, size)
        final = {"event": "test", **self.whose, **_final(run, model, progress, found)}
        final |= {"peak_memory": max(self.peak, measure.peak_on(self.place)), "peak_ram": measure.peak()}
        if self.main:
            whose = {"event": "epoch", **self.whose}
            there = {row["epoch"] for row in run.rows("metrics") if whose.items() <= row.items()}
            for row in progress.rows:  # a checkpoint may have what the file has lost
                if row["epoch"] not in there:
                    run.log("metrics", whose | row | _speed(run, row["seconds"]))
            run.log("metrics", final)
        return final

    # --- called by `train.fit` ----------------------------------------------------------------------------

    def _update(self, row: dict[str, Any]) -> None:
        """Called after every update; most calls write nothing."""
        if not self.main:
            return
        row = dict(row)
        self.samples += row.pop("samples")
        now = time.monotonic()
        if now - self.since < EVERY:
            return
        row["loss"] = row["loss"] if math.isfinite(row["loss"]) else None
        per_second = n_processes() * self.samples / (now - self.since)  # 0 at first
        self.samples, self.since = 0, now
        self.on_row(self._timed("step", **row, per_second=per_second or None))

    def _epoch(self, row: dict[str, Any]) -> None:
        """Adds what an epoch came to."""
        if self.main:
            row = {"event": "epoch", **self.whose, **row, **_speed(self.run, row["seconds"])}
            self.run.log("metrics", row)
            self.on_row(row)

    def _gradients(self, row: dict[str, Any]) -> None:
        """Adds the gradients of an epoch, and warns of each kind of fault when it is first seen."""
        self.run.log("gradients", {"event": "epoch", **self.whose, **row})
        for sentence in row["warnings"]:
            if (fault := sentence.split(":")[0]) not in self.warned:
                self.warned.add(fault)
                self._timed("warning", of="gradients", sentence=sentence)
                if self.main:
                    self.on_warning(f"{self.net}, seed {self.seed}, epoch {row['epoch']}: {sentence}")

    def _timed(self, event: str, **facts: Any) -> dict[str, Any]:
        """Adds a row that has the time and what memory is used."""
        row = {"event": event, **self.whose, "time": time.time(), "device": str(self.place), **facts}
        row["memory"] = measure.resident()  # before its peak, which is never less
        self.peak = row["peak_memory"] = max(self.peak, measure.peak_on(self.place))
        if self.place.type == "cuda":
            row["device_memory"] = torch.cuda.memory_reserved(self.place)
        elif self.place.type == "mps":
            row["device_memory"] = torch.mps.driver_allocated_memory()
        if self.main:
            with contextlib.suppress(OSError):
                self.run.log("metrics", row)
        return row


def _speed(run: Run, seconds: float) -> dict[str, float]:
    """Tokens of an epoch that are learnt from per second, where the data are tokens."""
    tokens = getattr(run.splits.train, "n_predicted", None)
    return {} if tokens is None else {"tokens_per_second": tokens / seconds}


@contextlib.contextmanager
def training(
    run: Run,
    on_row: Callable[[dict[str, Any]], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> Iterator[Iterator[Training]]:
    """Holds a run's folder while its nets are trained, on its device and threads; gives the untrained ones.

    Under `accelerate launch` every process enters it; the first one writes.

    Args:
        run: The run; its metrics.jsonl gets the rows, its folder the checkpoints.
        on_row: Called with each row: "step" every 5 s of training, and "epoch".
        on_warning: Called with a sentence as soon as gradients say that a circuit will not learn, once for
            each kind of fault of a net and seed; gradients.jsonl holds the warnings of every epoch.

    Raises:
        BlockingIOError: Another process is training this run.
        Stopped: A person has stopped it (Ctrl-C, or a notebook's stop button); a KeyboardInterrupt.
        OutOfMemory: Memory ran out, in an epoch or outside of them; the message names the next remedy.
    """
    finished = run.tested()
    wait_for_all()  # nobody writes before all have read
    with contextlib.ExitStack() as work:
        if is_main():
            work.enter_context(alone(run.folder, "train"))
            work.enter_context(mirrored(run.folder))
        where = placed(run, locked=True)
        if is_main():
            _note(run, where, on_warning)
        config = run.config
        about = config.title, run.folder.name, run.provenance.get("begun"), config.flat()
        track = work.enter_context(tracked(config.trackers, *about))

        def note(row: dict[str, Any]) -> None:
            track(row, row["updates"], f"{row['net']}/seed{row['seed']}")
            if on_row:
                on_row(row)

        begun: list[Training] = []

        def untrained() -> Iterator[Training]:
            for seed in run.seeds:
                for net in run.nets:
                    if (net, seed) not in finished:
                        begun[:] = [Training(run, net, seed, device.choose(where.device), note, on_warning)]
                        yield begun[0]

        work.enter_context(measure.threads(where.threads))
        work.enter_context(stopping(run, "03_train"))
        try:
            yield untrained()
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, train.OutOfMemory) or not ran_out(error) or not begun:
                raise
            place = f"net {begun[0].net}, seed {begun[0].seed}, before or after its epochs"
            raise out_of_memory(place, words.first_line(error), config) from None


def train_all(
    run: Run,
    on_row: Callable[[dict[str, Any]], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Trains what is not trained yet; the final row of each net and seed, those finished before first.

    The loop that 03_train shows, as a function; arguments and errors are those of `training`, but that
    `on_row` gets each final row, "test", too.
    """
    with training(run, on_row, on_warning) as untrained:
        finals = list(run.tested().values())
        for one in untrained:
            finals.append(_train(one))
            if on_row and is_main():
                on_row(finals[-1])
    return finals


def _train(one: Training) -> dict[str, Any]:
    run, model = one.run, build(one.run, one.net, one.seed)
    loaders, kept = one.prepare(model)
    return one.test(model, train.fit(model, run.task, loaders, one.config, **kept))


def _note(run: Run, where: Placement, on_warning: Callable[[str], None] | None) -> None:
    """What the run's provenance says of data and machine."""
    facts = {name: getattr(where, name) for name in ("backend", "threads", "sentence")}
    facts |= {"processes": n_processes(), "precision": run.config.precision}
    notes = list(run.splits.notes)
    if run.config.of_kit("four_bit", False):
        notes.append(in_four_bits(str(run.config.of_kit("pretrained")), where.device)[1])
        if on_warning:
            on_warning(notes[-1])
    facts_of_data = {"data": run.splits.fingerprint(), "notes": notes}
    facts_of_data["samples"] = {name: len(run.splits.split(name)) for name in SPLITS}
    run.note_provenance(**facts_of_data, device=where.device, trained=facts)


@contextlib.contextmanager
def stopping(run: Run, work: str) -> Iterator[None]:
    """Says where a person has stopped the work on a run: by Ctrl-C, as `Stopped`, or by another signal."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as ended:
        begun = [(row["net"], row["seed"]) for row in run.rows("metrics") if row["event"] == "begin"]
        where = f"Stopped in {work}. Run this again to go on from here."
        if work == "03_train" and begun and begun[-1] not in run.tested():
            (net, seed), rows = begun[-1], trainings(run.rows("metrics"), "epoch", None)
            done = [row["epoch"] for row in rows if (row["net"], row["seed"]) == begun[-1]]
            where = f"Stopped in net {net}, seed {seed}, after {max(done, default=0)} of {run.config.epochs} "
            where += "epochs. Run this again to go on from here: nothing is trained twice."
        if isinstance(ended, KeyboardInterrupt):
            raise Stopped(where) from None
        ended.add_note(where)
        raise


def _final(run: Run, model: nn.Module, progress: train.Progress, test: dict[str, float]) -> dict[str, Any]:
    """What a trained net came to."""
    score = run.task.score
    [best] = [row for row in progress.rows if row["epoch"] == progress.best_epoch]
    watched = f"validation_{score.on_validation}"
    found = {
        "epochs": run.config.epochs,
        "epochs_trained": progress.epoch,
        "best_epoch": progress.best_epoch,
        watched: best[watched],
        **{f"test_{name}": value for name, value in test.items()},
        "n_test": len(run.splits.test),
        **layers.count_parameters(model),
        "circuits_per_image": layers.circuits_per_image(model, run.splits.example()),
        "seconds_per_epoch": progress.seconds_per_epoch,
        **_speed(run, progress.seconds_per_epoch),
    }
    return found | ({"micro_batch": run.config.micro_batch} if run.config.micro_batch else {})


def tested(
    model: nn.Module,
    task: tasks.Task,
    loader: Any,
    splits: Splits,
    place: torch.device,
    micro_batch: int | None,
) -> dict[str, float]:
    """The task's numbers on the test split; `judge` is given what the same pass gave."""
    judge, seen = getattr(task, "judge", lambda: {}), []
    with contextlib.ExitStack() as stack:
        if "outputs" in inspect.signature(judge).parameters:

            def note(module: nn.Module, given: Any, outputs: Tensor) -> None:
                seen.append(outputs.detach().cpu())

            stack.enter_context(model.register_forward_hook(note))
        means = train.evaluate(model, task, loader, place, micro_batch=micro_batch)
    offered = {"outputs": torch.cat(seen)} if seen else {}
    return tasks.asked(judge, **offered, splits=splits, net=model, means=means) | means
