"""qnnkit.report.verify: every kind of damage to a finished run is detected and named."""

import shutil
import subprocess

import nbformat
import pytest
from typer.testing import CliRunner

from qnnkit import cli, report, runs
from qnnkit.report.verify import verify
from qnnkit.runs import rows
from tests.showing import log_test
from tests.toys import closed

CHECKPOINT = "checkpoints/hybrid-seed0/checkpoint"
TAKEN = [
    "config.json",
    "metrics.jsonl",
    "notebooks/03_train.ipynb",
    "provenance.json",
    "recipe.py",
    "report.html",
]


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """The folder of a finished run with its real report and every kind of file."""
    run = runs.open_run(tmp_path_factory.mktemp("reported") / "run", "digits_quanv", controls=[], n_seeds=1)
    log_test(run, "hybrid", 0, 0.5)
    books = [f"notebooks/{name}.ipynb" for name in ("03_train", "03_train.failed", "04_analyze.running")]
    for name in (*books, "notebooks/04_analyze.ipynb", "train.log", ".hidden", ".sync/piece", CHECKPOINT):
        (run.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (run.folder / name).write_text("{}")
    nbformat.write(nbformat.v4.new_notebook(), run.notebook("04_analyze"))  # the page shows it
    report.finish(run)
    return run.folder


@pytest.fixture
def finished(reported, tmp_path):
    return shutil.copytree(reported, tmp_path / "run")


def checked(folder):
    return verify(runs.open_run(folder))


def test_later_files_and_a_move_are_no_damage(finished, tmp_path):
    """A notebook that ran again, and the copy of 04 that papermill writes last."""
    assert checked(finished) == dict.fromkeys([CHECKPOINT, *TAKEN], "OK")
    later = "benchmark.jsonl", "machine.json", "figures/benchmark_step.png", "notebooks/04_analyze.ipynb"
    (finished / "figures").mkdir(exist_ok=True)
    for name in (*later, "batch.log", ".lock", "notebooks/03_train.running.ipynb"):
        (finished / name).write_text("something else")
    assert {*checked(finished).values()} == {"OK"}
    moved = shutil.move(finished, tmp_path / "elsewhere")
    assert {*checked(moved).values()} == {"OK"}
    (moved / rows.SUMS).unlink()
    with pytest.raises(ValueError, match="`run_dir` must hold SHA256SUMS"):
        checked(moved)


def test_a_folder_that_is_read_only(reported):
    with closed(lambda folder: shutil.copytree(reported, folder, dirs_exist_ok=True)) as folder:
        done = CliRunner().invoke(cli.app, ["report", "--verify", str(folder)])
    assert done.exit_code == 0 and done.output.count(": OK") == len(TAKEN) + 1, done.exception


@pytest.mark.parametrize("name", [None, CHECKPOINT, "metrics.jsonl", "config.json", "report.html"])
def test_the_systems_checksum_tool_names_every_damage_too(finished, name):
    if name == CHECKPOINT:
        (finished / name).unlink()
    elif name:
        (finished / name).write_bytes((finished / name).read_bytes() + b"\n")
    assert [each for each, done in checked(finished).items() if done == "FAILED"] == ([name] if name else [])
    if tool := shutil.which("sha256sum"):
        command = [tool, "--check", "--quiet", rows.SUMS]
        done = subprocess.run(command, cwd=finished, capture_output=True, text=True)
        assert done.returncode == bool(name) and (not name or f"{name}: FAILED" in done.stdout)
