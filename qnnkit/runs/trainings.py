"""The nets of a run: untrained, in training (what `train.fit` is given, and what is kept of it), trained."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import checks, device, gradients, layers, measure, recipes, tasks, train, words, workspace
from qnnkit.checkpoint import Store, own_generators, seed_all, weights
from qnnkit.data import ImageSplits, Splits
from qnnkit.data.splits import SPLITS
from qnnkit.measure import Placement
from qnnkit.models import features
from qnnkit.models.causal_lm import in_four_bits
from qnnkit.runs.folder import Run
from qnnkit.runs.journal import Journal, speed
from qnnkit.runs.lock import alone, mirrored
from qnnkit.runs.trackers import tracked
from qnnkit.train.out_of_memory import out_of_memory, ran_out
from qnnkit.train.processes import is_main, n_processes, wait_for_all


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
    """

    def __init__(self, run: Run, net: str, seed: int, place: torch.device, on_row: Any, on_warning: Any):
        self.run, self.net, self.seed, self.place = run, net, seed, place
        self.config = run.config.of_net(net)
        measure.reset_peak(place)
        self.journal = Journal(run, net, seed, place, on_row, on_warning)

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
        base = weights.digest(model)
        if begun is not None:
            weights.load(model, begun["model"])  # frozen weights count from here on
        self.splits: Splits = seen_by(run, model, self.place)
        self.loaders = {
            split: self.splits.batches(split, config.batch_size, shuffle=split == "train", seed=seed)
            for split in SPLITS
        }
        groups, watch = recipes.parameter_groups(model, config), None
        if n := config.gradient_samples:
            watch = gradients.Watch(model, groups, per_epoch=n, log=self.journal.gradients)
        return self.loaders, {
            "groups": groups,
            "device": self.place,
            "seed": seed,
            "folder": folder,
            "identity": identity,
            "log": self.journal.epoch,
            "watch": watch,
            "on_update": self.journal.update,
            "base": base,
        }

    def test(self, model: nn.Module, progress: train.Progress) -> dict[str, Any]:
        """Tests a net that `train.fit` has trained; adds the final row to metrics.jsonl and returns it."""
        run = self.run
        loader, size = self.loaders["test"], run.config.micro_batch
        with own_generators():
            seed_all(self.seed, "test")  # of circuits with shots, whatever ran before
            found = tested(model, run.task, loader, self.splits, self.place, size)
        return self.journal.end(progress.rows, _final(run, model, progress, found))


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
    from qnnkit.runs.placing import placed

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
        try:
            yield untrained()
        except KeyboardInterrupt:
            if not begun:
                raise
            raise Stopped(stopped_in(run, begun[0].net, begun[0].seed)) from None
        except SystemExit as ended:  # of a signal
            if begun:
                ended.add_note(stopped_in(run, begun[0].net, begun[0].seed))
            raise
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


def stopped_in(run: Run, net: str, seed: int) -> str:
    """Where a person has stopped a training, for people."""
    whose = {"event": "epoch", "net": net, "seed": seed}
    done = [row["epoch"] for row in run.rows("metrics") if whose.items() <= row.items()]
    return (
        f"Stopped in net {net}, seed {seed}, after {max(done, default=0)} of {run.config.epochs} "
        "epochs. Run this again to go on from here: nothing is trained twice."
    )


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
        **speed(run, progress.seconds_per_epoch),
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


# --- the nets ----------------------------------------------------------------------------------------------


def build(run: Run, net: str, seed: int, *, bare: bool = False) -> nn.Module:
    """An untrained net of the run: its own, or one of the controls, which starts from the same weights.

    Args:
        run: The run.
        net: Its name.
        seed: Fixes its first weights.
        bare: Whether a language model's weights are left on the meta device, where they take no memory: it
            can be counted, and what is refused is refused alike, but nothing can be computed.

    Raises:
        ValueError: The run has no such net.
    """
    checks.choice("net", net, run.nets)
    return recipes.made(run.config, run.splits, net, seed, bare=bare)


def count_parameters(run: Run) -> dict[str, dict[str, int]]:
    """Net -> its weights by kind, see `layers.count_parameters`; never are two of them in memory."""
    return {net: layers.count_parameters(build(run, net, run.config.seed, bare=True)) for net in run.nets}


def first_batch(
    run: Run, place: torch.device | str = "cpu", *, split: str = "train", n: int | None = None
) -> Any:
    """The first `n` samples of a split, by default a batch, as the task takes them, on a device."""
    from accelerate.utils import send_to_device

    batches = run.splits.batches(split, n or run.config.batch_size, shuffle=False)
    return send_to_device(next(iter(batches)), place)


def seen_by(run: Run, model: nn.Module, place: torch.device | str = "cpu") -> Splits:
    """What a net of the run is given: the data, or what its frozen part made of the images once."""
    if not isinstance(run.splits, ImageSplits):
        return run.splits
    changes = run.config.of_kit("augmentation", "none") != "none" or run.config.shots
    if changes or run.config.noise:  # other images or other shots, other features
        return run.splits
    return features.of(model, run.splits, place)


def trained(run: Run, net: str | None = None, seed: int | None = None) -> nn.Module:
    """A net of the run at its best epoch; the run's own, of its first seed, by default.

    Raises:
        FileNotFoundError: It has not been trained yet.
    """
    return best(run, net or run.nets[0], run.config.seed if seed is None else seed)[0]


def best(run: Run, net: str, seed: int) -> tuple[nn.Module, int]:
    """A net as `trained` gives it, and which epoch that is: 0 within the first one, before it ended."""
    model, store = build(run, net, seed), Store(run.checkpoints(net, seed), run.identity(net, seed))
    if store.restore() is None:
        raise FileNotFoundError(
            f"Net {net} of seed {seed} must be trained first: run 03_train on {run.folder}."
        )
    progress = store.load_best(model)["progress"]
    return model.eval(), progress["epoch"]
