"""Notebooks cell by cell, for nets and data of every kind: what they show or omit, and their errors."""

import json
from pathlib import Path

import matplotlib
import nbformat
import pandas
import pennylane as qp
import pytest
import torch
from matplotlib import pyplot
from matplotlib.figure import Figure
from torch import nn

from qnnkit import QuantumLayer, runs, workspace
from qnnkit.data.tokenizers import trained
from qnnkit.measure import survey
from qnnkit.models import causal_lm
from tests.acted import read_lines
from tests.same import from_seed
from tests.toys import AsFloat, Digits, linear, texts

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
TINY = {"n_seeds": 1, "train_fraction": 0.1, "controls": [], "threads": 1, "epochs": 1}


@qp.qnode(qp.device("default.qubit"))
def weights_first(weights, inputs):
    qp.RX(inputs[..., 0] + weights[0], "a")
    return [qp.expval(qp.Z("a"))]


class OneByOne(nn.Sequential):
    def forward(self, rows):
        return torch.stack([super(OneByOne, self).forward(row) for row in rows])


class Frozen(Digits):
    """A circuit for single samples that takes its weights first, on a device without wires."""

    def build(splits, seed):
        layer = QuantumLayer(weights_first, {"weights": (1,)}).requires_grad_(False).bfloat16()
        return nn.Sequential(
            AsFloat(), nn.Flatten(), linear(64, 1), OneByOne(layer), AsFloat(), linear(1, 10)
        )


NETS = {
    "quanv": {"quantum_clip_norm": 1e-3, "controls": ["classical"]},
    "frozen filters": {"filters": 2, "trainable": False, "circuit": "random"},
    "iqp": {"circuit": "hardware_efficient", "embedding": "iqp", "n_layers": 1},
    "amplitude": {"circuit": "strongly_entangling", "embedding": "amplitude"},
    "frozen": {"recipe": Frozen},
    "resnet": {"recipe": "resnet_circuit_trained", "dataset": "digits", "stem_stride": 1},
}
BRIEF = {"samples": 1, "plateau_qubits": 2, "try_updates": 2, "hardware_images": 2}
PLATEAUS = {"quanv": ({"2", "8"}, True), "iqp": ({"1", "4"}, False)}
"""Depths in the plateau scan of the run's circuit, and whether it includes a mirrored circuit."""


@pytest.fixture(autouse=True)
def style(monkeypatch):
    """Figures are not shown, and not laid out, which takes half of the drawing time."""
    monkeypatch.setattr(Figure, "set_layout_engine", lambda *args, **options: None)
    with matplotlib.rc_context({"backend": "agg"}):
        yield
        pyplot.close("all")


def begun(folder, recipe="digits_quanv", **settings):
    fewer = {"stride": 2} if recipe == "digits_quanv" else {}
    return runs.open_run(folder, recipe, **TINY | fewer | settings)


def cells(name, run, **parameters):
    """Runs the cells of a run's notebook in this process; returns its variables."""
    return executed(name, **{"n_worst": 1} | parameters, recipe=None, run_dir=str(run.folder))


def executed(name, **parameters):
    """Runs a notebook's cells in this process, with the parameters that it has; returns its variables."""
    variables = {"display": lambda shown: None}
    for cell in nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4).cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code" and "setup" not in tags:
            exec(compile(cell.source, f"{name}, {cell.source[:40]!r}", "exec"), variables)
            variables |= parameters if "parameters" in tags else {}
    return variables


def figures(run):
    return {path.stem for path in (run.folder / "figures").glob("*.png")}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The folder for runs of this file; each net's run goes from test to test, as through the notebooks."""
    return tmp_path_factory.mktemp("runs")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "resnet" else []) for name in NETS]
)
def test_the_gradient_check_works_for_every_kind_of_circuit(place, name):
    run, width = begun(place / name, **NETS[name]), 4 if name in PLATEAUS else 2
    shown = cells("02_gradient_check", run, samples=1, plateau_qubits=width, plateau_starts=8)
    assert figures(run) >= {"02_circuit", "02_gates", "02_sizes"}
    fresh = runs.build(run, run.nets[0], 0).state_dict()
    assert all(torch.equal(value, fresh[key]) for key, value in shown["model"].state_dict().items())
    assert ("02_plateau" in figures(run)) == (name in PLATEAUS)
    if name in PLATEAUS:
        depths, mirrored = PLATEAUS[name]
        scan = shown["scan"]
        assert set(scan["depth"]) == depths and set(scan["n_qubits"]) == {2, 4}
        assert ("identity_block" in set(scan["initialisation"])) == mirrored


def test_a_net_is_trained_and_analysed_with_and_without_recorded_gradients(place):
    run = begun(place / "quanv", **NETS["quanv"])
    tried = cells("03_train", run, try_updates=20)["losses"]
    assert 0 < len(tried) <= 20 and tried[-1] < tried[0], "a batch was not learnt"
    again = pandas.DataFrame(runs.train_all(begun(place / "again", **NETS["quanv"])))
    alike = ["net", "seed", "test_loss"]
    pandas.testing.assert_frame_equal(runs.frame(run)[alike], again[alike], check_exact=True)
    shown = cells("04_analyze", run)
    shares, groups = shown["shares"], shown["of_groups"]
    accuracy = runs.frame(run)["test_accuracy"][0]
    assert len(shares) == 3 and shares["as trained"] == pytest.approx(100 * accuracy)
    assert groups.loc["quantum", "n_weights"] == 24 and groups.loc["quantum", "clipped"] == 1
    assert groups["share"].sum() == pytest.approx(1, abs=0.02)
    shown = cells("04b_inside", run, hardware_images=0)
    saved = {"03_comparison", "04_curves", "05_confusion", "08_circuit", "10_gradients", "13_landscape"}
    assert saved <= figures(run) and set(shown["lines"]) == {"along the gradient", "random"}
    assert shown["n"] == len(shown["batch"][0]) == max(8, min(64, 4096 // shown["n_circuits"]))
    layers = shown["last"].groupby("layer").first()
    weights = runs.build(run, "hybrid", 0).parameters()
    assert layers["n_weights"].sum() == sum(weight.numel() for weight in weights)
    assert (layers["norm"] > 0).all() and (layers["ratio"] > 0).all()
    (run.folder / "gradients.jsonl").unlink()
    (run.folder / "result.json").unlink()
    cells("04_analyze", run)
    assert run.result["robustness"] == [] and "No gradients are shown:" in run.report.read_text()


def test_frozen_angles_have_no_loss_landscape(place):
    run = begun(place / "frozen", **NETS["frozen"])
    list(runs.train_all(run))
    shown = cells("04b_inside", run, hardware_images=0)
    assert shown["lines"] == {} and "13_landscape" not in figures(run)
    assert [*cells("04_analyze", run)["shares"]] == ["as trained"], "other layers have no rows to exchange"


# --- other data, and nets without a circuit -----------------------------------------------------------------


def of_captions(folder):
    sizes = {"n_qubits": 2, "n_layers": 1, "patch_size": 8, "batch_size": 32}
    return begun(folder / "run", "digits_clip", **sizes, controls=["classical"])


def of_language(folder):
    (folder / "texts").mkdir()
    tokenizer = trained([path.read_text() for path in texts(folder / "texts").iterdir()], 260)
    model = from_seed(lambda: causal_lm("tiny", vocabulary=len(tokenizer), length=64))
    for part in (model, tokenizer):
        part.save_pretrained(folder / "base")
    sizes = {"data_dir": str(folder / "texts"), "sequence_length": 16, "adapter_weights": 3000}
    base = {"pretrained": str(folder / "base"), "controls": ["lora"], "train_fraction": 1.0}
    return begun(folder / "run", "text_adapter", **sizes, **base)


@pytest.mark.parametrize(
    ("made", "saved", "column", "score"),
    [
        (of_captions, {"01_captions", "02_sizes"}, "zero-shot accuracy", "recall_1"),
        (of_language, {"02_sizes", "03_comparison", "04_curves"}, "perplexity", "loss"),
    ],
)
def test_other_data_work_in_every_notebook(made, saved, column, score, tmp_path):
    run = made(tmp_path)
    for name in runs.NOTEBOOKS[1:]:
        cells(name, run, **BRIEF)
    assert saved <= figures(run)
    assert column in run.report.read_text() and run.result["score"] == score


def test_a_model_without_a_circuit_works_in_every_notebook(tmp_path, capsys, monkeypatch):
    """Its machine's survey is next to that of another machine, which measured another net."""
    net = {"recipe": "another", "digest": "", "batch_size": 1, "n_samples": 1}
    (tmp_path / "others").mkdir()
    other = {"machine": {"name": "Another"}, "net": net, "rows": []}
    workspace.write_json(tmp_path / "others" / "other.json", other)
    run = begun(tmp_path / "run", "cnn", width=8, hidden=8, batch_size=16)
    reached = {"bandwidth_gb_s": 9.0, "overhead_us": 5.0, "tflops": {"float32": 0.1}}  # test_measure_clock's
    monkeypatch.setattr(survey, "figures", lambda *args, **options: reached)
    with torch.random.fork_rng(devices=[]):  # dropout of this net uses it
        for name in (*runs.NOTEBOOKS[2:], "05_benchmark"):
            cells(name, run, **BRIEF, budget=0.1, compare_with=str(tmp_path / "others"))
    assert [row["net"] for row in run.result["nets"]] == ["reference"]
    assert run.result["nets"][0]["quantum"] == 0
    assert (run.result["verdicts"], run.result["robustness"]) == ([], [])
    printed = capsys.readouterr().out
    assert "This net has no circuit" in printed and "Machines: 2; with this net: 1." in printed
    assert {"02_sizes", "06_worst", "benchmark_step"} <= figures(run)
    assert not figures(run) & {"02_circuit", "02_gates", "07_maps", "08_circuit", "13_landscape"}
    rows = json.loads((run.folder / "machine.json").read_bytes())["rows"]
    assert {row["device"] for row in rows if row["what"] == "bandwidth"} >= {"cpu"}
    rows = read_lines(run.folder / "benchmark.jsonl")
    names = {row["name"] for row in rows if row["event"] == "strategy"}
    assert {"as it is", "bfloat16"} < names and not {"batched", "frozen"} & names
    assert not any(row["seconds"] for row in rows if row["event"] == "step" and row["kind"] == "quantum")


# --- faults -------------------------------------------------------------------------------------------------


def wrong_sign(monkeypatch):
    """Gradients through circuits get the wrong sign in float32, as in training; the reference does not."""
    right = QuantumLayer.forward

    def forward(self, inputs):
        values = right(self, inputs)
        if values.requires_grad and inputs.dtype == torch.float32:
            values.register_hook(lambda gradient: -gradient)
        return values

    monkeypatch.setattr(QuantumLayer, "forward", forward)


def silent_step(monkeypatch):
    """Adam changes no weight in float32."""
    right = torch.optim.Adam.step

    def step(self):
        weights = [weight for group in self.param_groups for weight in group["params"]]
        if weights[0].dtype != torch.float32:  # float64: the reference
            right(self)

    monkeypatch.setattr(torch.optim.Adam, "step", step)


@pytest.mark.parametrize(
    ("notebook", "fault", "message"),
    [
        ("02_gradient_check", wrong_sign, r"^[^\n]*`quanv\.filters\.0[^\n]*Do not train[^\n]*$"),
        ("00_setup", silent_step, r"^Wrong numbers or steps .* batched on cpu[^\n]*another[^\n]*$"),
        ("04_analyze", lambda monkeypatch: None, r"^[^\n]*03_train[^\n]*$"),
    ],
    ids=["wrong gradient", "device that does not step", "not trained yet"],
)
def test_a_fault_stops_the_notebook_with_one_sentence(notebook, fault, message, tmp_path, monkeypatch):
    fault(monkeypatch)
    options = {"recipe": "digits_quanv", "run_dir": str(tmp_path / "run"), "samples": 1}
    if notebook == "04_analyze":
        begun(tmp_path / "run")
    with pytest.raises(Exception, match=message):
        executed(notebook, **options)
    assert notebook != "00_setup" or not (tmp_path / "run").exists()
