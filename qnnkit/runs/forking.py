"""A new run that goes on where another is, with other training settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from qnnkit import checks, workspace
from qnnkit.runs.folder import TRAINING, Run, open_run, read_config, write_config
from qnnkit.runs.lock import alone, bring
from qnnkit.runs.origin import origin
from qnnkit.runs.placing import settle_batch_size
from qnnkit.runs.usable import in_workspace, require_last_batch, require_usable
from qnnkit.settings import FlatValue


def fork(run_dir: str | Path, new_dir: str | Path, recipe: Any = None, **settings: FlatValue) -> Run:
    """A new run that goes on from the checkpoints of another, with other training settings.

    Raises:
        ValueError: A setting would change the nets or their data; nothing would be left to train; or
            `new_dir` holds another run.
        FileNotFoundError: There is no run in `run_dir`.
    """
    source = open_run(run_dir, recipe)
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
    if begun is not None:
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
    workspace.make_folder(folder)
    with alone(source.folder, "train"):
        if (source.folder / "checkpoints").exists():
            shutil.copytree(
                source.folder / "checkpoints",
                folder / "checkpoints",
                ignore=shutil.ignore_patterns(".*"),
                dirs_exist_ok=True,
            )
        rows = [row for row in source.rows("metrics") if row["event"] == "epoch"]
    lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    workspace.write_bytes(folder / "metrics.jsonl", lines.encode())
    kept = ("data", "nets", "score", "made_of")
    data = {name: source.provenance[name] for name in kept if name in source.provenance}
    told = {name: {"from": here, "to": there} for name, (here, there) in difference.items()}
    run.note_provenance(**origin(), **data, forked={"from": str(source.folder), "changed": told})
    forked = settle_batch_size(run, begins=True)
    require_last_batch(forked)
    write_config(run)  # as asked for; last: now it is a run
    return forked
