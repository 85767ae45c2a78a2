"""docs/your_own.md as written: a user's circuit, net, dataset and task through all of the kit."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from qnnkit import cli, report, runs
from tests import forked
from tests.toys import trained, write

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "your_own.md").read_text()
RECIPE, CELL, *BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
TINY = {"epochs": 2, "n_seeds": 1, "threads": 1}


@pytest.fixture
def home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with mine.py, which is the current folder."""
    monkeypatch.chdir(home)
    (home / "mine.py").write_text(RECIPE)
    return home


def in_cells(cells: list[str]) -> str:
    """The output of these cells in IPython."""
    script = "from IPython.core.interactiveshell import InteractiveShell as Shell\n"
    script += "for cell in %r: Shell.instance().run_cell(cell).raise_error()"
    done = forked.python(script % cells)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_killed_run_loses_nothing_and_the_report_compares_the_nets(home: Path) -> None:
    """All by the command, except the run that is never killed, which this process trains."""
    words = ["qnnkit", "run", "--recipe", "mine.py", "--run-dir", "runs/wave", "--epochs", "10"]
    words += ["--only", "hybrid,classical", "--set", "n_seeds=1", "--set", "threads=1"]
    words += ["--set", "save_every_steps=1", "--notebooks", "03_train,04_analyze"]
    first, rows = forked.start(*words, log=home / "log"), home / "runs" / "wave" / "metrics.jsonl"
    forked.begun(first, lambda: rows.exists() and rows.read_text().count("\n") > 3, home / "log")
    first.kill()
    first.wait()
    known = rows.read_text().splitlines()
    assert len(known) < 20, "the run ended before it could be killed"
    done = forked.run(*words)
    assert done.returncode == 0, done.stdout
    log = (home / "runs" / "wave" / "run.log").read_text()
    assert all("[2/2] 04_analyze: done in" in text for text in (log, done.stdout)), "both outputs have it"
    assert rows.read_text().splitlines()[: len(known) - 1] == known[:-1]
    result = json.loads((home / "runs" / "wave" / "result.json").read_text())
    assert [row["net"] for row in result["nets"]] == ["hybrid", "classical"]
    assert result["score"] == "r2" and result["nets"][0]["score"] > 0.5 and "test r2" in done.stdout
    assert "arrays/" in (home / "runs" / "wave" / "notebooks" / "04_analyze.ipynb").read_text()
    straight = runs.open_run("runs/whole", "mine.py", epochs=10, controls=["classical"], n_seeds=1, threads=1)
    scores = [final["test_r2"] for final in runs.train_all(straight)]
    assert scores == [row["scores"][0] for row in result["nets"]]  # as if never killed
    inputs = torch.tensor([[0.5, 0.25, 0.125]])
    expected = runs.trained(straight)(inputs).item()
    np.save(home / "new.npy", inputs.numpy())
    words = ["predict", "runs/wave", "new.npy", "--recipe", "mine.py", "--json"]
    [[value]] = json.loads(CliRunner().invoke(cli.app, words).output)["output"]
    assert value == pytest.approx(expected, abs=1e-5)


def test_values_fitted_on_the_training_split_are_saved_with_the_net(home: Path) -> None:
    [block] = [each for each in BLOCKS if "Standardised" in each]
    (home / "mine.py").write_text(f"{RECIPE}\n\n{block}")
    run = trained("runs/one", "mine.py", **TINY, controls=["classical"])
    runs.export(run)
    inputs, others = run.splits.train.inputs, run.splits.test.inputs
    for net in (runs.load_model("runs/one/model", "mine.py")[0], runs.trained(run, "classical")):
        assert torch.equal(net[0].mean, inputs.mean(0)) and not torch.equal(net[0].mean, others.mean(0))
    assert net[0](inputs).std(0).sub(1).abs().max() < 1e-4


def test_a_recipe_in_a_notebook_cell(home: Path) -> None:
    names = "Settings, load, build, task"
    cells = [f"{RECIPE}\nfrom qnnkit import runs\n\nclass Mine:\n    {names} = {names}\n"]
    cells += [CELL.replace("epochs=5", "epochs=1, n_seeds=1, controls=['no_entanglement']")]
    printed = in_cells(cells)
    assert [line.split()[0] for line in printed.splitlines()][:2] == ["hybrid", "no_entanglement"]
    source = (home / "runs" / "cell" / "recipe.py").read_text()
    assert all(f"def {name}(" in source for name in ("load", "build", "task", "circuit"))


def test_a_path_is_in_the_workspace_and_a_model_is_its_files(home: Path, monkeypatch, tmp_path) -> None:
    paths = '    n_seeds: int = 3\n    table: Path = "waves.csv"\n    pretrained: Path = "base"\n'
    text = RECIPE.replace("    n_seeds: int = 3\n", paths)
    text = text.replace("np.linspace(-1, 1, 240)", "np.loadtxt(settings.table)")
    models = {"base/weights": "one", "copy/weights": "one", "other/base/weights": "two"}
    write(home, {"mine.py": f"from pathlib import Path\n{text}", **models})
    np.savetxt(home / "waves.csv", np.linspace(-1, 1, 90))
    monkeypatch.chdir("/")
    run = runs.open_run("runs/one", "mine.py", controls=[], **TINY)
    assert run.config.table == home / "waves.csv"
    assert json.loads((run.folder / "config.json").read_text())["table"] == "waves.csv"
    [first] = runs.train_all(run)
    moved = home.rename(tmp_path.parent / f"{tmp_path.name}-moved")
    monkeypatch.setenv("QNNKIT_HOME", str(moved))
    again = runs.open_run("runs/one", str(moved / "mine.py"))
    assert again.config.table == moved / "waves.csv"
    assert [final["test_r2"] for final in runs.train_all(again)] == [first["test_r2"]]
    for name, place in (("table", "other.csv"), ("pretrained", "other/base")):
        with pytest.raises(ValueError, match=rf"holds another experiment \({name}: .*{place}"):
            runs.open_run("runs/one", **{name: place})
    assert runs.open_run("runs/one", pretrained="copy").config.pretrained == moved / "copy"
    write(moved, {"copy/weights": "two"})
    with pytest.raises(ValueError, match=r"was trained on other data than `.*/copy` holds now"):
        _ = runs.open_run("runs/one").splits
    with pytest.warns(UserWarning, match="cannot check that both hold the same"):
        runs.open_run("runs/one", pretrained="hub/copy")


SHOWN = """

class Shown(Regression):
    def preview(self, splits):
        from matplotlib.figure import Figure

        figure = Figure()
        figure.subplots().plot(splits.train.targets.sort().values)
        return figure

    def judge(self, outputs, splits):
        top = (outputs[:, 0] - splits.test.targets).abs().max()
        return {"mse_error": top, "odd": np.float32("nan"), "several": [np.float32(1), np.nan], "word": "yes"}

    def mistakes(self, net, splits):
        inputs, targets = splits.test.inputs, splits.test.targets
        return (net(inputs)[:, 0] - targets).abs().max().item()


def task(settings):
    return Shown()
"""


def test_the_figures_of_its_task_are_shown(home: Path) -> None:
    (home / "mine.py").write_text(RECIPE + SHOWN)
    run = trained("runs/one", "mine.py", controls=[], **TINY)
    [figure] = report.preview(run)
    assert figure.get_axes() and (run.folder / "figures" / "01_preview.png").read_bytes()[:4] == b"\x89PNG"
    net, test = runs.trained(run), run.splits.test
    [worst] = report.mistakes(run, 4)
    assert worst == (net(test.inputs)[:, 0] - test.targets).abs().max().item()
    columns = [f"test_{name}" for name in ("mse_error", "odd", "several", "word")]
    assert runs.frame(run)[columns].values.tolist() == [[pytest.approx(worst), None, [1, None], "yes"]]
