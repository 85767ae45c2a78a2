"""The notebooks' form, and the chain at toy size. Results are read from files, never from printed text."""

from __future__ import annotations

import ast
import itertools
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from qnnkit import report, runs, workspace
from tests import forked
from tests.wheels import outside

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "notebooks").glob("*.ipynb"))
PARAMETER = re.compile(
    r"^\w+: (int|float|str|bool|list) = "
    r'("[^"=]*"|-?\d+(\.\d+)?(e-?\d+)?|\[[-\d., ]+\]|True|False|None)  # [^=]+$'
)
OF_IPYKERNEL = re.compile(  # what it prints where a machine stood still for 10 s, or while a kernel ended
    r"IOStream\.flush timed out\n|ERROR:tornado\.general:Uncaught exception in ZMQStream callback\n"
    r"Traceback .*\n(  .*\n)*zmq\.error\.ZMQError: Socket operation on non-socket\n"
)


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code_cells(path: Path) -> list[nbformat.NotebookNode]:
    return [cell for cell in read(path).cells if cell.cell_type == "code"]


def tagged(path: Path, tag: str) -> list[nbformat.NotebookNode]:
    return [cell for cell in code_cells(path) if tag in cell.metadata.get("tags", [])]


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


# --- form -----------------------------------------------------------------------------------------


MORE = ("05_benchmark", "06_study", "07_circuit", "08_midi_model")


def test_there_are_six_notebooks_of_a_run_and_four_more() -> None:
    assert tuple(path.stem for path in SOURCES) == (*runs.NOTEBOOKS, *MORE)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_sources_carry_no_outputs_and_no_private_metadata(path: Path) -> None:
    notebook = read(path)
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) <= {"kernelspec", "language_info"}
    for cell in notebook.cells:
        assert set(cell.metadata) <= {"tags"}
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_code_cells_are_short_and_come_after_prose(path: Path) -> None:
    cells = read(path).cells
    for before, cell in itertools.pairwise(cells):
        if cell.cell_type == "code":
            assert before.cell_type == "markdown", cell.source
            assert len(cell.source.splitlines()) <= 15, cell.source
    assert cells[0].cell_type == cells[-1].cell_type == "markdown"
    for word in ("Question:", "Reads", "Writes", "Takes"):
        assert f"**{word}**" in cells[0].source
    assert any("**Prediction:**" in cell.source for cell in cells if cell.cell_type == "markdown")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_one_parameters_cell_that_papermill_can_read(path: Path) -> None:
    (cell,) = tagged(path, "parameters")
    lines = cell.source.splitlines()
    for line in lines:
        assert PARAMETER.match(line), line
    names = [line.split(":")[0] for line in lines]
    found = runs.chain.declared(path)
    assert list(found) == names
    assert all(entry["inferred_type_name"] != "None" and entry["help"] for entry in found.values())
    assert path.stem == "07_circuit" or {"run_dir", "recipe"} <= set(names)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_cell_changes_a_parameter(path: Path) -> None:
    """Else what was asked for is lost; 03 alone may, where a circuit of the reader's is trained."""
    names = set(runs.chain.declared(path)) - ({"recipe", "run_dir"} if path.stem == "03_train" else set())
    for cell in code_cells(path):
        if not {"parameters", "setup"} & set(cell.metadata.get("tags", [])):
            stored = [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Name)]
            changed = {node.id for node in stored if isinstance(node.ctx, ast.Store)} & names
            assert not changed, cell.source


# --- the chain ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """A whole run at toy size, by the command that people type, in an empty folder without a checkout."""
    home, before = tmp_path_factory.mktemp("chain"), files(installed.parent)
    words = ("--recipe", "digits_quanv", "--run-dir", "runs/first", "--epochs", "1", "--set", "n_seeds=1")
    command = (installed / "bin" / "qnnkit", "run", *words, "--set", 'controls=["classical"]')
    brief = ("samples=1", "plateau_qubits=4", "plateau_starts=20", "hardware_images=8")
    done = outside(home, *command, "--set", "stride=2", *(word for each in brief for word in ("--set", each)))
    assert re.sub(OF_IPYKERNEL, "", done.stderr) == ""
    for index, name in enumerate(runs.NOTEBOOKS, start=1):
        assert f"[{index}/6] {name} ..." in done.stdout
        assert f"[{index}/6] {name}: done" in done.stdout
    assert re.search(r"hybrid +seed 0 +epoch +1/1 ", done.stdout), "no line for the epoch"
    assert {path.name for path in home.iterdir()} == {"runs"}
    assert files(installed.parent) == before
    return runs.open_run(home / "runs" / "first")


def test_the_wheel_carries_notebooks_recipes_and_templates(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert sorted(Path(name).name for name in names if name.endswith(".ipynb")) == [p.name for p in SOURCES]
    kept = {path.relative_to(ROOT).as_posix() for path in files(ROOT / "qnnkit") if path.suffix != ".pyc"}
    assert {name for name in kept if not name.endswith(".md")} <= set(names)


def test_what_is_installed_is_the_wheel(installed: Path, tmp_path: Path) -> None:
    found = outside(tmp_path, installed / "bin" / "python", "-c", "import qnnkit; print(qnnkit.__file__)")
    assert installed in Path(found.stdout).parents


def test_the_chain_leaves_a_finished_run(finished: runs.Run) -> None:
    for name in runs.NOTEBOOKS:
        outputs = [output for cell in code_cells(finished.notebook(name)) for output in cell.outputs]
        assert not [output for output in outputs if output.output_type == "error"]
        assert not [output for output in outputs if output.get("name") == "stderr"]
    assert not list(finished.folder.rglob("*.running.ipynb"))
    result = finished.result
    assert result is not None
    hybrid, classical = result["nets"]
    assert (hybrid["net"], classical["net"]) == ("hybrid", "classical")
    assert hybrid["quantum"] + hybrid["classical"] == classical["classical"], "not a matched control"
    assert 0.3 < hybrid["score"] <= 1, "one epoch is enough to beat guessing, which gives 0.1"
    assert hybrid["score"] == finished.finals().query("net == 'hybrid'")["test_accuracy"].item()
    page = finished.report.read_text()
    figures = {path.stem for path in (finished.folder / "figures").glob("*.png")}
    assert len([name for name in figures if name.startswith("02_")]) == 5 and len(figures) == 15
    both = (runs.ANALYZE, runs.INSIDE)
    cells = [cell for name in both for cell in code_cells(finished.notebook(name))]
    shown = [output for cell in cells for output in cell.outputs]
    drawn = sum("image/png" in one.get("data", {}) for one in shown)
    assert page.count("data:image/png;base64,") == drawn == 10
    links = re.findall(r'href="(notebooks/[^"]*)"', page)
    assert len(links) == 6 and all((finished.folder / link).is_file() for link in links)
    for title in ("How would it perform on hardware?", "Does the net use its circuit?", "Contents"):
        assert title in page
    unwanted = ("open_run", "Write the report", "Add to the report")
    assert not [text for text in unwanted if text in page], "code, or the cell that writes the page"
    assert len(list((finished.folder / "sample").glob("*/*.png"))) == 200
    conditions = [(row["condition"], row["strength"]) for row in result["robustness"]]
    assert len(conditions) == 9 and conditions[0] == ("exact", None) and ("shots", 1000) in conditions
    assert all(0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1 for row in result["robustness"])
    widgets = [output.data for output in shown if "widget" in str(output.get("data", {}).keys())]
    assert len(widgets) == 1 and len(widgets[0]["image/png"]) > 50_000, "no picture beside the widgets"
    assert len(json.dumps(read(finished.notebook(runs.INSIDE)).metadata.widgets)) < 1_000_000
    gradients = finished.rows("gradients")
    assert {row["kind"] for row in gradients if row["event"] == "size"} == {"quantum", "classical"}
    provenance = json.loads((finished.folder / "provenance.json").read_text())
    assert provenance["data"] == finished.splits.fingerprint()
    assert provenance["machine"]["simulators"]
    assert provenance["plan"]["seconds_per_epoch"] > 0 and provenance["plan"]["peak_bytes"] > 1e8


def test_a_finished_run_is_only_printed(finished: runs.Run) -> None:
    before = {path: path.stat().st_mtime_ns for path in finished.folder.rglob("*") if path.is_file()}
    done = forked.run("qnnkit", "run", "--recipe", "digits_quanv", "--run-dir", finished.folder)
    assert done.returncode == 0, done.stdout
    assert str(finished.report) in done.stdout and "hybrid" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in finished.folder.rglob("*") if path.is_file()} == before


def test_the_report_is_written_anew_from_the_users_own_notebook(finished: runs.Run, tmp_path: Path) -> None:
    """With the parameters that the notebook had, in a workspace that holds another 04."""
    shutil.copytree(finished.folder, tmp_path / "runs" / "copy")
    own = read(ROOT / "notebooks" / "04_analyze.ipynb")
    first = next(i for i, cell in enumerate(own.cells) if "parameters" in cell.metadata.get("tags", []))
    heading = nbformat.v4.new_markdown_cell("## My own section")
    cell = nbformat.v4.new_code_cell("n_worst")
    own.cells[first + 3 : -3] = [heading, cell]  # after the cell that opens the run, before the report
    (tmp_path / "notebooks").mkdir()
    nbformat.write(own, tmp_path / "notebooks" / "04_analyze.ipynb")
    code = "from qnnkit import cli, warm; warm.begin(); cli.main()"  # a forked kernel: see qnnkit.warm
    done = forked.python(code, "report", "runs/copy", env={"QNNKIT_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "runs" / "copy" / "report.html").read_text()
    assert "My own section" in page and "<pre>12</pre>" in page and "The trained circuit" in page
    result = json.loads((tmp_path / "runs" / "copy" / "result.json").read_text())
    assert result["nets"] == finished.result["nets"]


def test_own_images_are_trained_on_and_what_is_broken_is_named(finished: runs.Run, tmp_path: Path) -> None:
    """The sample that 01 wrote, with a text file among the images."""
    sample = shutil.copytree(finished.folder / "sample", tmp_path / "sample")
    (sample / "0" / "broken.png").write_text("no image")
    settings = {"data_dir": str(sample), "epochs": 1, "n_seeds": 1, "controls": ["classical"]}
    run = runs.open_run(tmp_path / "run", "folder_quanv", **settings)
    list(runs.train_all(run))
    report.finish(run)
    assert "broken.png" in run.report.read_text(), "the report must name the file that could not be read"


def test_the_circuit_in_a_cell_is_trained_with_its_controls(tmp_path: Path) -> None:
    """In a folder of its own, as a recipe whose source is kept; the recipe's run is left alone."""
    given = {"run_dir": str(tmp_path / "run"), "epochs": 1, "n_seeds": 1, "own_circuit": True}
    runs.launch(ROOT / "notebooks/03_train.ipynb", tmp_path / "out.ipynb", given)
    assert not (tmp_path / "run").exists()
    finals = runs.frame(tmp_path / "run-own")
    assert finals["net"].tolist()[0] == "hybrid" and len(finals) == 5
    assert finals["quantum"].tolist()[0] == 24
    assert "def circuit(inputs, weights):" in (tmp_path / "run-own" / "recipe.py").read_text()


@pytest.mark.slow
def test_training_alone_through_papermill(tmp_path: Path) -> None:
    """The command of the README, by itself, in a folder that holds nothing yet."""
    folder = tmp_path / "run"
    words = f"-p recipe digits_quanv -p run_dir {folder} -p epochs 2 -p n_seeds 1".split()
    command = [sys.executable, "-m", "papermill", "--no-progress-bar"]
    command += [ROOT / "notebooks/03_train.ipynb", tmp_path / "out.ipynb", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = runs.open_run(folder)
    assert run.config.epochs == 2
    assert run.epochs().query("net == 'hybrid'")["epoch"].tolist() == [1, 2]
    assert len(run.finals()) == len(run.nets) == 5


def run_cells(*paths: Path, prelude: str, **parameters: object) -> SimpleNamespace:
    """Notebooks' code cells as one program, after `prelude`, with their parameters exchanged."""
    lines = [prelude]
    for cell in (cell for path in paths for cell in code_cells(path)):
        tags = cell.metadata.get("tags", [])
        if "setup" not in tags:
            lines.append(cell.source)
        if "parameters" in tags:
            lines += [f"{name} = {value!r}" for name, value in parameters.items()]
    return forked.python("\n".join(lines), timeout=600)


WRONG_SIGN = """
import torch
from qnnkit.layers import QuantumLayer

right = QuantumLayer.forward

def forward(self, inputs):
    values = right(self, inputs)
    if values.requires_grad and inputs.dtype == torch.float32:  # as training computes; witnesses are float64
        values.register_hook(lambda gradient: -gradient)
    return values

QuantumLayer.forward = forward
"""


def test_a_wrong_gradient_stops_the_run(tmp_path: Path) -> None:
    path = ROOT / "notebooks" / "02_gradient_check.ipynb"
    done = run_cells(path, prelude=WRONG_SIGN, run_dir=str(tmp_path / "run"))
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "GradientError: The gradient of `quanv.filters.0`" in last
    assert "Do not train this net" in last


SILENT_STEP = """
import torch

right = torch.optim.Adam.step

def step(self):
    weights = [weight for group in self.param_groups for weight in group["params"]]
    before = [weight.detach().clone() for weight in weights]
    right(self)
    with torch.no_grad():
        for old, weight in zip(before, weights):
            if weight.dtype == torch.float32:  # the witness is float64
                weight.copy_(old)

torch.optim.Adam.step = step
"""


def test_a_device_that_does_not_step_stops_the_run(tmp_path: Path) -> None:
    done = run_cells(
        ROOT / "notebooks" / "00_setup.ipynb", prelude=SILENT_STEP, run_dir=str(tmp_path / "run")
    )
    told = (
        r"ArithmeticError: Wrong numbers or steps come from batched on cpu( and \S+ on \S+)*\. Choose another"
    )
    assert re.match(told, done.stderr.strip().splitlines()[-1]), done.stderr
    assert not (tmp_path / "run").exists()


def test_analysis_before_training_says_what_is_missing(tmp_path: Path) -> None:
    runs.open_run(tmp_path / "run", "digits_quanv")
    path = ROOT / "notebooks" / "04_analyze.ipynb"
    done = run_cells(path, prelude="", run_dir=str(tmp_path / "run"))
    assert "03_train" in done.stderr.strip().splitlines()[-1]


WITHOUT_A_CIRCUIT = """
from pathlib import Path
from qnnkit import runs

path = Path({folder!r}).parent / "plain.py"
path.write_text({recipe!r})
runs.open_run({folder!r}, path, epochs=1, n_seeds=1)
"""
PLAIN = """
from torch import nn

import qnnkit
from qnnkit import data


class Settings(data.Images, qnnkit.Settings):
    threads: int = 1


class Plain(nn.Module):
    def __init__(self, *, channels, image_size, n_classes):
        super().__init__()
        self.reader = nn.Linear(channels * image_size[0] * image_size[1], n_classes)

    def forward(self, images):
        return self.reader(images.flatten(1).float() / 255)


def load(settings):
    return data.of(settings)


def build(splits):
    return Plain(**splits.sizes)
"""


CLIP = """
from qnnkit import runs

tiny = {{"n_qubits": 2, "n_layers": 1, "patch_size": 8, "train_fraction": 0.1, "batch_size": 32}}
runs.open_run({folder!r}, "digits_clip", **tiny, controls=["classical"], epochs=1, n_seeds=1, threads=1)
"""
ADAPTER = """
from pathlib import Path
from qnnkit import runs

texts = Path({folder!r}).parent / "texts"
texts.mkdir()
for number in range(12):
    (texts / f"{{number}}.txt").write_text("the cat on the mat looked at dog number %d. " % number * 12)
from qnnkit.data.tokenizers import trained
from qnnkit.models import causal_lm

base = texts.parent / "base"
tokenizer = trained([path.read_text() for path in texts.iterdir()], 260)
causal_lm("tiny", vocabulary=len(tokenizer), length=64).save_pretrained(base)
tokenizer.save_pretrained(base)
tiny = {{"data_dir": str(texts), "sequence_length": 16, "adapter_weights": 3000, "pretrained": str(base)}}
runs.open_run({folder!r}, "text_adapter", **tiny, controls=["lora"], epochs=1, n_seeds=1, threads=1)
"""


EVERY = (*runs.NOTEBOOKS, "05_benchmark")


@pytest.mark.parametrize("names", [EVERY[1:-1], pytest.param(EVERY, marks=pytest.mark.slow)], ids=len)
@pytest.mark.parametrize(
    ("prelude", "kept", "told"),
    [
        (CLIP, {"01_captions", "02_errors", "05_images_found"}, "zero-shot accuracy"),
        (ADAPTER, {"02_sizes", "03_comparison", "04_curves"}, "perplexity"),
    ],
)
def test_other_data_go_through_every_notebook(
    prelude: str, kept: set, told: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    """By default without what is measured: test_measure_plan.py and others do that for every kind of net."""
    folder = tmp_path / "run"
    paths = [ROOT / "notebooks" / f"{name}.ipynb" for name in names]
    prelude = prelude.format(folder=str(folder))
    given = {"recipe": None, "run_dir": str(folder), "plateau_qubits": 2, "n_worst": 1, "budget": 0.3}
    done = run_cells(*paths, prelude=prelude, **given)
    assert done.returncode == 0, done.stderr
    assert kept <= {path.stem for path in (folder / "figures").glob("*.png")}
    assert told in (folder / "report.html").read_text()
    assert json.loads((folder / "result.json").read_text())["score"] in ("recall_1", "loss")


OWN = """
import numpy as np
import qnnkit
from matplotlib.figure import Figure
from qnnkit import data, tasks
from torch import nn


class Settings(qnnkit.Settings):
    epochs: int = 1
    n_seeds: int = 1
    threads: int = 1


def load(settings):
    t = np.linspace(-1, 1, 60)
    return data.arrays(settings, t[:, None], np.sin(3 * t))


def build(settings, splits, seed):
    return nn.Linear(1, 1)


class Heights:
    def __call__(self, net, batch):
        return tasks.Step((net(batch[0])[:, 0] - batch[1]).square().mean(), {}, len(batch[1]))

    def preview(self, splits):
        print("shown of", len(splits.train), "heights")
        return [Figure(), {"heights": len(splits.train)}]

    def mistakes(self, net, splits, n):
        print("the", n, "worst of", len(splits.test), "by", type(net).__name__)
        return tasks.Shown(Figure(), "05_heights", "Heights that are wrong")


def task(settings):
    return Heights()
"""


def test_what_an_own_task_shows_stands_in_01_in_04_and_on_the_page(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    folder = tmp_path / "run"
    names = ("01_sample_data", "03_train", "04_analyze")
    paths = [ROOT / "notebooks" / f"{name}.ipynb" for name in names]
    given = {"recipe": str(tmp_path / "own.py"), "run_dir": str(folder), "n_worst": 3}
    done = run_cells(*paths, prelude="", **given)
    assert done.returncode == 0, done.stderr
    assert "shown of 36 heights" in done.stdout and "{'heights': 36}" in done.stdout
    assert "the 3 worst of 12 by Linear" in done.stdout
    kept = {path.stem for path in (folder / "figures").glob("*.png")}
    assert {"01_preview", "05_heights"} <= kept and not any("confusion" in name for name in kept)
    page = (folder / "report.html").read_text()
    assert "Some of the data" in page and "Heights that are wrong" in page


def of_another_machine(folder: Path) -> None:
    """A machine's file, as if it had measured the same net."""
    net = {"recipe": "plain", "digest": "", "batch_size": 1, "n_samples": 1}
    rows = [
        {"what": f"net {what}", "device": "cpu", "precision": "float32", "value": 1.0, "unit": "s"}
        for what in ("epoch", "memory")
    ]
    about = {"machine": {"name": "Another machine"}, "busy": {"sentence": None}, "price_per_hour": 1.0}
    folder.mkdir()
    workspace.write_json(folder / "other.json", {"format": 2, **about, "net": net, "rows": rows})


def test_the_budget_of_the_benchmark_is_spent_once() -> None:
    source = "\n".join(cell.source for cell in code_cells(ROOT / "notebooks" / "05_benchmark.ipynb"))
    shares = re.findall(r"seconds=([^,)]*\bbudget\b[^,)]*)", source)
    survey, strategies = (eval(share, {"budget": 180.0}) for share in shares)
    assert survey + 2 * strategies == pytest.approx(180.0), "a race takes its time twice"


def test_a_model_without_a_circuit_goes_through_every_notebook(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    names = ("02_gradient_check", "03_train", "04_analyze", "04b_inside", "05_benchmark")
    paths = [ROOT / "notebooks" / f"{name}.ipynb" for name in names]
    prelude = WITHOUT_A_CIRCUIT.format(folder=str(folder), recipe=PLAIN)
    of_another_machine(tmp_path / "others")
    given = {"recipe": None, "run_dir": str(folder), "budget": 0.1, "compare_with": str(tmp_path / "others")}
    given["plateau_qubits"] = 2
    done = run_cells(*paths, prelude=prelude, **given)
    assert done.returncode == 0, done.stderr
    result = json.loads((folder / "result.json").read_text())
    assert [row["net"] for row in result["nets"]] == ["reference"] and result["nets"][0]["quantum"] == 0
    assert (result["verdicts"], result["robustness"]) == ([], [])
    assert "This net has no circuit" in done.stdout
    kept = {path.stem for path in (folder / "figures").glob("*.png")}
    assert {"02_sizes", "06_worst", "benchmark_step"} <= kept
    assert "Machines: 2; with this net: 1." in done.stdout
    rows = json.loads((folder / "machine.json").read_bytes())["rows"]
    assert {row["device"] for row in rows if row["what"] == "bandwidth"} >= {"cpu"}
    assert kept & {"02_circuit", "02_errors", "07_maps", "08_circuit", "09_hardware", "12_gates"} == set()
    rows = [json.loads(line) for line in (folder / "benchmark.jsonl").read_text().splitlines()]
    names = {row["name"] for row in rows if row["event"] == "strategy"}
    assert {"as it is", "float32", "bfloat16"} < names and not {"batched", "frozen"} & names
    quantum = [row["seconds"] for row in rows if row["event"] == "step" and row["kind"] == "quantum"]
    assert quantum == [0, 0]
