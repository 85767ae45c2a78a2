"""What a run found: the table of nets, sentences about it, and one HTML page that stands by itself."""

from __future__ import annotations

import base64
import contextlib
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnkit import gradients, measure, stats, workspace
from qnnkit.report import page
from qnnkit.report.adapted import beside_base
from qnnkit.report.criteria import judge
from qnnkit.report.planned import beside_plan
from qnnkit.report.verify import hashes
from qnnkit.runs import NOTEBOOKS, Run, build, export, sums
from qnnkit.runs.lock import mirrored
from qnnkit.settings import MAIN_NETS

if TYPE_CHECKING:
    import pandas as pd


def summary(run: Run) -> list[dict[str, Any]]:
    """One row per net: its score with its 95 % interval, parameters, seconds per epoch and so on.

    The interval is over seeds; of accuracy and recall also over the test samples: see `stats.mean_interval`.

    Raises:
        FileNotFoundError: Nothing has been trained yet.
    """
    finals, rows = run.finals(), []
    if not len(finals):
        raise FileNotFoundError(
            f"Run `{run.folder}` must have trained a net, but has not: run 03_train first."
        )
    # Only of a classifier the loss is a likelihood of each sample.
    left_out = (run.score.name,) if "test_ece" in finals else (run.score.name, "loss")
    for net in run.nets:
        of_net = finals[finals["net"] == net].set_index("seed").sort_index()
        if not len(of_net):
            continue
        scores = of_net[f"test_{run.score.name}"].tolist()
        n_test: Any = of_net.get("n_test", ())
        interval = run.score.interval(scores, n_test)
        first = of_net.iloc[0]
        rows.append(
            {
                "net": net,
                "scores": scores,
                "score": interval.mean,
                "low": interval.low if interval.known else None,
                "high": interval.high if interval.known else None,
                "quantum": int(first["quantum"]),
                "classical": int(first["classical"]),
                "frozen": int(first["frozen"]),
                "seconds_per_epoch": float(np.median(of_net["seconds_per_epoch"].to_list())),
                **{name: _mean(of_net, name) for name in SCORES if name not in left_out},
                **{name: of_net[name].tolist() for name in SPREADS if name in of_net},
            }
        )
    return rows


SCORES = {
    "macro_f1": "macro-F1 (%)",
    "loss": "negative log-likelihood (nats)",
    "ece": "calibration error (%)",
    "zero_shot": "zero-shot accuracy (%)",
    "perplexity": "perplexity",
}
"""What is told of each net beside its accuracy: means over seeds, on test images -> as people read it."""


SPREADS = {
    "validation_loss": ("validation loss (nats / token)", ".3f"),
    "tokens_per_second": ("tokens / s in training", ",.0f"),
}
"""What is told of language models with an interval over seeds -> as people read it, and how it is written."""


def _mean(of_net: pd.DataFrame, name: str) -> float | None:
    """None where a run was tested before qnnkit told it."""
    column = f"test_{name}"
    values = of_net[column].tolist() if column in of_net else []
    return float(np.mean(values)) if values and all(map(math.isfinite, values)) else None


def verdicts(rows: Sequence[dict[str, Any]], score: stats.Score = stats.ACCURACY) -> list[str]:
    """One sentence per control on how the net of the run did beside it, corrected for how many there are."""
    hybrid = next((row for row in rows if row["net"] in MAIN_NETS), None)
    if hybrid is None:
        return []
    controls = {
        row["net"]: row["scores"]
        for row in rows
        if row is not hybrid and len(row["scores"]) == len(hybrid["scores"])
    }
    return stats.verdicts(hybrid["net"], hybrid["scores"], controls, score)


def table(rows: Sequence[dict[str, Any]], score: stats.Score = stats.ACCURACY) -> pd.DataFrame:
    """The rows of `summary` as people read them."""
    import pandas as pd

    def told(row: dict[str, Any]) -> str:
        if row["low"] is None:
            why = "one seed" if len(row["scores"]) == 1 else "the same on all seeds"
            return f"{score.tell(row['score'])} ({why})"
        return score.with_interval(row["score"], row["low"], row["high"])

    return pd.DataFrame(
        {
            "net": [row["net"] for row in rows],
            score.told: [told(row) for row in rows],
            "quantum": [row["quantum"] for row in rows],
            "classical": [row["classical"] for row in rows],
            "frozen": [row["frozen"] for row in rows],
            "s / epoch": [f"{row['seconds_per_epoch']:.2f}" for row in rows],
        }
    ).set_index("net")


def scores(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """What `table` leaves out, of the rows of `summary`: macro-F1, negative log-likelihood, calibration."""
    import pandas as pd

    def told(name: str, value: float | None) -> str:
        if value is None:
            return ""
        return f"{value:.3f}" if name in ("loss", "perplexity") else f"{100 * value:.1f}"

    known = {name: head for name, head in SCORES.items() if any(row.get(name) is not None for row in rows)}
    columns = {head: [told(name, row.get(name)) for row in rows] for name, head in known.items()}
    for name, (head, form) in SPREADS.items():
        if any(name in row for row in rows):
            columns[head] = [_spread(row.get(name, ()), form) for row in rows]
    return pd.DataFrame({"net": [row["net"] for row in rows], **columns}).set_index("net")


def _spread(values: Sequence[float], form: str) -> str:
    if not values or not all(map(math.isfinite, values)):
        return ""
    interval = stats.mean_interval(values)
    half = f" ± {interval.half_width:{form}}" if interval.known else ""
    return f"{interval.mean:{form}}{half}"


def finish(run: Run, robustness: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Writes report.html and, last, result.json; returns the result.

    Where `runs.launch` is executing 04_analyze, the page shows what that notebook has shown so far; elsewhere
    the figures that notebooks have kept.

    Args:
        run: Whose nets are all trained.
        robustness: Rows of `robustness`, kept in the result; without any, those of an earlier result stay.

    Raises:
        FileNotFoundError: A net of the run is not trained yet.
    """
    rows = summary(run)
    missing = set(run.nets) - {row["net"] for row in rows if len(row["scores"]) == len(run.seeds)}
    if missing:
        raise FileNotFoundError(
            f"Run `{run.folder}` must have trained every net, but lacks {', '.join(sorted(missing))}. "
            "Run 03_train on it."
        )
    with mirrored(run.folder):
        return _finish(run, rows, list(robustness))


def _finish(run: Run, rows: list[dict[str, Any]], hardened: list[dict[str, Any]]) -> dict[str, Any]:
    notebook = page.executed(run.notebook(NOTEBOOKS[-1]))
    shown = page.body(notebook) if notebook else page.Body(_figures(run), [])
    before = run.result or {}  # a report that is written anew keeps to what was measured where the run ran
    if not before:
        run.note_provenance(**_spent(run))
    if not before:
        with contextlib.suppress(FileNotFoundError):  # rows without checkpoints are reported all the same
            export(run)
    result = {
        "recipe": run.config.title,
        "seeds": list(run.seeds),
        "nets": rows,
        "score": run.score.name,
        "verdicts": verdicts(rows, run.score),
        "robustness": hardened or before.get("robustness", []),
        "planned": before.get("planned") or beside_plan(run),
        "adapter": before.get("adapter") or beside_base(run),
        "criteria": judge(run),
        "test_images": len(run.splits.test),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "config_digest": run.asked.digest(),
    }
    workspace.write_bytes(run.report, render(run, result, shown).encode())
    # What was trained keeps the hashes it had: they would say nothing if every report took them anew.
    fresh, kept = hashes(run.folder), sums.read(run.folder) if before else None
    drawn = {name: digest for name, digest in fresh.items() if name.startswith(("report.html", "figures/"))}
    sums.write(run.folder, kept | drawn if kept else fresh)
    workspace.write_json(run.folder / "result.json", result)
    return result


def _spent(run: Run) -> dict[str, Any]:
    """Time, money and bytes, for provenance.json."""
    epochs = (row for row in run.rows("metrics") if row["event"] == "epoch")
    hours = sum(row.get("seconds", 0.0) for row in epochs) / 3600
    price = run.config.price_per_hour
    return {
        "seeds": list(run.seeds),
        "training_hours": hours,
        "cost_estimate": None if price is None else hours * price,
        "peak_memory": {
            f"{net}, seed {seed}": row.get("peak_memory") for (net, seed), row in run.tested().items()
        },
    }


def render(run: Run, result: dict[str, Any], shown: page.Body) -> str:
    """The run's page: table, sentences, what 04_analyze shows, settings and provenance, in one HTML file."""
    return page.render(
        "run.html",
        title=f"{run.config.title}: {run.folder.name}",
        run=run,
        result=result,
        table=table(result["nets"], run.score).join(scores(result["nets"])),
        sentences=_sentences(run, result),
        notebooks=_notebooks(run),
        body=shown,
    )


def _notebooks(run: Run) -> list[str]:
    """Names of the executed notebooks, also of the one that runs now: it gets its own when it ends."""
    found = {path.name.replace(".running.", ".") for path in run.notebook("any").parent.glob("*.ipynb")}
    return sorted(name for name in found if not name.endswith(".failed.ipynb"))


def _sentences(run: Run, result: dict[str, Any]) -> list[str]:
    """What is to be known of data, machine, gradients and plan."""
    told = [result[name]["sentence"] for name in ("adapter", "planned") if result[name]]
    machine = [
        f"{row['net']}, seed {row['seed']}: {row['sentence']}"
        for row in run.rows("metrics")
        if row["event"] == "warning" and row["of"] == "machine"
    ]
    notes = run.provenance.get("notes") or run.splits.notes
    if single := run.config.net_settings:
        told.append(f"Single nets were trained with settings of their own: {', '.join(single)}.")
    return [*told, *_of_gradients(run), *_starts(run), *notes, *_placed(run), *_surveyed(run), *machine]


def _of_gradients(run: Run) -> list[str]:
    """What the gradients of the training said against its circuits."""
    if not run.config.gradient_samples:
        return ["No gradients were recorded: gradient_samples was 0."]
    try:
        found = gradients.read(run.folder)
    except (FileNotFoundError, ValueError):
        return ["No gradients were recorded: this run was trained by an earlier version."]
    if not any(training.quantum_layers for training in found.trainings.values()):
        if getattr(run.config, "adapter", None):
            return ["An adapter's gradients were recorded by group; 04_analyze has the table."]
        return ["No net of this run has a circuit that trains."]
    damaged = [f"{found.damaged} damaged lines of gradients.jsonl were left out."] if found.damaged else []
    return [*(found.warnings or ["No circuit's gradient vanished, exploded or drowned in noise."]), *damaged]


def _starts(run: Run) -> list[str]:
    """What parts of the net start from, where that is not only their seed, or they stay there."""
    modules = build(run, run.nets[0], run.config.seed, bare=True).modules()
    return [f"The net stands on: {module.told}." for module in modules if hasattr(module, "told")]


def _placed(run: Run) -> list[str]:
    """Where it was trained, and why there."""
    told = run.provenance.get("trained", {}).get("sentence")
    return [f"Trained on {told}"] if told else []


def _surveyed(run: Run) -> list[str]:
    """Which device and precision is faster, and the memory of each, where 05_benchmark has measured them."""
    try:
        found = measure.survey.load(run.folder / "machine.json")
    except (FileNotFoundError, ValueError):  # never measured, or by another version
        return []
    told = measure.reading.net_sentences(found)
    return [f"Measured on {found['machine']['name']}: {sentence}" for sentence in told]


def _figures(run: Run) -> str:
    """The figures that notebooks have kept, for the page of a run whose 04_analyze is not being launched."""
    return page.render("figures.html", figures=map(_figure, sorted((run.folder / "figures").glob("*.png"))))


def _figure(path: Path) -> dict[str, str]:
    from PIL import Image

    try:
        with Image.open(path) as image:
            told = {name: str(image.info.get(name, "")) for name in ("Title", "Description")}
    except OSError:
        lost = "This figure is damaged. Run the notebook that draws it again."
        return {"title": path.name, "description": lost, "source": ""}
    encoded = base64.b64encode(path.read_bytes()).decode()
    return {
        "title": told["Title"],
        "description": told["Description"],
        "source": f"data:image/png;base64,{encoded}",
    }
