"""The nets of a run, untrained and trained; their inputs, and the device and threads that train them."""

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
"""Largest share of the free memory that a language model and a copy of it may take in a trial."""


def build(run: Run, net: str, seed: int, *, bare: bool = False) -> nn.Module:
    """Returns an untrained net of the run: its main net, or a control, which starts from the same weights.

    Args:
        run: The run.
        net: Name of the net.
        seed: Fixes the initial weights.
        bare: Whether to leave a language model's weights on the meta device, where they take no memory. Its
            parameters can be counted and the same errors are raised, but it cannot compute.

    Raises:
        ValueError: The run has no such net.
    """
    checks.choice("net", net, run.nets)
    return recipes.made(run.config, run.splits_of(seed), net, seed, bare=bare)


def first_batch(
    run: Run, place: torch.device | str = "cpu", *, split: str = "train", n: int | None = None
) -> Any:
    """Returns the first `n` samples of a split (default: a batch) on a device, as the task takes them.

    Raises:
        ValueError: `split` is not "train", "validation" or "test".
    """
    from accelerate.utils import send_to_device

    batches = run.splits.batches(split, n or run.config.batch_size, shuffle=False)
    return send_to_device(next(iter(batches)), place)


def seen_by(run: Run, model: nn.Module, place: torch.device | str = "cpu", seed: int | None = None) -> Splits:
    """Returns the inputs of a net of the run: the data, or features that its frozen part makes of images.

    Args:
        run: The run.
        model: A net of the run, moved to `place`, where features are computed.
        place: A torch device.
        seed: Seed of the net, if splits vary by seed; default: the first.
    """
    splits = run.splits_of(run.config.seed if seed is None else seed)
    varies = run.config.of_kit("augmentation", "none") != "none" or run.config.shots or run.config.noise
    if varies or not isinstance(splits, ImageSplits):  # features that vary cannot be computed once
        return splits
    return features.of(model, splits, place)


def trained(run: Run, net: str | None = None, seed: int | None = None) -> nn.Module:
    """Returns a net of the run at its best epoch; default: the main net of the first seed.

    It is in evaluation mode.

    Raises:
        ValueError: The run has no such net.
        FileNotFoundError: The net has not been trained yet.
    """
    return best(run, net or run.nets[0], run.config.seed if seed is None else seed)[0]


def best(run: Run, net: str, seed: int) -> tuple[nn.Module, int]:
    """Returns a net as `trained` does, and the number of its best epoch: 0 if the first has not ended."""
    model, store = build(run, net, seed), Store(run.checkpoints(net, seed), run.identity(net, seed))
    if store.restore() is None:
        raise FileNotFoundError(f"Net {net} of seed {seed} is not trained: run 03_train on {run.folder}.")
    progress = store.load_best(model)["progress"]
    return model.eval(), progress["epoch"]


# --- where they are trained ---------------------------------------------------------------------------------


def placed(run: Run) -> Placement:
    """Returns the device, backend and threads that train a run on this machine, as in its provenance.json.

    The choice is made once, with the run's main net, for its controls too: when the run begins if the batch
    size is "auto", else when it is first trained. A resumed run keeps it; on another machine, or if another
    placement is requested, it is measured again. A run of several processes measures nothing.
    """
    stored, config = run.provenance.get("placement") or {}, run.config
    basis = {"asked": {name: getattr(config, name) for name in ("device", "backend", "threads")}}
    basis["machine"] = {"name": survey.facts()["name"], "torch": torch.__version__}
    if n_processes() > 1:
        return _unmeasured(run, f"{n_processes()} processes take equal shares, so nothing was measured.")
    if stored and (len(run.tested()) == len(run.nets) * len(run.seeds) or basis.items() <= stored.items()):
        fields: Any = {name: stored[name] for name in Placement.__dataclass_fields__}
        size = fields["batch_size"] if config.batch_size == "auto" else config.batch_size
        return replace(Placement(**fields), batch_size=size)
    chosen = _measured(run)
    if run.folder.exists():
        run.note_provenance(placement=asdict(chosen) | basis)
    return chosen


def _unmeasured(run: Run, why: str) -> Placement:
    """Returns a placement from the settings, or from the usual defaults if they leave it open."""
    config, place = run.config, str(device.choose(run.config.device))
    threads = config.threads if isinstance(config.threads, int) else None
    size = 1 if config.batch_size == "auto" else config.batch_size
    return Placement(place, config.backend, threads, size, f"{place}: {why}")


def _measured(run: Run) -> Placement:
    """Returns the fastest placement on this machine; for large language models, an unmeasured one."""
    config, where = run.config, run.config.device
    bare = recipes.made(config, run.splits, "", config.seed, bare=True)
    twice, free = 2 * sum(weight.nbytes for weight in bare.parameters()), machine.memory()[1]
    if twice > SHARE * free and any(weight.is_meta for weight in bare.parameters()):
        sizes = f"{twice / 1e9:.1f} GB of weights, with {free / 1e9:.1f} GB of memory free"
        return _unmeasured(run, f"a trial would hold {sizes}, so nothing was measured.")
    if config.of_kit("four_bit", False):
        chosen = device.choose(where)
        if in_four_bits(str(config.of_kit("pretrained")), chosen)[0] is not None:
            where = str(chosen)  # 4-bit weights stay on the device to which they were loaded
    workload, nets = measure.of_recipe(config, run.splits), len(run.nets) * len(run.seeds)
    return placement.place(workload, device=where, threads=config.threads, trainings=nets)


# --- plans and surveys --------------------------------------------------------------------------------------


def to_plan(
    run: Any, settings: Mapping[str, Any] | None = None, *, alone: bool = False, timed: bool = True
) -> dict[str, Any]:
    """Returns arguments of `measure.plan` for the nets of a run, with its data and placement.

    Args:
        run: A run; or a recipe (see `recipes.find`), for which no run folder is made.
        settings: Overridden settings of that recipe, by name.
        alone: Whether to plan one net and one seed instead of all controls and seeds.
        timed: Whether to measure "auto" settings, as training would; see `runs.placed`.

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
    """Returns a run of a recipe without making its folder.

    Raises:
        ValueError: A name or value is wrong; the batch size is "auto".
    """
    run = Run(workspace.home() / "none", resolve(recipes.find(recipe), settings))
    if run.config.batch_size == "auto":
        step = "Only a new run measures it. Give a number, such as batch_size=32."
        raise ValueError(checks.message("batch_size", "be a number here", "auto", step))
    return run


def measure_machine(
    recipe: str, settings: Mapping[str, Any], out: Path | None = None, **options: Any
) -> tuple[dict[str, Any], Path]:
    """Benchmarks this machine and writes its file.

    Args:
        recipe: The recipe whose net is measured.
        settings: Overridden settings of the recipe, by name.
        out: The machine's file; default: `machines/<kind>.json` of the workspace.
        **options: Options of `survey.take`: `seconds`, `quick`, `echo`.

    Returns:
        The survey, and the path of its file.

    Raises:
        ValueError, OSError: A name or value is wrong, data cannot be used, or the file cannot be written.
    """
    run = _unsaved(recipe, settings)
    place = survey.default_place(survey.facts()) if out is None else workspace.place(out)
    workspace.make_folder(place.parent)  # fails before minutes are spent
    result = survey.take(run.config, run.splits, **options)
    workspace.write_json(place, result)
    return result, place
