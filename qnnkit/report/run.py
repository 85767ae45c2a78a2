"""The result of a run: the table of nets, verdicts on the controls, and one HTML page."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnkit import stats, workspace
from qnnkit.report import page, sentences
from qnnkit.report.compared import RIVALS
from qnnkit.report.criteria import judge
from qnnkit.report.study import metrics
from qnnkit.report.verify import hashes
from qnnkit.runs import NOTEBOOKS, Run, export, sums
from qnnkit.runs.folder import without_places
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
    beside = [each.name for each in metrics(run.score)[1:] if each.name != "loss" or "test_ece" in finals]
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
                **{name: _mean(of_net, name) for name in beside},
                **{name: of_net[name].tolist() for name in SPREADS if name in of_net},
            }
        )
    return rows


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

    def cell(row: dict[str, Any]) -> str:
        if row["low"] is None:
            why = "one seed" if len(row["scores"]) == 1 else "the same on all seeds"
            return f"{score.tell(row['score'])} ({why})"
        return score.with_interval(row["score"], row["low"], row["high"])

    return pd.DataFrame(
        {
            "net": [row["net"] for row in rows],
            score.column: [cell(row) for row in rows],
            "quantum": [row["quantum"] for row in rows],
            "classical": [row["classical"] for row in rows],
            "frozen": [row["frozen"] for row in rows],
            "s / epoch": [f"{row['seconds_per_epoch']:.2f}" for row in rows],
        }
    ).set_index("net")


def scores(rows: Sequence[dict[str, Any]], score: stats.Score = stats.ACCURACY) -> pd.DataFrame:
    """What `table` leaves out, of the rows of `summary`: what is computed beside the score of the nets."""
    import pandas as pd

    columns = {
        each.column: ["" if row.get(each.name) is None else each.tell(row[each.name]) for row in rows]
        for each in metrics(score)[1:]
        if any(row.get(each.name) is not None for row in rows)
    }
    for name, (head, form) in SPREADS.items():
        if any(name in row for row in rows):
            columns[head] = [_spread(row.get(name, ()), form) for row in rows]
    return pd.DataFrame({"net": [row["net"] for row in rows], **columns}).set_index("net")


def _spread(values: Sequence[float], form: str) -> str:
    if not values or not all(map(math.isfinite, values)):
        return ""
    interval = stats.mean_interval(values)  # of what is never below 0
    ends = f" ({max(0.0, interval.low):{form}} to {interval.high:{form}})" if interval.known else ""
    return f"{interval.mean:{form}}{ends}"


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
    shown = page.body(notebook) if notebook else page.figures(sorted((run.folder / "figures").glob("*.png")))
    before = run.result or {}  # a report that is written anew keeps to what was measured where the run ran
    if not before:
        run.note_provenance(**_spent(run))
        with contextlib.suppress(FileNotFoundError):  # rows without checkpoints are reported all the same
            export(run)
    result = {
        "recipe": run.config.title,
        "seeds": list(run.seeds),
        "nets": rows,
        "score": run.score.name,
        "verdicts": verdicts(rows, run.score),
        "robustness": hardened or before.get("robustness", []),
        "planned": before.get("planned") or sentences.compare_with_plan(run),
        "adapter": before.get("adapter") or sentences.compare_with_base(run),
        "criteria": judge(run),
        "test_images": len(run.splits.test),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "config_digest": run.asked.digest(),
    }
    workspace.write_bytes(run.report, without_places(render(run, result, shown)).encode())
    # What was trained keeps the hashes it had: they would say nothing if every report took them anew.
    fresh, kept = hashes(run.folder), sums.read(run.folder) if before else None
    drawn = {name: digest for name, digest in fresh.items() if name.startswith(("report.html", "figures/"))}
    sums.write(run.folder, kept | drawn if kept else fresh)
    workspace.write_json(run.folder / "result.json", result)
    return result


def _spent(run: Run) -> dict[str, Any]:
    """Time, money and bytes, for provenance.json."""
    epochs = (row for row in run.rows("metrics") if row["event"] == "epoch" and "copied" not in row)
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
    nets = [row["net"] for row in result["nets"] if row["net"] not in MAIN_NETS]
    kinds = {net: "as_frozen" if net == "classical" and "classical_trained" in nets else net for net in nets}
    weights = {kind: f"{kind} weights" for kind in ("quantum", "classical", "frozen")}
    return page.render(
        "run.html",
        title=f"{run.config.title}: {run.folder.name}",
        run=run,
        result=result,
        table=table(result["nets"], run.score)
        .rename(columns=weights)
        .join(scores(result["nets"], run.score)),
        controls={
            net: RIVALS.get(kind, ("a control of the recipe's own",))[0] for net, kind in kinds.items()
        },
        smoothing=getattr(run.task, "label_smoothing", 0),
        sentences=sentences.of_run(run, result),
        notebooks=_notebooks(run),
        body=shown,
    )


def _notebooks(run: Run) -> list[str]:
    """Names of the executed notebooks, also of the one that runs now: it gets its own when it ends."""
    found = {path.name.replace(".running.", ".") for path in run.notebook("any").parent.glob("*.ipynb")}
    return sorted(name for name in found if not name.endswith(".failed.ipynb"))
