"""Success criteria: the bound, the measured value, pass or fail, and a sentence."""

import json

import pytest

from qnnkit import recipes, report, runs, workspace
from qnnkit.report.verify import verify
from tests.showing import log_test
from tests.toys import typing

ROW = {"event": "test", "test_loss": 0.1, "best_epoch": 3, "quantum": 24, "classical": 1, "frozen": 0,
       "circuits_per_image": 49}  # fmt: skip


def run_with(folder, rows, recipe="digits_quanv", **settings):
    """A run of some seeds whose hybrid net and control have ended with these rows."""
    settings = {"controls": [] if recipe == "text_llama" else ["no_quantum"], "n_seeds": len(rows)} | settings
    run = runs.Run(folder, recipes.settings(recipe, **settings))
    hybrid = "reference" if recipe == "text_llama" else "hybrid"
    run.note_provenance(nets=[hybrid, *settings["controls"]])
    for seed, row in enumerate(rows):
        row = ROW | {"epochs": run.config.epochs, "net": hybrid, "seed": seed} | row
        run.log("metrics", row)
        run.log("metrics", row | {"net": "no_quantum", "test_accuracy": 0.1, "peak_memory": 9e12})
    return run


def only(run, name):
    [row] = [row for row in report.judge(run) if row["criterion"] == name]
    return row


QUANV, LLAMA, MEMORY, SECONDS = "digits_quanv", "text_llama", "max_memory_gb", "max_epoch_seconds"


@pytest.mark.parametrize(
    ("recipe", "name", "bound", "column", "values", "measured", "sentence"),
    [
        (QUANV, "min_accuracy", 0.9, "test_accuracy", [0.97, 0.98, 0.99], 0.98, "pass: test accuracy 98.0 % "
            "(95 % interval 95.5 to 100.0); limit: at least 90.0 %."),
        (QUANV, "min_accuracy", 0.9, "test_accuracy", [0.89996], 0.89996, "fail: test accuracy 89.996 %; "
            "limit: at least 90.0 %."),
        (QUANV, "min_accuracy", 0.0, "test_accuracy", [0.0] * 3, 0.0, "pass: test accuracy 0.0 %; limit: "
            "at least 0.0 %."),
        (QUANV, MEMORY, 3, "peak_memory", [1e9, 3.5e9], 3.5, "fail: 3.5 GB of memory; limit: at most 3 GB."),
        (QUANV, SECONDS, 0.5, "seconds_per_epoch", [0.6, 1.0], 0.8, "fail: 0.8 s per epoch; limit: at "
            "most 0.5 s."),
        (LLAMA, "max_loss", 2.5, "test_loss", [2.0, 2.1, 2.2], 2.1, "pass: test loss 2.100 nats / token "
            "(95 % interval 1.866 to 2.365); limit: at most 2.500 nats / token."),
        ("digits_clip", "min_recall", 0.5, "test_recall_1", [0.6, 0.6], 0.6, "pass: test recall@1 60.0 %; "
            "limit: at least 50.0 %."),
    ],
)  # fmt: skip
def test_a_bound_is_met_or_missed(tmp_path, recipe, name, bound, column, values, measured, sentence):
    rows = [{"test_accuracy": 0.9} | {column: value} for value in values]
    row = only(run_with(tmp_path, rows, recipe, **{name: bound}), name)
    assert (row["bound"], row["met"], row["sentence"]) == (bound, sentence.startswith("pass"), sentence)
    assert row["measured"] == pytest.approx(measured)
    assert (row["low"] is None) == ("interval" not in sentence)
    json.dumps(row, allow_nan=False)


def test_a_criterion_that_cannot_be_judged_says_so(tmp_path):
    run = run_with(tmp_path, [{"test_accuracy": 0.95}], max_memory_gb=4, max_epoch_seconds=1)
    row = only(run, "max_memory_gb")
    assert row["met"] is None and row["measured"] is None
    assert row["sentence"] == "not judged: peak memory is not recorded."
    run.note_provenance(score={"name": "accuracy", "word": "accuracy", "factor": 1.0})
    assert only(run, "min_accuracy")["met"] is False, "a score that is kept in percent is below 1 %"
    run.note_provenance(score={"name": "distance", "word": "distance", "larger": False})
    assert only(run, "min_accuracy")["sentence"] == "not judged: nets are compared by distance."
    untrained = run_with(workspace.make_folder(tmp_path / "other"), [], n_seeds=1)
    assert [row["met"] for row in report.judge(untrained)] == [None, None]
    assert report.judge(runs.Run(tmp_path, recipes.settings("folder_quanv", dataset="digits"))) == []


def test_criteria_change_no_experiment_and_are_in_result_report_and_output(tmp_path, monkeypatch, capfd):
    run = runs.open_run(tmp_path / "run", "digits_quanv", n_seeds=1, controls=[], min_accuracy=0.01)
    log_test(run, "hybrid", 0, 0.9, peak_memory=1e9)
    lines = {row["criterion"]: row["sentence"] for row in report.finish(run)["criteria"]}
    assert lines["max_memory_gb"] == "pass: 1 GB of memory; limit: at most 4 GB."
    assert lines["min_accuracy"].startswith("pass: test accuracy 90.0 %")
    assert run.result["criteria"] == report.judge(run) and lines["min_accuracy"] in run.report.read_text()
    with pytest.raises(ValueError, match="Success: minimum test"):
        runs.open_run(run.folder, min_accuracy=1.2)
    command = "run", "--run-dir", run.folder, "--set", "min_accuracy=1"
    code, printed, _ = typing(monkeypatch, capfd)(*command)
    assert code == 0 and "min_accuracy: fail: test accuracy " in printed
    again = runs.open_run(run.folder)
    assert [row["bound"] for row in again.result["criteria"]] == [4, 1], "judged again"
    assert report.finish(again)["criteria"] == again.result["criteria"], "a report uses them too"
    assert "limit: at least 100.0 %" in run.report.read_text()
    assert "FAILED" not in str(verify(again)), "its hashes match the settings"
    workspace.make_folder(run.folder / "model")
    typing(monkeypatch, capfd)("train", *command[1:-1], "min_accuracy=0.99")
    assert [row["bound"] for row in again.result["criteria"]] == [4, 0.99], "also by this command"
