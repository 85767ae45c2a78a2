"""qnnkit.runs: a folder holds one experiment, notebooks launch with checked parameters, nets train once."""

import functools
import json
import os
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import nbformat
import pytest
import torch

from qnnkit import gradients, runs, workspace
from qnnkit.checkpoint.file import hash_of
from qnnkit.checkpoint.mirror import Mirror
from qnnkit.runs import chain, opening
from qnnkit.runs.lock import alone
from tests import forked, torture
from tests.same import same
from tests.toys import TINY, each_epoch, refused, trained


@pytest.fixture
def tiny(pictures, tmp_path):
    """Opens a tiny run: `tiny(name, epochs=1)`."""

    def open_(name="run", **settings):
        given = {"data_dir": str(pictures), **TINY, **settings}
        return runs.open_run(tmp_path / name, "folder_quanv", **given)

    return open_


@pytest.fixture(scope="module")
def once(pictures, tmp_path_factory):
    """An uninterrupted tiny run of a number of epochs, trained once: `once(2)`."""

    @functools.cache
    def of(epochs):
        settings = {**TINY, "data_dir": str(pictures), "epochs": epochs}
        return trained(tmp_path_factory.mktemp("once") / "run", "folder_quanv", **settings)

    return of


def files(folder):
    """Path -> content of every file below `folder`, except locks."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


# --- opening -----------------------------------------------------------------------------------------------


DIFFERENCES = {
    "epochs: 2 in the folder, 1 now": {"epochs": 1},
    "learning_rate: 0.01 in the folder, 0.5 now": {"epochs": 5, "learning_rate": 0.5},
    "seed: 0 in the folder, 1 now, hidden: 2 in the folder, 8 now": {"seed": 1, "hidden": 8},
    "recipe: 'folder_quanv' in the folder, 'digits_quanv' now": {"recipe": "digits_quanv"},
}


def test_a_begun_run_reopens_and_another_experiment_raises_an_error(tiny):
    run, usual = tiny(), {"recipe": "folder_quanv"}
    content = files(run.folder)
    assert set(content) == {"config.json", "provenance.json", "recipe.py"}
    assert runs.open_run(run.folder, **usual, epochs=2, seed=0).config == run.config
    for difference, settings in DIFFERENCES.items():
        with pytest.raises(ValueError, match=rf"holds another experiment .*{re.escape(difference)}"):
            runs.open_run(run.folder, **usual | settings)
    assert files(run.folder) == content


def test_placement_may_differ_and_the_latest_request_is_kept(tiny, tmp_path):
    """So a kernel, which reads config.json, computes where its chain should."""
    run = tiny(backend="default.qubit", threads=2)
    given = {"device": "cpu", "save_every_steps": 7, "threads": 1, "trackers": ["mlflow"], "backend": "auto"}
    again = runs.open_run(run.folder, **given)
    assert again.config == run.config.override(**given) == runs.open_run(run.folder).config
    content = files(run.folder)
    assert runs.open_run(run.folder, **given).config == again.config and files(run.folder) == content
    assert again.made_of() == run.made_of() and tiny("another").config.save_every_steps is None
    rows = run.folder / "SHA256SUMS"
    rows.write_text(f"{'0' * 64}  config.json\n")  # as in a finished run
    runs.open_run(run.folder, min_accuracy=0.5)
    assert workspace.read_json(run.folder / "config.json")["min_accuracy"] == 0.5
    assert runs.rows.read_hashes(run.folder) == {"config.json": hash_of(run.folder / "config.json")}


def test_the_data_may_move_but_must_be_the_same(tiny, pictures, tmp_path):
    first, second = (shutil.copytree(pictures, tmp_path / name) for name in ("here", "there"))
    run = tiny(data_dir=str(first), epochs=1)
    runs.train_all(run)
    moved = runs.open_run(run.folder, "folder_quanv", data_dir=str(second), epochs=2)
    assert moved.config.data_dir == str(second) == runs.open_run(run.folder).config.data_dir
    assert len(runs.train_all(moved)) == 2
    (first / "above" / "0.png").unlink()
    with pytest.raises(ValueError, match="was trained on other data than"):
        runs.open_run(run.folder, "folder_quanv", data_dir=str(first))


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
def test_a_run_of_another_machine_opens_but_not_on_missing_devices(tiny):
    run = tiny()
    stored = workspace.read_json(run.folder / "config.json") | {"device": "cuda"}
    workspace.write_json(run.folder / "config.json", stored)
    assert runs.open_run(run.folder).config == run.config.override(device="cuda")
    for place in ({"device": "cuda"}, {"backend": "lightning.qbit"}):
        with refused(*place):
            runs.open_run(run.folder, **place)


@pytest.mark.parametrize(
    ("recipe", "settings", "argument"),
    [
        ("digits_quanv", {"controls": ["classical_trained"]}, "control"),  # for circuits that are not trained
        ("cnn", {"dataset": "digits", "controls": ["classical"]}, "control"),
        ("digits_quanv", {"net_settings": ["clasicl.learning_rate=0.5"]}, "net in net_settings"),
        ("digits_quanv", {"precision": "float16", "device": "cpu"}, "precision"),
        ("folder_quanv", {}, "data_dir"),
        ("digits_quanv", {"trackers": ["tensorbord"]}, "tracker"),
    ],
)
def test_impossible_settings_raise_an_error_before_anything_is_written(tmp_path, recipe, settings, argument):
    with refused(argument, (ValueError, OSError)):
        runs.open_run(tmp_path / "run", recipe, **settings)
    assert list(tmp_path.iterdir()) == []


OLD = '{"recipe": "digits_quanv", "data": {}, "training": {}}'  # from a version before recipes were files
DAMAGED = [("result.json", "{"), ("provenance.json", "{"), ("config.json", "{"), ("config.json", "[]")]
DAMAGED += [("provenance.json", '{"nets": 3}'), ("result.json", "[]"), ("config.json", OLD)]
DAMAGED += [("config.json", '{"recipe_digest": "0", "recipe": "x", "epochs": 0}')]


@pytest.mark.parametrize(("name", "content"), DAMAGED)
def test_a_damaged_file_of_a_run_is_named_and_kept(tiny, name, content):
    path = tiny().folder / name
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"ile `{path}` (is damaged|cannot be used: .)"):
        run = runs.open_run(path.parent, "folder_quanv")
        (chain.finished if name == "result.json" else runs.train_all)(run)
    assert path.read_text() == content


def test_an_interrupted_begin_starts_again(tiny):
    run = tiny()
    (run.folder / "config.json").unlink()  # a kill after provenance.json, before config.json
    assert tiny().config == run.config


# --- training ----------------------------------------------------------------------------------------------


def outcome(run):
    """All numbers of a run except times and memory, see `torture.outcome`, and its gradients."""
    return torture.outcome(run.folder), [t.rows for t in gradients.read(run.folder).trainings.values()]


def test_every_net_is_trained_once(tiny):
    run, epochs, before, threads = tiny(n_seeds=2, threads=1), [], torch.get_num_threads(), set()
    note = each_epoch(lambda row: (epochs.append(row), threads.add(torch.get_num_threads())))
    finals = runs.train_all(run, on_row=note)
    assert threads == {1} and torch.get_num_threads() == before
    pairs = [("hybrid", 0), ("classical", 0), ("hybrid", 1), ("classical", 1)]
    assert [(row["net"], row["seed"]) for row in finals] == pairs
    logged = [(row["net"], row["seed"], row["epoch"]) for row in epochs]
    assert logged == [(*pair, epoch) for pair in pairs for epoch in (1, 2)]
    for row in finals:
        assert 0 <= row["test_accuracy"] <= 1 and row["test_loss"] > 0 and row["best_epoch"] in (1, 2)
    assert finals[0]["test_loss"] != finals[2]["test_loss"], "each seed has its own initial weights"
    words = r"hybrid +seed 0  epoch +1/2  loss \d\.\d{3}  validation accuracy \d+\.\d %  \d\.\d\d s"
    assert re.fullmatch(words, runs.epoch_line(run, epochs[0]))
    content = files(run.folder)["metrics.jsonl"]
    assert runs.train_all(runs.open_run(run.folder), on_row=each_epoch(epochs.append)) == finals
    assert len(epochs) == 8 and files(run.folder)["metrics.jsonl"] == content
    assert run.provenance["data"] == run.splits.fingerprint() and run.provenance["device"] == "cpu"


def test_a_stopped_notebook_shows_one_sentence(capsys):
    from IPython.core.interactiveshell import InteractiveShell

    sentence = "Stopped in net hybrid, seed 0, epoch 2 of 3. Run this again to continue from here."
    done = InteractiveShell().run_cell(f"from qnnkit import runs\nraise runs.Stopped({sentence!r})")
    assert isinstance(done.error_in_exec, KeyboardInterrupt)
    shown = capsys.readouterr()
    assert (shown.out + shown.err).strip() == sentence


def test_a_stopped_and_moved_run_ends_with_the_same_numbers(pictures, once, tmp_path, monkeypatch):
    """Stopped in the first net, between the first two and in the second; moved each time."""
    shutil.copytree(pictures, tmp_path / "0" / "my images")
    for place, (event, net, epoch) in enumerate(
        (("epoch", "hybrid", 2), ("test", "hybrid", None), ("epoch", "classical", 3), ("", "", None))
    ):

        def stop(row, at=(event, net, epoch)):
            if (row["event"], row["net"], row.get("epoch")) == at:
                raise ZeroDivisionError  # from here on nothing is saved

        home = tmp_path / str(place)
        monkeypatch.setenv("QNNKIT_HOME", str(home))
        run = runs.open_run("runs/a", "folder_quanv", data_dir="my images", **{**TINY, "epochs": 3})
        with pytest.raises(ZeroDivisionError) if event else nullcontext():
            runs.train_all(run, on_row=stop)
        if event:
            home.rename(tmp_path / str(place + 1))
    assert Path(run.config.data_dir) == home / "my images" and same(outcome(run), outcome(once(3)))


# --- more epochs, and two at once --------------------------------------------------------------------------


def test_more_epochs_continue_where_fewer_ended(once, tmp_path):
    run = runs.open_run(shutil.copytree(once(2).folder, tmp_path / "run"))
    (run.folder / "model").mkdir()
    for name in (concluded := ["model/about.json", "report.html", "result.json"]):
        workspace.write_json(run.folder / name, {"nets": []})
    for name in ("02_gradient_check", "03_train", "04_analyze", "04b_inside"):
        workspace.make_folder(run.folder / "notebooks").joinpath(f"{name}.ipynb").touch()
    before = files(run.folder)
    more = runs.open_run(run.folder, epochs=4)
    assert more.config == run.config.override(epochs=4) == runs.open_run(run.folder).config
    gone = before.keys() - files(run.folder).keys()
    assert gone == {*concluded, *(f"notebooks/{name}.ipynb" for name in runs.NOTEBOOKS[3:])}
    moved = {re.sub(r"(?<=^model)|(?=\.\w+$)", ".epochs-2", name, count=1) for name in gone}
    assert moved == files(run.folder).keys() - before.keys()
    assert (more.provenance["extended"][0]["from"], more.provenance["extended"][0]["to"]) == (2, 4)
    assert len(runs.frame(run)) == 2
    assert len(runs.frame(more)) == 0, "a test after fewer epochs does not count"
    assert runs.state.of_run(run.folder).state == "stopped"
    epochs = []
    assert len(runs.train_all(more, on_row=each_epoch(epochs.append))) == 2
    assert [row["epoch"] for row in epochs] == [3, 4, 3, 4] and len(runs.frame(more, "epoch")) == 8


def test_two_processes_that_begin_a_run_at_once_agree(tiny, monkeypatch):
    usable, first = opening.require_usable, []

    def slow(run):
        usable(run)
        if not first:
            first.append(run)
            tiny(learning_rate=0.5)  # another process is faster

    monkeypatch.setattr(opening, "require_usable", slow)
    with pytest.raises(ValueError, match=r"learning_rate: 0\.5 in the folder, 0\.1 now"):
        tiny(learning_rate=0.1)


def test_a_second_process_is_refused_until_the_first_has_ended(tiny, monkeypatch):
    monkeypatch.setattr(alone.__wrapped__, "__defaults__", (0.2,))
    run = tiny()
    with forked.holding(run.folder, "train"):  # killed at the end, as when memory runs out: no clean-up
        content = files(run.folder)
        with pytest.raises(BlockingIOError, match=r"is in use by another process.*same command again"):
            runs.train_all(run)
        assert files(run.folder) == content
    assert len(runs.train_all(run)) == 2
    with forked.holding(run.folder, "chain"):
        for work in (lambda: runs.run_notebooks(run), lambda: runs.open_run(run.folder, epochs=9)):
            with pytest.raises(BlockingIOError, match="is in use"):
                work()
        assert runs.open_run(run.folder).config == run.config


# --- launching ---------------------------------------------------------------------------------------------

PARAMETERS = """
count: int = 3  # how many
rate: float = None  # step size; None takes the recipe's
size: float = 1.0  # side, in pixels
name: str = "a"  # what it is called
flag: bool = False  # whether
"""


@pytest.fixture
def notebook(tmp_path):
    """A function that writes a notebook with PARAMETERS and the given cells."""

    def write(*cells):
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        book = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
        parameters = nbformat.v4.new_code_cell(PARAMETERS.strip(), metadata={"tags": ["parameters"]})
        book.cells = [parameters, *map(nbformat.v4.new_code_cell, cells)]
        nbformat.write(book, tmp_path / "source.ipynb")
        return tmp_path / "source.ipynb"

    return write


FINE = {"rate": 1, "size": 2}, {"rate": None, "name": "", "flag": True}
WRONG = {"count": 2.5}, {"count": True}, {"size": None}, {"rate": True}, {"name": 0.5}, {"flag": 1}


def test_parameters_must_have_names_and_types_that_the_notebook_declares(notebook):
    for each in FINE:
        chain.check_parameters(notebook(), each)
    for each in WRONG:
        with refused(*each, error=TypeError):
            chain.check_parameters(notebook(), each)
    with refused("parameter of source.ipynb"):
        chain.check_parameters(notebook(), {"cuont": 5})


def test_a_successful_launch(notebook, tmp_path, monkeypatch):
    """The kernel gets the parameters, the folder of the launch and its own sockets."""
    monkeypatch.chdir(workspace.make_folder(tmp_path / "here"))
    source = notebook(
        "import json, ipykernel.connect as kernel\nip = json.loads(kernel.get_connection_info())['ip']",
        "open('got.json', 'w').write(json.dumps([count, rate, name, ip]))",
    )
    before, environment = source.read_bytes(), dict(os.environ)
    output = workspace.make_folder(tmp_path / "out") / "copy.ipynb"
    output.with_suffix(".failed.ipynb").write_text("of an earlier try")
    assert runs.launch(source, output, {"count": 5, "rate": 0.5}) == output
    *values, ip = json.loads(Path("got.json").read_text())
    # Jupyter's default sockets are in the current folder, where two kernels would share them.
    assert values == [5, 0.5, "a"] and Path(ip).is_absolute() and not Path(ip).parent.exists()
    assert dict(os.environ) == environment and source.read_bytes() == before
    assert [path.name for path in output.parent.iterdir()] == ["copy.ipynb"]
    counts = [cell.execution_count for cell in nbformat.read(output, 4).cells]
    assert len(counts) == 4 and all(counts)  # the cells and the injected parameters ran


def test_a_stopped_notebook_and_shared_files_name_no_local_folder(notebook, tmp_path, monkeypatch, tiny):
    home = workspace.make_folder(tmp_path / "person" / "work")
    monkeypatch.setenv("QNNKIT_HOME", str(home))
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    places = f"print({str(home / 'runs' / 'a')!r}, {str(tmp_path / 'person' / 'data')!r})"
    source, failed = notebook(places, 'raise ValueError("It is wrong.")', "print(1)"), home / "a.failed.ipynb"
    message = f"Notebook source.ipynb stopped: It is wrong. The cell and the full traceback are in {failed}."
    with pytest.raises(runs.NotebookError, match=f"^{re.escape(message)}$"):
        runs.launch(source, home / "a.ipynb", {"name": str(home / "images")})
    assert list(home.iterdir()) == [failed]
    outputs = [out for cell in nbformat.read(failed, 4).cells for out in cell.get("outputs", [])]
    assert {"ValueError"} == {out.ename for out in outputs if out.output_type == "error"}
    assert [out.text for out in outputs if out.output_type == "stream"] == ["./runs/a ~/data\n"]
    tiny().note_provenance(machine={"workspace": str(home)})
    for path in (failed, tmp_path / "run" / "provenance.json"):
        assert str(tmp_path / "person") not in path.read_text()
    assert 'name = \\"./images\\"' in failed.read_text()


# --- many runs as one table --------------------------------------------------------------------------------


def test_many_runs_form_one_table(tiny, tmp_path):
    one, two = tiny("one", hidden=2, epochs=1, price_per_hour=3), tiny("two", hidden=3, epochs=1)
    finals = [row for run in (one, two) for row in runs.train_all(run)]
    # As after a kill:
    one.log("metrics", next(row for row in one.rows("metrics") if row["event"] == "epoch") | {"seconds": 36})
    folders = [one, two.folder, tmp_path / "nothing"]  # a run counts like its folder
    table, epochs = runs.frame(folders), runs.frame(folders, "epoch")
    assert table["hidden"].tolist() == [2, 2, 3, 3] and set(table["recipe"]) == {"folder_quanv"}
    assert table["folder"].iloc[-1] == str(two.folder)
    assert (3600 * table["hours"]).tolist() == pytest.approx([36, *epochs["seconds"][1:]])
    assert table["cost"].equals((3 * table["hours"]).where(table["run"] == "one"))
    for each, row in zip(finals, table.to_dict("records"), strict=True):
        assert each.items() <= row.items()
    with refused("event"):
        runs.frame([one.folder], "epochs")
    with refused("runs", FileNotFoundError):
        runs.frame(tmp_path / "nothing")
    with Mirror(two.folder, tmp_path / "remote"):
        pass
    stored, own = (runs.frame(place).drop(columns=["folder", "run"]) for place in (tmp_path / "remote", two))
    assert stored.equals(own)


# --- settings of single nets --------------------------------------------------------------------------------


def test_settings_of_a_single_net_change_only_that_net(tiny, once):
    cases = {"other": {"net_settings": ("classical.learning_rate=0.5",)}, "alone": {"learning_rate": 0.5}}
    plain = runs.frame(once(2))["test_loss"]
    finals = (runs.train_all(tiny(name, **options)) for name, options in cases.items())
    other, alone = ([row["test_loss"] for row in rows] for rows in finals)
    assert other[0] == plain[0] and other[1] == alone[1] != plain[1]
