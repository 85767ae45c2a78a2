"""qnnkit.report: its numbers are those of metrics.jsonl, and its page stands by itself and runs nothing."""

import base64
import io
import json
import math
import re

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image

from qnnkit import report, runs, stats, tasks
from qnnkit.tasks import Predictions
from tests.showing import Page, log_test

T_95_3 = 4.302653  # Student's t for a 95 % interval of three values, from a printed table
ROUNDED = 1e-5


@pytest.fixture
def open_run(tmp_path):
    """Begins a run of the digits: `open_run(n_seeds=3)`."""

    def open_(**settings):
        return runs.open_run(tmp_path / "run", "digits_quanv", **{"controls": ["classical"], **settings})

    return open_


def log_epochs(run, net, seed, losses, accuracies):
    for epoch, (loss, accuracy) in enumerate(zip(losses, accuracies, strict=True), start=1):
        row = {"event": "epoch", "net": net, "seed": seed, "epoch": epoch, "seconds": 0.5}
        run.log("metrics", row | {"validation_loss": loss, "validation_accuracy": accuracy})


def log_final(run, net, seed, accuracy, seconds=0.5, **more):
    weights = {"quantum": 0, "classical": 124} if net == "classical" else {}
    log_test(run, net, seed, accuracy, seconds_per_epoch=seconds, **weights, **more)


@pytest.fixture
def three(open_run):
    """Three seeds of a hybrid net and its control, written by hand and out of order."""
    run = open_run(n_seeds=3)
    for seed, accuracy, seconds in ((2, 0.94, 0.9), (0, 0.90, 0.3), (1, 0.92, 0.5)):
        log_final(run, "hybrid", seed, accuracy, seconds)
    for seed, accuracy in ((0, 0.95), (1, 0.96), (2, 0.99)):
        log_final(run, "classical", seed, accuracy)
        log_epochs(run, "classical", seed, [1.0, 0.5], [0.5, accuracy])
    return run


@pytest.fixture
def one(open_run):
    run = open_run(n_seeds=1)
    log_final(run, "hybrid", 0, 0.9)
    log_final(run, "classical", 0, 0.95)
    return run


def drawn():
    figure = Figure(figsize=(3, 2))
    figure.subplots().plot([1, 2])
    return figure


# --- numbers -----------------------------------------------------------------------------------------------


def test_three_seeds_by_hand(three):
    """Differences of 5, 4 and 5 points: mean 4.67, and 1.43 to either side."""
    hybrid, classical = rows = report.summary(three)
    half = T_95_3 * 0.02 / math.sqrt(3)  # 0.90, 0.92, 0.94 have a standard deviation of 0.02
    assert hybrid["net"] == "hybrid" and hybrid["scores"] == [0.90, 0.92, 0.94]  # by seed
    assert (hybrid["score"], hybrid["low"], hybrid["high"]) == pytest.approx(
        (0.92, 0.92 - half, 0.92 + half), abs=ROUNDED
    )
    assert hybrid["seconds_per_epoch"] == 0.5  # the median
    assert (hybrid["quantum"], hybrid["classical"], hybrid["frozen"]) == (24, 100, 0)
    assert (classical["quantum"], classical["classical"]) == (0, 124)
    json.dumps(rows, allow_nan=False)
    table = report.table(rows)
    assert table.index.tolist() == ["hybrid", "classical"] and table["quantum"].tolist() == [24, 0]
    assert table["test accuracy (%)"].tolist() == ["92.0 (87.0 to 97.0)", "96.7 (91.5 to 100.0)"]
    assert table["s / epoch"].tolist() == ["0.50", "0.50"]
    assert report.verdicts(rows) == [
        "classical did better than hybrid: 4.7 points, 95 % interval 3.2 to 6.1 over 3 seeds."
    ]
    assert report.verdicts(rows[1:]) == [] == report.verdicts([hybrid, classical | {"scores": [0.9]}])


def test_one_seed_has_no_interval_and_no_verdict(one):
    rows = report.summary(one)
    assert (rows[0]["score"], rows[0]["low"], rows[0]["high"]) == (0.9, None, None)
    assert report.table(rows)["test accuracy (%)"].tolist() == ["90.0 (one seed)", "95.0 (one seed)"]
    assert report.verdicts(rows) == [
        "hybrid and classical differ by -5.0 points on one seed, which shows nothing about which is better; "
        "train more seeds."
    ]
    report.finish(one)
    text = Page(one.report.read_text()).text
    assert "90.0 (one seed)" in text and "shows nothing about which is better" in text
    assert "None" not in re.sub(r"\s+", " ", text).split("How it was made")[0]


def test_a_net_that_was_finished_twice_counts_once(one):
    log_final(one, "hybrid", 0, 0.8)  # after a kill between its row and the next one
    assert report.summary(one)[0]["scores"] == [0.8]


def test_summary_of_nothing(open_run):
    with pytest.raises(FileNotFoundError, match="must have trained a net, but has not: run 03_train first"):
        report.summary(open_run())


def test_summary_of_what_is_there_so_far(open_run):
    run = open_run(n_seeds=2)
    log_final(run, "hybrid", 0, 0.9)
    assert [row["net"] for row in report.summary(run)] == ["hybrid"]
    assert report.verdicts(report.summary(run)) == []


def test_seeds_with_equal_scores_have_an_interval_over_test_images(open_run):
    run = open_run(n_seeds=3)
    for seed in range(3):
        log_final(run, "hybrid", seed, 0.989, n_test=360)
        log_final(run, "classical", seed, 0.989)
    low, high = stats.wilson(0.989 * 360, 360)
    told = [f"98.9 ({100 * low:.1f} to {100 * high:.1f})", "98.9 (the same on all seeds)"]
    assert report.table(report.summary(run))["test accuracy (%)"].tolist() == told


def test_verdicts_are_corrected_over_the_controls(open_run):
    """4.0 +- 2.5 points are shown of one control; where they are one of three, they are not."""
    run = open_run(n_seeds=3, controls=["classical", "no_entanglement", "frozen_random"])
    for seed, accuracy in enumerate((0.93, 0.95, 0.97)):
        log_final(run, "hybrid", seed, accuracy)
        log_final(run, "classical", seed, accuracy - (0.03, 0.04, 0.05)[seed])
    rows = report.summary(run)
    assert report.verdicts(rows)[0].startswith("hybrid did better than classical: 4.0 points")
    for seed in range(3):
        log_final(run, "no_entanglement", seed, 0.95)
        log_final(run, "frozen_random", seed, 0.95)
    told = report.verdicts(report.summary(run))
    assert len(told) == 3 and told[0].endswith("over 3 seeds; p = 0.061 after Holm's correction.")
    assert told[0].startswith("No difference is shown between hybrid and classical: +4.0 points")


def test_what_else_the_test_images_say(open_run):
    """Means over seeds in result.json and on the page; the printed table stays as narrow as it was."""
    run = open_run(n_seeds=2)
    for seed, f1, ece in ((0, 0.90, 0.02), (1, 0.91, 0.04)):
        log_final(run, "classical", seed, 0.95)
        log_final(run, "hybrid", seed, 0.95)
        row = run.rows("metrics")[-1] | {"test_loss": 0.5 + seed, "test_macro_f1": f1, "test_ece": ece}
        run.log("metrics", row)
    hybrid, classical = report.finish(run)["nets"]
    assert (hybrid["macro_f1"], hybrid["loss"], hybrid["ece"]) == pytest.approx((0.905, 1.0, 0.03))
    assert (classical["macro_f1"], classical["ece"]) == (None, None), "tested before qnnkit told it"
    text = re.sub(r"\s+", " ", Page(run.report.read_text()).text)
    assert "test macro-F1 (%)test NLL (nats)test ECE (%)" in text.replace("\n", "")
    assert "quantum weightsclassical weightsfrozen weights" in text
    assert "classical, a classical layer of as many weights as the circuit." in text
    assert "Label smoothing of 0.1 in training makes a net less sure" in text
    assert "90.51.0003.0" in text and "None" not in text.split("How it was made")[0]
    assert report.table([hybrid]).columns.tolist() == [
        "test accuracy (%)",
        "quantum",
        "classical",
        "frozen",
        "s / epoch",
    ]


def test_validations_within_epochs_have_a_fraction_and_stand_once(open_run):
    """Also before the first epoch has ended, and once each where a kill has left a row twice."""
    run = open_run(n_seeds=1)
    assert run.validations().empty
    row = {"event": "validation", "net": "hybrid", "seed": 0, "epoch": 1, "step": 3, "steps": 4}
    for loss in (0.9, 0.8):
        run.log("metrics", row | {"validation_loss": loss, "validation_accuracy": 0.1})
    assert run.validations()["epoch"].tolist() == [0.75]
    log_epochs(run, "hybrid", 0, [0.7, 0.6], [0.3, 0.4])
    run.log("metrics", row | {"epoch": 2, "step": 1, "validation_loss": 0.65, "validation_accuracy": 0.35})
    found = run.validations()
    assert found["epoch"].tolist() == [0.75, 1, 1.25, 2]
    assert found["validation_loss"].tolist() == [0.8, 0.7, 0.65, 0.6]
    other = {"epoch": 2, "step": 2, "steps": 8, "validation_loss": 0.6, "validation_accuracy": 0}
    run.log("metrics", row | other)
    assert run.validations()["validation_loss"][2] == 0.6  # the same place, on half as many processes


PROBABILITIES = np.array(
    [[0.7, 0.2, 0.1], [0.5, 0.4, 0.1], [0.1, 0.8, 0.1], [0.9, 0.1, 0.0], [0.3, 0.3, 0.4]]
)


def test_confusion_by_hand():
    predictions = Predictions(np.array([0, 1, 1, 2, 2]), PROBABILITIES)
    assert predictions.predicted.tolist() == [0, 0, 1, 0, 2]
    assert predictions.confusion().tolist() == [[1, 0, 0], [1, 1, 0], [1, 0, 1]]


def test_worst_are_the_wrong_ones_least_thought_of():
    predictions = Predictions(np.array([0, 1, 1, 2, 2]), PROBABILITIES)
    assert predictions.worst(5).tolist() == [3, 1]  # the truth had 0.0 and 0.4
    assert predictions.worst(1).tolist() == [3]
    assert Predictions(np.array([0]), PROBABILITIES[:1]).worst(3).tolist() == []


# --- the page ----------------------------------------------------------------------------------------------


def images(page):
    return [attributes for tag, attributes in page.tags if tag == "img"]


def test_finish_writes_what_it_returns(three):
    result = report.finish(three)
    assert json.loads((three.folder / "result.json").read_text()) == result == three.result
    assert result["recipe"] == "digits_quanv" and result["seeds"] == [0, 1, 2]
    assert result["nets"] == report.summary(three) and result["verdicts"] == report.verdicts(result["nets"])
    assert result["test_images"] == 359
    page = Page(three.report.read_text())
    intervals = ("92.0 (87.0 to 97.0)", "96.7 (91.5 to 100.0)")
    for told in (*intervals, *result["verdicts"], "359 test samples", "data_reuploading"):
        assert told in page.text


@pytest.mark.parametrize("lost", ["a net", "a seed"])
def test_finish_refuses_while_a_net_is_missing(open_run, lost):
    run = open_run(n_seeds=2)
    for seed in (0, 1):
        log_final(run, "hybrid", seed, 0.9)
    if lost == "a seed":
        log_final(run, "classical", 0, 0.9)
    with pytest.raises(FileNotFoundError, match="must have trained every net, but lacks classical"):
        report.finish(run)
    assert not run.report.exists() and run.result is None


def test_every_kept_figure_is_in_the_page_whole(three):
    kept = {}
    for name, title in (("01_curves", "Learning curves"), ("02_again", "The same & again")):
        three.save_figure(drawn(), name, title, f"Read {title} from the left.")
        kept[title] = (three.folder / "figures" / f"{name}.png").read_bytes()
    report.finish(three)
    html = three.report.read_text()
    page = Page(html)
    assert [image["alt"] for image in images(page)] == list(kept)
    for image in images(page):
        kind, encoded = image["src"].split(",")
        content = base64.b64decode(encoded, validate=True)
        assert kind == "data:image/png;base64" and content == kept[image["alt"]]
        assert f"Read {image['alt']} from the left." in page.text
        with Image.open(io.BytesIO(content)) as picture:
            assert min(picture.size) > 100
    # Nothing is fetched from elsewhere: the page can be mailed.
    links = [value for _, found in page.tags for name, value in found.items() if name in ("src", "href")]
    assert all(link.startswith("data:") for link in links) and "@import" not in html and "url(" not in html


HOSTILE = "<img src=x onerror=alert(1)>"


def test_hostile_names_stay_text(tmp_path):
    """A class folder, a run folder and a figure whose names are HTML."""
    root, generator = tmp_path / "pictures", np.random.default_rng(0)
    for name in (HOSTILE, "b"):
        (root / name).mkdir(parents=True)
        for i in range(6):
            Image.fromarray(generator.integers(0, 256, (6, 6), dtype=np.uint8)).save(root / name / f"{i}.png")
        (root / name / "<script>alert(2).png").write_text("no image")
    run = runs.open_run(
        tmp_path / "<script>alert(3)",
        "folder_quanv",
        data_dir=str(root),
        image_size=6,
        n_seeds=1,
        controls=["classical"],
    )
    log_final(run, "hybrid", 0, 0.9)
    log_final(run, "classical", 0, 0.9)
    log_epochs(run, "hybrid", 0, [1.0], [0.5])
    run.note_provenance(machine={"cpu": "<script>alert(4)</script>"})
    title = "<script>alert(5)</script>"
    run.save_figure(drawn(), "01", title, f'"{HOSTILE}"')
    report.finish(run)
    page = Page(run.report.read_text())
    assert [tag for tag, _ in page.tags if tag == "script"] == []
    assert len(images(page)) == 1
    events = [name for _, attributes in page.tags for name in attributes if name.startswith("on")]
    assert events == []
    for told in (f"{HOSTILE}/<script>alert(2).png", "<script>alert(3)", "<script>alert(4)</script>", title):
        assert told in page.text


PLAN = {"device": "cpu", "peak_bytes": 530_000_000, "seconds_per_epoch": 0.41}


@pytest.mark.parametrize(
    ("plan", "peak", "sentence"),
    [
        (PLAN, 541e6, "0.41 s per epoch and 530 MB; it took 0.50 s per epoch and 541 MB."),
        (PLAN, None, "0.41 s per epoch; it took 0.50 s per epoch."),
        (PLAN | {"seconds_per_epoch": None}, 541e6, "530 MB; it took 541 MB."),
        (PLAN | {"seconds_per_epoch": None}, None, None),
        (PLAN | {"device": "cuda:0"}, 541e6, None),
        (None, 541e6, None),
    ],
)
def test_what_was_planned_stands_beside_what_was_measured(open_run, plan, peak, sentence):
    run = open_run(n_seeds=1)
    log_final(run, "hybrid", 0, 0.9)
    log_final(run, "classical", 0, 0.8)
    run.log("metrics", run.tested()["hybrid", 0] | {"peak_memory": peak})
    run.note_provenance(device="cpu", **({} if plan is None else {"plan": plan}))
    found = report.finish(run)["planned"]
    told = sentence and f"Planned for the hybrid net: {sentence}"
    assert (found and found["sentence"]) == told
    assert told is None or told in run.report.read_text()


def test_single_nets_that_trained_otherwise_are_named(open_run):
    run = open_run(n_seeds=1, net_settings=("classical.learning_rate=0.5",))
    log_final(run, "hybrid", 0, 0.9)
    log_final(run, "classical", 0, 0.8)
    report.finish(run)
    assert "settings of their own: classical.learning_rate=0.5." in run.report.read_text()


def test_the_result_comes_last(three):
    """Where the page cannot be written, there is no result, and so the run is not finished."""
    three.report.mkdir()
    with pytest.raises(OSError, match=r"Cannot write .*report\.html"):
        report.finish(three)
    assert three.result is None
    three.report.rmdir()
    report.finish(three)
    assert three.result is not None


def test_predictions_of_a_trained_net_are_those_of_its_test(tmp_path, pictures):
    from sklearn.metrics import f1_score

    settings = {"image_size": 6, "n_layers": 1, "hidden": 2, "epochs": 1, "n_seeds": 1}
    about = {"data_dir": str(pictures), "controls": ["classical"]}
    run = runs.open_run(tmp_path / "run", "folder_quanv", **settings, **about)
    finals = {row["net"]: row for row in runs.train_all(run)}
    labels = run.splits.test.labels
    for net in run.nets:
        predictions, n = Predictions.of(runs.trained(run, net), run.splits.test), len(labels)
        np.testing.assert_allclose(predictions.class_probs.sum(1), 1, atol=1e-6)
        assert torch.equal(torch.tensor(predictions.labels), labels)
        accuracy = (predictions.predicted == predictions.labels).mean()
        assert accuracy == finals[net]["test_accuracy"] == predictions.confusion().trace() / n
        class_probs = torch.tensor(predictions.class_probs)
        likelihood = -float(class_probs[range(n), labels].log().mean())
        assert finals[net]["test_loss"] == pytest.approx(likelihood, abs=1e-5)
        f1 = f1_score(labels, predictions.predicted, average="macro", zero_division=0)
        assert finals[net]["test_macro_f1"] == pytest.approx(f1)
        calibration = tasks.calibration_error(class_probs, labels)
        assert finals[net]["test_ece"] == pytest.approx(calibration, abs=1e-6)


def test_a_damaged_figure_costs_only_itself(three):
    (three.folder / "figures").mkdir(exist_ok=True)
    (three.folder / "figures" / "09_broken.png").write_bytes(b"no picture")
    report.finish(three)
    page = three.report.read_text()
    assert "09_broken.png" in page and "This figure is damaged." in page
