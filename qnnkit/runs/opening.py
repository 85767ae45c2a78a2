"""How a run begins, by settings, data and nets that go together; how it resumes and grows longer."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

import qnnkit
from qnnkit import checks, layers, recipes, tasks, words, workspace
from qnnkit.checkpoint.file import hash_of
from qnnkit.device import machine
from qnnkit.measure import placement, survey
from qnnkit.models import causal_lm
from qnnkit.recipes import RecipeError
from qnnkit.runs import rows
from qnnkit.runs.folder import Run, now, read_config, resolve, write_config
from qnnkit.runs.lock import alone, bring, keep_mirrored
from qnnkit.runs.nets import placed
from qnnkit.runs.using import data_of
from qnnkit.settings import MAIN_NETS, PLACEMENT, Settings

BEGIN = 120.0
"""Seconds that a newcomer waits while another process begins the run: it may be measuring."""


def open_run(
    run_dir: str | Path, recipe: Any = None, *, among: Collection[str] | None = None, **settings: Any
) -> Run:
    """The run in `run_dir`, begun there if the folder is new.

    Args:
        run_dir: Its folder; a relative one is meant from the workspace.
        recipe: A shipped name, the path of a recipe's file, a module, or an object: see `recipes.find`. None
            takes the folder's own where it is shipped, or has been named in this process.
        among: Names of which the run's own net must have one, such as those of `--only`.
        **settings: Changed in the recipe; None leaves a setting as it is. In a folder that has begun they
            must agree with what it began with, except for more `epochs`, data that lie elsewhere, and those
            of `settings.PLACEMENT`, of which config.json keeps what was asked for last.

    Raises:
        ValueError: A name or value is wrong, or the folder holds another experiment (the message says which).
        OSError: No run is there and no recipe is named, or the folder cannot be made or written.
    """
    folder = workspace.run_folder(run_dir)
    bring(folder)
    named = None if recipe is None else recipes.find(recipe)
    given = {name: value for name, value in settings.items() if value is not None}
    begun = read_config(folder, named)
    if begun is None and named is None:
        rule, step = "hold a run", "Name a recipe to begin one there."
        raise FileNotFoundError(checks.message("run_dir", rule, str(folder), step))
    own = workspace.expanded("~"), workspace.home().absolute()
    if begun is None and any(each.is_relative_to(os.path.normpath(folder)) for each in own):
        rule, step = "be a folder of its own", "Use a new one, such as runs/mine."
        raise ValueError(checks.message("run_dir", rule, str(folder), step))
    run = Run(folder, begun or resolve(named, given))
    if among is not None and {*among} & {*MAIN_NETS} != {run.nets[0]}:  # before anything is changed
        net, step = run.nets[0], f"Write --only {run.nets[0]}."
        raise ValueError(checks.message("--only", f"name {net}, as its net is", ",".join(among), step))
    if begun is not None:
        return _resume(folder, begun.with_paths(workspace.located), given)
    if not workspace.is_known():
        lost = "This run will vanish with this Colab machine: no folder is known that outlasts it. Run "
        step = "colab_setup.ipynb first, which mounts Drive, or set QNNKIT_HOME to a folder of your own."
        warnings.warn(lost + step, stacklevel=2)
    require_usable(run)
    workspace.make_folder(folder)
    with alone(folder, "begin", wait=BEGIN):
        if not (folder / "config.json").exists():
            facts = {"data": run.splits.fingerprint(), "nets": run.nets, "given": sorted(given)}
            facts |= {"score": asdict(run.score), "made_of": run.made_of()}  # for who has not the recipe
            run.note_provenance(**origin(), **facts)
            if run.config.batch_size == "auto":
                size = placed(run).batch_size
                run.note_provenance(batch_size=size)
                run = Run(folder, run.config.override(batch_size=size))
            write_config(run)  # now it is a run
            return run
    return open_run(run_dir, recipe, among=among, **settings)  # another process has just begun it


def _resume(folder: Path, begun: Settings, given: dict[str, Any]) -> Run:
    """A run that has begun, with the placement that is asked for now, and more epochs."""
    if given.get("batch_size") == "auto" and "batch_size" in rows.facts(folder, "provenance.json"):
        del given["batch_size"]  # it was measured when the run began
    config, where = resolve(None, given, begun), set(PLACEMENT) & given.keys()
    moved = {name: getattr(config, name) for name in begun.places() if _is_moved(name, begun, config)}
    if moved and Run(folder, begun.override(**moved)).splits is not None:  # the same data, elsewhere
        begun, where = begun.override(**moved), where | moved.keys()
    difference = begun.difference(config)
    if set(difference) == {"epochs"} and config.epochs > begun.epochs:
        extend(Run(folder, begun), config.epochs)
    elif difference:
        pairs = [f"{name}: {ours!r} there, {theirs!r} now" for name, (ours, theirs) in difference.items()]
        told = f"Run folder `{folder}` holds another experiment ({', '.join(pairs)})."
        raise ValueError(f"{told} Choose another run_dir, or the settings it began with.")
    workspace.make_folder(folder)
    _keep(Run(folder, config), where)
    return Run(folder, config)


def _is_moved(name: str, begun: Settings, config: Settings) -> bool:
    """Whether a path may be the same thing elsewhere: only the data have a fingerprint, others a name."""
    one, other = (str(getattr(settings, name)) for settings in (begun, config))
    return one != other and (name == "data_dir" or Path(one).name == Path(other).name)


def _keep(run: Run, names: Collection[str]) -> None:
    """Changes settings in config.json, and the hash that SHA256SUMS has of it."""
    path, hashes = run.folder / "config.json", rows.read_hashes(run.folder)
    before, flat = workspace.read_json(path), run.asked.flat()
    if (after := before | {name: flat[name] for name in names}) != before:
        workspace.write_json(path, after)
        if path.name in hashes:
            rows.write_hashes(run.folder, hashes | {path.name: hash_of(path)})
        keep_mirrored(run.folder)


def extend(run: Run, epochs: int) -> None:
    """Lets a run train longer: what was concluded after fewer epochs is kept under names that say so.

    The learning rates follow a schedule over all epochs, so a run that is extended is not the one that would
    have been asked for more from the beginning; provenance.json says so.

    Raises:
        BlockingIOError: Another process works on the run.
    """
    fewer, folder = run.config.epochs, run.folder
    with alone(folder, "chain"):
        names = [f"notebooks/{name}.ipynb" for name in ("03_train", "04_analyze", "04b_inside")]
        names += ["model", "adapter", "report.html", "result.json"]
        for path in filter(Path.exists, map(folder.joinpath, names)):
            path.replace(path.with_name(f"{path.stem}.epochs-{fewer}{path.suffix}"))
        extended = [*run.provenance.get("extended", []), {"from": fewer, "to": epochs, "at": now()}]
        run.note_provenance(extended=extended)
        write_config(Run(folder, run.config.override(epochs=epochs)))


def origin() -> dict[str, Any]:
    """Code, machine (with versions) and time of a beginning, for provenance.json; None: it is unknown.

    A commit that ends in `-dirty` was changed. Nothing here names a person or a host.
    """
    root, asked = Path(qnnkit.__file__).parents[1], ("describe", "--always", "--dirty", "--abbrev=40")
    # A git that is cut short would leave its lock behind, and nobody could write to the checkout.
    command = ["git", "--no-optional-locks", "-C", str(root), *asked, "--exclude=*"]
    known = (root / ".git").exists()  # else it lies in no checkout, or in another project's
    return {
        "begun": now(),
        "qnnkit": qnnkit.__version__,
        "commit": (known and machine.output(*command)) or None,
        "machine": survey.facts(),
    }


# --- what it may begin with ---------------------------------------------------------------------------------


def require_usable(run: Run) -> None:
    """A run begins only with data that load, and nets that take them: a folder cannot be mended later."""
    config, recipe, own_controls = run.config, run.recipe, hasattr(run.recipe.code, "controls")
    if config.vary_split and run.splits_of(config.seed + 1).test.sources == run.splits.test.sources:
        rule = f"be false, as `{run.splits.name}` has a test split of its own"
        raise ValueError(checks.message("vary_split", rule, True, "Join its parts in one folder."))
    placement.devices(config.device, config.precision)  # refused where none has it
    for name in run.nets if own_controls or config.controls != "all" else run.nets[:1]:
        try:
            net = recipes.made(config, run.splits, name, config.seed, bare=True)
        except NotImplementedError as error:  # a control that not every circuit has
            raise ValueError(str(error)) from None
        n, step = sum(weight.requires_grad for weight in net.parameters()), "Make a part of it trainable."
        checks.positive(f"the number of weights to train in {name}", n, step)
        if own_controls or name == run.nets[0]:
            _require_runs(run, net)
    for setting in config.net_settings:
        checks.choice("net in net_settings", setting.split(".")[0], run.nets)
    if not recipe.shipped and "vocabulary" not in run.splits.sizes:  # language models have their own files
        try:
            recipe.build(config, data_of(run.splits), config.seed)
        except RecipeError as error:
            lost = "`qnnkit predict` builds the trained net without its data, and will not be able to"
            warnings.warn(f"{lost}. {error}", stacklevel=4)


def _require_runs(run: Run, model: nn.Module) -> None:
    """Refuses a net that does not take the first samples, or whose outputs its task does not take."""
    recipe, task, splits, n = run.recipe, run.task, run.splits, min(2, len(run.splits.train))
    if any(weight.is_meta for weight in model.parameters()):
        if name := run.config.of_kit("pretrained"):  # every weight is there, though none is read
            causal_lm(name, device="meta", **splits.sizes)
        return
    shape = (n, getattr(splits, "n_classes", None))
    try:
        with recipe.located_errors():
            if shape[1] is not None and not isinstance(task, tasks.Own):
                outputs: Any = layers.called(model.eval(), splits.example(n))
                found = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
                if found != shape:
                    step = "One number for each class, for each image."
                    raise recipe.refusal("build", f"give a net that returns shape {shape}", found, step)
            loss = task(model.eval(), next(iter(splits.batches("train", n, shuffle=False)))).loss
            if not loss.requires_grad and any(weight.requires_grad for weight in model.parameters()):
                step = "Leave out what detaches it, such as .item()."
                raise recipe.refusal("task", "give a loss with a gradient", "without one", step)
    except tasks.Refused as error:
        raise recipe.wrong(str(error)) from None
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        if recipe.shipped or isinstance(error, RecipeError):
            raise
        sample = splits.example(1)
        step = "See `splits.example()` for what it is given."
        if shape := tuple(getattr(sample, "shape", ()))[1:]:
            step = f"A sample has shape {shape} and dtype {sample.dtype}."
            if str(sample.dtype) == "torch.uint8":
                step += " Begin forward with: images = images.float() / 255."
        rule = "give a net that takes the data, and a task that takes its outputs"
        raise recipe.refusal("build", rule, words.error_line(error), step) from error
