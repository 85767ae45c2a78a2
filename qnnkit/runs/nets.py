"""From a run's settings to trained nets: the hybrid one and its controls, for every seed."""

from __future__ import annotations

import contextlib
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import (
    checks,
    device,
    gradients,
    layers,
    measure,
    recipes,
    tasks,
    train,
    workspace,
)
from qnnkit.checkpoint import Store, weights
from qnnkit.data import ImageSplits, Splits
from qnnkit.measure import Placement
from qnnkit.models import features
from qnnkit.models.causal_lm import in_four_bits
from qnnkit.runs.folder import Run
from qnnkit.runs.journal import Journal, speed
from qnnkit.runs.lock import alone, mirrored
from qnnkit.runs.trackers import tracked
from qnnkit.train import memory
from qnnkit.train.processes import is_main, n_processes, wait_for_all


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


def first_batch(run: Run, place: torch.device | str = "cpu") -> Any:
    """The first training samples in a batch, as the task takes it, on a device."""
    from accelerate.utils import send_to_device

    return send_to_device(
        next(iter(run.splits.batches("train", run.config.batch_size, shuffle=False))), place
    )


def seen_by(run: Run, model: nn.Module, place: torch.device | str = "cpu") -> Splits:
    """What a net of the run is given: the data, or what its frozen part made of the images once."""
    if not isinstance(run.splits, ImageSplits):
        return run.splits
    if getattr(run.config, "augmentation", "none") != "none":  # other images, other features
        return run.splits
    return features.of(model, run.splits, place)


def train_all(
    run: Run,
    on_row: Callable[[dict[str, Any]], None] | None = None,
    on_warning: Callable[[str], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Trains what is not trained yet; yields the final row of each net and seed, finished before or now.

    Under `accelerate launch` every process calls it; the first one writes.

    Args:
        run: The run; rows go to its metrics.jsonl, checkpoints to its folder.
        on_row: Called with each row: "step" every 5 s of training, "validation" within an epoch, "epoch".
        on_warning: Called with a sentence as soon as gradients say that a circuit will not learn, once for
            each kind of fault of a net and seed (gradients.jsonl holds the warnings of every epoch), and when
            the machine does not keep up: metrics.jsonl has these.

    Raises:
        BlockingIOError: Another process is training this run.
        Stopped: A person has stopped it (Ctrl-C, or a notebook's stop button); a KeyboardInterrupt.
    """
    from qnnkit.runs.placing import placed

    finished = run.tested()
    wait_for_all()  # nobody writes before all have read
    with contextlib.ExitStack() as work:
        if is_main():
            work.enter_context(alone(run.folder, "train"))
            work.enter_context(mirrored(run.folder))
        place = placed(run, locked=True)
        if is_main():
            facts = {name: getattr(place, name) for name in ("backend", "threads", "sentence")}
            facts |= {"processes": n_processes(), "precision": run.config.precision}
            notes = list(run.splits.notes)
            if getattr(run.config, "four_bit", False):
                pretrained = getattr(run.config, "pretrained", None)
                notes.append(in_four_bits(str(pretrained), place.device)[1])
                if on_warning:
                    on_warning(notes[-1])
            run.note_provenance(
                data=run.splits.fingerprint(),
                notes=notes,
                device=place.device,
                trained=facts,
            )
        config = run.config
        about = config.title, run.folder.name, run.provenance.get("begun"), config.flat()
        track = work.enter_context(tracked(config.trackers, *about))

        def note(row: dict[str, Any]) -> None:
            track(row, row["updates"], f"{row['net']}/seed{row['seed']}")
            if on_row:
                on_row(row)

        for seed in run.seeds:
            for net in run.nets:
                if (net, seed) not in finished:
                    try:
                        finished[net, seed] = _told(run, net, seed, place, note, on_warning)
                    except KeyboardInterrupt:
                        raise Stopped(_where(run, net, seed)) from None
                yield finished[net, seed]


class Stopped(KeyboardInterrupt):
    """A person has stopped a training: a notebook shows the sentence, and nothing of where it was stopped."""

    def _render_traceback_(self) -> list[str]:  # which IPython asks for
        return [str(self)]


def _where(run: Run, net: str, seed: int) -> str:
    whose = {"event": "epoch", "net": net, "seed": seed}
    done = [row["epoch"] for row in run.rows("metrics") if whose.items() <= row.items()]
    return (
        f"Stopped in net {net}, seed {seed}, after {max(done, default=0)} of {run.config.epochs} epochs. "
        "Run this again to go on from here: nothing is trained twice."
    )


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


def _told(run: Run, net: str, seed: int, placed: Placement, *others: Any) -> dict[str, Any]:
    """As `_train`; memory that runs out before or after the epochs is told as well."""
    where, place = f"net {net}, seed {seed}, before or after its epochs", device.choose(placed.device)

    def told() -> str:
        return memory.stopped(where, 0, run.config, place, n_processes())

    return memory.telling(lambda: _train(run, net, seed, placed, *others), told, place)


def _train(
    run: Run,
    net: str,
    seed: int,
    placed: Placement,
    on_row: Callable[[dict[str, Any]], None],
    on_warning: Callable[[str], None] | None,
) -> dict[str, Any]:
    config, place, task = run.config, device.choose(placed.device), run.task
    measure.reset_peak(place)
    journal = Journal(run, net, seed, place, on_row, on_warning)
    model = build(run, net, seed)
    folder, identity = workspace.make_folder(run.checkpoints(net, seed)), run.identity(net, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is damaged is told by `fit`
        begun = Store(folder, identity).restore()
    built = _built(run, net, seed, model, begun is not None)
    if begun is not None:
        weights.load(folder, model, begun["model"])  # frozen weights count from here on
    with measure.threads(placed.threads):
        splits = seen_by(run, model, place)
        loaders = {
            split: splits.batches(split, config.batch_size, shuffle=split == "train", seed=seed)
            for split in ("train", "validation", "test")
        }
        groups, watch = recipes.parameter_groups(model, config), None
        if config.gradient_samples:
            whose = {"event": "epoch", "net": net, "seed": seed}
            rows = run.rows("gradients") if begun is not None else []
            earlier = [row for row in rows if whose.items() <= row.items()]
            n = config.gradient_samples
            watch = gradients.Watch(model, groups, per_epoch=n, log=journal.gradients, earlier=earlier)
        progress = train.fit(
            model,
            task,
            {name: loaders[name] for name in ("train", "validation")},
            config,
            groups=groups,
            device=place,
            seed=seed,
            folder=folder,
            identity=identity,
            log=journal.epoch,
            watch=watch,
            on_update=journal.update,
            on_validation=journal.validation,
            tell=journal.machine,
            built=built,
        )
        test = _test(model, task, loaders["test"], splits, place, progress.micro_batch or config.micro_batch)
    return journal.end(progress.rows, _final(run, model, progress, test))


def _built(run: Run, net: str, seed: int, model: nn.Module, begun: bool) -> weights.Built | None:
    """How whoever resumes has the frozen weights of `model` anew; None where building draws others."""
    built = weights.Built(weights.digest(model), functools.partial(build, run, net, seed))
    own = not begun and not run.recipe.shipped and built.digest  # a user's may draw otherwise each time
    return None if own and weights.digest(built.again()) != built.digest else built


def _final(run: Run, model: nn.Module, progress: train.Progress, test: dict[str, float]) -> dict[str, Any]:
    """What a trained net came to."""
    score = run.task.score
    sign = 1 if run.task.monitor == score.on_validation else -1  # what is to fall is watched as minus itself
    found = {
        "epochs": run.config.epochs,
        "epochs_trained": progress.epoch,
        "best_epoch": progress.best_epoch,
        f"validation_{score.on_validation}": sign * progress.best_score[0],
        **{f"test_{name}": value for name, value in test.items()},
        "n_test": len(run.splits.test),
        **layers.count_parameters(model),
        "circuits_per_image": layers.circuits_per_image(model, run.splits.example()),
        "seconds_per_epoch": progress.seconds_per_epoch,
        **speed(run, progress.seconds_per_epoch),
    }
    return found | ({"micro_batch": progress.micro_batch} if progress.micro_batch else {})


def _test(
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
