"""A folder for a paper: a study's tables and figures, its methods in words, and an article of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from qnnkit import checks, stats, workspace
from qnnkit.report.batch import analyze_batch, files_of
from qnnkit.report.study import Study, comparisons, escaped, read_batch, read_study, show, verdict
from qnnkit.settings import PLACEMENT

_TOLD = (  # elsewhere: in the methods, or in the other tables
    *("recipe", "recipe_digest", "data_dir", "controls", "net_settings"),
    *("seed", "n_seeds", "train_fraction"),
)
_REFERENCES = {
    "paszke2019": "A. Paszke et al., PyTorch: an imperative style, high-performance deep learning library, "
    "NeurIPS (2019).",
    "bergholm2018": "V. Bergholm et al., PennyLane: automatic differentiation of hybrid quantum-classical "
    "computations, arXiv:1811.04968 (2018).",
    "holm1979": "S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of "
    "Statistics 6, 65--70 (1979).",
    "wilson1927": "E. B. Wilson, Probable inference, the law of succession, and statistical inference, "
    "Journal of the American Statistical Association 22, 209--212 (1927).",
    "zou2008": "G. Y. Zou and A. Donner, Construction of confidence limits about effect measures, Statistics "
    "in Medicine 27, 1693--1702 (2008).",
    "hedges1981": "L. V. Hedges, Distribution theory for Glass's estimator of effect size and related "
    "estimators, Journal of Educational Statistics 6, 107--128 (1981).",
}
_ARTICLE = r"""%% %(stamp)s; compile with pdflatex, twice
\documentclass[10pt]{article}
\usepackage[utf8]{inputenc}
\usepackage[margin=2cm]{geometry}
\usepackage{booktabs, graphicx, lscape}
\let\plaintabular\tabular
\let\endplaintabular\endtabular
\newsavebox{\wide} %% tables as wide as the page, where they are wider
\renewenvironment{tabular}[2][c]{\begin{lrbox}{\wide}\plaintabular[#1]{#2}}{\endplaintabular\end{lrbox}%%
  \ifdim\wd\wide>\linewidth\resizebox{\linewidth}{!}{\usebox{\wide}}\else\usebox{\wide}\fi}
\title{%(title)s}
\date{}
\begin{document}
\maketitle
\section{Methods}
\input{methods}
\section{Results}
%(verdict)s
%(figures)s
\begin{landscape}
\input{means}
\input{comparisons}
\input{settings}
\end{landscape}
\begin{thebibliography}{9}
%(references)s
\end{thebibliography}
\end{document}
"""


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
    figures = [name for name in made if name.endswith(".pdf")]
    article = _ARTICLE % {
        "stamp": stamp,
        "title": escaped(study.name),
        "verdict": escaped(verdict(compared)),
        "figures": "\n".join(map(_figure, figures)),
        "references": "\n".join(rf"\bibitem{{{key}}} {text}" for key, text in _REFERENCES.items()),
    }
    files = {"methods": _methods(study, configs, len(compared)), "paper": article}
    files["settings"] = _settings(configs).to_latex(
        hrules=True, caption="Settings of each model.", position_float="centering"
    )
    for name, text in files.items():
        workspace.write_bytes(
            place / f"{name}.tex", (text if name == "paper" else f"% {stamp}\n{text}").encode()
        )
    return place / "paper.tex"


def _figure(name: str) -> str:
    caption = {
        "scores": "Scores of every seed (circles), their mean and 95\\,\\% interval",
        "curves": "Learning curves on the validation split: mean over seeds and their range",
        "fractions": "Scores against training data, with 95\\,\\% intervals",
        "costs": "Scores against cost",
    }.get(name.removesuffix(".pdf"), escaped(name))
    graphics = rf"\includegraphics[width=\linewidth,height=0.8\textheight,keepaspectratio]{{{name}}}"
    return rf"\begin{{figure}}[p]\centering{graphics}\caption{{{caption}.}}\end{{figure}}"


def _configs(study: Study) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Model -> settings and provenance of its runs in the table."""
    models = dict(study.frame[["run", "model"]].drop_duplicates().itertuples(index=False))
    folders = [Path(study.folder / str(each["folder"])) for each in read_batch(study.folder)["runs"]]
    return {
        f"{models[folder.name]}\n{folder.name}": (
            workspace.read_json(folder / "config.json"),
            workspace.read_json(folder / "provenance.json") or {},
        )
        for folder in folders
        if folder.name in models
    }


def _settings(configs: dict[str, tuple[dict[str, Any], dict[str, Any]]]) -> Any:
    """What the models were trained with, as a Styler: a row for each setting that is not None in all."""
    import pandas as pd

    kept: dict[str, dict[str, str]] = {}
    for name, (config, _) in configs.items():
        model = kept.setdefault(name.split("\n")[0], {})
        for setting, value in config.items():
            if setting not in (*PLACEMENT, *_TOLD):
                model[setting] = show(value)
    table = pd.DataFrame(kept).fillna("")
    table = table.loc[~table.isin(["none", ""]).all(axis=1)]
    style = table.rename_axis("setting").reset_index().style.hide(axis="index")
    return style.format(escaped).format_index(escaped, axis=1)


def _methods(study: Study, configs: dict[str, tuple[dict[str, Any], dict[str, Any]]], n_compared: int) -> str:
    """What was done, from what the runs recorded."""
    frame, score = study.frame, study.score
    settings, records = zip(*configs.values(), strict=True)
    nets = {model: list(dict.fromkeys(rows["net"])) for model, rows in frame.groupby("model", sort=False)}
    seeds = frame.groupby(["model", "net", "train_fraction"], sort=False)["seed"].nunique()
    shares = [f"{100 * share:g}" for share in sorted(frame["train_fraction"].unique())]
    data = sorted({str(each)[:12] for each in frame["data"].dropna()})
    tests = sorted({f"{int(each):,}" for each in frame["n_test"].dropna()})
    told = [
        f"We trained {_several(len(nets), 'model')}, each as the net of its recipe and as controls in which "
        "only the quantum part is exchanged: "
        + "; ".join(f"{escaped(model)} ({escaped(', '.join(each))})" for model, each in nets.items())
        + ".",
        f"Data: {escaped(_each(settings, 'dataset'))}, {' and '.join(shares)}\\,\\% of the training samples"
        + (f"; {' and '.join(tests)} test samples" if tests else "")
        + f" (SHA-256 of the splits begins {', '.join(data)}).",
        f"Every net was trained from {_each_number(seeds)} seeds, all on the same splits, for "
        f"{_each(settings, 'epochs')} epochs in batches of {_each(settings, 'batch_size')}; "
        "the epoch with the best validation score was kept and tested once. Other settings: see the table.",
    ]
    single = sorted({words for config in settings for words in config.get("net_settings") or ()})
    if single:
        told.append(f"Single nets had settings of their own: {escaped(', '.join(single))}.")
    told.append(
        f"Nets are compared by test {escaped(score.word)}. Intervals are 95\\,\\%: Student's t over seeds, "
        "of shares of test samples combined with Wilson's interval over those~\\cite{wilson1927,zou2008}. "
        "Differences are paired by seed and tested by the paired t-test, corrected after Holm~"
        f"\\cite{{holm1979}} for all {_several(n_compared, 'comparison')} at the level of {stats.ALPHA:g}; "
        "effect sizes are Cohen's $d_z$ with Hedges' correction~\\cite{hedges1981}."
    )
    versions = {name: _of(records, "packages", name) for name in ("torch", "pennylane")}
    commits = sorted(
        {
            each["commit"][:12] + ", with changes" * bool(each.get("commit_changed"))
            for each in records
            if each.get("commit")
        }
    )
    machines = sorted({_machine(each) for each in records if each.get("machine")})
    kits = sorted({str(each.get("qnnkit")) for each in records})
    told.append(
        f"Circuits were computed by qnnkit {escaped(', '.join(kits))}"
        + (f" (commit {', '.join(commits)})" if commits else "")
        + f" for PennyLane {escaped(versions['pennylane'])}~\\cite{{bergholm2018}} and PyTorch "
        f"{escaped(versions['torch'])}~\\cite{{paszke2019}}, on {escaped(' and '.join(machines))}. "
        f"The stamp of these {_several(study.finished, 'run')} of {study.planned} is {study.stamp}."
    )
    return "\n".join(told) + "\n"


def _several(n: int, word: str) -> str:
    return f"{n} {word}{'s' * (n != 1)}"


def _each(settings: Any, name: str) -> str:
    return ", ".join(dict.fromkeys(show(config.get(name)) for config in settings))


def _each_number(values: Any) -> str:
    return " to ".join(f"{each}" for each in dict.fromkeys((values.min(), values.max())))


def _of(records: Any, part: str, name: str) -> str:
    return ", ".join(sorted({str((each.get(part) or {}).get(name)) for each in records}))


def _machine(record: dict[str, Any]) -> str:
    machine = record["machine"]
    what = machine.get("gpus") or [f"{machine.get('processor')}, {machine.get('cores')} cores"]
    return ", ".join(map(str, what)) + f" ({record.get('device', 'cpu')})"
