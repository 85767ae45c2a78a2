"""A folder for a paper: a study's tables and figures, its methods in words, and an article of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from qnnkit import checks, stats, workspace
from qnnkit.report import latex, page
from qnnkit.report.batch_page import analyze_batch, files_of
from qnnkit.report.compared import comparisons, verdict
from qnnkit.report.study import Study, read_batch, read_study, show
from qnnkit.settings import PLACEMENT

_TOLD = (  # elsewhere: in the methods, or in the other tables
    *("recipe", "recipe_digest", "data_dir", "controls", "net_settings"),
    *("seed", "n_seeds", "train_fraction"),
)
_CAPTIONS = {
    "scores": "Scores of every seed (circles), their mean and 95\\,\\% interval",
    "curves": "Learning curves on the validation split: mean over seeds and their range",
    "fractions": "Scores against training data, with 95\\,\\% intervals",
    "costs": "Scores against cost",
}


def write_paper(folder: str | Path, place: str | Path) -> Path:
    """Writes what a paper takes of a batch: tables and methods (LaTeX), figures (PDF), paper.tex with all.

    The tables and figures are those of 06_study, which is executed where it has not seen these runs. Other
    files in the folder are left alone.

    Args:
        folder: Of the batch; a relative one is meant from the workspace.
        place: The new folder, or one that is written anew.

    Returns:
        Path of paper.tex.

    Raises:
        ValueError: No run of the batch has finished.
        FileNotFoundError: No batch is there.
        OSError: The folder cannot be written.
    """
    study, place = read_study(folder), Path(place)
    if not len(study.frame):
        step = "Finish one: run the same qnnkit batch again."
        raise ValueError(checks.message("folder", "hold a finished run", str(folder), step))
    if place.exists() and not place.is_dir():
        raise ValueError(checks.message("--paper", "be a folder", str(place), "Name another."))
    analyze_batch(study.folder, again=False)
    place.mkdir(parents=True, exist_ok=True)
    made = [name for name in files_of(study) if name.endswith((".tex", ".pdf"))]
    for name in made:
        shutil.copyfile(study.folder / "study" / name, place / name)
    compared = comparisons(study.frame, study.score)[0]
    stamp = f"qnnkit study {study.name} {study.stamp}"
    configs = _configs(study)
    names = [name.removesuffix(".pdf") for name in made if name.endswith(".pdf")]
    figures = [(f"{name}.pdf", _CAPTIONS.get(name, latex.escaped(name))) for name in names]
    words = {"title": study.name, "verdict": verdict(compared), "figures": figures}
    settings = _settings(configs).to_latex(
        hrules=True, caption="Settings of each model.", position_float="centering"
    )
    for name, text in {
        "methods": page.render("methods.tex", stamp=stamp, **_methods(study, configs, len(compared))),
        "settings": f"% {stamp}\n{settings}",
        "paper": page.render("paper.tex", stamp=stamp, **words),
    }.items():
        workspace.write_bytes(place / f"{name}.tex", text.encode())
    return place / "paper.tex"


def _configs(study: Study) -> dict[str, tuple[str, dict[str, Any], dict[str, Any]]]:
    """Run -> its model, settings and provenance, of the runs in the table."""
    models = dict(study.frame[["run", "model"]].drop_duplicates().itertuples(index=False))
    folders = [study.folder / str(each["folder"]) for each in read_batch(study.folder)["runs"]]
    configs = {}
    for folder in folders:
        if folder.name in models:
            config = workspace.read_json(folder / "config.json")
            config["dataset"] = config.get("dataset") or _own_data(folder)
            record = workspace.read_json(folder / "provenance.json") or {}
            configs[folder.name] = (models[folder.name], config, record)
    return configs


def _own_data(folder: Path) -> str:
    """What a run keeps of data that its recipe loads: their name, shape and classes."""
    kept = (workspace.read_json(folder / "model" / "about.json") or {}).get("data") or {}
    shapes = (" x ".join(map(str, shape)) or "1" for _, *shape in kept.get("shapes", {}).values())
    facts = [f"{kept['name']!r}"] if kept.get("name") else []
    facts += [f"inputs of shape {' and '.join(shapes)}"] if kept.get("shapes") else []
    facts += [f"{len(kept['classes'])} classes"] if kept.get("classes") else []
    return "loaded by the recipe itself" + (f" ({', '.join(facts)})" if facts else "")


def _settings(configs: dict[str, tuple[str, dict[str, Any], dict[str, Any]]]) -> Any:
    """What the models were trained with, as a Styler: a row for each setting that is not None in all."""
    import pandas as pd

    left_out, columns = (*PLACEMENT, *_TOLD), {}
    for model, config, _ in configs.values():
        shown = {name: show(value) for name, value in config.items() if name not in left_out}
        columns.setdefault(model, {}).update(shown)
    table = pd.DataFrame(columns).fillna("")
    table = table.loc[~table.isin(["none", ""]).all(axis=1)]
    style = table.rename_axis("setting").reset_index().style.hide(axis="index")
    return style.format(latex.escaped).format_index(latex.escaped, axis=1)


def _methods(
    study: Study, configs: dict[str, tuple[str, dict[str, Any], dict[str, Any]]], n_compared: int
) -> dict[str, Any]:
    """What was done, from what the runs recorded: the values of methods.tex."""
    frame = study.frame
    _, settings, records = zip(*configs.values(), strict=True)
    seeds = frame.groupby(["model", "net", "train_fraction"], sort=False)["seed"].nunique()

    def several(name: str) -> str:
        return ", ".join(dict.fromkeys(show(config.get(name)) for config in settings))

    def versions(name: str) -> str:
        return ", ".join(sorted({str((record.get("packages") or {}).get(name)) for record in records}))

    return {
        "nets": {model: rows["net"].unique() for model, rows in frame.groupby("model", sort=False)},
        "datasets": several("dataset"),
        "samples": sorted(
            {
                " / ".join(f"{n:,}" for n in record["samples"].values())
                for record in records
                if "samples" in record
            }
        ),
        "shares": [f"{100 * share:g}" for share in sorted(frame["train_fraction"].unique())],
        "tests": sorted({f"{int(each):,}" for each in frame["n_test"].dropna()}),
        "data": sorted({str(each)[:12] for each in frame["data"].dropna()}),
        "seeds": " to ".join(map(str, dict.fromkeys((seeds.min(), seeds.max())))),
        "epochs": several("epochs"),
        "batch_sizes": several("batch_size"),
        "single": sorted({words for config in settings for words in config.get("net_settings") or ()}),
        "score": study.score.word,
        "n_compared": n_compared,
        "alpha": f"{stats.ALPHA:g}",
        "kits": sorted({str(record.get("qnnkit")) for record in records}),
        "commits": sorted(
            record["commit"][:12] + ", with changes" * bool(record.get("commit_changed"))
            for record in {record.get("commit"): record for record in records}.values()
            if record.get("commit")
        ),
        "pennylane": versions("pennylane"),
        "torch": versions("torch"),
        "machines": sorted({_machine(record) for record in records if record.get("machine")}),
        "finished": study.finished,
        "planned": study.planned,
        "study_stamp": study.stamp,
    }


def _machine(record: dict[str, Any]) -> str:
    machine = record["machine"]
    what = machine.get("gpus") or [f"{machine.get('processor')}, {machine.get('cores')} cores"]
    return ", ".join(map(str, what)) + f" ({record.get('device', 'cpu')})"
