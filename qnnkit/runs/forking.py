"""A new run that goes on where another is, with other training settings."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

from qnnkit import checks, recipes, workspace
from qnnkit.checkpoint import Store, weights
from qnnkit.recipes import made
from qnnkit.runs.folder import TRAINING, Run, read_config
from qnnkit.runs.lock import alone, bring
from qnnkit.runs.opening import begin, open_run
from qnnkit.runs.usable import in_workspace, require_usable
from qnnkit.settings import FlatValue


def fork(run_dir: str | Path, new_dir: str | Path, recipe: Any = None, **settings: FlatValue) -> Run:
    """A new run that goes on from the checkpoints of another, with other training settings or recipe.

    Args:
        run_dir: Where to go on from.
        new_dir: Folder of the new run.
        recipe: The run's; one that has changed since must build nets of the same shape.
        settings: Of the training, exchanged.

    Raises:
        ValueError: A setting would change the nets or their data; nothing would be left to train; `new_dir`
            holds another run; or a changed recipe's nets have other weights.
        FileNotFoundError: There is no run in `run_dir`.
    """
    source = _source(run_dir, recipe)
    folder = workspace.run_folder(new_dir)
    bring(folder)
    given = {name: value for name, value in settings.items() if value is not None}
    config = source.config.override(**in_workspace(type(source.config), given))
    difference = source.config.difference(config)
    made_of = [name for name in difference if name not in TRAINING]
    if made_of:
        rule = f"change how a run trains, and {made_of[0]} makes other nets or data"
        step = "Begin a new run_dir with it, without --fork."
        raise ValueError(checks.message("--fork", rule, str(new_dir), step))
    begun = read_config(folder / "config.json", source.recipe)
    if begun is None:
        _require_free(folder, source.folder)
    else:
        forked_from = Run(folder, begun).provenance.get("forked", {}).get("from")
        if forked_from == str(source.folder) and not begun.with_paths(workspace.located).difference(config):
            return open_run(new_dir, source.recipe)
        raise ValueError(checks.message("--fork", "name a new folder", str(folder), "Choose another one."))
    enough = source.config.epochs >= config.epochs
    if enough and len(source.tested()) >= len(source.nets) * len(source.seeds):
        rule = f"be above {config.epochs}, to which `{source.folder}` is trained"
        raise ValueError(checks.message("epochs", rule, config.epochs, "Add --epochs with more."))
    run = Run(folder, config)
    require_usable(run)
    if run.splits.fingerprint() != source.provenance.get("data", run.splits.fingerprint()):
        step = "Its recipe, or split_seed, makes others now: begin a new run_dir."
        raise ValueError(checks.message("--fork", "go on with the same data", str(new_dir), step))
    _require_same_nets(run, source)
    workspace.make_folder(folder)
    with alone(source.folder, "train"):
        theirs, ours = source.folder / "checkpoints", folder / "checkpoints"
        if theirs.exists():
            shutil.copytree(theirs, ours, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)
        rows = [row for row in source.rows("metrics") if row["event"] == "epoch"]
    lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    workspace.write_bytes(folder / "metrics.jsonl", lines.encode())
    kept = ("data", "nets", "score", "made_of")
    data = {name: source.provenance[name] for name in kept if name in source.provenance}
    data["given"] = sorted({*source.provenance.get("given", ()), *given})
    told = {name: {"from": here, "to": there} for name, (here, there) in difference.items()}
    return begin(run, data | {"forked": {"from": str(source.folder), "changed": told}})


def _source(run_dir: str | Path, recipe: Any) -> Run:
    """The run to go on from; where its recipe has changed, with the settings that the new one has too."""
    named = None if recipe is None else recipes.find(recipe)
    folder = workspace.run_folder(run_dir)
    bring(folder)
    begun = read_config(folder / "config.json", named)
    if named is None or begun is None or begun.source is not None:
        return open_run(run_dir, named)
    provenance = workspace.read_json(folder / "provenance.json") or {}
    given = {*provenance.get("given", ()), *(("epochs",) if provenance.get("extended") else ())}
    known = given & set(named.Settings.model_fields)  # others are the recipe's to change
    for name in sorted(given - known):
        warnings.warn(f"`{name}` is no setting of the recipe any more, and is left out.", stacklevel=3)
    values = {name: value for name, value in begun.model_dump().items() if name in known}
    return Run(folder, named.settings(**values).with_paths(workspace.located))


def _require_free(folder: Path, source: Path) -> None:
    """Refuses a folder that holds something else than what a fork that was killed has left, or the source.

    Raises:
        ValueError: It does.
    """
    left = ("checkpoints", "metrics.jsonl", "provenance.json", "recipe.py")
    others = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    others = [name for name in others if name not in left and not name.startswith(".")]
    near = folder == source or folder in source.parents or source in folder.parents
    if others or near:
        rule = "name a new or empty folder" if others else "name a folder beside the run's"
        raise ValueError(checks.message("--fork", rule, str(folder), "Choose another one."))


def _require_same_nets(run: Run, source: Run) -> None:
    """Refuses a recipe that has changed so that its nets do not take the weights there are.

    Raises:
        ValueError: They do not.
    """
    for path in sorted((source.folder / "checkpoints").glob("*-seed*")):
        net, _, seed = path.name.rpartition("-seed")
        found = Store(path, source.identity(net, int(seed))).restore()
        if found is None:
            continue
        try:
            weights.load(made(run.config, run.splits, net, int(seed)), found["model"])
        except ValueError as error:
            rule = "go on from nets of the same shape"
            raise ValueError(checks.message("--fork", rule, str(run.folder), f"{error}")) from None
