"""The result of a run: the table of nets, verdicts on the controls, criteria, and one HTML page."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from qnnkit import gradients, layers, plots, stats, tasks, workspace
from qnnkit.data.splits import SPLITS
from qnnkit.report import page
from qnnkit.report.tables import CONTROLS, comparisons, forest, frame_of, headline, means, metrics
from qnnkit.report.verify import hashes
from qnnkit.runs import ANALYZE, INSIDE, Run, build, export, trained
from qnnkit.runs import rows as files
from qnnkit.runs.folder import now, without_places
from qnnkit.runs.lock import mirrored
from qnnkit.settings import BOUNDS, MAIN_NETS

if TYPE_CHECKING:
    import pandas as pd

MOST_FEATURES = 1000
"""Most features of a circuit to which a report fits a classical function: about a second."""
SAME = 1e-5
"""Largest difference at which a circuit and a classical function count as the same."""
COSTS_BOUND = {
    "max_memory_gb": ("peak_memory", "max", 1e9, "GB of memory"),
    "max_epoch_seconds": ("seconds_per_epoch", "mean", 1, "s per epoch"),
}
"""For each bound on a cost: its column, how seeds are combined, and the factor and unit that are shown."""


def summary(run: Run, frame: pd.DataFrame | None = None) -> list[dict[str, Any]]:
    """One row per net: its score with its 95 % interval, parameters, seconds per epoch and so on.

    Args:
        run: The run.
        frame: Frame of its trainings, if it has already been read.

    Raises:
        FileNotFoundError: No net has been trained yet.
    """
    frame = frame_of(run) if frame is None else frame
    if not len(frame):
        raise FileNotFoundError(f"Run `{run.folder}` must have trained a net, but has not. Run 03_train.")
    name, kinds = run.score.name, ["quantum", "classical", "frozen"]
    # The loss is the likelihood of each sample only for a classifier.
    likely = run.score.name != "accuracy" or "ece" in frame.dropna(axis="columns", how="all")
    more = [metric.name for metric in metrics(run.score)[1:] if metric.name != "loss" or likely]
    table: Any = means(frame, run.score).set_index("net").astype(dict.fromkeys(kinds, int))
    table = table[[name, f"{name}_low", f"{name}_high", *kinds, "seconds_per_epoch", *more]]
    table.columns = ["score", "low", "high", *table.columns[3:]]
    table.insert(0, "scores", frame.groupby("net")[name].agg(list))
    rows = table.reset_index().to_dict("records")
    return [{name: _finite(value) for name, value in row.items()} for row in rows]


def _finite(number: Any) -> Any:
    """The number, or None if it is not finite, because JSON has no such number."""
    return None if isinstance(number, float) and not math.isfinite(number) else number


def table(
    rows: Sequence[Mapping[str, Any]], score: stats.Score = stats.ACCURACY, *, others: bool = False
) -> pd.DataFrame:
    """The rows of `summary` in readable form, by net; with the other test metrics, if `others`.

    Args:
        rows: Rows of `summary`.
        score: The run's `score`.
        others: Whether to add the other test metrics that are recorded.
    """
    import pandas as pd

    def cell(row: Mapping[str, Any]) -> str:
        if row["low"] is None:
            why = "one seed" if len(row["scores"]) == 1 else "the same on all seeds"
            return f"{score.tell(row['score'])} ({why})"
        return score.with_interval(row["score"], row["low"], row["high"])

    columns = {"net": [row["net"] for row in rows], score.column: [cell(row) for row in rows]}
    columns |= {kind: [row[kind] for row in rows] for kind in ("quantum", "classical", "frozen")}
    seconds = [row["seconds_per_epoch"] for row in rows]
    columns["s / epoch"] = ["" if value is None else f"{value:.2f}" for value in seconds]
    for metric in metrics(score)[1:] if others else ():
        values = [row.get(metric.name) for row in rows]
        if any(value is not None for value in values):
            columns[metric.column] = ["" if value is None else metric.tell(value) for value in values]
    return pd.DataFrame(columns).set_index("net")


def judge(run: Run) -> list[dict[str, Any]]:
    """A row for each success criterion of the run, applied to its main net (controls are not judged).

    Returns:
        Rows of `criterion`, `bound`, `measured` (the mean over seeds; for memory the maximum), `low` and
        `high` (the 95 % interval of a score), `met` (None if it cannot be judged) and `sentence`.
    """
    frame = frame_of(run)
    main, bounds = frame[frame["net"] == run.nets[0]], {name: getattr(run.config, name) for name in BOUNDS}
    return [_judged(name, bound, main, run.score) for name, bound in bounds.items() if bound is not None]


def _judged(name: str, bound: float, main: Any, score: stats.Score) -> dict[str, Any]:
    """One row of `judge`, from the rows of the run's main net."""
    row = {"criterion": name, "bound": bound, **dict.fromkeys(("measured", "low", "high", "met"))}
    column, of_seeds, factor, unit = COSTS_BOUND.get(name, (score.name, "mean", 1, ""))
    if name not in COSTS_BOUND and (name, score.larger) != (score.criterion, name.startswith("min_")):
        return row | {"sentence": f"not judged: nets are compared by {score.word}."}
    if not len(main) or main[column].isna().any():
        return row | {"sentence": f"not judged: {column.replace('_', ' ')} is not recorded."}
    row["measured"] = measured = float(main[column].agg(of_seeds)) / factor
    if name in COSTS_BOUND:
        row["met"], reached = measured <= bound, f"{measured:.3g} {unit}"
        limit = f"at most {bound:g} {unit.split()[0]}"
    else:
        bound = bound * 100 / score.factor if score.per == "%" else bound  # in the unit of the score
        [mean] = means(main, score).to_dict("records")
        low, high = (_finite(mean[f"{score.name}_{end}"]) for end in ("low", "high"))
        interval = "" if low is None else f" (95 % interval {score.tell(low)} to {score.tell(high)})"
        reached = f"test {score.word} {score.with_unit(measured, beside=bound)}{interval}"
        limit = f"{'at least' if score.larger else 'at most'} {score.with_unit(bound)}"
        row |= {"met": measured >= bound if score.larger else measured <= bound, "low": low, "high": high}
    return row | {"sentence": f"{'pass' if row['met'] else 'fail'}: {reached}; limit: {limit}."}


def finish(run: Run, robustness: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Writes report.html and, last, result.json; returns the result.

    The page shows the results of 04_analyze and 04b_inside, so far if `runs.launch` is executing one of them.

    Args:
        run: A run whose nets are all trained.
        robustness: Rows of `robustness` for the result. If there are none, those of an earlier result stay.

    Raises:
        FileNotFoundError: A net of the run is not trained yet.
        OSError: A file cannot be written.
    """
    frame = frame_of(run)
    rows = summary(run, frame)
    missing = set(run.nets) - {row["net"] for row in rows if len(row["scores"]) == len(run.seeds)}
    if missing:
        what = f"Run `{run.folder}` must have trained every net, but lacks {', '.join(sorted(missing))}"
        raise FileNotFoundError(f"{what}. Run 03_train on it.")
    before = run.result or {}  # keeps what was measured on the machine that trained
    with mirrored(run.folder):
        if not before:
            run.note_provenance(**_spent(run, frame))
            with contextlib.suppress(FileNotFoundError):  # rows without checkpoints are still reported
                export(run)
        compared = comparisons(frame, run.score, run.config.min_difference)[0].to_dict("records")
        result = {
            "recipe": run.config.title,
            "seeds": list(run.seeds),
            "nets": rows,
            "score": run.score.name,
            "min_difference": run.config.min_difference,
            "verdict": headline(compared, run.score),
            "verdicts": [stats.sentence(row, run.score) for row in compared],
            "comparisons": [{str(name): _finite(value) for name, value in row.items()} for row in compared],
            "robustness": list(robustness) or before.get("robustness", []),
            "adapter": before.get("adapter") or _against_base(run),
            "criteria": judge(run),
            "test_images": len(run.splits.test),
            "finished": now(),
            "config_digest": run.asked.digest(),
        }
        picture = plots.as_png(forest(compared, run.score)) if compared else b""
        content = without_places(render(run, result, _shown(run), picture))
        workspace.write_bytes(run.report, content.encode())
        # Other files keep their first hashes: if every report computed them again, they would show no damage.
        fresh, first = hashes(run.folder), files.read_hashes(run.folder) if before else {}
        drawn = {name: fresh[name] for name in fresh if name.startswith(("report.html", "figures/"))}
        files.write_hashes(run.folder, first | drawn if first else fresh)
        workspace.write_json(run.folder / "result.json", result)
    return result


def _shown(run: Run) -> page.Body:
    """Results of 04_analyze and 04b_inside, so far if one is being executed."""
    copies = [run.notebook(name) for name in (ANALYZE, INSIDE)]
    shown = [page.executed(copy) or copy for copy in copies]
    bodies = [page.body(path) for path in shown if path.exists()]
    sections = [section for body in bodies for section in body.sections]
    return page.Body("\n".join(body.html for body in bodies), sections)


def _spent(run: Run, frame: pd.DataFrame) -> dict[str, Any]:
    """Hours, cost and memory for provenance.json."""
    rows, price = frame.to_dict("records"), run.config.price_per_hour
    hours = math.fsum(row["hours"] for row in rows if row["hours"] > 0)  # False for NaN
    return {
        "seeds": list(run.seeds),
        "training_hours": hours,
        "cost_estimate": None if price is None else hours * price,
        "peak_memory": {f"{row['net']}, seed {row['seed']}": _finite(row["peak_memory"]) for row in rows},
    }


def _against_base(run: Run) -> dict[str, Any] | None:
    """Test loss of the run's adapter (first seed) and of its base; None without an adapter."""
    final = run.tested().get((run.nets[0], run.config.seed), {})
    if "test_base_loss" not in final:
        return None
    losses = {"before": final["test_base_loss"], "after": final["test_loss"]}
    return {"loss": losses, "perplexity": {when: tasks.perplexity(loss) for when, loss in losses.items()}}


def render(run: Run, result: dict[str, Any], shown: page.Body, picture: bytes = b"") -> str:
    """The run's page as one HTML file: verdict, nets, results of notebooks, settings and provenance."""
    weights = {"quantum": "circuit weights", "classical": "other weights", "frozen": "frozen weights"}
    controls = [row["net"] for row in result["nets"] if row["net"] not in MAIN_NETS]
    # The one that runs now has its later name.
    executed = {path.name.replace(".running.", ".") for path in run.notebook("any").parent.glob("*.ipynb")}
    return page.render(
        "run.html",
        title=f"{run.config.title}: {run.folder.name}",
        run=run,
        result=result,
        forest=page.embedded(picture) if picture else "",
        table=table(result["nets"], run.score, others=True).rename(columns=weights),
        controls={net: CONTROLS.get(net, "a control that the recipe defines") for net in controls},
        smoothing=getattr(run.task, "label_smoothing", 0),
        facts=_facts(run),
        splits=run.config.vary_split,
        notes=_notes(run),
        notebooks=sorted(name for name in executed if not name.endswith(".failed.ipynb")),
        body=shown,
    )


def _facts(run: Run) -> list[str]:
    """Facts about the training: data, circuit, epochs."""
    splits, config = run.splits, run.config
    sizes = " / ".join(f"{len(splits.split(name)):,}" for name in SPLITS)
    circuit = [f"Circuit: {config.of_kit('circuit')}"] if config.of_kit("circuit") else []
    data = f"Data: {splits.name}, {sizes} samples for training / validation / test"
    return [data, *circuit, f"Epochs: {config.epochs}, batches of {config.batch_size}"]


def _notes(run: Run) -> list[str]:
    """Notes on settings of single nets, circuits, gradients, data and placement."""
    provenance, notes = run.provenance, []
    if single := [each for each in run.config.net_settings if each.split(".")[0] in run.nets]:
        notes.append(f"Some nets were trained with their own settings: {', '.join(single)}.")
    notes += _measurements(run) + _as_classical(run)
    modules = build(run, run.nets[0], run.config.seed, bare=True).modules()
    notes += [f"The net is built on {module.origin}." for module in modules if hasattr(module, "origin")]
    notes += [*_gradient_notes(run), *(provenance.get("notes") or run.splits.notes)]
    if placed := provenance.get("trained", {}).get("sentence"):
        notes.append(f"Trained on {placed}")
    return notes


def _measurements(run: Run) -> list[str]:
    """Notes on training with shots or noise, and their cost."""
    if run.config.noise:
        return [f"Circuits ran with noise ({', '.join(run.config.noise)}) in training and in the test."]
    if not run.config.shots:
        return []
    test = run.tested().get((run.nets[0], run.config.seed), {})
    forward = run.config.shots * (test.get("circuits_per_image") or 0)
    return [
        f"Every circuit was measured {run.config.shots:,} times in training and in the test: {forward:,} "
        "measurements per sample, and about twice as many more for each weight of a circuit that trains."
    ]


def _as_classical(run: Run) -> list[str]:
    """A note if the trained circuits are classical functions."""
    if "hybrid" not in run.nets or run.config.of_kit("adapter"):
        return []
    try:
        net = trained(run)
        layers.called(net, run.splits.example())
        difference = layers.as_classical(net, most=MOST_FEATURES)[1]
    except (NotImplementedError, FileNotFoundError):  # amplitudes, more features, or not trained
        return []
    if difference > SAME:  # half precision, or a circuit that the features do not span
        return []
    return [
        "Each trained circuit is a classical function: a linear map of cosines and sines of its angles gives "
        f"its outputs to within {difference:.0e} at inputs that were not fitted (qnnkit predict --classical)."
    ]


def _gradient_notes(run: Run) -> list[str]:
    try:
        history = gradients.read(run.folder)
    except (FileNotFoundError, ValueError):
        why = "gradients.jsonl is missing or damaged" if run.config.gradient_samples else "none were recorded"
        return [f"No gradients are shown: {why}."]
    circuits = any(training.quantum_layers for training in history.trainings.values())
    damaged = [f"Skipped damaged lines of gradients.jsonl: {history.damaged}."] if history.damaged else []
    calm = ["No circuit's gradient vanished or exploded."] if circuits else []
    return [*(history.warnings or calm), *damaged]
