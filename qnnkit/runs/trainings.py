"""Trains the nets of a run with `train.fit`; writes its rows, and sends them to trackers."""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from qnnkit import device, gradients, layers, measure, recipes, tasks, train, words, workspace
from qnnkit.checkpoint import Store, own_generators, seed_all, weights
from qnnkit.data import Splits
from qnnkit.data.splits import SPLITS
from qnnkit.measure import Placement
from qnnkit.models.causal_lm import in_four_bits
from qnnkit.runs.folder import Run
from qnnkit.runs.lock import alone, mirrored
from qnnkit.runs.nets import build, placed, seen_by
from qnnkit.runs.rows import number
from qnnkit.runs.state import look
from qnnkit.train.evaluation import not_finite
from qnnkit.train.processes import is_main, n_processes, wait_for_all

EVERY = 5.0
"""Least number of seconds between two "step" rows of a training."""
END = 10.0
"""Most seconds that the end of a training waits for its trackers."""


class Stopped(KeyboardInterrupt):
    """The user stopped a training. A notebook shows its message without a traceback."""

    def _render_traceback_(self) -> list[str]:  # which IPython asks for
        return [str(self)]


class Training:
    """The training of one net of a run from one seed; `training` yields these.

    Example:
        ::

            with runs.training(run) as untrained:
                for one in untrained:
                    model = runs.build(run, one.net, one.seed)
                    loaders, options = one.prepare(model)
                    progress = train.fit(model, run.task, loaders, one.config, **options)
                    one.test(model, progress)

    The rows of metrics.jsonl are "begin", "step" every few seconds, "epoch", "warning" and, last, "test"; of
    several processes, the first writes them. If "begin", "step" or "warning" cannot be written, the training
    continues.

    Attributes:
        net: Name of the net.
        seed: Its seed.
        config: The run's settings, with the entries of `net_settings` for this net.
        place: The device on which it trains.
    """

    def __init__(self, run: Run, net: str, seed: int, place: torch.device, on_row: Any = None):
        measure.reset_peak(place)
        self.run, self.net, self.seed, self.place, self.main = run, net, seed, place, is_main()
        self.config, self.whose = run.config.of_net(net), {"net": net, "seed": seed}
        self.on_row, self.warned = on_row or (lambda row: None), set[str]()
        rows, same = run.rows("metrics") if self.main else [], {**self.whose, "device": str(place)}.items()
        self.peak = max((row["peak_memory"] for row in rows if same <= row.items()), default=0)
        self.samples, self.since = 0, -math.inf
        self._timed("begin")  # at once, because the first update may take a minute

    def prepare(self, model: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
        """Returns arguments of `train.fit` for `model`, an untrained net; the run's folder gets the records.

        Returns:
            Loaders "train", "validation" and "test"; keyword arguments: device, folder and identity of the
            checkpoints, parameter groups, and callbacks for rows and gradients.
        """
        run, config, net, seed = self.run, self.config, self.net, self.seed
        folder, identity = workspace.make_folder(run.checkpoints(net, seed)), run.identity(net, seed)
        with warnings.catch_warnings(action="ignore"):  # `fit` warns of damaged checkpoints
            begun = Store(folder, identity).restore()
        if begun is not None:
            weights.load(model, begun["model"])  # features below are computed by its frozen weights
        self.splits: Splits = seen_by(run, model, self.place, seed)
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
        run, splits = self.run, self.run.splits_of(self.seed)
        loader, size = self.loaders["test"], run.config.micro_batch
        # A task may read data by itself, as `Music` does.
        task = run.recipe.task(run.config_of(self.seed)) if run.config.vary_split else run.task
        with own_generators():
            seed_all(self.seed, "test")  # the same shots, whatever ran before
            values = tested(model, task, loader, self.splits, self.place, size)
        [best] = [row for row in progress.rows if row["epoch"] == progress.best_epoch]
        watched = f"validation_{run.task.score.on_validation}"
        final = {
            **{"event": "test", **self.whose, "epochs": run.config.epochs, watched: best[watched]},
            "epochs_trained": progress.epoch,
            "best_epoch": progress.best_epoch,
            **{f"test_{name}": value for name, value in values.items()},
            "n_test": len(splits.test),
            **layers.count_parameters(model),
            "circuits_per_image": layers.circuits_per_image(model, splits.example()),
            "seconds_per_epoch": progress.seconds_per_epoch,
            "peak_memory": max(self.peak, measure.peak_on(self.place)),
        }
        if run.config.vary_split:
            final |= {"split_seed": run.split_seed(self.seed), "n_train": len(splits.train)}
            final["data"] = splits.fingerprint()
        if self.main:
            run.log("metrics", final)
        return final

    # --- called by `train.fit` ----------------------------------------------------------------------------

    def _update(self, row: dict[str, Any]) -> None:
        """Adds a "step" row, if the last one is `EVERY` seconds old; called after every update."""
        row = dict(row)
        self.samples += row.pop("samples")
        now = time.monotonic()
        if now - self.since < EVERY:
            return
        row["loss"] = row["loss"] if math.isfinite(row["loss"]) else None
        per_second = n_processes() * self.samples / (now - self.since)  # 0 at first
        self.samples, self.since = 0, now
        self._timed("step", **row, per_second=per_second or None)

    def _epoch(self, row: dict[str, Any]) -> None:
        """Adds an "epoch" row."""
        self._add({"event": "epoch", **self.whose, **row})

    def _gradients(self, row: dict[str, Any]) -> None:
        """Adds the gradients of an epoch, and a warning for each kind of fault when it first occurs."""
        self.run.log("gradients", {"event": "epoch", **self.whose, **row})
        for sentence in row["warnings"]:
            if (fault := sentence.split(":")[0]) not in self.warned:
                self.warned.add(fault)
                self._timed("warning", of="gradients", epoch=row["epoch"], sentence=sentence)

    def _timed(self, event: str, **facts: Any) -> None:
        """Adds a row with the time and the peak memory."""
        self.peak = max(self.peak, measure.peak_on(self.place))
        row = {"event": event, **self.whose, "time": time.time(), "device": str(self.place), **facts}
        with contextlib.suppress(OSError):
            self._add(row | {"peak_memory": self.peak})

    def _add(self, row: dict[str, Any]) -> None:
        if self.main:
            self.run.log("metrics", row)
            if row["event"] != "begin":
                self.on_row(row)


@contextlib.contextmanager
def training(
    run: Run, on_row: Callable[[dict[str, Any]], None] | None = None
) -> Iterator[Iterator[Training]]:
    """Locks a run's folder, sets its device and threads, and yields a `Training` for each untrained net.

    Under `accelerate launch` every process enters it; the first one writes.

    Args:
        run: The run; its folder gets the rows and checkpoints.
        on_row: Called with each row: "step" every 5 s of training, "epoch", and "warning" as soon as
            gradients show that a circuit will not learn, once for each kind of fault of a net and seed
            (gradients.jsonl holds the warnings of every epoch). `epoch_line` makes text of a row.

    Raises:
        BlockingIOError: Another process is training this run.
        Stopped: The user stopped it (Ctrl-C, or a notebook's stop button); a KeyboardInterrupt.
        OutOfMemory: Memory ran out in an epoch; the message names the next remedy.
    """
    finished = run.tested()
    wait_for_all()  # no process writes before all have read
    with contextlib.ExitStack() as work:
        if is_main():
            work.enter_context(alone(run.folder, "train"))
            work.enter_context(mirrored(run.folder))
        where = placed(run)
        if is_main():
            _note(run, where)
            work.enter_context(tracked(run))
        work.enter_context(measure.threads(where.threads))
        work.enter_context(stopping(run, "03_train"))
        yield (
            Training(run, net, seed, device.choose(where.device), on_row)
            for seed in run.seeds
            for net in run.nets
            if (net, seed) not in finished
        )


def train_all(run: Run, on_row: Callable[[dict[str, Any]], None] | None = None) -> list[dict[str, Any]]:
    """Trains all nets that are not trained yet; returns the final row of each net and seed, old ones first.

    This is the loop of 03_train as a function. Arguments and errors are those of `training`; `on_row` also
    gets each final row, "test".
    """
    with training(run, on_row) as untrained:
        finals = list(run.tested().values())
        for one in untrained:
            model = build(run, one.net, one.seed)
            loaders, options = one.prepare(model)
            finals.append(one.test(model, train.fit(model, run.task, loaders, one.config, **options)))
            if on_row and is_main():
                on_row(finals[-1])
    return finals


def _note(run: Run, where: Placement) -> None:
    """Records data, device and placement of a training in the run's provenance."""
    config, splits, notes = run.config, run.splits, list(run.splits.notes)
    if config.of_kit("four_bit", False):
        notes.append(in_four_bits(str(config.of_kit("pretrained")), where.device)[1])
        warnings.warn(notes[-1], stacklevel=5)
    facts = {"data": splits.fingerprint(), "samples": {name: len(splits.split(name)) for name in SPLITS}}
    trained = asdict(replace(where, rows=[])) | {"processes": n_processes()}
    run.note_provenance(**facts, notes=notes, device=where.device, trained=trained)


@contextlib.contextmanager
def stopping(run: Run, work: str) -> Iterator[None]:
    """Turns a KeyboardInterrupt into a `Stopped` whose message says where the work on a run stopped."""
    try:
        yield
    except KeyboardInterrupt:
        where, row = work, look(run.folder).row
        if work == "03_train" and row:
            where = f"net {row['net']}, seed {row['seed']}, epoch {row.get('epoch')} of {run.config.epochs}"
        step = "Run this again to continue from here: nothing is trained twice."
        raise Stopped(f"Stopped in {where}. {step}") from None


def tested(
    model: nn.Module,
    task: tasks.Task,
    loader: Any,
    splits: Splits,
    place: torch.device,
    micro_batch: int | None,
) -> dict[str, float]:
    """Returns the task's numbers on the test split; its `judge` gets the outputs and means of the same pass.

    `judge` may return numbers, or lists of them, of Python, NumPy or torch. A number that is not finite
    becomes None.

    Raises:
        FloatingPointError: The score by which nets are compared is not finite.
    """
    judge, seen = getattr(task, "judge", lambda: {}), []
    with contextlib.ExitStack() as stack:
        if "outputs" in inspect.signature(judge).parameters:
            hook = model.register_forward_hook(lambda *call: seen.append(call[2].detach().cpu()))
            stack.enter_context(hook)
        means = train.evaluate(model, task, loader, place, micro_batch=micro_batch)
    outputs = {"outputs": torch.cat(seen)} if seen else {}
    judged = tasks.asked(judge, **outputs, splits=splits, net=model, means=means) or {}
    values = {name: _plain(value) for name, value in {**means, **judged}.items()}
    if values.get(task.score.name, 0) is None:
        raise not_finite(f"test {task.score.name}")
    return values


def _plain(value: Any) -> Any:
    """Returns a number, or a list of them, of Python; None for a number that is not finite."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple):
        return [*map(_plain, value)]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# --- trackers -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def tracked(run: Run) -> Iterator[None]:
    """Sends the finite numbers of new rows in metrics.jsonl to the run's trackers.

    Each tracker has a thread, which reads the file. A tracker that is not installed, fails or hangs is
    disabled, with one sentence on stderr.
    """
    over, seen, threads = threading.Event(), len(run.rows("metrics")), list[threading.Thread]()
    for name in run.config.trackers:
        threads.append(threading.Thread(target=_send, args=(name, run, seen, over), name=name, daemon=True))
        threads[-1].start()
    try:
        yield
    finally:
        over.set()
        end = time.monotonic() + END
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                _disabled(thread.name, f"it had not finished {END:.0f} s after the training")


def _send(name: str, run: Run, seen: int, over: threading.Event) -> None:
    """Starts one of Accelerate's trackers; until `over` is set, sends it the rows after the first `seen`."""
    try:
        from accelerate import tracking

        # Accelerate's logger needs the state of an Accelerator, which does not exist between two nets.
        tracking.logger = logging.getLogger(tracking.__name__)  # pyright: ignore[reportAttributeAccessIssue]
        home, kind = workspace.home().absolute(), tracking.LOGGER_TYPE_TO_CLASS[name]
        title = f"{run.folder.name}-{run.provenance.get('begun')}".replace(":", "-")
        titles = {"mlflow": {"run_name": title}, "wandb": {"name": title}, "trackio": {"name": title}}
        arguments = [title, home / name] if kind.requires_logging_directory else [run.config.title]
        tracker = kind(*arguments, **titles.get(name, {}))
        tracker.main_process_only = False  # to find the main process needs the same state
        tracker.start()
        settings = run.config.flat().items()
        plain = {key: value if isinstance(value, int | float) else str(value) for key, value in settings}
        tracker.store_init_configuration(plain)
        last = False
        while not last:
            last, rows = over.wait(EVERY), run.rows("metrics")
            for row in rows[seen:]:
                values = {f"{row['net']}/seed{row['seed']}/{key}": number(row, key) for key in row}
                finite = {key: value for key, value in values.items() if value is not None}
                # W&B rejects a step that occurs twice, and each net counts from 0.
                tracker.log(finite, step=None if name == "wandb" else row.get("updates"))
            seen = len(rows)
        tracker.finish()
    except BaseException as error:  # W&B is known to raise SystemExit
        _disabled(name, f"{type(error).__name__}: {words.first_line(error)}")


def _disabled(name: str, why: str) -> None:
    step = "Training continues, and metrics.jsonl has every row. Repair it, or remove it from `trackers`."
    print(f"Tracker `{name}` is disabled: {why}. {step}", file=sys.stderr, flush=True)
