"""qnnkit.report: its numbers are those of metrics.jsonl, and its page stands by itself and runs nothing."""

import json
import math
import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from qnnkit import recipes, report, runs, stats
from qnnkit.report import page
from qnnkit.tasks import Predictions
from tests.showing import Page, log_test
from tests.toys import fill

T_95_3 = 4.302653  # Student's t for a 95 % interval of three values, from a printed table
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def begin(tmp_path):
    """Begins a run of the digits and logs tests: `begin({"hybrid": [0.9], "classical": [0.8]})`."""

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
    """Three seeds of a hybrid net and its control, written by hand and out of order."""
    run = begin({"classical": [0.95, 0.96, 0.99]})
    for seed, accuracy, seconds in ((2, 0.94, 0.9), (0, 0.90, 0.3), (1, 0.92, 0.5)):
        log_final(run, "hybrid", seed, accuracy, seconds_per_epoch=seconds)
    return run


@pytest.fixture
def one(begin):
    return begin({"hybrid": [0.9], "classical": [0.95]})


def drawn():
    figure = Figure(figsize=(3, 2))
    figure.subplots().plot([1, 2])
    return figure


def images(shown):
    return [attributes for tag, attributes in shown.tags if tag == "img"]


def read(run):
    """The page above its provenance, spaces as one."""
    return re.sub(r"\s+", " ", Page(run.report.read_text()).text).split("How it was made")[0]


# --- numbers -----------------------------------------------------------------------------------------------


def test_three_seeds_by_hand(three):
    """Differences of 5, 4 and 5 points: mean 4.67, and 1.43 to either side."""
    hybrid, _ = rows = report.summary(three)
    half = T_95_3 * 0.02 / math.sqrt(3)  # 0.90, 0.92, 0.94 have a standard deviation of 0.02
    assert hybrid["net"] == "hybrid" and hybrid["scores"] == [0.90, 0.92, 0.94]  # by seed
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
    assert result["verdict"] == f"{first} {said} {power}", "by how much, against what, margin and power"
    [row] = result["comparisons"]
    assert (row["verdict"], row["seeds"], row["min_difference"]) == ("worse", 3, 0.01)
    assert row["difference"] == pytest.approx(-0.14 / 3)


def test_one_seed_has_no_interval_and_no_verdict(one):
    log_final(one, "hybrid", 0, 0.8)  # after a kill between its row and the next one: the last one counts
    rows = report.summary(one)
    assert [rows[0][name] for name in ("scores", "score", "low", "high")] == [[0.8], 0.8, None, None]
    assert report.table(rows)["test accuracy (%)"].tolist() == ["80.0 (one seed)", "95.0 (one seed)"]
    result = report.finish(one)
    [told] = result["verdicts"]
    assert told == "hybrid minus classical: -15.0 points on one seed, which shows nothing; train more seeds."
    said = f"The circuit is not shown to help. Against its strongest classical control: {told}"
    assert result["verdict"] == said and "80.0 (one seed)" in read(one) and told in read(one)
    assert not re.findall(r"\bNone\b|\bnan\b|-0\.0\b", read(one))


def test_what_is_not_trained_yet(begin):
    run = begin({}, n_seeds=2)
    with pytest.raises(FileNotFoundError, match="must have trained a net, but has not: run 03_train"):
        report.summary(run)
    for seed, lacking in ((0, "hybrid, classical|classical, hybrid"), (1, "classical")):
        log_final(run, "hybrid", seed, 0.9)
        assert [row["net"] for row in report.summary(run)] == ["hybrid"]
        with pytest.raises(FileNotFoundError, match=f"must have trained every net, but lacks {lacking}"):
            report.finish(run)
    assert not run.report.exists() and run.result is None
    assert not len(report.comparisons(report.frame_of(run))[0]) and report.headline([]) == ""


def test_seeds_with_equal_scores_have_an_interval_over_test_images(begin):
    run = begin({"hybrid": [], "classical": [0.989] * 3})
    for seed in range(3):
        log_final(run, "hybrid", seed, 0.989, n_test=360)
    low, high = stats.clopper_pearson(0.989 * 360, 360)
    told = [f"98.9 ({100 * low:.1f} to {100 * high:.1f})", "98.9 (the same on all seeds)"]
    assert report.table(report.summary(run))["test accuracy (%)"].tolist() == told


def test_the_headline_is_of_the_strongest_control_without_a_circuit(begin):
    """Here the other one, which holds one, did best of all."""
    classical, frozen = [0.90, 0.91, 0.92], [0.99, 0.98, 0.99]
    run = begin({"hybrid": [0.93, 0.95, 0.97], "classical": classical, "frozen_random": frozen})
    result = report.finish(run)
    first, *_ = result["verdicts"]
    assert len(result["verdicts"]) == 2 and "p = 0.040 after Holm's correction" in first
    said = f"The circuit helped. Against its strongest classical control: {first}"
    assert result["verdict"].startswith(f"{said} Detectable with 80 % power: ")
    shown = Page(run.report.read_text())
    assert result["verdict"] in shown.text and [each["class"] for each in images(shown)] == ["forest"]


def test_the_margin_may_be_given_to_a_finished_run(begin):
    """Nets that differ by 0.1 points are equivalent within 1, and not within 0.1."""
    run = begin({"hybrid": [0.951, 0.9495, 0.95], "classical": [0.95, 0.95, 0.9495]})
    assert report.finish(run)["verdict"].startswith("The circuit makes no difference that matters.")
    again = runs.Run(run.folder, run.config.override(min_difference=0.1))
    result = report.finish(again)
    assert result["verdict"].startswith("The circuit is not shown to help.")
    assert ", 0.1 points by " in result["verdict"] and result["min_difference"] == 0.1


def test_what_else_the_page_says_of_nets_and_their_numbers(begin):
    """Means over seeds in result.json and on the page; the printed table stays as narrow as it was."""
    single = ("classical.learning_rate=0.5",)
    run = begin({"hybrid": [0.95, 0.95], "classical": [0.95, 0.95]}, net_settings=single)
    for seed, f1, ece in ((0, 0.90, 0.02), (1, 0.91, 0.04)):
        log_final(run, "hybrid", seed, 0.95, test_macro_f1=f1, test_ece=ece)
        run.log("metrics", run.rows("metrics")[-1] | {"test_loss": 0.5 + seed})
    hybrid, classical = report.finish(run)["nets"]
    assert (hybrid["macro_f1"], hybrid["loss"], hybrid["ece"]) == pytest.approx((0.905, 1.0, 0.03))
    assert (classical["macro_f1"], classical["ece"]) == (None, None), "tested before qnnkit told it"
    told = read(run)
    for sentence in (
        "circuit weightsother weightsfrozen weightss / epoch hybrid",
        "Other scores nettest macro-F1 (%)test NLL (nats)test ECE (%) hybrid90.51.0003.0",
        "settings of their own: classical.learning_rate=0.5.",
        "classical (a classical layer of as many weights as the circuit).",
        "label smoothing of 0.1 in training makes a net less sure",
    ):
        assert sentence in told, sentence
    assert "None" not in told


def test_predictions_of_a_trained_net_are_those_of_its_test(tmp_path, pictures):
    settings = {"image_size": 6, "n_layers": 1, "hidden": 2, "epochs": 1, "n_seeds": 1, "controls": []}
    run = runs.open_run(tmp_path / "run", "folder_quanv", data_dir=str(pictures), **settings)
    [final] = runs.train_all(run)
    labels, predictions = run.splits.test.labels, Predictions.of(runs.trained(run), run.splits.test)
    np.testing.assert_allclose(predictions.class_probs.sum(1), 1, atol=1e-6)
    assert predictions.labels.tolist() == labels.tolist()
    accuracy = (predictions.predicted == predictions.labels).mean()
    assert accuracy == final["test_accuracy"] == predictions.confusion().trace() / len(labels)
    likelihood = -np.log(predictions.class_probs[range(len(labels)), labels]).mean()
    assert final["test_loss"] == pytest.approx(likelihood, abs=1e-5)
    probabilities = [[0.7, 0.2, 0.1], [0.5, 0.4, 0.1], [0.1, 0.8, 0.1], [0.9, 0.1, 0.0], [0.3, 0.3, 0.4]]
    by_hand = Predictions(np.array([0, 1, 1, 2, 2]), np.array(probabilities))
    assert by_hand.predicted.tolist() == [0, 0, 1, 0, 2]
    assert by_hand.confusion().tolist() == [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    assert by_hand.worst(5).tolist() == [3, 1] and by_hand.worst(1).tolist() == [3]  # the truth had 0.0, 0.4


# --- the page ----------------------------------------------------------------------------------------------


def test_the_page_shows_result_and_figures_and_fetches_nothing(three):
    kept = {}
    for name, title in (("01_curves", "Learning curves"), ("02_again", "The same & again")):
        three.save_figure(drawn(), name, title, f"Read {title} from the left.")
        kept[title] = page.embedded((three.folder / "figures" / f"{name}.png").read_bytes())
    result = report.finish(three)
    assert json.loads((three.folder / "result.json").read_text()) == result == three.result
    assert (result["recipe"], result["seeds"], result["test_images"]) == ("digits_quanv", [0, 1, 2], 359)
    assert result["nets"] == report.summary(three)
    html = three.report.read_text()
    shown = Page(html)
    for told in ("92.0 (87.0 to 97.0)", *result["verdicts"], "digits, 1,079 / 359 / 359 samples"):
        assert told in shown.text
    forest, *figures = images(shown)
    assert forest["class"] == "forest" and {image["alt"]: image["src"] for image in figures} == kept
    assert all(f"Read {title} from the left." in shown.text for title in kept)
    links = [value for _, found in shown.tags for name, value in found.items() if name in ("src", "href")]
    assert all(link.startswith("data:") for link in links) and "@import" not in html and "url(" not in html


def test_the_result_comes_last(one):
    """Where the page cannot be written, there is no result, and so the run is not finished."""
    one.report.mkdir()
    with pytest.raises(OSError, match=r"Cannot write .*report\.html"):
        report.finish(one)
    assert one.result is None
    one.report.rmdir()
    report.finish(one)
    assert one.result is not None


def test_hostile_names_stay_text(tmp_path):
    """A class folder, a run folder and a figure whose names are HTML."""
    root = tmp_path / "pictures"
    for name in (HOSTILE, "b"):
        fill(root / name, [f"{i}.png" for i in range(6)])
        (root / name / "<script>alert(2).png").write_text("no image")
    given = {"data_dir": str(root), "image_size": 6, "n_seeds": 1, "controls": ["classical"]}
    run = runs.open_run(tmp_path / "<script>alert(3)", "folder_quanv", **given)
    log_final(run, "hybrid", 0, 0.9)
    log_final(run, "classical", 0, 0.9)
    run.note_provenance(machine={"cpu": "<script>alert(4)</script>"})
    title = "<script>alert(5)</script>"
    run.save_figure(drawn(), "01", title, f'"{HOSTILE}"')
    report.finish(run)
    shown = Page(run.report.read_text())
    assert [tag for tag, _ in shown.tags if tag == "script"] == [] and len(images(shown)) == 2
    assert [name for _, attributes in shown.tags for name in attributes if name.startswith("on")] == []
    for told in (f"{HOSTILE}/<script>alert(2).png", "<script>alert(3)", "<script>alert(4)</script>", title):
        assert told in shown.text
