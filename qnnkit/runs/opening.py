"""How a run begins, resumes, moves, grows longer and is forked."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import qnnkit
from qnnkit import checks, recipes, workspace
from qnnkit.checkpoint import Store, weights
from qnnkit.device import machine
from qnnkit.measure import survey
from qnnkit.recipes import Recipe
from qnnkit.runs import rows
from qnnkit.runs.folder import TRAINING, Run, changed_recipe, now, read_config, write_config
from qnnkit.runs.lock import alone, bring, keep_mirrored
from qnnkit.runs.placing import decide
from qnnkit.runs.usable import require_last_batch, require_usable, resolve
from qnnkit.settings import CRITERIA, PLACEMENT, FlatValue, Settings

BEGIN = 120.0
"""Seconds that a newcomer waits while another process begins the run: it may be measuring."""
PACKAGES = (
    *("torch", "pennylane", "pennylane-lightning", "accelerate", "transformers", "peft", "safetensors"),
    *("tokenizers", "datasets", "numpy", "scipy", "scikit-learn", "pydantic", "papermill", "optuna", "dask"),
)
"""Packages whose versions are kept with a run."""
ASKED = "QNNKIT_ASKED"
"""Environment variable of a kernel: the file with the placement that its chain was asked for."""


def open_run(run_dir: str | Path, recipe: Any = None, **settings: FlatValue) -> Run:
    """The run in `run_dir`, begun there if the folder is new.

    Args:
        run_dir: Its folder; a relative one is meant from the workspace.
        recipe: A shipped name, the path of a recipe's file, a module, or an object: see `recipes.find`. None
            takes the folder's own where it is shipped, or has been named in this process.
        **settings: Changed in the recipe; None leaves a setting as it is. In a folder that has begun they
            must agree with what it began with, except for those of `settings.PLACEMENT` and more `epochs`.

    Raises:
        ValueError: A name or value is wrong, or the folder holds another experiment (the message says which).
        OSError: The folder cannot be made or written.
    """
    folder = workspace.run_folder(run_dir)
    bring(folder)
    named = None if recipe is None else recipes.find(recipe)
    given = {name: value for name, value in settings.items() if value is not None}
    begun = read_config(folder / "config.json", named)
    if begun is not None:
        return _resume(folder, named, begun, given)
    if named is None:
        rule, step = "hold a run", "Name a recipe to begin one there."
        raise FileNotFoundError(checks.message("run_dir", rule, str(folder), step))
    if folder in (Path(folder.anchor), Path.home(), workspace.home().absolute()):
        rule, step = "be a folder of its own", "Use a new one, such as runs/mine."
        raise ValueError(checks.message("run_dir", rule, str(folder), step))
    if not workspace.is_known():
        lost = "This run will vanish with this Colab machine: no folder is known that outlasts it. Run "
        step = "colab_setup.ipynb first, which mounts Drive, or set QNNKIT_HOME to a folder of your own."
        warnings.warn(lost + step, stacklevel=2)
    run = Run(folder, resolve(named, given))
    require_usable(run)
    workspace.make_folder(folder)
    with alone(folder, "begin", wait=BEGIN):
        if read_config(folder / "config.json", named) is None:
            facts = {"data": run.splits.fingerprint(), "nets": run.nets, "given": sorted(given)}
            facts |= {"score": asdict(run.score), "made_of": run.made_of()}  # for who has not the recipe
            return _begin(run, facts)
    return open_run(run_dir, recipe, **settings)  # another process has just begun it


def _begin(run: Run, facts: Mapping[str, Any]) -> Run:
    """The run, begun in its folder: its provenance, its batch size where that is "auto", its settings."""
    run.note_provenance(**origin(), **facts)
    if run.config.batch_size == "auto":
        size = decide(run).batch_size
        run.note_provenance(batch_size=size)
        run = Run(run.folder, run.config.override(batch_size=size))
        require_last_batch(run)
    write_config(run)  # now it is a run
    return run


def _resume(folder: Path, named: Recipe | None, begun: Settings, given: dict[str, Any]) -> Run:
    """A run that has begun, with the placement that is asked for now, and more epochs."""
    asked = _asked_by_chain(folder)
    places = {name: asked[name] for name in begun.places() if asked.get(name)}
    begun = begun.with_paths(workspace.located).override(**places)
    if named is not None and begun.source is None:
        _refuse_other_recipe(folder, named, begun)
    given = {name: value for name, value in asked.items() if name in PLACEMENT} | given
    if given.get("batch_size") == "auto" and "batch_size" in rows.facts(folder, "provenance.json"):
        del given["batch_size"]  # it was measured when the run began
    begun, config = _moved(folder, begun, resolve(None, given, begun))
    difference = begun.difference(config)
    if set(difference) == {"epochs"} and config.epochs > begun.epochs:
        extend(Run(folder, begun), config.epochs)
    elif difference:
        pairs = [f"{name}: {ours!r} there, {theirs!r} now" for name, (ours, theirs) in difference.items()]
        raise _other_experiment(folder, ", ".join(pairs))
    bounds = {name: getattr(config, name) for name in given if name in CRITERIA}
    if any(getattr(begun, name) != bound for name, bound in bounds.items()):
        _write_bounds(folder, bounds)
    workspace.make_folder(folder)
    return Run(folder, config)


def _other_experiment(folder: Path, difference: str) -> ValueError:
    return ValueError(
        f"Run folder `{folder}` holds another experiment ({difference}). Choose another run_dir, "
        "or the settings it began with; --fork NEW_DIR continues from it with other training settings."
    )


def _refuse_other_recipe(folder: Path, named: Recipe, begun: Settings) -> None:
    """Raises ValueError: the folder was begun with another recipe, or with another state of this one."""
    recorded = getattr(begun, "recorded", "")
    if Path(recorded).name == Path(named.reference).name:
        raise _other_experiment(folder, f"the recipe has changed: {changed_recipe(folder, named)}")
    raise _other_experiment(folder, f"recipe: {recorded!r} there, {named.reference!r} now")


def asked_of_kernels(run: Run) -> dict[str, str]:
    """The variable that makes a kernel compute where, and save as often as, the chain was asked to."""
    flat, path = run.config.flat(), run.folder / ".asked.json"
    names = [name for name in (*PLACEMENT, *run.config.places()) if name in flat]
    workspace.write_json(path, {name: flat[name] for name in names})
    return {ASKED: str(path)}


def _asked_by_chain(folder: Path) -> dict[str, FlatValue]:
    path = Path(os.environ.get(ASKED) or "/")
    return dict(workspace.read_json(path) or {}) if path.parent == folder else {}


def _moved(folder: Path, begun: Settings, config: Settings) -> tuple[Settings, Settings]:
    """Both settings, where the run's data may lie elsewhere now than when it began.

    A path in a workspace that has moved means the same path in this one. Other paths are accepted if the
    data are the same.
    """
    places = {}
    for name in begun.places():
        ours, given = getattr(begun, name), getattr(config, name)
        inside = workspace.portable(str(ours)).removeprefix(".")
        if ours == given:
            continue
        if inside != str(ours) and str(given).endswith(inside) and not Path(given).exists():
            warnings.warn(
                f"`{given}` is no longer there; the run's data in `{ours}` are taken.", stacklevel=4
            )
            config = config.override(**{name: ours})
        else:
            places[name] = given
    moved = begun.override(**places)
    with contextlib.suppress(OSError):  # what cannot be read is not the same
        if places and Run(folder, begun).provenance.get("data") and Run(folder, moved).splits is not None:
            return moved, config
    return begun, config


def _write_bounds(folder: Path, bounds: Mapping[str, FlatValue]) -> None:
    """Changes bounds of success in config.json, and the hash that SHA256SUMS has of it."""
    path, hashes = folder / "config.json", rows.read_hashes(folder)
    workspace.write_json(path, workspace.read_json(path) | dict(bounds))
    if path.name in hashes:
        rows.write_hashes(folder, hashes | {path.name: rows.hash_of(path)})
    keep_mirrored(folder)


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
        for path in filter(Path.exists, map(folder.joinpath, (*names, "result.json"))):
            path.replace(path.with_name(f"{path.stem}.epochs-{fewer}{path.suffix}"))
        extended = [*run.provenance.get("extended", []), {"from": fewer, "to": epochs, "at": now()}]
        run.note_provenance(extended=extended)
        write_config(Run(folder, run.config.override(epochs=epochs)))


# --- forks --------------------------------------------------------------------------------------------------


def fork(run_dir: str | Path, new_dir: str | Path, recipe: Any = None, **settings: FlatValue) -> Run:
    """A new run that begins as a copy of another's checkpoints and epochs, with other training settings.

    Args:
        run_dir: What is copied.
        new_dir: Folder of the new run.
        recipe: The run's; one that has changed since must build nets of the same shape.
        settings: Of the training, changed.

    Raises:
        ValueError: A setting would change the nets or their data; nothing would be left to train; `new_dir`
            holds another run; or a changed recipe's nets have other weights.
        FileNotFoundError: There is no run in `run_dir`.
    """

    def refuse(rule: str, value: Any, step: str, name: str = "--fork") -> None:
        raise ValueError(checks.message(name, rule, value, step))

    source, folder = _source(run_dir, recipe), workspace.run_folder(new_dir)
    bring(folder)
    known, given = source.provenance, {name: each for name, each in settings.items() if each is not None}
    config = resolve(None, given, source.config)
    difference = source.config.difference(config)
    for name in difference.keys() - set(TRAINING):
        rule = f"change how a run trains, and {name} makes other nets or data"
        refuse(rule, str(new_dir), "Begin a new run_dir with it, without --fork.")
    run, begun = Run(folder, config), read_config(folder / "config.json", source.recipe)
    same = run.provenance.get("forked", {}).get("of", "") == known.get("begun")
    if begun is not None and same and not begun.with_paths(workspace.located).difference(config):
        return open_run(new_dir, source.recipe)
    copied = {"checkpoints", "metrics.jsonl", "provenance.json", "recipe.py"}  # by a fork that was killed
    others = {path.name for path in folder.glob("[!.]*")} - copied
    if others or folder in (source.folder, *source.folder.parents) or source.folder in folder.parents:
        refuse("name a new or empty folder outside the run's", str(folder), "Choose another one.")
    if source.config.epochs >= config.epochs and len(source.tested()) >= len(source.nets) * len(source.seeds):
        rule = f"be above {config.epochs}, to which `{source.folder}` is trained"
        refuse(rule, config.epochs, "Add --epochs with more.", "epochs")
    checked = Run(source.folder, config)  # whose data must be those that it was trained on
    require_usable(checked)
    if source.config.source is not None and known.get("made_of") != source.made_of():
        _require_same_nets(checked, str(folder))
    workspace.make_folder(folder)
    with alone(source.folder, "train"):
        theirs, ours = source.folder / "checkpoints", folder / "checkpoints"
        if theirs.exists():
            shutil.copytree(theirs, ours, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)
        epochs = [row | {"copied": True} for row in source.rows("metrics") if row["event"] == "epoch"]
    lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in epochs)
    workspace.write_bytes(folder / "metrics.jsonl", lines.encode())
    facts = {name: known[name] for name in ("data", "nets", "score", "made_of") if name in known}
    facts["given"] = sorted({*known.get("given", ()), *given})
    changed = {name: {"from": ours, "to": theirs} for name, (ours, theirs) in difference.items()}
    forked = {"from": workspace.portable(str(source.folder)), "of": known.get("begun"), "changed": changed}
    return _begin(run, facts | {"forked": forked})


def _source(run_dir: str | Path, recipe: Any) -> Run:
    """The run to copy; where its recipe has changed, with the settings that the new one has too."""
    named = None if recipe is None else recipes.find(recipe)
    folder = workspace.run_folder(run_dir)
    bring(folder)
    begun = read_config(folder / "config.json", named)
    if named is None or begun is None or begun.source is not None:
        return open_run(run_dir, named)
    provenance = Run(folder, begun).provenance
    given = {*provenance.get("given", ()), *(("epochs",) if provenance.get("extended") else ())}
    known = given & set(named.Settings.model_fields)  # others are the recipe's to change
    for name in sorted(given - known):
        warnings.warn(f"`{name}` is no setting of the recipe any more, and is left out.", stacklevel=3)
    values = {name: value for name, value in begun.model_dump().items() if name in known}
    return Run(folder, named.settings(**values).with_paths(workspace.located))


def _require_same_nets(run: Run, new: str) -> None:
    """Raises ValueError where a recipe has changed so that its nets do not take the weights there are."""
    for path in sorted((run.folder / "checkpoints").glob("*-seed*")):
        net, _, seed = path.name.rpartition("-seed")
        kept = Store(path, run.identity(net, int(seed))).restore()
        try:
            if kept is not None:
                weights.load(recipes.made(run.config, run.splits, net, int(seed)), kept["model"])
        except ValueError as error:
            raise ValueError(
                checks.message("--fork", "go on from nets of the same shape", new, f"{error}")
            ) from None


# --- where it began -----------------------------------------------------------------------------------------


def origin() -> dict[str, Any]:
    """Code, packages, machine and time of a beginning, for provenance.json; None: it cannot be found out.

    Nothing of it names a person or a host.
    """
    package = Path(qnnkit.__file__).parent
    tracked = _git(package, "ls-files", "--error-unmatch", "--", "__init__.py") is not None
    changed = _git(package, "status", "--porcelain", "--", ".") if tracked else None
    return {
        "begun": now(),
        "qnnkit": qnnkit.__version__,
        "commit": _git(package, "rev-parse", "HEAD") if tracked else None,
        "commit_changed": None if changed is None else bool(changed),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": survey.facts(),
        "packages": {name: machine.version(name) for name in PACKAGES},
    }


def _git(folder: Path, *words: str) -> str | None:
    """What git says of the checkout that `folder` is in; None where it says nothing within 10 s."""
    # Without locks: a git that is cut short would leave one behind, and the checkout could not be written to.
    command = ["git", "--no-optional-locks", "-C", str(folder), *words]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        return done.stdout.strip() if done.returncode == 0 else None
    return None
