"""qnnkit.report: its numbers are those of metrics.jsonl, and its page is self-contained and runs no code."""

import json
import math
import re

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from qnnkit import recipes, report, runs
from qnnkit.settings import Recorded
from tests.showing import Page, log_test
from tests.toys import fill

T_95_3 = 4.302653  # Student's t for a 95 % interval of three values, from a table
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def begin(tmp_path):
    """Begins a run on the digits and logs test scores: `begin({"hybrid": [0.9], "classical": [0.8]})`."""

    def begin_(accuracies, n_seeds=None, **settings):
        n_seeds = n_seeds or max(map(len, accuracies.values()))
        controls = [net for net in accuracies if net != "hybrid"] or ["classical"]
        settings = {"controls": controls, "n_seeds": n_seeds} | settings
        run = runs.Run(tmp_path, recipes.settings("digits_quanv", **settings))
        run.note_provenance(nets=["hybrid", *controls])
        for net, values in accuracies.items():
            for seed, accuracy in enumerate(values):
                log_final(run, net, seed, accuracy)
        return run

    return begin_


def log_final(run, net, seed, accuracy, **more):
    weights = {"quantum": 0, "classical": 124} if net == "classical" else {}
    log_test(run, net, seed, accuracy, **weights, **more)


@pytest.fixture
def three(begin):
    """Three seeds of a hybrid net and its control, written by hand, out of order and one of them twice."""
    run = begin({"classical": [0.95, 0.96, 0.99]})
    for seed, accuracy, seconds in ((2, 0.1, 9.0), (2, 0.94, 0.9), (0, 0.90, 0.3), (1, 0.92, 0.5)):
        log_final(run, "hybrid", seed, accuracy, seconds_per_epoch=seconds)
    return run


def images(shown):
    return [attributes for tag, attributes in shown.tags if tag == "img"]


def read(run):
    """The page above its provenance, with single spaces."""
    return re.sub(r"\s+", " ", Page(run.report.read_text()).text).split("How it was made")[0]


# --- numbers -----------------------------------------------------------------------------------------------


def test_three_seeds_by_hand(three):
    """Differences of 5, 4 and 5 points: mean 4.67, half width 1.43."""
    hybrid, _ = rows = report.summary(three)
    half = T_95_3 * 0.02 / math.sqrt(3)  # 0.90, 0.92, 0.94 have a standard deviation of 0.02
    assert hybrid["net"] == "hybrid" and hybrid["scores"] == [0.90, 0.92, 0.94]  # per seed
    ends = hybrid["score"], hybrid["low"], hybrid["high"]
    assert ends == pytest.approx((0.92, 0.92 - half, 0.92 + half), abs=1e-5)
    assert hybrid["seconds_per_epoch"] == 0.5  # the median
    assert (hybrid["quantum"], hybrid["classical"], hybrid["frozen"]) == (24, 100, 0)
    json.dumps(rows, allow_nan=False)
    table = report.table(rows)
    assert table.index.tolist() == ["hybrid", "classical"] and table["quantum"].tolist() == [24, 0]
    assert list(table) == ["test accuracy (%)", "quantum", "classical", "frozen", "s / epoch"]
    assert table["test accuracy (%)"].tolist() == ["92.0 (87.0 to 97.0)", "96.7 (91.5 to 100.0)"]
    result = report.finish(three)
    said = "hybrid did worse than classical: -4.7 points (95 % interval -6.1 to -3.2, p = 0.005, 3 seeds)."
    assert result["verdicts"] == [said]
    power = "Detectable with 80 % power: 1.9 points by 3 seeds, 1 point by 5."
    first = "The circuit did not help. Against its strongest classical control:"
    assert result["verdict"] == f"{first} {said} {power}", "difference, rival, margin and power"
    [row] = result["comparisons"]
    assert (row["verdict"], row["seeds"], row["min_difference"]) == ("worse", 3, 0.01)
    assert row["difference"] == pytest.approx(-0.14 / 3)
    axis = report.forest(result["comparisons"]).axes[0]  # in points
    assert (axis.patches[0].get_x(), axis.patches[0].get_width()) == (-1, 2), "the margin"
    assert axis.lines[1].get_xdata() == pytest.approx([-6.1, -3.2], abs=0.05)


def test_nets_that_are_not_trained_yet(begin):
    run = begin({}, n_seeds=2)
    with pytest.raises(FileNotFoundError, match=r"must have trained a net, but has not. Run 03_train"):
        report.summary(run)
    for seed, lacking in ((0, "hybrid, classical|classical, hybrid"), (1, "classical")):
        log_final(run, "hybrid", seed, 0.9)
        assert [row["net"] for row in report.summary(run)] == ["hybrid"]
        with pytest.raises(FileNotFoundError, match=f"must have trained every net, but lacks {lacking}"):
            report.finish(run)
    assert not run.report.exists() and run.result is None
    assert not len(report.comparisons(report.frame_of(run))[0]) and report.headline([]) == ""


def test_a_users_settings_never_pass_for_results(begin):
    run, fields = begin({"hybrid": [0.9]}), {"loss": "mse", "run": "x", "n_train": 3}
    run.note_provenance(given=[*fields], samples={"train": 60}, score=vars(run.score))
    frame = report.frame_of(runs.Run(run.folder, Recorded.of(fields)))  # of an earlier version
    assert frame[[*fields]].values.tolist() == [[1.0, run.folder.name, 60.0]]


ALIKE = {"hybrid": [0.951, 0.9495, 0.95], "classical": [0.95, 0.95, 0.9495]}
BETTER = {"hybrid": [0.93, 0.95, 0.97], "classical": [0.90, 0.91, 0.92]}
RIVAL = "Against its strongest classical control: hybrid"


@pytest.mark.parametrize(
    ("accuracies", "margin", "cell", "said"),
    [
        # the other control, which has a circuit, did best
        (BETTER | {"frozen_random": [0.99, 0.98, 0.99]}, None, "95.0 (90.0 to 100.0)",
         f"The circuit helped. {RIVAL} did better than classical"),
        (ALIKE, None, "95.0 (94.8 to 95.2)", f"The circuit makes no difference that matters. {RIVAL} and"),
        (ALIKE, 0.1, "95.0 (94.8 to 95.2)", "The circuit is not shown to help. "),
        ({"hybrid": [0.98] * 3, "classical": [0.95] * 3}, None, "98.0 (the same on all seeds)",
         f"The circuit is not shown to help. {RIVAL} and classical differ by +3.0 points on each of 3 seeds"),
        ({"hybrid": [0.8], "classical": [0.95]}, None, "80.0 (one seed)", "The circuit is not shown to help. "
         f"{RIVAL} minus classical: -15.0 points on one seed, which shows nothing; train more seeds."),
    ],
)  # fmt: skip
def test_the_headline_names_the_strongest_control_without_a_circuit(begin, accuracies, margin, cell, said):
    """Also on the page, which shows no missing number."""
    run = begin(accuracies, min_difference=margin)
    result, text = report.finish(run), read(run)
    assert result["verdict"].startswith(said) and result["min_difference"] == margin
    assert report.table(report.summary(run))["test accuracy (%)"].iloc[0] == cell
    assert result["verdict"] in text and cell in text
    assert not re.findall(r"\bNone\b|\bnan\b|-0\.0\b", text)


def test_means_and_notes_on_the_page(begin):
    """Means over seeds in result.json and on the page; the printed table stays narrow."""
    single = ("classical.learning_rate=0.5", "no_quantum.learning_rate=0.1")  # of a net that is left out
    run = begin({"hybrid": [0.95, 0.95], "classical": [0.95, 0.95]}, net_settings=single)
    for seed, f1, ece in ((0, 0.90, 0.02), (1, 0.91, 0.04)):
        log_final(run, "hybrid", seed, 0.95, test_macro_f1=f1, test_ece=ece, n_test=360)
        run.log("metrics", run.rows("metrics")[-1] | {"test_loss": 0.5 + seed})
    hybrid, classical = report.finish(run)["nets"]
    assert hybrid["low"] < 0.95 < hybrid["high"], "seeds agree, so the interval is over test images"
    assert (hybrid["macro_f1"], hybrid["loss"], hybrid["ece"]) == pytest.approx((0.905, 1.0, 0.03))
    assert (classical["macro_f1"], classical["ece"]) == (None, None), "tested before qnnkit recorded it"
    text = read(run)
    for sentence in (
        "circuit weightsother weightsfrozen weightss / epoch hybrid",
        "Other scores nettest macro-F1 (%)test NLL (nats)test ECE (%) hybrid90.51.0003.0",
        "their own settings: classical.learning_rate=0.5.",
        "classical (a classical layer of as many weights as the circuit).",
        "label smoothing of 0.1 in training makes a net less confident",
    ):
        assert sentence in text, sentence
    assert "None" not in text


# --- the page ----------------------------------------------------------------------------------------------


def test_the_page_shows_results_and_figures_and_loads_nothing(three):
    picture = new_output("display_data", data={"image/png": "iVBORw0KGgo="})
    cells = [new_markdown_cell("## Learning curves\n\nRead them."), new_code_cell("1", outputs=[picture])]
    three.notebook("04_analyze").parent.mkdir()
    three.notebook("04_analyze").write_text("cut")
    with pytest.raises(ValueError, match=r"04_analyze.ipynb` is damaged"):
        report.finish(three)
    nbformat.write(new_notebook(cells=cells), three.notebook("04_analyze"))  # executed earlier
    three.notebook("04_analyze.running").write_text("cut")  # by a process that was killed
    three.report.mkdir()
    with pytest.raises(OSError, match=r"Cannot write .*report\.html"):
        report.finish(three)
    assert three.result is None, "the page is written last: without it, the run is not finished"
    three.report.rmdir()
    result = report.finish(three)
    assert json.loads((three.folder / "result.json").read_text()) == result == three.result
    assert (result["recipe"], result["seeds"], result["test_images"]) == ("digits_quanv", [0, 1, 2], 359)
    assert result["nets"] == report.summary(three)
    html = three.report.read_text()
    shown = Page(html)
    for words in ("92.0 (87.0 to 97.0)", *result["verdicts"], "digits, 1,079 / 359 / 359 samples"):
        assert words in shown.text
    forest, curves = images(shown)
    assert forest["class"] == "forest" and curves["alt"] == "Learning curves" and "Read them." in shown.text
    links = [value for _, attrs in shown.tags for name, value in attrs.items() if name in ("src", "href")]
    assert all(link.startswith(("data:", "#", "notebooks/")) for link in links)
    assert "@import" not in html and "url(" not in html


def test_hostile_names_are_shown_as_text(tmp_path):
    """A class folder and a run folder with names that are HTML."""
    root = tmp_path / "pictures"
    for name in (HOSTILE, "b"):
        fill(root / name, [f"{i}.png" for i in range(6)])
        (root / name / "<script>alert(2).png").write_text("no image")
    settings = {"data_dir": str(root), "image_size": 6, "n_seeds": 1, "controls": ["classical"]}
    run = runs.open_run(tmp_path / "<script>alert(3)", "folder_quanv", **settings)
    log_final(run, "hybrid", 0, 0.9)
    log_final(run, "classical", 0, 0.9)
    run.note_provenance(machine={"cpu": "<script>alert(4)</script>"})
    report.finish(run)
    shown = Page(run.report.read_text())
    assert [tag for tag, _ in shown.tags if tag == "script"] == [] and len(images(shown)) == 1
    assert [name for _, attributes in shown.tags for name in attributes if name.startswith("on")] == []
    for words in (f"{HOSTILE}/<script>alert(2).png", "<script>alert(3)", "<script>alert(4)</script>"):
        assert words in shown.text
