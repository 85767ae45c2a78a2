"""The notebooks' form, and the chain at toy size. Results are read from files, never from printed text."""

from __future__ import annotations

import ast
import itertools
import json
import re
import shutil
import zipfile
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from qnnkit import runs, workspace
from tests import forked
from tests.acted import read_lines
from tests.wheels import outside

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "notebooks").glob("*.ipynb"))
SETUP = ROOT / "colab_setup.ipynb"
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


def tags(cell: nbformat.NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


# --- form -----------------------------------------------------------------------------------------


MORE = ("05_benchmark", "06_study", "07_circuit", "08_midi_model")


def test_there_are_ten_notebooks_of_at_most_eighty_cells() -> None:
    assert tuple(path.stem for path in SOURCES) == (*runs.NOTEBOOKS, *MORE)
    sizes = {path.stem: len(code_cells(path)) for path in SOURCES}
    assert sum(sizes.values()) <= 80 and max(sizes.values()) <= 12


@pytest.mark.parametrize("path", [*SOURCES, SETUP], ids=lambda path: path.stem)
def test_a_source_is_clean_and_its_cells_are_short(path: Path) -> None:
    """No outputs or private metadata; code after prose; the parameters as papermill can read them."""
    notebook = read(path)
    nbformat.validate(notebook)
    cells, metadata = notebook.cells, notebook.metadata
    assert metadata.kernelspec.name == "python3"
    on_colab = {"accelerator", "colab"} if path == SETUP else set()
    assert set(metadata) <= {"kernelspec", "language_info"} | on_colab
    assert set(metadata.get("colab", ())) <= {"gpuType"}
    assert all(set(cell.metadata) <= {"tags"} for cell in cells)
    for before, cell in itertools.pairwise(cells):
        if cell.cell_type == "code":
            assert cell.outputs == [] and cell.execution_count is None
            assert len(cell.source.splitlines()) <= 15, cell.source
            assert before.cell_type == "markdown" or path == SETUP, cell.source
    assert cells[0].cell_type == cells[-1].cell_type == "markdown"
    assert all(f"**{word}**" in cells[0].source for word in ("Question:", "Reads", "Writes", "Takes"))
    assert any("**Prediction:**" in cell.source for cell in cells if cell.cell_type == "markdown")
    (cell,) = [cell for cell in cells if "parameters" in tags(cell)]
    lines = cell.source.splitlines()
    assert all(PARAMETER.match(line) for line in lines), lines
    declared = runs.chain.declared(path)
    assert list(declared) == [line.split(":")[0] for line in lines]
    assert all(entry["inferred_type_name"] != "None" and entry["help"] for entry in declared.values())


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_no_cell_changes_a_parameter(path: Path) -> None:
    """Else what was asked for is lost; 03 alone may, where a circuit of the reader's is trained."""
    names = set(runs.chain.declared(path)) - ({"recipe", "run_dir"} if path.stem == "03_train" else set())
    for cell in code_cells(path):
        if not {"parameters", "setup"} & set(tags(cell)):
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
    assert len([name for name in figures if name.startswith("02_")]) == 4 and len(figures) == 13
    both = (runs.ANALYZE, runs.INSIDE)
    cells = [cell for name in both for cell in code_cells(finished.notebook(name))]
    shown = [output for cell in cells for output in cell.outputs]
    drawn = sum("image/png" in one.get("data", {}) for one in shown)
    assert page.count("data:image/png;base64,") == drawn == 9
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
    first = next(i for i, cell in enumerate(own.cells) if "parameters" in tags(cell))
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


def test_the_circuit_in_a_cell_is_trained_with_its_controls(tmp_path: Path) -> None:
    """In a folder of its own, as a recipe whose source is kept; the recipe's run is left alone."""
    given = {"run_dir": str(tmp_path / "run"), "epochs": 1, "n_seeds": 1, "own_circuit": True}
    runs.launch(ROOT / "notebooks/03_train.ipynb", tmp_path / "out.ipynb", given)
    assert not (tmp_path / "run").exists()
    finals = runs.frame(tmp_path / "run-own")
    assert finals["net"].tolist()[0] == "hybrid" and len(finals) == 5
    assert finals["quantum"].tolist()[0] == 24
    assert "def circuit(inputs, weights):" in (tmp_path / "run-own" / "recipe.py").read_text()


def run_cells(*names: str, prelude: str = "", **parameters: object) -> SimpleNamespace:
    """Notebooks' code cells as one program, after `prelude`, with their parameters exchanged."""
    lines = [prelude]
    for cell in (cell for name in names for cell in code_cells(ROOT / "notebooks" / f"{name}.ipynb")):
        lines += [cell.source] if "setup" not in tags(cell) else []
        if "parameters" in tags(cell):
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


BEGUN = "from qnnkit import runs; runs.open_run('FOLDER', 'digits_quanv')"
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


@pytest.mark.parametrize(
    ("notebook", "prelude", "message"),
    [
        ("02_gradient_check", WRONG_SIGN, r"\S*GradientError: .*`quanv\.filters\.0.*Do not train"),
        ("00_setup", SILENT_STEP, r"ArithmeticError: Wrong numbers or steps .* batched on cpu.*another"),
        ("04_analyze", BEGUN, r".*03_train"),
    ],
    ids=["wrong gradient", "device that does not step", "not trained yet"],
)
def test_a_fault_stops_the_notebook_in_one_sentence(notebook, prelude, message, tmp_path: Path) -> None:
    folder = str(tmp_path / "run")
    done = run_cells(notebook, prelude=prelude.replace("FOLDER", folder), run_dir=folder)
    assert done.returncode != 0
    assert re.match(message, done.stderr.strip().splitlines()[-1]), done.stderr
    assert notebook != "00_setup" or not (tmp_path / "run").exists()


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


@pytest.mark.parametrize(
    ("prelude", "figures", "column"),
    [
        (CLIP, {"01_captions", "02_sizes"}, "zero-shot accuracy"),
        (ADAPTER, {"02_sizes", "03_comparison", "04_curves"}, "perplexity"),
    ],
    ids=["captions", "language"],
)
def test_other_data_go_through_every_notebook(
    prelude: str, figures: set, column: str, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    given = {"recipe": None, "run_dir": str(folder), "plateau_qubits": 2, "n_worst": 1}
    done = run_cells(*runs.NOTEBOOKS[1:], prelude=prelude.format(folder=str(folder)), **given)
    assert done.returncode == 0, done.stderr
    assert figures <= {path.stem for path in (folder / "figures").glob("*.png")}
    assert column in (folder / "report.html").read_text()
    assert json.loads((folder / "result.json").read_text())["score"] in ("recall_1", "loss")


def test_a_model_without_a_circuit_goes_through_every_notebook(tmp_path: Path) -> None:
    """And its machine's survey is next to that of another machine, which measured another net."""
    folder, others = tmp_path / "run", tmp_path / "others"
    others.mkdir()
    net = {"recipe": "another", "digest": "", "batch_size": 1, "n_samples": 1}
    workspace.write_json(others / "other.json", {"machine": {"name": "Another"}, "net": net, "rows": []})
    prelude = (
        f"from qnnkit import runs; runs.open_run({str(folder)!r}, 'cnn', epochs=1, n_seeds=1, threads=1)"
    )
    given = {"recipe": None, "run_dir": str(folder), "budget": 0.1, "compare_with": str(others)}
    done = run_cells(*runs.NOTEBOOKS[2:], "05_benchmark", prelude=prelude, **given, plateau_qubits=2)
    assert done.returncode == 0, done.stderr
    result = json.loads((folder / "result.json").read_text())
    assert [row["net"] for row in result["nets"]] == ["reference"] and result["nets"][0]["quantum"] == 0
    assert (result["verdicts"], result["robustness"]) == ([], [])
    assert "This net has no circuit" in done.stdout and "Machines: 2; with this net: 1." in done.stdout
    figures = {path.stem for path in (folder / "figures").glob("*.png")}
    assert {"02_sizes", "06_worst", "benchmark_step"} <= figures
    assert not figures & {"02_circuit", "02_gates", "07_maps", "08_circuit", "13_landscape"}
    rows = json.loads((folder / "machine.json").read_bytes())["rows"]
    assert {row["device"] for row in rows if row["what"] == "bandwidth"} >= {"cpu"}
    rows = read_lines(folder / "benchmark.jsonl")
    names = {row["name"] for row in rows if row["event"] == "strategy"}
    assert {"as it is", "bfloat16"} < names and not {"batched", "frozen"} & names
    assert not any(row["seconds"] for row in rows if row["event"] == "step" and row["kind"] == "quantum")
