"""Opens runs: checks and begins a new one, resumes one that has begun, or extends it to more epochs."""

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
"""Seconds to wait while another process begins the run: it may be measuring."""


def open_run(
    run_dir: str | Path, recipe: Any = None, *, among: Collection[str] | None = None, **settings: Any
) -> Run:
    """Returns the run in `run_dir`; begins it if the folder is new.

    Args:
        run_dir: The run's folder; a relative path is resolved from the workspace.
        recipe: A shipped name, the path of a recipe's file, a module, or an object: see `recipes.find`. None
            takes the folder's recipe, if it is shipped or was named in this process.
        among: Names of nets, such as those of `--only`, which must include the run's main net.
        **settings: Overridden settings of the recipe; None leaves a setting unchanged. They must agree with
            those of a run that has begun, with three exceptions: more `epochs`, a new place of the data, and
            settings of where and how it runs (`settings.PLACEMENT`), whose latest values go to config.json.

    Raises:
        ValueError: A name or value is wrong, or the folder holds another experiment (the message says which).
        OSError: There is no run and no recipe is named, or the folder cannot be made or written.
    """
    folder = workspace.run_folder(run_dir)
    bring(folder)
    named = None if recipe is None else recipes.find(recipe)
    given = {name: value for name, value in settings.items() if value is not None}
    begun = read_config(folder, named)
    if begun is None and named is None:
        rule, step = "hold a run", "Name a recipe to begin one there."
        raise FileNotFoundError(checks.message("run_dir", rule, str(folder), step))
    homes = workspace.expanded("~"), workspace.home().absolute()
    if begun is None and any(home.is_relative_to(os.path.normpath(folder)) for home in homes):
        rule, step = "be a folder of its own", "Use a new one, such as runs/mine."
        raise ValueError(checks.message("run_dir", rule, str(folder), step))
    run = Run(folder, begun or resolve(named, given))
    if among is not None and {*among} & {*MAIN_NETS} != {run.nets[0]}:  # before anything is changed
        net, step = run.nets[0], f"Write --only {run.nets[0]}."
        raise ValueError(checks.message("--only", f"name the main net, {net}", ",".join(among), step))
    if begun is not None:
        return _resume(folder, begun.with_paths(workspace.located), given)
    if not workspace.is_known():
        fault = "This run will vanish with this Colab machine, as no lasting folder is set. Run "
        step = "colab_setup.ipynb first, which mounts Drive, or set QNNKIT_HOME to a folder of your own."
        warnings.warn(fault + step, stacklevel=2)
    require_usable(run)
    workspace.make_folder(folder)
    with alone(folder, "begin", wait=BEGIN):
        if not (folder / "config.json").exists():
            facts = {"data": run.splits.fingerprint(), "nets": run.nets, "given": sorted(given)}
            # Readable without the recipe.
            facts |= {"score": asdict(run.score), "made_of": run.made_of(), "models": run.models()}
            run.note_provenance(**origin(), **facts)
            if run.config.batch_size == "auto":
                size = placed(run).batch_size
                run.note_provenance(batch_size=size)
                run = Run(folder, run.config.override(batch_size=size))
            write_config(run)  # now it is a run
            return run
    return open_run(run_dir, recipe, among=among, **settings)  # another process has begun it meanwhile


def _resume(folder: Path, begun: Settings, given: dict[str, Any]) -> Run:
    """Returns a run that has begun, with the given placement and, if more are given, more epochs."""
    if given.get("batch_size") == "auto" and "batch_size" in rows.facts(folder, "provenance.json"):
        del given["batch_size"]  # it was measured when the run began
    config, where = resolve(None, given, begun), set(PLACEMENT) & given.keys()
    run = Run(folder, config)
    moved = {name: getattr(config, name) for name in begun.places() if _is_moved(name, begun, run)}
    if moved and Run(folder, begun.override(**moved)).splits is not None:  # the same data, elsewhere
        begun, where = begun.override(**moved), where | moved.keys()
    difference = begun.difference(config)
    if set(difference) == {"epochs"} and config.epochs > begun.epochs:
        extend(Run(folder, begun), config.epochs)
    elif difference:
        pairs = [f"{name}: {old!r} in the folder, {new!r} now" for name, (old, new) in difference.items()]
        fault = f"Run folder `{folder}` holds another experiment ({', '.join(pairs)})."
        raise ValueError(f"{fault} Use another run_dir, or the settings it began with.")
    if not (folder / "result.json").exists():  # a finished run may be in a folder that is read-only
        workspace.make_folder(folder)
    _keep(run, where)
    return run


def _is_moved(name: str, begun: Settings, run: Run) -> bool:
    """Whether a changed path leads to the same files elsewhere; `Run.splits` compares data."""
    one, other = (str(getattr(settings, name)) for settings in (begun, run.config))
    same = one != other and (name == "data_dir" or run.has_model(name))
    if same is None and (same := Path(one).name == Path(other).name):
        sentence = f"`{name}` is now `{other}`, not `{one}`; qnnkit cannot check that both hold the same."
        warnings.warn(sentence, stacklevel=4)
    return same


def _keep(run: Run, names: Collection[str]) -> None:
    """Updates settings in config.json, and the hash of that file in SHA256SUMS."""
    path, hashes = run.folder / "config.json", rows.read_hashes(run.folder)
    before, flat = workspace.read_json(path), run.asked.flat()
    if (after := before | {name: flat[name] for name in names}) != before:
        workspace.write_json(path, after)
        if path.name in hashes:
            rows.write_hashes(run.folder, hashes | {path.name: hash_of(path)})
        keep_mirrored(run.folder)


def extend(run: Run, epochs: int) -> None:
    """Sets a larger number of epochs; renames the earlier results to `<name>.epochs-<number>`.

    Learning rates follow a schedule over all epochs, so an extended run differs from one that began with that
    number of epochs; provenance.json records the extension.

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
    """Returns code version, machine and start time of a run, for provenance.json; an unknown commit is None.

    A commit that ends in `-dirty` has uncommitted changes. No entry names a person or a host.
    """
    root, describe = Path(qnnkit.__file__).parents[1], ("describe", "--always", "--dirty", "--abbrev=40")
    # An interrupted git would leave its lock behind, which blocks every later write to the checkout.
    command = ["git", "--no-optional-locks", "-C", str(root), *describe, "--exclude=*"]
    is_checkout = (root / ".git").exists()  # else git would describe no project, or another one
    return {
        "begun": now(),
        "qnnkit": qnnkit.__version__,
        "commit": (is_checkout and machine.output(*command)) or None,
        "machine": survey.facts(),
    }


# --- checks before a run begins -----------------------------------------------------------------------------


def require_usable(run: Run) -> None:
    """Checks, before a run begins, that its data load and that its nets take them."""
    config, recipe, own_controls = run.config, run.recipe, hasattr(run.recipe.code, "controls")
    if config.vary_split and run.splits_of(config.seed + 1).test.sources == run.splits.test.sources:
        rule = f"be false, as `{run.splits.name}` has a test split of its own"
        raise ValueError(checks.message("vary_split", rule, True, "Join its parts in one folder."))
    placement.devices(config.device, config.precision)  # raises an error if no device has this precision
    for name in run.nets if own_controls or config.controls != "all" else run.nets[:1]:
        try:
            net = recipes.made(config, run.splits, name, config.seed, bare=True)
        except NotImplementedError as error:  # the circuit does not support this control
            raise ValueError(str(error)) from None
        n, step = sum(weight.requires_grad for weight in net.parameters()), "Make a part of it trainable."
        checks.positive(f"the number of weights to train in {name}", n, step)
        if own_controls or name == run.nets[0]:
            _require_runs(run, net)
    chosen = config.chosen()  # a recipe may have settings of a control that this run leaves out
    for setting in chosen.get("net_settings", () if "controls" in chosen else config.net_settings):
        checks.choice("net in net_settings", setting.split(".")[0], run.nets)
    if not recipe.shipped and "vocabulary" not in run.splits.sizes:  # language models have their own files
        try:
            recipe.build(config, data_of(run.splits), config.seed)
        except RecipeError as error:
            fault = "`qnnkit predict`, which builds the net without its data, will fail for this run"
            warnings.warn(f"{fault}: {error}", stacklevel=4)


def _require_runs(run: Run, model: nn.Module) -> None:
    """Checks that a net takes the first samples, and that the task takes the net's outputs."""
    recipe, task, splits, n = run.recipe, run.task, run.splits, min(2, len(run.splits.train))
    if any(weight.is_meta for weight in model.parameters()):
        if name := run.config.of_kit("pretrained"):  # raises an error if a weight is missing; reads none
            causal_lm(name, device="meta", **splits.sizes)
        return
    shape = (n, getattr(splits, "n_classes", None))
    try:
        with recipe.located_errors():
            if shape[1] is not None and not isinstance(task, tasks.Own):
                outputs: Any = layers.called(model.eval(), splits.example(n))
                value = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else type(outputs).__name__
                if value != shape:
                    step = "Return one number per class for each image."
                    raise recipe.refusal("build", f"give a net that returns shape {shape}", value, step)
            loss = task(model.eval(), next(iter(splits.batches("train", n, shuffle=False)))).loss
            if not loss.requires_grad and any(weight.requires_grad for weight in model.parameters()):
                step = "Remove what detaches the loss, such as .item()."
                raise recipe.refusal("task", "give a loss with a gradient", "without one", step)
    except tasks.Refused as error:
        raise recipe.wrong(str(error)) from None
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        if recipe.shipped or isinstance(error, RecipeError):
            raise
        sample = splits.example(1)
        step = "See `splits.example()` for the net's input."
        if shape := tuple(getattr(sample, "shape", ()))[1:]:
            step = f"A sample has shape {shape} and dtype {sample.dtype}."
            if str(sample.dtype) == "torch.uint8":
                step += " Begin forward with: images = images.float() / 255."
        rule = "give a net that takes the data, and a task that takes its outputs"
        raise recipe.refusal("build", rule, words.error_line(error), step) from error
