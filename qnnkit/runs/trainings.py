"""How the nets of a run are trained: what `train.fit` is given, and the rows and sentences it leaves."""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import queue
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
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
from qnnkit.runs.nets import build, placed, seen_by
from qnnkit.runs.state import look
from qnnkit.train.processes import is_main, n_processes, wait_for_all

EVERY = 5.0
"""Seconds between two rows of a training, at least."""
END = 10.0
"""Seconds that the end of a training waits, at most, for all of its trackers."""
NOT_SENT = ("seed", "step", "steps", "epochs", "updates", "time")


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
        rows, mine = run.rows("metrics") if self.main else [], {**self.whose, "device": str(place)}.items()
        self.peak = max((row["peak_memory"] for row in rows if mine <= row.items()), default=0)
        self.samples, self.since = 0, -math.inf
        self._timed("begin")  # at once: the first update may be a minute away

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
        with own_generators():
            seed_all(self.seed, "test")  # of circuits with shots, whatever ran before
            found = tested(model, run.task, loader, self.splits, self.place, size)
        [best] = [row for row in progress.rows if row["epoch"] == progress.best_epoch]
        watched = f"validation_{run.task.score.on_validation}"
        final = {
            **{"event": "test", **self.whose, "epochs": run.config.epochs, watched: best[watched]},
            "epochs_trained": progress.epoch,
            "best_epoch": progress.best_epoch,
            **{f"test_{name}": value for name, value in found.items()},
            "n_test": len(splits.test),
            **layers.count_parameters(model),
            "circuits_per_image": layers.circuits_per_image(model, splits.example()),
            "seconds_per_epoch": progress.seconds_per_epoch,
            "peak_memory": max(self.peak, measure.peak_on(self.place)),
            "peak_ram": measure.peak(),
        }
        if run.config.vary_split:
            final |= {"split_seed": run.split_seed(self.seed), "n_train": len(splits.train)}
            final["data"] = splits.fingerprint()
        if self.main:
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
            row = {"event": "epoch", **self.whose, **row}
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
        self.peak = row["peak_memory"] = max(self.peak, measure.peak_on(self.place))
        if self.main:
            with contextlib.suppress(OSError):
                self.run.log("metrics", row)
        return row


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
        OutOfMemory: Memory ran out in an epoch; the message names the next remedy.
    """
    finished = run.tested()
    wait_for_all()  # nobody writes before all have read
    with contextlib.ExitStack() as work:
        if is_main():
            work.enter_context(alone(run.folder, "train"))
            work.enter_context(mirrored(run.folder))
        where, name = placed(run), f"{run.folder.name}-{run.provenance.get('begun')}".replace(":", "-")
        if is_main():
            _note(run, where, on_warning)
        track = work.enter_context(tracked(run.config.trackers, run.config.title, name, run.config.flat()))

        def note(row: dict[str, Any]) -> None:
            track(row, row["updates"], f"{row['net']}/seed{row['seed']}")
            if on_row:
                on_row(row)

        work.enter_context(measure.threads(where.threads))
        work.enter_context(stopping(run, "03_train"))
        yield (
            Training(run, net, seed, device.choose(where.device), note, on_warning)
            for seed in run.seeds
            for net in run.nets
            if (net, seed) not in finished
        )


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
            model = build(run, one.net, one.seed)
            loaders, kept = one.prepare(model)
            finals.append(one.test(model, train.fit(model, run.task, loaders, one.config, **kept)))
            if on_row and is_main():
                on_row(finals[-1])
    return finals


def _note(run: Run, where: Placement, on_warning: Callable[[str], None] | None) -> None:
    """What the run's provenance says of data and machine."""
    config, splits, notes = run.config, run.splits, list(run.splits.notes)
    if config.of_kit("four_bit", False):
        notes.append(in_four_bits(str(config.of_kit("pretrained")), where.device)[1])
        if on_warning:
            on_warning(notes[-1])
    trained = {"sentence": where.sentence, "backend": where.backend, "threads": where.threads}
    trained |= {"processes": n_processes(), "precision": config.precision}
    samples = {name: len(splits.split(name)) for name in SPLITS}
    known = {"data": splits.fingerprint(), "notes": notes, "samples": samples}
    run.note_provenance(**known, device=where.device, trained=trained)


@contextlib.contextmanager
def stopping(run: Run, work: str) -> Iterator[None]:
    """Says where a person has stopped the work on a run, as `Stopped`."""
    try:
        yield
    except KeyboardInterrupt:
        where, now = work, look(run.folder)
        if work == "03_train" and now.net is not None:
            where = f"net {now.net}, seed {now.seed}, epoch {now.epoch} of {run.config.epochs}"
        step = "Run this again to go on from here: nothing is trained twice."
        raise Stopped(f"Stopped in {where}. {step}") from None


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


# --- trackers -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def tracked(
    names: Iterable[str], project: str, run: str, config: dict[str, Any]
) -> Iterator[Callable[[dict[str, Any], int, str], None]]:
    """Gives a function that sends the finite numbers of a row to trackers, and returns at once.

    Its arguments are the row, the step and what is put before the names, such as "hybrid/seed0". Each
    tracker has a thread: one that is not installed, fails or hangs is left out, with one sentence on stderr.
    Of several processes, only the first sends.

    Args:
        names: As Accelerate has them.
        project: What groups runs in a tracker, such as the recipe.
        run: The run's name; in TensorBoard a run of the same name continues.
        config: Flat settings, logged when the tracker starts.

    Example:
        >>> with tracked([], "digits_quanv", "mine", {}) as track:
        ...     track({"train_loss": 0.5}, 1, "hybrid/seed0")
    """
    threads: dict[threading.Thread, queue.SimpleQueue[Any]] = {}
    for name in names if is_main() else ():
        rows = queue.SimpleQueue[Any]()
        given = name, rows, project, run, config
        threads[threading.Thread(target=_send, args=given, name=name, daemon=True)] = rows
    for thread in threads:
        thread.start()

    def track(row: dict[str, Any], step: int, prefix: str) -> None:
        numbers = {name: row[name] for name in row.keys() - NOT_SENT if type(row[name]) in (int, float)}
        finite = {f"{prefix}/{name}": value for name, value in numbers.items() if math.isfinite(value)}
        for rows in threads.values():
            rows.put((finite, step))

    try:
        yield track
    finally:
        end = time.monotonic() + END
        for thread, rows in threads.items():
            rows.put(None)
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                _leave_out(thread.name, f"it had not finished {END:.0f} s after the training")


def _send(name: str, rows: queue.SimpleQueue[Any], project: str, run: str, config: dict[str, Any]) -> None:
    """Starts one of Accelerate's trackers, and sends it rows until there is none."""
    try:
        from accelerate import tracking

        # Accelerate's logger asks for the state of an Accelerator, which is not there between two nets.
        tracking.logger = logging.getLogger(tracking.__name__)  # pyright: ignore[reportAttributeAccessIssue]
        home, kind = workspace.home().absolute(), tracking.LOGGER_TYPE_TO_CLASS[name]
        named = {"mlflow": {"run_name": run}, "wandb": {"name": run}, "trackio": {"name": run}}
        place = [run, home / name] if kind.requires_logging_directory else [project]
        tracker = kind(*place, **named.get(name, {}))
        tracker.main_process_only = False  # asking who is the first asks for the same state
        tracker.start()
        plain = {
            key: value if isinstance(value, int | float) else str(value) for key, value in config.items()
        }
        tracker.store_init_configuration(plain)
        while (row := rows.get()) is not None:
            values, step = row
            if name == "wandb":  # takes no step twice, and each net counts its own
                values, step = values | {"updates": step}, None
            tracker.log(values, step=step)
        tracker.finish()
    except BaseException as error:  # W&B is known to raise SystemExit
        _leave_out(name, f"{type(error).__name__}: {words.first_line(error)}")


def _leave_out(name: str, why: str) -> None:
    step = "Training goes on, and metrics.jsonl has every row. Mend it, or leave it out of `trackers`."
    print(f"Tracker `{name}` is left out from here on: {why}. {step}", file=sys.stderr, flush=True)
