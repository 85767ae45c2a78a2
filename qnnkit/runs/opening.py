"""How a run begins, resumes, moves, grows longer and is forked."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qnnkit import checks, recipes, workspace
from qnnkit.checkpoint import Store, weights
from qnnkit.recipes import Recipe
from qnnkit.runs import sums
from qnnkit.runs.folder import TRAINING, Run, now, read_config, write_config
from qnnkit.runs.lock import alone, bring, keep_mirrored
from qnnkit.runs.origin import origin
from qnnkit.runs.placing import settle_batch_size
from qnnkit.runs.resolve import resolve
from qnnkit.runs.usable import require_last_batch, require_usable
from qnnkit.settings import CRITERIA, PLACEMENT, FlatValue, Settings

BEGIN = 120.0
"""Seconds that a newcomer waits while another process begins the run: it may be measuring."""
ASKED = "QNNKIT_ASKED"
"""Environment variable: the file in which a chain tells its kernels what it was asked for."""


def open_run(run_dir: str | Path, recipe: Any = None, **settings: FlatValue) -> Run:
    """The run in `run_dir`, begun there if the folder is new.

    Args:
        run_dir: Its folder; a relative one is meant from the workspace.
        recipe: A shipped name, the path of a recipe's file, a module, or an object: see `recipes.find`. None
            takes the folder's own where it is shipped, or has been named in this process.
        **settings: Exchanged in the recipe; None leaves a setting as it is. In a folder that has begun they
            must agree with what it began with, except for those of `settings.PLACEMENT` and more `epochs`.

    Raises:
        ValueError: A name or value is wrong, or the folder holds another experiment (it is told which).
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
        told = "This run will vanish with this Colab machine: no folder is known that outlasts it. Run "
        step = "colab_setup.ipynb first, which mounts Drive, or set QNNKIT_HOME to a folder of your own."
        warnings.warn(told + step, stacklevel=2)
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
    """The run, begun in its folder: facts of its provenance, its size of batch and, last, its settings."""
    run.note_provenance(**origin(), **facts)
    begun = settle_batch_size(run, begins=True)
    require_last_batch(begun)
    write_config(run)  # as asked for; now it is a run
    return begun


def _resume(folder: Path, named: Recipe | None, begun: Settings, given: dict[str, Any]) -> Run:
    """A run that has begun, with the placement that is asked for now, and more epochs."""
    asked = _asked_by_chain(folder)
    begun = begun.with_paths(workspace.located)
    if elsewhere := {name: asked[name] for name in begun.places() if asked.get(name)}:
        begun = begun.override(**elsewhere)
    if named is not None and begun.source is None:
        _refuse_other_recipe(folder, named, begun)
    given = {name: value for name, value in asked.items() if name in PLACEMENT} | given
    config = resolve(None, given, begun)
    begun, config = _moved(folder, begun, config)
    difference = begun.difference(config)
    if set(difference) == {"epochs"} and config.epochs > begun.epochs:
        extend(Run(folder, begun), config.epochs)
    elif difference:
        told = ", ".join(
            f"{name}: {here!r} there, {there!r} now" for name, (here, there) in difference.items()
        )
        raise _other_experiment(folder, told)
    bounds = {name: getattr(config, name) for name in given if name in CRITERIA}
    if any(getattr(begun, name) != bound for name, bound in bounds.items()):
        _write_bounds(folder, bounds)
    workspace.make_folder(folder)
    return settle_batch_size(Run(folder, config))


def _other_experiment(folder: Path, told: str) -> ValueError:
    return ValueError(
        f"Run folder `{folder}` holds another experiment ({told}). Choose another run_dir, "
        "or the settings it began with; --fork NEW_DIR goes on from it with other training settings."
    )


def _refuse_other_recipe(folder: Path, named: Recipe, begun: Settings) -> None:
    """Raises ValueError: the folder was begun with another recipe, or with another state of this one."""
    recorded = getattr(begun, "recorded", "")
    if Path(recorded).name == Path(named.reference).name:
        with contextlib.suppress(OSError):
            changed = recipes.difference((folder / "recipe.py").read_text(), named.source)
            raise _other_experiment(folder, f"the recipe has changed: {changed or 'in what it imports'}")
    raise _other_experiment(folder, f"recipe: {recorded!r} there, {named.reference!r} now")


def asked_of_kernels(run: Run) -> dict[str, str]:
    """The variable that makes a kernel compute where, and save as often as, the chain was asked to."""
    flat, path = run.config.flat(), run.folder / ".asked.json"
    workspace.write_json(
        path, {name: flat[name] for name in (*PLACEMENT, *run.config.places()) if name in flat}
    )
    return {ASKED: str(path)}


def _asked_by_chain(folder: Path) -> dict[str, FlatValue]:
    path = Path(os.environ.get(ASKED) or "/")
    return dict(workspace.read_json(path) or {}) if path.parent == folder else {}


def _moved(folder: Path, begun: Settings, config: Settings) -> tuple[Settings, Settings]:
    """Both settings, where the run's data may lie elsewhere now than when it began.

    A place in a workspace that has moved stands for that in this one; data that are the same are taken.
    """
    places = {name: getattr(config, name) for name in begun.places()}
    places = {name: place for name, place in places.items() if place != getattr(begun, name)}
    for name, place in list(places.items()):
        own = getattr(begun, name)
        inside = None if own is None else workspace.portable(str(own)).removeprefix(".")
        if inside not in (None, str(own)) and str(place).endswith(inside) and not Path(place).exists():
            warnings.warn(f"`{place}` is no longer there; the run's data in `{own}` are taken.", stacklevel=4)
            config = config.override(**{name: own})
            del places[name]
    if places:
        moved, trained_on = begun.override(**places), Run(folder, begun).provenance.get("data")
        with contextlib.suppress(OSError):  # what cannot be read is not the same
            if trained_on is not None and Run(folder, moved).splits is not None:
                return moved, config
    return begun, config


def _write_bounds(folder: Path, bounds: Mapping[str, FlatValue]) -> None:
    """Exchanges bounds of success in config.json; the hash that SHA256SUMS has of it goes with it."""
    path = folder / "config.json"
    workspace.write_json(path, workspace.read_json(path) | dict(bounds))
    kept = sums.read(folder)
    if kept is not None and path.name in kept:
        sums.write(folder, kept | {path.name: sums.of(path)})
    keep_mirrored(folder)


def extend(run: Run, epochs: int) -> None:
    """Lets a run train longer: what was concluded after fewer epochs is kept under names that say so.

    The step sizes follow a schedule over all epochs, so a run that is extended is not the one that would have
    been asked for more from the beginning; provenance.json tells.

    Raises:
        BlockingIOError: Another process works on the run.
    """
    fewer = run.config.epochs
    with alone(run.folder, "chain"):
        for name in ("03_train", "04_analyze"):
            if run.notebook(name).exists():
                run.notebook(name).replace(run.notebook(f"{name}.epochs-{fewer}"))
        if (run.folder / "result.json").exists():
            (run.folder / "result.json").replace(run.folder / f"result.epochs-{fewer}.json")
        told = {"from": fewer, "to": epochs, "at": now()}
        run.note_provenance(extended=[*run.provenance.get("extended", []), told])
        write_config(Run(run.folder, run.config.override(epochs=epochs)))


# --- forks --------------------------------------------------------------------------------------------------


def fork(run_dir: str | Path, new_dir: str | Path, recipe: Any = None, **settings: FlatValue) -> Run:
    """A new run that begins as a copy of another's checkpoints and epochs, with other training settings.

    Args:
        run_dir: What is copied.
        new_dir: Folder of the new run.
        recipe: The run's; one that has changed since must build nets of the same shape.
        settings: Of the training, exchanged.

    Raises:
        ValueError: A setting would change the nets or their data; nothing would be left to train; `new_dir`
            holds another run; or a changed recipe's nets have other weights.
        FileNotFoundError: There is no run in `run_dir`.
    """
    source, folder = _source(run_dir, recipe), workspace.run_folder(new_dir)
    bring(folder)
    known, given = source.provenance, {name: each for name, each in settings.items() if each is not None}
    config = resolve(None, given, source.config)
    difference = source.config.difference(config)
    for name in difference:
        if name not in TRAINING:
            rule = f"change how a run trains, and {name} makes other nets or data"
            step = "Begin a new run_dir with it, without --fork."
            raise ValueError(checks.message("--fork", rule, str(new_dir), step))
    begun, kept = read_config(folder / "config.json", source.recipe), Run(folder, config).provenance
    same = kept.get("forked", {}).get("of", "") == known.get("begun")
    if begun is not None and same and not begun.with_paths(workspace.located).difference(config):
        return open_run(new_dir, source.recipe)
    there = {path.name for path in folder.iterdir() if path.name[0] != "."} if folder.is_dir() else set()
    left = {"checkpoints", "metrics.jsonl", "provenance.json", "recipe.py"}  # by a fork that was killed
    around = folder == source.folder or folder in source.folder.parents or source.folder in folder.parents
    if around or there - left:
        rule = "name a folder beside the run's, new or empty"
        raise ValueError(checks.message("--fork", rule, str(folder), "Choose another one."))
    if source.config.epochs >= config.epochs and len(source.tested()) >= len(source.nets) * len(source.seeds):
        rule = f"be above {config.epochs}, to which `{source.folder}` is trained"
        raise ValueError(checks.message("epochs", rule, config.epochs, "Add --epochs with more."))
    run = Run(folder, config)
    require_usable(run)
    if run.splits.fingerprint() != known.get("data", run.splits.fingerprint()):
        step = "Its recipe, or split_seed, makes others now: begin a new run_dir."
        raise ValueError(checks.message("--fork", "go on with the same data", str(new_dir), step))
    if source.config.source is not None and known.get("made_of") != source.made_of():
        _require_same_nets(run, source)
    workspace.make_folder(folder)
    with alone(source.folder, "train"):
        theirs, ours = source.folder / "checkpoints", folder / "checkpoints"
        if theirs.exists():
            shutil.copytree(theirs, ours, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)
        rows = [row | {"copied": True} for row in source.rows("metrics") if row["event"] == "epoch"]
    lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    workspace.write_bytes(folder / "metrics.jsonl", lines.encode())
    facts = {name: known[name] for name in ("data", "nets", "score", "made_of") if name in known}
    facts["given"] = sorted({*known.get("given", ()), *given})
    told = {name: {"from": here, "to": there} for name, (here, there) in difference.items()}
    forked = {"from": workspace.portable(str(source.folder)), "of": known.get("begun"), "changed": told}
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


def _require_same_nets(run: Run, source: Run) -> None:
    """Raises ValueError where a recipe has changed so that its nets do not take the weights there are."""
    for path in sorted((source.folder / "checkpoints").glob("*-seed*")):
        net, _, seed = path.name.rpartition("-seed")
        found = Store(path, source.identity(net, int(seed))).restore()
        try:
            if found is not None:
                weights.load(recipes.made(run.config, run.splits, net, int(seed)), found["model"])
        except ValueError as error:
            rule = "go on from nets of the same shape"
            raise ValueError(checks.message("--fork", rule, str(run.folder), f"{error}")) from None
