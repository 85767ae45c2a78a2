"""A new run that goes on where another is, with other training settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from qnnkit import checks, workspace
from qnnkit.config import FlatValue, flat_names
from qnnkit.runs.folder import Run, open_run, read_config, require_last_batch, require_usable
from qnnkit.runs.lock import alone, bring
from qnnkit.runs.origin import origin
from qnnkit.runs.placing import settle_batch_size


def fork(run_dir: str | Path, new_dir: str | Path, **settings: FlatValue) -> Run:
    """A new run that goes on from the checkpoints of another, with other training settings.

    Raises:
        ValueError: A setting would change the nets or their data; nothing would be left to train; or
            `new_dir` holds another run.
        FileNotFoundError: There is no run in `run_dir`.
    """
    source = open_run(run_dir)
    folder = workspace.run_folder(new_dir)
    bring(folder)
    config = source.asked.override(**{name: value for name, value in settings.items() if value is not None})
    difference = source.asked.difference(config)
    made_of = [name for name in difference if flat_names()[name] != "training"]
    if made_of:
        rule = f"change how a run trains, and {made_of[0]} makes other nets or data"
        step = "Begin a new run_dir with it, without --fork."
        raise ValueError(checks.message("--fork", rule, str(new_dir), step))
    begun = read_config(folder / "config.json")
    if begun is not None:
        forked_from = Run(folder, begun).provenance.get("forked", {}).get("from")
        if forked_from == str(source.folder) and not begun.difference(config):
            return open_run(new_dir)
        raise ValueError(checks.message("--fork", "name a new folder", str(folder), "Choose another one."))
    enough = source.config.training.epochs >= config.training.epochs
    if enough and len(source.tested()) >= len(source.nets) * len(source.seeds):
        rule = f"be above {config.training.epochs}, to which `{source.folder}` is trained"
        raise ValueError(checks.message("epochs", rule, config.training.epochs, "Add --epochs with more."))
    run = Run(folder, config.with_paths(workspace.located))
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
    data = {"data": source.provenance["data"]} if "data" in source.provenance else {}
    told = {name: {"from": here, "to": there} for name, (here, there) in difference.items()}
    run.note_provenance(**origin(), **data, forked={"from": str(source.folder), "changed": told})
    run = settle_batch_size(run, begins=True)
    require_last_batch(run)
    workspace.write_json(folder / "config.json", config.model_dump(mode="json"))  # last: now it is a run
    return run
