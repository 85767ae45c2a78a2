"""The nets of a run, untrained and trained, what they are given, and where they are trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from qnnkit import checks, device, measure, recipes, workspace
from qnnkit.checkpoint import Store
from qnnkit.data import ImageSplits, Splits
from qnnkit.device import machine
from qnnkit.measure import Placement, placement, survey
from qnnkit.models import features
from qnnkit.models.causal_lm import in_four_bits
from qnnkit.runs.folder import Run, resolve
from qnnkit.train.processes import n_processes

SHARE = 0.5
"""Of the free memory: the most that a language model and a copy of it may take to be tried."""


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
    return recipes.made(run.config, run.splits_of(seed), net, seed, bare=bare)


def first_batch(
    run: Run, place: torch.device | str = "cpu", *, split: str = "train", n: int | None = None
) -> Any:
    """The first `n` samples of a split, by default a batch, as the task takes them, on a device."""
    from accelerate.utils import send_to_device

    batches = run.splits.batches(split, n or run.config.batch_size, shuffle=False)
    return send_to_device(next(iter(batches)), place)


def seen_by(run: Run, model: nn.Module, place: torch.device | str = "cpu", seed: int | None = None) -> Splits:
    """What a net of the run is given: the data, or what its frozen part made of the images once."""
    splits = run.splits_of(run.config.seed if seed is None else seed)
    changes = run.config.of_kit("augmentation", "none") != "none" or run.config.shots or run.config.noise
    if changes or not isinstance(splits, ImageSplits):  # other images or other shots, other features
        return splits
    return features.of(model, splits, place)


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
        raise FileNotFoundError(f"Net {net} of seed {seed} is not trained: run 03_train on {run.folder}.")
    progress = store.load_best(model)["progress"]
    return model.eval(), progress["epoch"]


# --- where they are trained ---------------------------------------------------------------------------------


def placed(run: Run) -> Placement:
    """Where the nets of a run are trained, as its provenance.json has it for this machine.

    Decided once by the run's own net, for its controls too: when the run begins, for a batch size of "auto",
    or when it is first trained. A run that resumes is trained where it was; on another machine, or asked for
    another placement, it is measured again. A run of several processes measures nothing.
    """
    kept, config = run.provenance.get("placement") or {}, run.config
    asked = {"asked": {name: getattr(config, name) for name in ("device", "backend", "threads")}}
    asked["machine"] = {"name": survey.facts()["name"], "torch": torch.__version__}  # another decides again
    if n_processes() > 1:
        return _unmeasured(run, f"{n_processes()} processes take equal shares, so nothing was measured.")
    if kept and (len(run.tested()) == len(run.nets) * len(run.seeds) or asked.items() <= kept.items()):
        known: Any = {name: kept[name] for name in Placement.__dataclass_fields__}
        size = known["batch_size"] if config.batch_size == "auto" else config.batch_size
        return replace(Placement(**known), batch_size=size)
    found = _measured(run)
    if run.folder.exists():
        run.note_provenance(placement=asdict(found) | asked)
    return found


def _unmeasured(run: Run, why: str) -> Placement:
    """Where a run is trained as it was asked, or by what is usual."""
    config, place = run.config, str(device.choose(run.config.device))
    threads = config.threads if isinstance(config.threads, int) else None
    size = 1 if config.batch_size == "auto" else config.batch_size
    return Placement(place, config.backend, threads, size, f"{place}: {why}")


def _measured(run: Run) -> Placement:
    """Where a run is trained fastest here; of large language models, unmeasured."""
    config, where = run.config, run.config.device
    bare = recipes.made(config, run.splits, "", config.seed, bare=True)
    twice, free = 2 * sum(weight.nbytes for weight in bare.parameters()), machine.memory()[1]
    if twice > SHARE * free and any(weight.is_meta for weight in bare.parameters()):
        sizes = f"{twice / 1e9:.1f} GB of weights, of {free / 1e9:.1f} GB of free memory"
        return _unmeasured(run, f"a trial would hold {sizes}, so nothing was measured.")
    if config.of_kit("four_bit", False):
        chosen = device.choose(where)
        if in_four_bits(str(config.of_kit("pretrained")), chosen)[0] is not None:
            where = str(chosen)  # such weights are where they were read to, and stay there
    workload, nets = measure.of_recipe(config, run.splits), len(run.nets) * len(run.seeds)
    return placement.place(workload, device=where, threads=config.threads, trainings=nets)


# --- what that takes ----------------------------------------------------------------------------------------


def to_plan(
    run: Any, settings: Mapping[str, Any] | None = None, *, alone: bool = False, timed: bool = True
) -> dict[str, Any]:
    """Arguments of `measure.plan`: the nets of a run, on its own data, where they are trained.

    Args:
        run: A run; or a recipe (see `recipes.find`), for which no run folder is begun.
        settings: Of the recipe, some of them changed.
        alone: Whether to plan one net and one seed, in place of all controls and seeds.
        timed: Whether "auto" settings are measured, as training would; see `runs.placed`.

    Raises:
        ValueError: A name or value is wrong; the batch size is "auto".
        OSError, ValueError: The data cannot be used.
    """
    run = run if isinstance(run, Run) else _unsaved(run, settings or {})
    workload, where = measure.of_recipe(run.config, run.splits), placed(run) if timed else run.config
    return {
        "workload": workload,
        "device": where.device,
        "n_threads": where.threads if isinstance(where.threads, int) else None,
        "nets": 1 if alone else len(run.nets),
        "seeds": 1 if alone else len(run.seeds),
        "price_per_hour": run.config.price_per_hour,
    }


def _unsaved(recipe: Any, settings: Mapping[str, Any]) -> Run:
    """A run of a recipe whose folder is not begun.

    Raises:
        ValueError: A name or value is wrong; the batch size is "auto".
    """
    run = Run(workspace.home() / "none", resolve(recipes.find(recipe), settings))
    if run.config.batch_size == "auto":
        step = "Only a run measures it, when it begins. Name a number, such as batch_size=32."
        raise ValueError(checks.message("batch_size", "be a number here", "auto", step))
    return run


def measure_machine(
    recipe: str, settings: Mapping[str, Any], out: Path | None = None, **options: Any
) -> tuple[dict[str, Any], Path]:
    """Surveys this machine and writes its file.

    Args:
        recipe: Whose net is measured.
        settings: Changed in the recipe, by their own names.
        out: The machine's file; default: `machines/<kind>.json` of the workspace.
        **options: As `survey.take` has them: `seconds`, `quick`, `echo`.

    Returns:
        The survey, and where it was written.

    Raises:
        ValueError, OSError: A name or value is wrong, data cannot be used, or the file cannot be written.
    """
    run = _unsaved(recipe, settings)
    place = survey.default_place(survey.facts()) if out is None else workspace.place(out)
    workspace.make_folder(place.parent)  # before minutes are spent
    found = survey.take(run.config, run.splits, **options)
    workspace.write_json(place, found)
    return found, place
