"""qnnkit.cli: what a person can mend is told in one sentence, with exit status 2, before it begins."""

import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from qnnkit import RECIPES, cli, cli_settings, device, report, runs
from qnnkit.runs import chain

NOBODY = 65534
HERE = Path(sys.executable).parent


@pytest.fixture
def qnnkit(monkeypatch, capfd, tmp_path):
    """The command, in this process: `qnnkit("run", ...)` gives (exit status, stdout, stderr)."""
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    for name, value in device.launch_environment().items():
        monkeypatch.setenv(name, value)  # which `main` would set, and leave

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["qnnkit", *map(str, words)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capfd.readouterr()
        return caught.value.code, out, err

    return command


@pytest.fixture
def pictures(tmp_path):
    """Six 6x6 images in each of two class folders."""
    root, generator = tmp_path / "pictures", np.random.default_rng(0)
    for name in ("a", "b"):
        (root / name).mkdir(parents=True)
        for i in range(6):
            Image.fromarray(generator.integers(0, 256, (6, 6), dtype=np.uint8)).save(root / name / f"{i}.png")
    return root


def refused(answer, *told):
    """Asserts that the command stopped with status 2 and one line that says all of `told`."""
    status, out, err = answer
    assert (status, out) == (2, "")
    assert err.startswith("qnnkit: ") and err.endswith("\n") and err.count("\n") == 1
    assert "Traceback" not in err and "[Errno" not in err
    assert re.search(r"[.!?]\n$", err)  # a sentence
    for words in told:
        assert words in err


# --- settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("epochs=2", {"epochs": 2}),
        ("learning_rate=1e-3", {"learning_rate": 0.001}),
        ("trainable=false", {"trainable": False}),
        ("circuit=random", {"circuit": "random"}),
        ("trainable=False", {"trainable": "False"}),  # not JSON: text, which the setting's own rule judges
        ('controls=["classical"]', {"controls": ["classical"]}),
        ("data_dir=/my=data", {"data_dir": "/my=data"}),
        ("data_dir=", {"data_dir": ""}),
        ("tokenizer=123", {"tokenizer": "123"}),  # a text, whatever it looks like
        ("pretrained=true", {"pretrained": "true"}),
        ('label_pattern="a"', {"label_pattern": "a"}),
    ],
)
def test_settings_are_json_or_text(word, value):
    kind = RECIPES["text_adapter" if word[:3] in ("tok", "pre") else "letters"].Settings
    found = cli_settings.parse_settings([word], kind)
    assert found == value and [type(each) for each in found.values()] == [type(*value.values())]


def test_the_last_of_two_equal_names_counts():
    assert cli_settings.parse_settings(["epochs=2", "seed=1", "epochs=3"]) == {"epochs": 3, "seed": 1}


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("epochs", "must be KEY=VALUE, but is 'epochs'"),
        ("", "must be KEY=VALUE"),
        ("image_size=null", "must give a value"),  # in open_run None would silently keep the recipe's
        ("recipe=digits_quanv", "Use --recipe"),
        ("run_dir=runs/first", "Use --run-dir"),
    ],
)
def test_settings_that_are_none(word, told):
    with pytest.raises(ValueError, match=told):
        cli_settings.parse_settings([word])


# --- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "setting", "told"),
    [
        ("digits_quanv", "epocs=2", "but is 'epocs'. Did you mean 'epochs'?"),
        ("digits_quanv", "epochs=2.5", "`epochs` must be a valid integer"),
        (
            "digits_quanv",
            "batch_size=0",
            "`batch_size` must be greater than or equal to 1, but is 0. It means",
        ),
        ("digits_quanv", "learning_rate=NaN", "`learning_rate` must be a finite number"),
        ("digits_quanv", "circuit=dta_reuploading", "Did you mean 'data_reuploading'?"),
        ("digits_quanv", "backend=lightning.gpus", "Did you mean 'lightning.gpu'?"),
        ("digits_quanv", "epochs", "Option --set must be KEY=VALUE"),
        ("digits_quanv", "recipe=folder_quanv", "Use --recipe"),
        ("digit_quanv", "epochs=1", "Did you mean 'digits_quanv'?"),
        ("folder_quanv", "epochs=1", "`data_dir` must"),
        ("folder_quanv", "data_dir=nothing.zip", "`data_dir` must be an existing folder or file, but is"),
        ("digits_quanv", "dataset=mnist", "or set download to true to have it fetched."),
    ],
)
def test_a_bad_setting_is_refused_before_anything_is_written(qnnkit, tmp_path, recipe, setting, told):
    refused(qnnkit("run", "--recipe", recipe, "--run-dir", "run", "--set", setting), told)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
def test_cuda_without_cuda(qnnkit, tmp_path):
    refused(qnnkit("run", "--recipe", "digits_quanv", "--run-dir", "run", "--set", "device=cuda"), "'cuda'")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("folder", "told"),
    [
        ("empty class", "`data_dir` must hold images in every class folder"),
        ("one class", "`data_dir` must hold two or more"),
        ("no class", "Put them in <class>/ there."),
        ("only text", "b/0.png"),
        ("a file", "`data_dir` must be a folder or end in .zip"),
    ],
)
def test_bad_data_are_refused_before_anything_is_written(qnnkit, pictures, tmp_path, folder, told):
    match folder:
        case "empty class":
            (pictures / "c").mkdir()
        case "one class":
            shutil.rmtree(pictures / "b")
        case "no class":
            shutil.rmtree(pictures)
            pictures.mkdir()
        case "only text":
            for image in (pictures / "b").iterdir():
                image.write_text("no image")
        case "a file":
            shutil.rmtree(pictures)
            pictures.write_text("")
    words = ("--recipe", "folder_quanv", "--run-dir", "run", "--set", "data_dir=pictures")
    refused(qnnkit("run", *words), told)
    assert not (tmp_path / "run").exists()


def test_a_run_folder_that_is_a_file(qnnkit, tmp_path):
    (tmp_path / "run").write_text("mine")
    words = ("run", "--recipe", "digits_quanv", "--run-dir")
    refused(qnnkit(*words, "run"), "a file is in its place. Choose another run_dir.")
    refused(qnnkit(*words, "run/deeper"), "a file is in its place. Choose another run_dir.")
    assert (tmp_path / "run").read_text() == "mine"


def test_a_run_folder_that_may_not_be_written(qnnkit):
    with tempfile.TemporaryDirectory() as name:
        closed = Path(name)
        closed.chmod(0o555)
        root = os.geteuid() == 0
        try:
            if root:
                os.seteuid(NOBODY)
            answer = qnnkit("run", "--recipe", "digits_quanv", "--run-dir", closed / "run")
        finally:
            if root:
                os.seteuid(0)
            closed.chmod(0o755)
        refused(answer, f"Cannot write `{closed / 'run'}`", "Choose a folder that you may write to")
        assert list(closed.iterdir()) == []


@pytest.mark.parametrize(
    ("room", "path"), [(400, "run/provenance.json"), (8000, "run/notebooks/00_setup.running.ipynb")]
)
def test_a_full_disk(qnnkit, tmp_path, room, path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        status, _, err = qnnkit("run", "--recipe", "digits_quanv", "--run-dir", "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    refused(
        (status, "", err), f"Cannot write `{tmp_path / path}`", "Free some space and run the same command"
    )
    begun = runs.open_run("run", "digits_quanv")  # what was written before is whole
    assert begun.result is None and not begun.notebook("00_setup").exists()


def test_another_experiment_in_the_folder(qnnkit, pictures):
    runs.open_run("run", "folder_quanv", data_dir="pictures", epochs=2)
    refused(qnnkit("run", "--run-dir", "run", "--set", "epochs=1"), "epochs: 2 there, 1 now")


def test_a_folder_without_a_run(qnnkit, tmp_path):
    refused(qnnkit("run", "--run-dir", "run"), "must hold a run", "Name a recipe")
    refused(qnnkit("report", "run"), "must hold a run")
    assert list(tmp_path.iterdir()) == []


def test_a_system_error_names_its_file(qnnkit, pictures):
    begun = runs.open_run("run", "folder_quanv", data_dir="pictures")
    (begun.folder / "result.json").mkdir()
    status, _, err = qnnkit("run", "--run-dir", "run")
    assert status == 2 and str(begun.folder / "result.json") in err and "Traceback" not in err


@pytest.mark.parametrize("words", [["run"], ["run", "--epochs", "2"], ["rum"], ["doctor", "--jsn"]])
def test_a_command_line_that_is_wrong(qnnkit, words):
    status, out, err = qnnkit(*words)
    assert status == 2 and out == "" and "Traceback" not in err and "qnnkit" in err


# --- what works --------------------------------------------------------------------------------------------


def finish(folder, **settings):
    """A run whose numbers are written by hand, finished."""
    begun = runs.open_run(folder, "folder_quanv", data_dir="pictures", n_seeds=1, controls=["classical"])
    for net, accuracy in (("hybrid", 0.75), ("classical", 0.5)):
        row = {"event": "test", "net": net, "seed": 0, "test_accuracy": accuracy, "seconds_per_epoch": 0.5}
        begun.log("metrics", row | {"quantum": 1, "classical": 2, "frozen": 3})
    report.finish(begun)
    return begun


def test_a_finished_run_is_only_printed(qnnkit, pictures):
    begun = finish("run")
    shutil.rmtree(pictures)  # not needed any more
    before = {path: path.stat().st_mtime_ns for path in begun.folder.rglob("*")}
    status, out, err = qnnkit("run", "--run-dir", "run")
    assert (status, err) == (0, "")
    assert re.search(r"hybrid +75\.0 \(one seed\) +1 +2 +3 +0\.50", out)
    assert "hybrid and classical differ by +25.0 points on one seed" in out
    assert out.rstrip().endswith(f"Report: {begun.report}")
    assert {path: path.stat().st_mtime_ns for path in begun.folder.rglob("*")} == before


def test_parameters_of_notebooks_are_set_like_settings(qnnkit, pictures, monkeypatch):
    asked = []
    monkeypatch.setattr(
        chain, "launch", lambda source, output, parameters, environment: asked.append(parameters)
    )
    monkeypatch.setattr(chain, "finished", lambda run: None)
    begin = "run", "--run-dir", "run", "--recipe", "folder_quanv", "--set", "data_dir=pictures"
    own = "--set", "plateau_qubits=4", "--set", "hardware_images=8", "--set", "n_seeds=1"
    with pytest.raises(RuntimeError, match=r"must write result\.json"):
        qnnkit(*begin, *own)
    shared = {"recipe", "run_dir", "device", "backend", "data_dir"}
    assert [
        {name: value for name, value in given.items() if name not in shared | {"n_seeds"}} for given in asked
    ] == [{}, {}, {"plateau_qubits": 4}, {}, {"hardware_images": 8}]
    status, _, err = qnnkit(*begin, "--set", "plateau_qubits=four", "--set", "n_seeds=1")
    assert status == 2 and "`plateau_qubits` must be of type int, but is 'four'" in err
    status, _, err = qnnkit(*begin, "--set", "plateau_qubit=4", "--set", "n_seeds=1")
    assert status == 2 and "be a known name, but is 'plateau_qubit'" in err


def test_a_notebook_that_has_finished_keeps_its_parameters(qnnkit, pictures):
    begun = finish("run")
    executed = begun.notebook("02_gradient_check")
    executed.parent.mkdir(exist_ok=True)
    executed.write_text(json.dumps({"metadata": {"papermill": {"parameters": {"plateau_qubits": 4}}}}))
    assert qnnkit("run", "--run-dir", "run", "--set", "plateau_qubits=4", "--set", "samples=4")[0] == 0
    for other in ("plateau_qubits=5", "samples=5"):
        status, _, err = qnnkit("run", "--run-dir", "run", "--set", other)
        assert status == 2 and "be what 02_gradient_check of this run has finished with" in err


def test_train_takes_epochs(qnnkit, pictures):
    begin = "train", "--run-dir", "run", "--recipe", "folder_quanv", "--set", "data_dir=pictures"
    small = [
        word for each in ("n_seeds=1", "controls=[]", "stride=8", "hidden=2") for word in ("--set", each)
    ]
    assert qnnkit(*begin, *small, "--epochs", "1")[0] == 0
    assert len(runs.open_run("run").epochs()) == 1
    assert qnnkit("train", "--run-dir", "run", "--epochs", "2")[0] == 0
    assert runs.open_run("run").config.epochs == 2 and len(runs.open_run("run").epochs()) == 2


def test_report_of_a_run_that_is_not_trained(qnnkit, pictures):
    runs.open_run("run", "folder_quanv", data_dir="pictures")
    refused(qnnkit("report", "run"), "is not finished. Finish it: qnnkit run")


def test_what_is_wrong_with_the_files_is_said_before_the_notebooks(qnnkit, pictures, tmp_path):
    """A text file named .png is counted, other sizes and modes are told once; then a notebook stops."""
    (pictures / "a" / "text.png").write_text("no image")
    Image.new("RGB", (9, 9)).save(pictures / "b" / "odd.png")
    mine = json.loads(runs.find_notebook("00_setup").read_text())  # one beside the workspace comes first
    mine["cells"][-1] = mine["cells"][-1] | {"cell_type": "code", "execution_count": None, "outputs": []}
    mine["cells"][-1]["source"] = "raise ImportError('pandas is broken here.')"
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "notebooks" / "00_setup.ipynb").write_text(json.dumps(mine))
    status, out, err = qnnkit(
        "run", "--recipe", "folder_quanv", "--run-dir", "run", "--set", "data_dir=pictures"
    )
    notes = [line for line in out.splitlines() if line.startswith("Note: ")]
    for told in ("1 of 14 images that cannot be read: a/text.png (", "13 of 13 images to 16x16", "RGB"):
        assert len([note for note in notes if told in note]) == 1
    refused(
        (status, "", err), "Notebook 00_setup.ipynb stopped: pandas is broken here.", "00_setup.failed.ipynb"
    )


def test_doctor_as_json(qnnkit):
    status, out, _ = qnnkit("doctor", "--json")
    assert status == 0
    found = json.loads(out)
    assert {"machine", "accelerators", "simulators"} <= found.keys()
    assert found["machine"]["python"] == platform.python_version()


def test_the_installed_command_and_the_module_are_the_same():
    command = HERE / "qnnkit"
    if not command.exists():
        pytest.skip("qnnkit is not installed beside this Python")
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"}
    texts = []
    for words in ([command], [sys.executable, "-m", "qnnkit"]):
        done = subprocess.run(
            [*words, "--help"], capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout.partition("Options")[2])  # above it, each tells its own name
    assert texts[0] == texts[1]
    for name in ("run", "doctor", "measure", "report"):
        assert re.search(rf"\b{name}\b", texts[0])


def test_training_tells_what_the_data_are(tmp_path, monkeypatch, qnnkit):
    """As `run` does, before it trains; and the run keeps it."""
    made = runs.open_run(tmp_path / "run", "digits_quanv", epochs=1, n_seeds=1, controls=[])
    splits = replace(made.splits, notes=("Left out 2 files that cannot be read.",))
    final = {"net": "hybrid", "seed": 0, "test_accuracy": 0.9, "best_epoch": 1}
    monkeypatch.setattr(runs.Run, "load_data", lambda self: splits)
    monkeypatch.setattr("qnnkit.runs.trainings._train", lambda *given: final)
    status, out, err = qnnkit("train", "--run-dir", str(tmp_path / "run"))
    assert status == 0, err
    assert out.startswith("Note: Left out 2 files that cannot be read.\n")
    assert runs.open_run(tmp_path / "run").provenance["notes"] == ["Left out 2 files that cannot be read."]


@pytest.mark.slow
def test_too_few_file_handles_are_told_in_a_sentence(tmp_path):
    command = "ulimit -n 40; exec {} -m qnnkit run --recipe digits_quanv --run-dir runs/few --epochs 1"
    done = subprocess.run(
        ["bash", "-c", command.format(sys.executable)],
        env={**os.environ, "QNNKIT_HOME": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("qnnkit: Notebook 00_setup.ipynb")
    assert "ulimit -n 1024" in done.stderr
