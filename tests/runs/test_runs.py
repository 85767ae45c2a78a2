"""qnnkit.runs: a folder holds one experiment; notebooks are launched strictly; nets are trained once."""

import functools
import json
import os
import re
import shutil
import textwrap
import unicodedata
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path

import nbformat
import pytest
import torch

from qnnkit import gradients, report, runs, workspace
from qnnkit.checkpoint.file import hash_of
from qnnkit.checkpoint.mirror import Mirror
from qnnkit.runs import chain
from qnnkit.runs.lock import alone
from tests import forked, torture
from tests.same import same
from tests.toys import each_epoch, fill, refused, room_for

# A net of a few hundred weights on 24 images of 6x6 pixels: an epoch takes milliseconds.
TINY = {"image_size": 6, "n_layers": 1, "hidden": 2, "batch_size": 4, "n_seeds": 1, "epochs": 2}
TINY |= {"controls": ["classical"]}


@pytest.fixture
def tiny(pictures, tmp_path):
    """Opens a tiny run: `tiny(name, epochs=1)`."""

    def open_(name="run", **settings):
        given = {"data_dir": str(pictures), **TINY, **settings}
        return runs.open_run(tmp_path / name, "folder_quanv", **given)

    return open_


@pytest.fixture(scope="module")
def once(pictures, tmp_path_factory):
    """A tiny run of so many epochs that nothing has stopped, trained once: `once(2)`."""

    @functools.cache
    def of(epochs):
        settings = {**TINY, "data_dir": str(pictures), "epochs": epochs}
        run = runs.open_run(tmp_path_factory.mktemp("once") / "run", "folder_quanv", **settings)
        runs.train_all(run)
        return run

    return of


@pytest.fixture
def trained(once, tmp_path):
    """A copy of a tiny run of two epochs."""
    return runs.open_run(shutil.copytree(once(2).folder, tmp_path / "run"))


def files(folder):
    """Content of every file below `folder`, but for locks."""
    found = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


# --- opening -----------------------------------------------------------------------------------------------


def test_a_new_run_writes_its_settings_and_where_it_began(tmp_path):
    run = runs.open_run(tmp_path / "deep" / "run", "digits_quanv", epochs=3, clip_norm=None)
    assert run.config.epochs == 3
    told = {"recipe_digest": run.recipe.digest, **run.config.flat()}
    assert json.loads((run.folder / "config.json").read_text()) == told
    assert set(files(run.folder)) == {"config.json", "provenance.json", "recipe.py"}


@pytest.mark.parametrize(
    ("settings", "difference"),
    [
        ({"epochs": 2, "seed": 0}, None),
        ({"epochs": None, "recipe": None}, None),
        ({"epochs": 1}, "epochs: 2 there, 1 now"),
        ({"epochs": 5, "learning_rate": 0.5}, "learning_rate: 0.01 there, 0.5 now"),
        ({"controls": ["frozen_random"]}, "controls: ['classical'] there, ['frozen_random'] now"),
        ({"seed": 1, "hidden": 8}, "seed: 0 there, 1 now, hidden: 2 there, 8 now"),
        ({"recipe": "digits_quanv"}, "recipe: 'folder_quanv' there, 'digits_quanv' now"),
    ],
)
def test_a_begun_run_opens_again_and_another_experiment_is_refused(tiny, settings, difference):
    run, asked = tiny(), {"recipe": "folder_quanv", **settings}
    content = files(run.folder)
    if difference is None:
        assert runs.open_run(run.folder, **asked).config == run.config
    else:
        with pytest.raises(ValueError, match=rf"holds another experiment .*{re.escape(difference)}"):
            runs.open_run(run.folder, **asked)
    assert files(run.folder) == content


def test_which_controls_a_net_has(tiny, tmp_path):
    with refused("control"):
        tiny(controls=["classical_trained"])
    assert tiny(controls=["classical_trained"], trainable=False).nets == ("hybrid", "classical_trained")
    with refused("control"):
        runs.open_run(tmp_path / "cnn", "cnn", dataset="digits", controls=["classical"])
    assert not (tmp_path / "cnn").exists()
    assert runs.open_run(tmp_path / "cnn", "cnn", controls="all").nets == ("reference",)


def test_placement_may_differ_and_what_was_asked_for_last_is_kept(tiny, tmp_path):
    """So a kernel, which reads config.json, computes where its chain was told to."""
    run = tiny(backend="default.qubit", threads=2)
    given = {"device": "cpu", "save_every_steps": 7, "threads": 1, "trackers": ["mlflow"], "backend": "auto"}
    again = runs.open_run(run.folder, **given)
    assert again.config == run.config.override(**given) == runs.open_run(run.folder).config
    content = files(run.folder)
    assert runs.open_run(run.folder, **given).config == again.config and files(run.folder) == content
    assert again.made_of() == run.made_of() and tiny("another").config.save_every_steps is None
    rows = run.folder / "SHA256SUMS"
    rows.write_text(f"{'0' * 64}  config.json\n")  # as a finished run has it
    runs.open_run(run.folder, min_accuracy=0.5)
    assert workspace.read_json(run.folder / "config.json")["min_accuracy"] == 0.5
    assert runs.rows.read_hashes(run.folder) == {"config.json": hash_of(run.folder / "config.json")}


def test_a_run_begun_on_a_mac_goes_on_on_colab(tiny, tmp_path):
    mac, colab = tmp_path / "mac", tmp_path / "colab"
    for root, form in ((mac, "NFD"), (colab, "NFC")):
        for k, name in enumerate(("caf\u00e9", "\u00fcber")):
            names = [unicodedata.normalize(form, f"{i} na\u00efve {i % 7}\u00e9.png") for i in range(20)]
            fill(root / unicodedata.normalize(form, name), names, 100 * k, (6, 6))
    run = tiny(data_dir=str(mac), epochs=1)
    runs.train_all(run)
    moved = runs.open_run(run.folder, "folder_quanv", data_dir=str(colab), epochs=2)
    assert moved.config.data_dir == str(colab) and moved.splits.fingerprint() == run.provenance["data"]
    assert runs.open_run(run.folder).config.data_dir == str(colab) and len(runs.train_all(moved)) == 2
    fill(mac / "caf\u00e9", ["one more.png"], size=(6, 6))
    with pytest.raises(ValueError, match="was trained on other data than"):
        runs.open_run(run.folder, "folder_quanv", data_dir=str(mac))


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
def test_placement_that_is_not_here_is_refused_but_a_run_of_elsewhere_may_be_looked_at(tiny, tmp_path):
    with refused("device"):
        tiny(device="cuda")
    assert list(tmp_path.iterdir()) == []
    run = tiny()
    for given in ({"device": "cuda"}, {"backend": "lightning.qbit"}):
        with refused(*given):
            runs.open_run(run.folder, **given)
    content = json.loads((run.folder / "config.json").read_text())
    workspace.write_json(run.folder / "config.json", content | {"device": "cuda"})
    assert runs.open_run(run.folder).config == run.config.override(device="cuda")


@pytest.mark.parametrize(
    ("recipe", "settings", "argument"),
    [
        ("digit_quanv", {}, "recipe"),
        ("digits_quanv", {"epocs": 2}, "setting"),
        ("digits_quanv", {"circuit": "data_reupload"}, "circuit"),
        ("digits_quanv", {"embedding": "angles"}, "embedding"),
        ("digits_quanv", {"controls": ["clasicl"]}, "control"),
        ("digits_quanv", {"backend": "lightning"}, "backend"),
        ("digits_quanv", {"device": "gpu"}, "device"),
        ("digits_quanv", {"data_dir": "/nowhere"}, "data_dir"),
        ("digits_quanv", {"test_fraction": 0.9}, "test_fraction"),
        ("digits_quanv", {"kernel_size": 9}, "image_size"),
        ("digits_quanv", {"precision": "float16", "device": "cpu"}, "precision"),
        ("folder_quanv", {}, "data_dir"),
        (None, {}, "run_dir"),
        ("digits_quanv", {"n_seeds": 10**8}, "n_seeds"),
        ("digits_quanv", {"trackers": ["tensorbord"]}, "tracker"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(tmp_path, recipe, settings, argument):
    with refused(argument, (ValueError, OSError)):
        runs.open_run(tmp_path / "run", recipe, **settings)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(OSError, match="A file is in its place"):
            runs.open_run(folder, "digits_quanv")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("recipe", ["digits_quanv", None])
def test_a_folder_that_may_not_be_read(closed, recipe):
    with pytest.raises(PermissionError, match="Permission denied"):
        runs.open_run(closed / "private" / "run", recipe)


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "null", '{"recipe": 3}', "\x00", "{}"),
        '{"recipe": "digits_quanv", "data": {}, "training": {}}',  # of a version before recipes were files
        '{"recipe_digest": "0"}',
        '{"recipe_digest": "0", "recipe": "x", "epochs": 0}',
    ],
)
def test_damaged_settings_are_named_and_stay(tiny, content):
    run = tiny()
    path = run.folder / "config.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=f"Settings file `{path}` cannot be used: "):
        runs.open_run(run.folder, "folder_quanv")
    assert path.read_text() == content


def test_a_begin_that_was_cut_short_begins_again(tiny):
    run = tiny()
    (run.folder / "config.json").unlink()  # a kill after provenance.json, before config.json
    assert tiny().config == run.config


# --- rows --------------------------------------------------------------------------------------------------


def test_epochs_are_told_while_a_notebook_writes_them(tiny):
    run, told = tiny(), []
    of_net = {"net": "hybrid", "seed": 0}
    row = {"event": "epoch", **of_net, "train_loss": 0.5, "seconds": 0.1, "validation_accuracy": 0.75}
    run.log("metrics", row | {"epoch": 1})
    follow = chain._following(run, told.append)
    for new in (
        row | {"epoch": 2},
        {"event": "warning", **of_net, "sentence": "They vanish."},
        {"event": "test", **of_net, "test_accuracy": 0.5, "best_epoch": 2},
    ):
        run.log("metrics", new)
        follow()
    assert [" ".join(line.split()) for line in told] == [
        "hybrid seed 0 epoch 2/2 loss 0.500 validation accuracy 75.0 % 0.10 s",
        "hybrid seed 0 They vanish.",
        "hybrid seed 0 test accuracy (%): 50.0, best epoch 2",
    ]


# --- training ----------------------------------------------------------------------------------------------


def outcome(run):
    """All numbers of a run but its times and memory, see `torture.outcome`, and its gradients."""
    return torture.outcome(run.folder), [t.rows for t in gradients.read(run.folder).trainings.values()]


def test_every_net_is_trained_once(tiny):
    run, epochs, before, threads = tiny(n_seeds=2, threads=1), [], torch.get_num_threads(), set()
    note = each_epoch(lambda row: (epochs.append(row), threads.add(torch.get_num_threads())))
    finals = runs.train_all(run, on_row=note)
    assert threads == {1} and torch.get_num_threads() == before
    pairs = [("hybrid", 0), ("classical", 0), ("hybrid", 1), ("classical", 1)]
    assert [(row["net"], row["seed"]) for row in finals] == pairs
    trained = [(row["net"], row["seed"], row["epoch"]) for row in epochs]
    assert trained == [(*pair, epoch) for pair in pairs for epoch in (1, 2)]
    for row in finals:
        assert 0 <= row["test_accuracy"] <= 1 and row["test_loss"] > 0 and row["best_epoch"] in (1, 2)
    hybrid, classical = finals[:2]
    assert hybrid["quantum"] == 12 and classical["quantum"] == 0  # one layer, four wires, three angles
    assert hybrid["quantum"] + hybrid["classical"] == classical["classical"]
    content = files(run.folder)["metrics.jsonl"]
    assert runs.train_all(runs.open_run(run.folder), on_row=each_epoch(epochs.append)) == finals
    assert len(epochs) == 8 and files(run.folder)["metrics.jsonl"] == content
    assert run.provenance["data"] == run.splits.fingerprint() and run.provenance["device"] == "cpu"


def test_a_notebook_that_is_stopped_shows_one_sentence(tiny, capsys):
    from IPython.core.interactiveshell import InteractiveShell

    def stop(row):
        if (row["event"], row["net"], row["epoch"]) == ("epoch", "hybrid", 2):
            raise KeyboardInterrupt  # as SIGINT does wherever Python is

    shell = InteractiveShell()
    shell.user_ns |= {"runs": runs, "run": tiny(epochs=3), "stop": stop}
    done = shell.run_cell("finals = runs.train_all(run, on_row=stop)")
    assert isinstance(done.error_in_exec, KeyboardInterrupt)
    shown = capsys.readouterr()
    assert (shown.out + shown.err).strip() == (
        "Stopped in net hybrid, seed 0, epoch 2 of 3. "
        "Run this again to go on from here: nothing is trained twice."
    )


def test_what_is_trained_is_what_is_kept(tiny, once):
    with pytest.raises(FileNotFoundError, match="Net hybrid of seed 0 must be trained first: run 03_train"):
        runs.trained(tiny())
    with refused("net"):
        runs.build(once(2), "frozen_random", 0)  # which this run was not asked for
    run = once(2)
    finals = run.finals().set_index("net").to_dict("index")
    for net in run.nets:
        model, test = runs.trained(run, net), run.splits.test
        assert not model.training
        with torch.no_grad():
            found = (model(test.images).argmax(1) == test.labels).float().mean().item()
        assert found == pytest.approx(finals[net]["test_accuracy"])


KILLED = """
    # Trains in forked children, each of which kills itself at the given moment.
    import json, os, signal, sys
    import accelerate, torch._dynamo, torch._inductor  # once, not in every child
    from qnnkit import runs

    folder, moments = sys.argv[1], json.loads(sys.argv[2])
    for moment in moments:
        process = os.fork()
        if not process:
            run, seen = runs.open_run(folder), []
            def happens(event):
                seen.append(event)
                if seen.count(event) == moment[1] and event == moment[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
            runs.train_all(run, on_row=lambda row: happens(row["event"]))
            os._exit(0)
        assert os.waitpid(process, 0)[1] == signal.SIGKILL, moment
"""


def test_killed_within_and_between_nets_ends_in_the_same_numbers(tiny, once):
    """Killed in the first net, between the first two, in the last epoch of the second, then left in peace."""
    killed = tiny(epochs=3)
    moments = [("epoch", 2), ("test", 1), ("epoch", 3)]
    done = forked.python(KILLED, killed.folder, json.dumps(moments))
    assert done.returncode == 0, done.stderr
    assert [row["net"] for row in killed.rows("metrics") if row["event"] == "test"] == ["hybrid"]
    runs.train_all(killed)
    assert same(outcome(killed), outcome(once(3)))


def test_a_full_disk_while_training_loses_nothing_that_was_written(tiny, once):
    run = tiny()
    with room_for(4096), pytest.raises(OSError, match=r"Cannot write .*Free some space"):
        runs.train_all(run)  # a checkpoint is larger than that
    assert {path.name for path in run.folder.rglob(".*")} <= {".begin.lock", ".train.lock"}
    runs.train_all(runs.open_run(run.folder))
    assert same(outcome(run), outcome(once(2)))


@pytest.mark.parametrize("name", ["result.json", "provenance.json"])
def test_a_damaged_file_of_a_run_is_named_and_stays(trained, name):
    run = trained
    workspace.write_json(run.folder / "result.json", {"nets": []})
    os.truncate(run.folder / name, 1)
    for path in run.checkpoints("hybrid", 0).glob("checkpoint-*"):
        path.unlink()  # so that there is something to train
    (run.folder / "metrics.jsonl").unlink()
    content = files(run.folder)
    with pytest.raises(ValueError, match=rf"{name}` is damaged .*delete it and run the same command again"):
        runs.chain.finished(runs.open_run(run.folder))
        runs.train_all(run)
    after = files(run.folder)
    assert {file: there for file, there in after.items() if file in content} == content


# --- more epochs, and two at once --------------------------------------------------------------------------


def test_more_epochs_go_on_where_the_fewer_ended(trained):
    run = trained
    workspace.write_json(run.folder / "result.json", {"nets": []})
    (run.folder / "notebooks").mkdir()
    for name in ("02_gradient_check", "03_train", "04_analyze", "04b_inside"):
        run.notebook(name).write_text(name)
    before = {name: content for name, content in files(run.folder).items() if "checkpoint-" in name}
    more = runs.open_run(run.folder, epochs=4)
    assert more.config == run.config.override(epochs=4) == runs.open_run(run.folder).config
    there = files(run.folder)
    assert before.items() <= there.items() and "notebooks/02_gradient_check.ipynb" in there
    assert {"result.epochs-2.json", "notebooks/03_train.epochs-2.ipynb"} <= there.keys()
    gone = ("result.json", "notebooks/03_train.ipynb", "notebooks/04b_inside.ipynb")
    assert there.keys().isdisjoint(gone), "they show what was trained for fewer"
    [extended] = more.provenance["extended"]
    assert (extended["from"], extended["to"]) == (2, 4)
    assert len(run.finals()) == 2 and len(more.finals()) == 0, "what was tested after fewer does not count"
    epochs = []
    assert len(runs.train_all(more, on_row=each_epoch(epochs.append))) == 2
    assert [row["epoch"] for row in epochs] == [3, 4, 3, 4]
    assert more.epochs().groupby("net")["epoch"].apply(list).tolist() == [[1, 2, 3, 4]] * 2


def test_a_result_that_is_missing_is_made_again(tiny, monkeypatch):
    run, launched = tiny(), []
    (run.folder / "notebooks").mkdir()
    for name in runs.NOTEBOOKS:
        run.notebook(name).write_text(name)

    def launch(notebook, output, *_):
        launched.append(notebook.stem)
        workspace.write_json(run.folder / "result.json", {"nets": []})

    monkeypatch.setattr(chain, "launch", launch)
    assert runs.run_notebooks(run, echo=lambda line: None) == {"nets": []}
    assert launched == ["04_analyze"]


def test_two_that_begin_a_run_at_once_agree_on_one(tiny, monkeypatch):
    opening = import_module("qnnkit.runs.opening")
    usable, first = opening.require_usable, []

    def slow(run):
        usable(run)
        if not first:
            first.append(run)
            tiny(learning_rate=0.5)  # another process is quicker

    monkeypatch.setattr(opening, "require_usable", slow)
    with pytest.raises(ValueError, match=r"learning_rate: 0\.5 there, 0\.1 now"):
        tiny(learning_rate=0.1)


def test_a_finish_reads_each_file_once(trained, monkeypatch):
    seen, opened = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: seen.append(path.name) or opened(path))
    report.finish(trained)
    assert seen.count("provenance.json") <= 3, "it writes facts twice"


def test_a_second_process_is_refused_until_the_first_is_dead(tiny, monkeypatch):
    monkeypatch.setattr(alone.__wrapped__, "__defaults__", (0.2,))
    run = tiny()
    with forked.holding(run.folder, "train"):  # killed in the end, as where memory runs out: nobody tidies up
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


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_a_run_goes_on_in_a_workspace_that_has_moved(pictures, once, tmp_path, monkeypatch, where):
    """Stopped half-way, all of it moved, the old place gone: the same command goes on, in the same bits."""
    first, second = tmp_path / "first", tmp_path / "second"

    def place_of(workspace):
        return tmp_path / f"beside {workspace.name}" if where == "outside" else workspace / "my images"

    def open_(workspace):
        monkeypatch.setenv("QNNKIT_HOME", str(workspace))
        given = "my images" if where == "inside" else str(place_of(workspace))
        return runs.open_run("runs/a", "folder_quanv", data_dir=given, **{**TINY, "epochs": 3})

    def stop(row):
        if row["epoch"] == 2:
            raise KeyboardInterrupt

    shutil.copytree(pictures, place_of(first))
    with pytest.raises(KeyboardInterrupt):
        runs.train_all(open_(first), on_row=each_epoch(stop))
    first.rename(second)
    if where == "outside":
        place_of(first).rename(place_of(second))
        with refused("data_dir", FileNotFoundError):
            runs.train_all(runs.open_run(second / "runs" / "a"))
    moved = open_(second)
    assert Path(moved.config.data_dir) == place_of(second) and list(moved.folder.rglob("checkpoint-*"))
    runs.train_all(moved)
    losses = [run.epochs()[["net", "epoch", "train_loss", "validation_loss"]] for run in (moved, once(3))]
    assert losses[0].equals(losses[1])


@pytest.mark.parametrize("net", ["hybrid", "classical"])
def test_a_net_starts_from_its_seed(tiny, net):
    run = tiny()
    first, again, other = (runs.build(run, net, seed).state_dict() for seed in (0, 0, 1))
    for name, value in first.items():
        assert torch.equal(value, again[name]) and not torch.equal(value, other[name])


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
    """Writes a notebook with PARAMETERS and the given cells."""

    def write(*cells, name="source"):
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        book = nbformat.v4.new_notebook(metadata={"kernelspec": kernel})
        parameters = nbformat.v4.new_code_cell(PARAMETERS.strip(), metadata={"tags": ["parameters"]})
        book.cells = [parameters, *(nbformat.v4.new_code_cell(textwrap.dedent(cell)) for cell in cells)]
        nbformat.write(book, tmp_path / f"{name}.ipynb")
        return tmp_path / f"{name}.ipynb"

    return write


@pytest.mark.parametrize(
    ("parameters", "argument"),
    [
        ({"rate": 1, "size": 2}, None),
        ({"rate": None, "name": "", "flag": True}, None),
        ({"cuont": 5}, "parameter of source.ipynb"),
        *(({"count": wrong}, "count") for wrong in (2.5, True)),
        ({"size": None}, "size"),
        ({"rate": True}, "rate"),
        ({"name": 0.5}, "name"),
        ({"flag": 1}, "flag"),
    ],
)
def test_parameters_have_names_and_types_that_the_notebook_declares(notebook, parameters, argument):
    with refused(argument, (TypeError, ValueError)) if argument else nullcontext():
        runs.chain.check_parameters(notebook(), parameters)


def test_a_launch_that_succeeds(notebook, tmp_path, monkeypatch):
    """Parameters arrive, the kernel has the launch's folder, and sockets that no other has."""
    monkeypatch.chdir(workspace.make_folder(tmp_path / "here"))
    source = notebook(
        "import json, ipykernel.connect as kernel\nip = json.loads(kernel.get_connection_info())['ip']",
        """
        from pathlib import Path
        Path("told.json").write_text(json.dumps([count, rate, name, str(Path.cwd()), ip]))
        """,
    )
    before, environment = source.read_bytes(), dict(os.environ)
    output = workspace.make_folder(tmp_path / "out") / "copy.ipynb"
    output.with_suffix(".failed.ipynb").write_text("of an earlier try")
    assert runs.launch(source, output, {"count": 5, "rate": 0.5}) == output
    *told, ip = json.loads(Path("told.json").read_text())
    assert told == [5, 0.5, "a", str(Path.cwd())]
    # Jupyter's own lie in the current folder, where two at once take the same.
    assert Path(ip).is_absolute() and not Path(ip).parent.exists(), "none is left"
    assert dict(os.environ) == environment and source.read_bytes() == before
    assert [path.name for path in output.parent.iterdir()] == ["copy.ipynb"]
    counts = [cell.execution_count for cell in nbformat.read(output, 4).cells]
    assert len(counts) == 4 and all(counts)  # the cells and the injected parameters ran


def test_a_notebook_that_stops_and_what_is_shared_names_no_folder_of_this_machine(
    notebook, tmp_path, monkeypatch, tiny
):
    home = workspace.make_folder(tmp_path / "person" / "work")
    monkeypatch.setenv("QNNKIT_HOME", str(home))
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    places = f"print({str(home / 'runs' / 'a')!r}, {str(tmp_path / 'person' / 'data')!r})"
    source = notebook(places, 'raise ValueError("The gradient is wrong.")', 'print("never")')
    output, failed = home / "copy.ipynb", home / "copy.failed.ipynb"
    with pytest.raises(runs.NotebookError) as caught:
        runs.launch(source, output, {"name": str(home / "images")})
    assert str(caught.value) == (
        f"Notebook source.ipynb stopped: The gradient is wrong. The cell and the whole trace are in {failed}."
    )
    assert not output.exists() and not (home / "copy.running.ipynb").exists()
    outputs = [out for cell in nbformat.read(failed, 4).cells for out in cell.get("outputs", [])]
    assert {"ValueError"} == {out.ename for out in outputs if out.output_type == "error"}
    assert [out.text for out in outputs if out.output_type == "stream"] == ["./runs/a ~/data\n"]
    run = tiny()
    run.note_provenance(machine={"workspace": str(home)})
    for text in (failed.read_text(), (run.folder / "provenance.json").read_text()):
        assert str(tmp_path / "person") not in text
    assert 'name = \\"./images\\"' in failed.read_text()


def test_a_full_disk_before_a_notebook_starts(notebook, tmp_path):
    source = notebook("x = 1  # " + "long " * 2000)
    with (
        room_for(4096),
        pytest.raises(OSError, match=r"Cannot write .*copy\.running\.ipynb.*Free some space"),
    ):
        runs.launch(source, tmp_path / "copy.ipynb", {})
    assert not (tmp_path / "copy.ipynb").exists()


def test_a_copy_beside_the_workspace_comes_before_the_kits_own_and_is_announced(tmp_path, monkeypatch):
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    monkeypatch.setattr(chain, "launch", lambda *_: None)
    run, told = runs.open_run("runs/a", "digits_quanv"), []
    assert run.folder == tmp_path / "runs" / "a"
    mine, kits = workspace.make_folder(tmp_path / "notebooks"), Path(runs.__file__).parents[2] / "notebooks"
    shutil.copy(kits / "02_gradient_check.ipynb", mine)
    assert chain.find_notebook("02_gradient_check").parent == mine
    assert chain.find_notebook("04_analyze") == kits / "04_analyze.ipynb"
    runs.run_notebooks(run, told.append, names=("00_setup", "02_gradient_check"))
    assert told[0].endswith("in place of the kit's: 02_gradient_check.") and len(told) == 5
    with refused("notebook", FileNotFoundError):
        chain.find_notebook("03_trian")


# --- many runs as one table --------------------------------------------------------------------------------


def test_runs_are_one_table(tiny, tmp_path):
    one, two = tiny("one", hidden=2, epochs=1), tiny("two", hidden=3, epochs=1)
    finals = [row for run in (one, two) for row in runs.train_all(run)]
    [first, *_] = [row for row in one.rows("metrics") if row["event"] == "epoch"]
    one.log("metrics", first)  # as a kill between a row and its checkpoint leaves it
    given = [one, two.folder, tmp_path / "nothing"]  # a run is as its folder
    table, epochs = runs.frame(given), runs.frame(given, "epoch")
    assert table["hidden"].tolist() == [2, 2, 3, 3] and set(table["recipe"]) == {"folder_quanv"}
    assert table["folder"].iloc[-1] == str(two.folder)
    for each, row in zip(finals, table.to_dict("records"), strict=True):
        assert each.items() <= row.items()
    assert len(epochs) == 4 and not epochs.duplicated(["folder", "net", "seed", "epoch"]).any()
    assert runs.frame(two.folder).equals(runs.frame([two.folder])), "one folder is no list of letters"
    with refused("event"):
        runs.frame([one.folder], "epochs")
    with Mirror(two.folder, tmp_path / "remote"):
        pass
    stored, own = (runs.frame(place).drop(columns=["folder", "run"]) for place in (tmp_path / "remote", two))
    assert stored.equals(own)


@pytest.mark.parametrize("place", ["/", "~", "."])
def test_a_run_takes_no_folder_that_holds_everything(tmp_path, monkeypatch, place):
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="`run_dir` must be a folder of its own"):
        runs.open_run(Path(place).expanduser(), "digits_quanv")
    assert not list(tmp_path.iterdir())


# --- single nets that train otherwise -----------------------------------------------------------------------


def test_settings_of_a_single_net_change_that_net_alone(tiny, once):
    given = {"other": {"net_settings": ("classical.learning_rate=0.5",)}, "alone": {"learning_rate": 0.5}}
    plain = once(2).finals()["test_loss"]
    other, alone = (
        [row["test_loss"] for row in runs.train_all(tiny(name, **own))] for name, own in given.items()
    )
    assert other[0] == plain[0] and other[1] == alone[1] != plain[1]
    with refused("net in net_settings"):
        tiny("none", net_settings=("clasicl.learning_rate=0.5",))
