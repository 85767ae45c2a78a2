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
"""Of a circuit, that a report fits a classical function to: about a second."""
SAME = 1e-5
"""Largest difference between a circuit and a classical function that is called the same."""
COSTS_BOUND = {
    "max_memory_gb": ("peak_memory", "max", 1e9, "GB of memory"),
    "max_epoch_seconds": ("seconds_per_epoch", "mean", 1, "s an epoch"),
}
"""Bound of success on a cost -> its column, what counts over seeds, and the factor and unit for people."""


def summary(run: Run, frame: pd.DataFrame | None = None) -> list[dict[str, Any]]:
    """One row per net: its score with its 95 % interval, parameters, seconds per epoch and so on.

    Args:
        run: The run.
        frame: Of its trainings, if it is read already.

    Raises:
        FileNotFoundError: Nothing has been trained yet.
    """
    frame = frame_of(run) if frame is None else frame
    if not len(frame):
        raise FileNotFoundError(f"Run `{run.folder}` must have trained a net, but has not: run 03_train.")
    name, kinds = run.score.name, ["quantum", "classical", "frozen"]
    # Only of a classifier the loss is a likelihood of each sample.
    likely = run.score.name != "accuracy" or "ece" in frame.dropna(axis="columns", how="all")
    more = [each.name for each in metrics(run.score)[1:] if each.name != "loss" or likely]
    found: Any = means(frame, run.score).set_index("net").astype(dict.fromkeys(kinds, int))
    found = found[[name, f"{name}_low", f"{name}_high", *kinds, "seconds_per_epoch", *more]]
    found.columns = ["score", "low", "high", *found.columns[3:]]
    found.insert(0, "scores", frame.groupby("net")[name].agg(list))
    rows = found.reset_index().to_dict("records")
    return [{name: _known(value) for name, value in row.items()} for row in rows]


def _known(number: Any) -> Any:
    """None in place of a number that is not finite, as JSON has none."""
    return None if isinstance(number, float) and not math.isfinite(number) else number


def table(
    rows: Sequence[Mapping[str, Any]], score: stats.Score = stats.ACCURACY, *, others: bool = False
) -> pd.DataFrame:
    """The rows of `summary` as people read them; with what else was computed of the test, if `others`."""
    import pandas as pd

    def cell(row: Mapping[str, Any]) -> str:
        if row["low"] is None:
            why = "one seed" if len(row["scores"]) == 1 else "the same on all seeds"
            return f"{score.tell(row['score'])} ({why})"
        return score.with_interval(row["score"], row["low"], row["high"])

    columns = {"net": [row["net"] for row in rows], score.column: [cell(row) for row in rows]}
    columns |= {kind: [row[kind] for row in rows] for kind in ("quantum", "classical", "frozen")}
    seconds = [row["seconds_per_epoch"] for row in rows]
    columns["s / epoch"] = ["" if each is None else f"{each:.2f}" for each in seconds]
    for each in metrics(score)[1:] if others else ():
        values = [row.get(each.name) for row in rows]
        if any(value is not None for value in values):
            columns[each.column] = ["" if value is None else each.tell(value) for value in values]
    return pd.DataFrame(columns).set_index("net")


def judge(run: Run) -> list[dict[str, Any]]:
    """A row for each bound of success that the run has, on its own net (controls are not judged).

    Returns:
        Rows of `criterion`, `bound`, `measured` (over seeds: the mean, of memory the largest), `low` and
        `high` of a score (its 95 % interval), `met` (None where it cannot be judged) and `sentence`.
    """
    frame = frame_of(run)
    own, bounds = frame[frame["net"] == run.nets[0]], {name: getattr(run.config, name) for name in BOUNDS}
    return [_judged(name, bound, own, run.score) for name, bound in bounds.items() if bound is not None]


def _judged(name: str, bound: float, own: Any, score: stats.Score) -> dict[str, Any]:
    """One row of `judge`, of the rows of the run's own net."""
    row = {"criterion": name, "bound": bound, **dict.fromkeys(("measured", "low", "high", "met"))}
    column, of_seeds, factor, unit = COSTS_BOUND.get(name, (score.name, "mean", 1, ""))
    if name not in (score.criterion, *COSTS_BOUND):
        return row | {"sentence": f"not judged: nets are compared by {score.word}."}
    if not len(own) or own[column].isna().any():
        return row | {"sentence": f"not judged: {column.replace('_', ' ')} is not recorded."}
    row["measured"] = measured = float(own[column].agg(of_seeds)) / factor
    if name in COSTS_BOUND:
        row["met"], reached = measured <= bound, f"{measured:.3g} {unit}"
        limit = f"at most {bound:g} {unit.split()[0]}"
    else:
        [found] = means(own, score).to_dict("records")
        low, high = (_known(found[f"{score.name}_{end}"]) for end in ("low", "high"))
        interval = "" if low is None else f" (95 % interval {score.tell(low)} to {score.tell(high)})"
        reached = f"test {score.word} {score.with_unit(measured, beside=bound)}{interval}"
        limit = f"{'at least' if score.larger else 'at most'} {score.with_unit(bound)}"
        row |= {"met": measured >= bound if score.larger else measured <= bound, "low": low, "high": high}
    return row | {"sentence": f"{'pass' if row['met'] else 'fail'}: {reached}, {limit} wanted."}


def finish(run: Run, robustness: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Writes report.html and, last, result.json; returns the result.

    The page shows what 04_analyze and 04b_inside have shown; of one that `runs.launch` is executing, so far.

    Args:
        run: Whose nets are all trained.
        robustness: Rows of `robustness`, kept in the result; without any, those of an earlier result stay.

    Raises:
        FileNotFoundError: A net of the run is not trained yet.
    """
    frame = frame_of(run)
    rows = summary(run, frame)
    missing = set(run.nets) - {row["net"] for row in rows if len(row["scores"]) == len(run.seeds)}
    if missing:
        what = f"Run `{run.folder}` must have trained every net, but lacks {', '.join(sorted(missing))}"
        raise FileNotFoundError(f"{what}. Run 03_train on it.")
    before = run.result or {}  # a report that is written again keeps what was measured where the run ran
    with mirrored(run.folder):
        if not before:
            run.note_provenance(**_spent(run, frame))
            with contextlib.suppress(FileNotFoundError):  # rows without checkpoints are reported all the same
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
            "comparisons": [{str(name): _known(value) for name, value in row.items()} for row in compared],
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
        # What was trained keeps the hashes it had: they would say nothing if every report took them again.
        fresh, kept = hashes(run.folder), files.read_hashes(run.folder) if before else {}
        drawn = {name: fresh[name] for name in fresh if name.startswith(("report.html", "figures/"))}
        files.write_hashes(run.folder, kept | drawn if kept else fresh)
        workspace.write_json(run.folder / "result.json", result)
    return result


def _shown(run: Run) -> page.Body:
    """What 04_analyze and 04b_inside have shown, of one that is executed just now so far."""
    copies = [run.notebook(name) for name in (ANALYZE, INSIDE)]
    shown = [page.executed(copy) or copy for copy in copies]
    bodies = [page.body(path) for path in shown if path.exists()]
    sections = [section for body in bodies for section in body.sections]
    return page.Body("\n".join(body.html for body in bodies), sections)


def _spent(run: Run, frame: pd.DataFrame) -> dict[str, Any]:
    """Time, money and bytes, for provenance.json."""
    rows, price = frame.to_dict("records"), run.config.price_per_hour
    hours = math.fsum(row["hours"] for row in rows if row["hours"] > 0)  # NaN is not
    return {
        "seeds": list(run.seeds),
        "training_hours": hours,
        "cost_estimate": None if price is None else hours * price,
        "peak_memory": {f"{row['net']}, seed {row['seed']}": _known(row["peak_memory"]) for row in rows},
    }


def _against_base(run: Run) -> dict[str, Any] | None:
    """Test loss of the run's own adapter, first seed, and of its base; None without an adapter."""
    final = run.tested().get((run.nets[0], run.config.seed), {})
    if "test_base_loss" not in final:
        return None
    losses = {"before": final["test_base_loss"], "after": final["test_loss"]}
    return {"loss": losses, "perplexity": {when: tasks.perplexity(loss) for when, loss in losses.items()}}


def render(run: Run, result: dict[str, Any], shown: page.Body, picture: bytes = b"") -> str:
    """The run's page: verdict, nets, what notebooks show, settings and provenance, in one HTML file."""
    weights = {"quantum": "circuit weights", "classical": "other weights", "frozen": "frozen weights"}
    controls = [row["net"] for row in result["nets"] if row["net"] not in MAIN_NETS]
    return page.render(
        "run.html",
        title=f"{run.config.title}: {run.folder.name}",
        run=run,
        result=result,
        forest=page.embedded(picture) if picture else "",
        table=table(result["nets"], run.score, others=True).rename(columns=weights),
        controls={net: CONTROLS.get(net, "a control of the recipe's own") for net in controls},
        smoothing=getattr(run.task, "label_smoothing", 0),
        facts=_facts(run),
        splits=run.config.vary_split,
        notes=_notes(run),
        notebooks=_notebooks(run),
        body=shown,
    )


def _facts(run: Run) -> list[str]:
    """What was trained, on what: data, circuit, epochs."""
    splits, config = run.splits, run.config
    sizes = " / ".join(f"{len(splits.split(name)):,}" for name in SPLITS)
    circuit = [f"Circuit: {config.of_kit('circuit')}"] if config.of_kit("circuit") else []
    data = f"Data: {splits.name}, {sizes} samples to train / validate / test"
    return [data, *circuit, f"{config.epochs} epochs, batches of {config.batch_size}"]


def _notes(run: Run) -> list[str]:
    """What else is to be known: of settings of single nets, gradients, data, place."""
    provenance, said = run.provenance, []
    if single := run.config.net_settings:
        said.append(f"Single nets were trained with settings of their own: {', '.join(single)}.")
    said += _measurements(run) + _as_classical(run)
    modules = build(run, run.nets[0], run.config.seed, bare=True).modules()
    said += [f"The net is built on {module.origin}." for module in modules if hasattr(module, "origin")]
    said += [*_gradient_notes(run), *(provenance.get("notes") or run.splits.notes)]
    if placed := provenance.get("trained", {}).get("sentence"):
        said.append(f"Trained on {placed}")
    return said


def _measurements(run: Run) -> list[str]:
    """What training under shots or noise costs."""
    if run.config.noise:
        return [f"Circuits ran with noise ({', '.join(run.config.noise)}), in training and in the test."]
    if not run.config.shots:
        return []
    own = run.tested().get((run.nets[0], run.config.seed), {})
    forward = run.config.shots * (own.get("circuits_per_image") or 0)
    return [
        f"Every circuit was measured {run.config.shots:,} times, in training and in the test: {forward:,} "
        "measurements a sample, and about twice as many again for each weight of a circuit that trains."
    ]


def _as_classical(run: Run) -> list[str]:
    """What classical functions the trained circuits are."""
    if "hybrid" not in run.nets or run.config.of_kit("adapter"):
        return []
    try:
        net = trained(run)
        layers.called(net, run.splits.example())
        difference = layers.as_classical(net, most=MOST_FEATURES)[1]
    except (NotImplementedError, FileNotFoundError):  # of amplitudes, with more features, or not trained
        return []
    if difference > SAME:  # of a circuit in half precision, or none that the features span
        return []
    return [
        "Each trained circuit is a classical function: a linear map of cosines and sines of its angles gives "
        f"its outputs to {difference:.0e} at inputs that were not fitted (qnnkit predict --classical)."
    ]


def _gradient_notes(run: Run) -> list[str]:
    try:
        found = gradients.read(run.folder)
    except (FileNotFoundError, ValueError):
        why = "gradients.jsonl is missing or damaged" if run.config.gradient_samples else "none were recorded"
        return [f"No gradients are shown: {why}."]
    circuits = any(training.quantum_layers for training in found.trainings.values())
    damaged = [f"{found.damaged} damaged lines of gradients.jsonl were skipped."] if found.damaged else []
    calm = ["No circuit's gradient vanished or exploded."] if circuits else []
    return [*(found.warnings or calm), *damaged]


def _notebooks(run: Run) -> list[str]:
    """Names of the executed notebooks, also of the one that runs now: it gets its own when it ends."""
    found = {path.name.replace(".running.", ".") for path in run.notebook("any").parent.glob("*.ipynb")}
    return sorted(name for name in found if not name.endswith(".failed.ipynb"))
