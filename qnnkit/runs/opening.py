"""How a run begins, goes on, moves and grows longer: `open_run`."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from qnnkit import checks, recipes, workspace
from qnnkit.recipes import Recipe
from qnnkit.runs import sums
from qnnkit.runs.folder import Run, now, read_config, write_config
from qnnkit.runs.lock import alone, bring, keep_mirrored
from qnnkit.runs.origin import origin
from qnnkit.runs.placing import settle_batch_size
from qnnkit.runs.usable import (
    check_criteria,
    check_placement,
    checked,
    in_workspace,
    require_last_batch,
    require_usable,
)
from qnnkit.settings import CRITERIA, PLACEMENT, FlatValue, Settings


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
    if begun is None:
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
        run = Run(folder, checked(named, given))
        require_usable(run)
        workspace.make_folder(folder)
        with alone(folder, "begin", wait=BEGIN):
            if read_config(folder / "config.json", named) is None:
                facts = {"data": run.splits.fingerprint(), "nets": run.nets, "given": sorted(given)}
                facts |= {"score": asdict(run.score), "made_of": run.made_of()}  # for who has not the recipe
                return begin(run, facts)
        return open_run(run_dir, recipe, **settings)  # another process has just begun it
    told = _told_by_chain(folder)
    places = begun.places()
    placement = {name: value for name, value in told.items() if name in PLACEMENT}
    begun = begun.override(**{name: told[name] for name in places if told.get(name)})
    begun = begun.with_paths(workspace.located)
    if named is not None and begun.source is None:
        _refuse_other_recipe(folder, named, begun, given)
    for name in given:
        checks.choice("setting", name, type(begun).model_fields)
    given = in_workspace(type(begun), given)
    check_criteria(begun, given)
    given, begun = _moved(folder, begun, given)
    placement |= {name: value for name, value in given.items() if name in PLACEMENT}
    asked = begun.override(**{name: value for name, value in given.items() if name not in PLACEMENT})
    difference = begun.difference(asked)
    if set(difference) == {"epochs"} and asked.epochs > begun.epochs:
        extend(Run(folder, begun), asked.epochs)
        begun = asked
    elif difference:
        raise _other_experiment(folder, _differences(difference))
    bounds = {name: value for name, value in given.items() if name in CRITERIA}
    config = begun.override(**(bounds | placement))
    if placement:  # without one, a run of another machine may still be looked at here
        check_placement(config)
    if any(getattr(begun, name) != getattr(config, name) for name in bounds):
        _write_bounds(folder, {name: getattr(config, name) for name in bounds})
        keep_mirrored(folder)
    workspace.make_folder(folder)
    return settle_batch_size(Run(folder, config))


def begin(run: Run, facts: Mapping[str, Any]) -> Run:
    """The run, begun in its folder: facts of its provenance, its size of batch and, last, its settings."""
    run.note_provenance(**origin(), **facts)
    begun = settle_batch_size(run, begins=True)
    require_last_batch(begun)
    write_config(run)  # as asked for; now it is a run
    return begun


def _other_experiment(folder: Path, told: str) -> ValueError:
    return ValueError(
        f"Run folder `{folder}` holds another experiment ({told}). Choose another run_dir, "
        "or the settings it began with; --fork NEW_DIR goes on from it with other training settings."
    )


def _refuse_other_recipe(
    folder: Path, named: Recipe, begun: Settings, given: Mapping[str, FlatValue]
) -> None:
    """Raises ValueError: the folder was begun with another recipe, or with another state of this one."""
    recorded = getattr(begun, "recorded", "")
    if workspace.located(recorded) == named.reference or Path(recorded).name == Path(named.reference).name:
        with contextlib.suppress(OSError):
            changed = recipes.difference((folder / "recipe.py").read_text(), named.source)
            raise _other_experiment(folder, f"the recipe has changed: {changed or 'in what it imports'}")
    raise _other_experiment(folder, f"recipe: {recorded!r} there, {named.reference!r} now")


BEGIN = 120.0
"""Seconds that a newcomer waits while another process begins the run: it may be measuring."""
CHAIN = "QNNKIT_PLACEMENT"
"""Environment variable by which a chain tells its kernels what was asked for when it was started again."""


def placement_for_kernels(run: Run) -> dict[str, str]:
    """The variable that makes a kernel compute where, and save as often as, the chain was told."""
    flat = run.config.flat()
    known = [name for name in (*PLACEMENT, *run.config.places()) if name in flat]
    told = {"folder": str(run.folder), "settings": {name: flat[name] for name in known}}
    return {CHAIN: json.dumps(told)}


def _moved(
    folder: Path, begun: Settings, given: Mapping[str, FlatValue]
) -> tuple[dict[str, FlatValue], Settings]:
    """What was given, and the settings, where the run's data may lie elsewhere now than when it began.

    Its place in a workspace that has moved stands for that in this one; data that are the same are taken.
    """
    given = dict(given)
    places = {name: given[name] for name in begun.places() if given.get(name) is not None}
    places = {name: place for name, place in places.items() if str(getattr(begun, name)) != str(place)}
    for name, place in list(places.items()):
        own = getattr(begun, name)
        inside = "" if own is None else workspace.portable(str(own)).removeprefix(".")
        if own is None or inside == str(own) or not str(place).endswith(inside):
            continue  # "/my_images", where it lies in the workspace
        if not Path(place).exists() and Path(own).exists():
            warnings.warn(f"`{place}` is no longer there; the run's data in `{own}` are taken.", stacklevel=3)
            del given[name], places[name]
    if not places:
        return given, begun
    moved, trained_on = begun.override(**places), Run(folder, begun).provenance.get("data")
    same = False
    with contextlib.suppress(OSError):  # what cannot be read is not the same
        same = trained_on is not None and Run(folder, moved).splits is not None
    rest = {name: value for name, value in given.items() if name not in places}
    return (rest, moved) if same else (given, begun)


def _told_by_chain(folder: Path) -> dict[str, FlatValue]:
    told = json.loads(os.environ.get(CHAIN) or "{}")
    return dict(told["settings"]) if told.get("folder") == str(folder) else {}


def _write_bounds(folder: Path, bounds: Mapping[str, FlatValue]) -> None:
    """Exchanges bounds of success in config.json; the hash that SHA256SUMS has of it goes with it."""
    path = folder / "config.json"
    workspace.write_json(path, workspace.read_json(path) | dict(bounds))
    kept = sums.read(folder)
    if kept is not None and path.name in kept:
        sums.write(folder, kept | {path.name: sums.of(path)})


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


def _differences(difference: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name}: {here!r} there, {there!r} now" for name, (here, there) in difference.items())
