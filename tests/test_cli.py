"""qnnkit.cli: a mistake of the user is reported in one sentence, with exit status 2, before the start."""

import contextlib
import json
import os
import platform
import re
import shutil
import signal
import time

import pytest

from qnnkit import RECIPES, cli_settings, device, recipes, report, runs
from qnnkit.runs import chain
from tests import forked
from tests.same import raises
from tests.toys import fill, typing, write


@pytest.fixture
def qnnkit(monkeypatch, capfd, tmp_path):
    """The command, in this process: `qnnkit("run", ...)` returns (exit status, stdout, stderr)."""
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    return typing(monkeypatch, capfd)


@pytest.fixture
def home(qnnkit, tmp_path, monkeypatch):
    """The workspace of `qnnkit`, which is also the current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def pictures(tmp_path):
    """Six 6x6 images in each of two class folders."""
    return fill(tmp_path / "pictures", [f"{name}/{i}.png" for name in "ab" for i in range(6)], size=(6, 6))


def refused(answer, *sentences):
    """Asserts that the command stopped with status 2 and one line that contains all of `sentences`."""
    status, out, err = answer
    assert (status, out) == (2, "")
    assert re.fullmatch(r"qnnkit: .*[.!?]\n", err) and "[Errno" not in err  # a sentence
    assert [words for words in sentences if words not in err] == []


# --- settings ----------------------------------------------------------------------------------------------


WORDS = {
    "epochs=2": 2, "trainable=false": False, "circuit=random": "random",
    "trainable=False": "False",  # not JSON: text, which the rule of the setting checks
    'controls=["classical"]': ["classical"], "data_dir=/my=data": "/my=data", "data_dir=": "",
    "stride=0.5": 0.5, "stride=NaN": "NaN",
}  # fmt: skip
AS_TEXT = ["name=1e-3", "name=1.10", "name=010", "name=on", "name=12:30", "name=1_000"]


def test_settings_from_words_and_files_are_json_or_text(home):
    """Later files override earlier ones; words and options override files."""
    for word, value in WORDS.items():
        assert [*cli_settings.gathered(None, [word]).values()] == [value]
    for word in AS_TEXT:  # as a YAML or JSON number it would not be the written text
        (home / "word.yaml").write_text(word.replace("=", ": "))
        text = {"name": word.removeprefix("name=")}
        for given in ((None, [word]), ([home / "word.yaml"], None)):
            assert cli_settings.gathered(*given) == text
    (home / "machine.yaml").write_text("device: cpu\nthreads: 2\nepochs: 7\n")
    (home / "experiment.yaml").write_text("epochs: 3\nlearning_rate: 1e-3\n")
    files = [home / "machine.yaml", home / "experiment.yaml"]
    asked = cli_settings.gathered(files, ["n_layers=1"], controls=cli_settings.controls_of("hybrid"))
    given = {"device": "cpu", "threads": 2, "epochs": 3, "n_layers": 1, "controls": []}
    assert asked == given | {"learning_rate": "1e-3"}  # YAML reads this as text
    assert recipes.settings("digits_quanv", **asked).learning_rate == 1e-3
    assert cli_settings.gathered(files, ["epochs=4", "epochs=4"], epochs=4)["epochs"] == 4
    assert cli_settings.controls_of("no_quantum, reference") == ["no_quantum"]


# --- bad input ---------------------------------------------------------------------------------------------


def test_an_untrained_run_and_a_system_error_that_names_its_file(qnnkit, monkeypatch):
    begun = runs.open_run("run", "digits_quanv")
    refused(qnnkit("report", "run"), "is not finished. Finish it: qnnkit run")
    (begun.folder / "result.json").mkdir()
    message = f"Cannot use {begun.folder / 'result.json'} (Is a directory)."
    refused(qnnkit("run", "--run-dir", "run"), message)
    for error in (NotImplementedError("No."), FloatingPointError("No.")):
        monkeypatch.setattr(runs, "watch", raises(error))
        refused(qnnkit("watch", "run"), "No.")


REFUSED = {
    "run a --recipe digits_quanv --only quantum": "`--only` must name the main net, hybrid",
    "run begun --set epohcs=3": "Did you mean 'epochs'?",
    "run a --recipe digits_quanv --only hybrid,clasical": "Did you mean 'classical'?",
    "run a --recipe digits_quanv --set controls=classical --only hybrid": "`controls` must be given once",
    "run a --recipe digits_quanv --set epochs=4 --set epochs=6": "`epochs` must be given once, but is [4, 6]",
    "run a --recipe digits_quanv --set n_qubits=2": "'plateau_qubits'? All of them: qnnkit recipes NAME.",
    "run a --recipe digit_quanv": "`--recipe` must be a known name",
    "run --recipe digits_quanv": "`RUN_DIR` must be given once, but is []",
    "train a --recipe digits_quanv --run-dir b": "`RUN_DIR` must be given once",
    "run a --recipe cnn --set epochs": "must be KEY=VALUE, but is 'epochs'",
    "run a --recipe cnn --set epochs=null": "`epochs` must be a setting with a value",
    "run a": "must hold a run, but is", "train .. --recipe digits_quanv": "must be a folder of its own",
    "plan --recipe digits_quanv --set foo=1": "`setting` must be a known name, but is 'foo'",
    "report batch --recipe cnn": "takes neither", "report batch --verify": "takes neither",
    "report nothere": "must hold a run or a batch", "merge nothere out": "must hold a run with an adapter",
    "predict language x --recipe cnn": "`--recipe` must be omitted for a language model",
    "new mine.py --like digit_quanv": "`--like` must be a known name", "new a.txt": "`FILE` must end in .py",
    "run a --recipe cnn --settings list.yaml": "must hold lines such as `epochs: 2`",
    "run a --recipe cnn --settings recipe.yaml": "be a setting with a value",
    "run a --recipe folder_quanv --set data_dir=images": "`data_dir` must hold",
    "run ~ --recipe digits_quanv": "must be a folder of its own",
}  # fmt: skip
WORKSPACE = {
    "batch/batch.json": '{"runs": []}', "language/generation_config.json": "{}", "list.yaml": "- 1\n",
    "recipe.yaml": "recipe: digits_quanv\n", "images/a/0.png": "no image",
    "begun/config.json": '{"recipe_digest": "0", "recipe": "mine.py"}',
}  # fmt: skip


@pytest.mark.parametrize("words", REFUSED)
def test_wrong_words_give_one_sentence_and_no_option_is_ignored(qnnkit, home, monkeypatch, words):
    monkeypatch.setenv("HOME", str(home / "person"))
    write(home, WORKSPACE)
    refused(qnnkit(*words.split()), REFUSED[words])
    files = {path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()}
    assert files == {*WORKSPACE}, "a run has begun"


# --- working commands --------------------------------------------------------------------------------------


def finish(folder):
    """A finished run with numbers written by hand."""
    begun = runs.open_run(folder, "folder_quanv", data_dir="pictures", n_seeds=1, controls=["classical"])
    for net, accuracy in (("hybrid", 0.75), ("classical", 0.5)):
        row = {"event": "test", "net": net, "seed": 0, "test_accuracy": accuracy, "seconds_per_epoch": 0.5}
        begun.log("metrics", row | {"quantum": 1, "classical": 2, "frozen": 3})
    report.finish(begun)
    return begun


ENDS = [("train", "SIGHUP"), ("run", "SIGINT")]


@pytest.mark.parametrize(("command", "sign"), ENDS)
def test_a_signal_ends_with_one_sentence_and_saves_the_state(home, pictures, command, sign):
    words = [command, "run", "--recipe", "folder_quanv", "--only", "hybrid", "--epochs", "999999"]
    words += ["--notebooks", "03_train"] * (command == "run")
    small = "data_dir=pictures", "n_seeds=1", "stride=8", "hidden=2", "threads=1", "gradient_samples=0"
    process = forked.start("qnnkit", *words, *(w for s in small for w in ("--set", s)), log=home / "log")
    while len(runs.rows.trainings(runs.rows.read(home / "run"), "epoch", None)) < 2:
        assert process.poll() is None, (home / "log").read_text()
        time.sleep(0.1)
    os.killpg(process.pid, getattr(signal, sign))  # as a terminal does it
    assert process.wait(60) == 128 + getattr(signal, sign)
    log = (home / "log").read_text()
    [sentence] = re.findall(r"Stopped.*", log)
    assert re.match(r"Stopped in net hybrid, seed 0, epoch \d+ of 999999\.", sentence)
    assert list((home / "run" / "checkpoints").rglob("checkpoint-*")) and "Traceback" not in log


@pytest.mark.parametrize("sign", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_any_command_with_one_sentence(qnnkit, monkeypatch, sign):
    number = getattr(signal, sign)
    monkeypatch.setattr(device, "report", lambda home: signal.raise_signal(number))
    said = "Stopped. Run this again to continue from here.\n"
    assert qnnkit("doctor") == (128 + number, said, "")
    if sign != "SIGINT":  # it only ends the watching

        def heard(*args, **named):
            with contextlib.suppress(KeyboardInterrupt):
                signal.raise_signal(number)

        monkeypatch.setattr(runs, "watch", heard)
        assert qnnkit("watch", "run")[0] == 128 + number


def test_a_finished_run_is_only_printed(qnnkit, pictures, monkeypatch):
    begun = finish("run")
    shutil.rmtree(pictures)  # no longer needed
    before = {path: path.stat().st_mtime_ns for path in begun.folder.rglob("*")}
    status, out, err = qnnkit("run", "--run-dir", "run")
    assert (status, err) == (0, "")
    assert re.search(r"hybrid +75\.0 \(one seed\) +1 +2 +3 +0\.50", out)
    assert out.count("hybrid minus classical: +25.0 points on one seed") == 1
    assert out.endswith(f"Report: {begun.report}\n")
    monkeypatch.chdir(begun.folder.parent)  # the workspace
    assert qnnkit("run", "--run-dir", "run")[1].endswith("Report: ./run/report.html\n")
    assert {path: path.stat().st_mtime_ns for path in begun.folder.rglob("*")} == before


def test_parameters_of_notebooks_are_set_like_settings(qnnkit, pictures, monkeypatch):
    asked = []
    monkeypatch.setattr(chain, "launch", lambda source, output, parameters, _: asked.append(parameters))
    begin = "run", "--run-dir", "run", "--recipe", "folder_quanv", "--set", "data_dir=pictures"
    words = "--set", "plateau_qubits=4", "--set", "hardware_images=8", "--set", "n_seeds=1"
    status, _, err = qnnkit(*begin, *words)
    assert status == 2 and "must have trained a net" in err
    of_each = [{name: given[name] for name in given if name not in ("recipe", "run_dir")} for given in asked]
    assert of_each == [{}, {}, {"plateau_qubits": 4}, {}, {}, {"hardware_images": 8}]
    refused(qnnkit(*begin, "--set", "plateau_qubits=four"), "`plateau_qubits` must be of type int")
    declared = {"x": {"inferred_type_name": "float", "help": "", "default": "0"}}
    monkeypatch.setattr(chain, "declared", lambda path: declared)
    assert chain.of_notebooks("run", {"x": "1e-3"}, (), ("00_setup",)) == {"x": 0.001}


def test_a_notebook_that_has_finished_keeps_its_parameters(qnnkit, pictures, monkeypatch):
    executed = finish("run").notebook("02_gradient_check")
    write(
        executed.parent, {executed.name: {"metadata": {"papermill": {"parameters": {"plateau_qubits": 4}}}}}
    )
    assert qnnkit("run", "--run-dir", "run", "--set", "plateau_qubits=4", "--set", "samples=4")[0] == 0
    for other in ("plateau_qubits=5", "samples=5"):
        answer = qnnkit("run", "--run-dir", "run", "--set", other)
        refused(answer, "be the value with which 02_gradient_check of this run finished")
    executed.unlink()  # the run was trained without notebooks: a parameter asks for them
    monkeypatch.setattr(runs, "run_notebooks", lambda run, echo, parameters, *args: asked.append(parameters))
    asked = []
    assert qnnkit("run", "--run-dir", "run", "--set", "samples=5")[0] == 0
    assert asked == [{"samples": 5}]


def test_train_takes_epochs_and_describes_the_data(qnnkit, pictures):
    """The folder is an argument or an option of one run; a finished run is not trained again."""
    (pictures / "a" / "text.png").write_text("no image")
    begin = "train", "run", "--recipe", "folder_quanv", "--set", "data_dir=pictures", "--epochs", "1"
    small = ("n_seeds=1", "controls=[]", "stride=8", "hidden=2")
    status, out, err = qnnkit(*begin, *(word for each in small for word in ("--set", each)))
    assert status == 0 and out.startswith("Note: Left out 1 of 13 images that cannot be read"), err
    assert len(runs.frame(runs.open_run("run"), "epoch")) == 1
    assert qnnkit("train", "--run-dir", "run", "--epochs", "2")[0] == 0
    assert runs.open_run("run").config.epochs == 2 and len(runs.frame(runs.open_run("run"), "epoch")) == 2
    status, out, _ = qnnkit("train", "run")
    assert status == 0 and " loss " not in out and "The trained net is in" in out
    assert runs.open_run("run").provenance["notes"][0].startswith("Left out 1 of 13")


def test_notes_are_printed_before_a_notebook_starts(qnnkit, pictures, tmp_path, monkeypatch):
    """A notebook of the workspace takes priority; the command prints the error that stops one."""
    (pictures / "a" / "text.png").write_text("no image")
    (tmp_path / "notebooks").mkdir()
    shutil.copy(chain.find_notebook("00_setup"), tmp_path / "notebooks")

    stops = raises(runs.NotebookError("Notebook 00_setup.ipynb stopped: No."))
    monkeypatch.setattr(chain, "launch", stops)
    status, out, err = qnnkit("run", "--recipe", "folder_quanv", "run", "--set", "data_dir=pictures")
    notes = [line for line in out.splitlines() if line.startswith("Note: ")]
    assert sum("1 of 13 images that cannot be read: a/text.png (" in note for note in notes) == 1
    assert "Using notebooks/ of the workspace instead of the shipped 00_setup." in out
    refused((status, "", err), "Notebook 00_setup.ipynb stopped: No.")


def test_recipes_are_listed_described_and_copied(qnnkit, home):
    """tests/recipes tests the list itself."""
    status, out, _ = qnnkit("recipes", "digits_quanv")
    lines = out.splitlines()
    assert status == 0 and lines[0] == "epochs=12" and "Side of a patch" in out
    assert {line.partition("=")[0] for line in lines[::2]} == {*RECIPES["digits_quanv"].Settings.model_fields}
    assert "qnnkit run runs/mine --recipe mine.py" in qnnkit("new", "mine.py")[1]
    refused(qnnkit("new", "mine.py"), "`FILE` must be a new file")


def test_the_machine_is_reported_as_json(qnnkit, tmp_path):
    facts = json.loads(qnnkit("doctor", "--json")[1])
    assert facts.keys() >= {"machine", "accelerators", "simulators"}
    about = {"python": platform.python_version(), "workspace": str(tmp_path)}
    assert about.items() <= facts["machine"].items()
