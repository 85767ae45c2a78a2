"""qnnkit.runs: a folder holds one experiment; notebooks are launched strictly; nets are trained once."""

import functools
import json
import os
import re
import shutil
import textwrap
import threading
import unicodedata
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

import nbformat
import pytest
import torch
from PIL import Image

from qnnkit import gradients, report, runs, train, workspace
from qnnkit.checkpoint import Store
from qnnkit.checkpoint.mirror import Mirror
from qnnkit.runs import chain
from qnnkit.runs.lock import alone
from tests import forked
from tests.toys import each_epoch, fill, refused, room_for

# A net of a few hundred weights on 24 images of 6x6 pixels: an epoch takes milliseconds.
TINY = {
    "image_size": 6,
    "n_layers": 1,
    "hidden": 2,
    "batch_size": 4,
    "epochs": 2,
    "n_seeds": 1,
    "controls": ["classical"],
}


@pytest.fixture
def tiny(pictures, tmp_path):
    """Opens a tiny run: `tiny(name, epochs=1)`."""

    def open_(name="run", **settings):
        return runs.open_run(
            tmp_path / name, "folder_quanv", **{"data_dir": str(pictures), **TINY, **settings}
        )

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


@pytest.mark.parametrize("recipe", ["folder_quanv", None])
def test_a_begun_run_opens_again_with_its_own_settings(tiny, recipe):
    first = tiny(epochs=3, seed=5)
    content = files(first.folder)
    for settings in ({}, {"epochs": 3, "seed": 5}, {"epochs": None}):
        assert runs.open_run(first.folder, recipe, **settings).config == first.config
    assert files(first.folder) == content


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"epochs": 1}, "epochs: 2 there, 1 now"),
        ({"epochs": 5, "learning_rate": 0.5}, "learning_rate: 0.01 there, 0.5 now"),
        ({"controls": ["frozen_random"]}, "controls: ['classical'] there, ['frozen_random'] now"),
        ({"seed": 1, "hidden": 8}, "seed: 0 there, 1 now, hidden: 2 there, 8 now"),
    ],
)
def test_another_experiment_is_refused_by_its_difference(tiny, settings, told):
    run = tiny()
    content = files(run.folder)
    with pytest.raises(ValueError, match=re.escape(told)) as caught:
        runs.open_run(run.folder, "folder_quanv", **settings)
    assert "holds another experiment" in str(caught.value)
    assert files(run.folder) == content


def test_which_controls_a_net_has(tiny, tmp_path):
    with refused("control"):
        tiny(controls=["classical_trained"])
    assert tiny(controls=["classical_trained"], trainable=False).nets == ("hybrid", "classical_trained")
    with refused("controls"):
        runs.open_run(tmp_path / "cnn", "cnn", dataset="digits", controls=["classical"])
    assert not (tmp_path / "cnn").exists()
    assert runs.open_run(tmp_path / "cnn", "cnn", controls="all").nets == ("reference",)


def test_another_recipe_is_refused(tiny):
    with pytest.raises(ValueError, match="recipe: 'folder_quanv' there, 'digits_quanv' now"):
        runs.open_run(tiny().folder, "digits_quanv")


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
    assert runs.rows.read_hashes(run.folder) == {"config.json": runs.rows.hash_of(run.folder / "config.json")}


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"kernel_size": 9}, "kernel_size"), ({"precision": "float16", "device": "cpu"}, "precision")],
)
def test_a_net_that_cannot_be_built_begins_no_run(tiny, tmp_path, settings, words):
    with pytest.raises(ValueError, match=words):
        tiny(**settings)
    assert not (tmp_path / "run").exists(), "the corrected command would be another experiment"


def test_a_run_is_trained_on_one_dataset(pictures, tiny, tmp_path):
    own = shutil.copytree(pictures, tmp_path / "own")
    run = tiny(data_dir=str(own), epochs=1)
    assert len(runs.train_all(run)) == 2
    Image.new("L", (6, 6)).save(own / "above" / "later.png")
    with pytest.raises(ValueError, match=r"trained on other data than `.*own` holds"):
        runs.train_all(runs.open_run(run.folder))
    (own / "above" / "later.png").unlink()
    assert len(runs.train_all(runs.open_run(run.folder))) == 2


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
def test_placement_that_is_not_here_is_refused_before_anything_starts(tiny, tmp_path):
    told = r"`device` must be one that can compute here, but is 'cuda'\. "
    with pytest.raises(ValueError, match=told):
        tiny(device="cuda")
    assert list(tmp_path.iterdir()) == []
    run = tiny()
    with pytest.raises(ValueError, match=told):
        runs.open_run(run.folder, device="cuda")
    with pytest.raises(ValueError, match=r"Did you mean 'lightning\.qubit'"):
        runs.open_run(run.folder, backend="lightning.qbit")


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without CUDA")
def test_a_run_of_another_machine_may_be_looked_at_here(tiny):
    run = tiny()
    moved = run.config.override(device="cuda")
    content = json.loads((run.folder / "config.json").read_text())
    workspace.write_json(run.folder / "config.json", content | {"device": "cuda"})
    assert runs.open_run(run.folder).config == moved


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
        ("folder_quanv", {}, "data_dir"),
        (None, {}, "run_dir"),
        ("digits_quanv", {"n_seeds": 10**8}, "n_seeds"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_written(tmp_path, recipe, settings, argument):
    with refused(argument, (ValueError, OSError)):
        runs.open_run(tmp_path / "run", recipe, **settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["", "run"])
def test_a_folder_that_is_a_file(tmp_path, below):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match="A file is in its place"):
        runs.open_run(tmp_path / "file" / below, "digits_quanv")
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
    run, told, heard = tiny(), [], threading.Event()
    row = {"event": "epoch", "net": "hybrid", "seed": 0, "train_loss": 0.5, "seconds": 0.1}
    run.log("metrics", row | {"epoch": 1, "validation_accuracy": 0.25})
    with chain._followed(run, lambda line: (told.append(line), heard.set())):
        run.log("metrics", row | {"epoch": 2, "updates": 8, "validation_accuracy": 0.75})
        assert heard.wait(10)
        tested = {"event": "test", "net": "hybrid", "seed": 0, "test_accuracy": 0.5, "best_epoch": 2}
        run.log("metrics", tested | {"peak_memory": 3 * 10**9})
    assert re.search(r" +hybrid +seed 0 +epoch +2/2 +loss 0.500 +validation accuracy 75.0 %  0.10 s", told[0])
    assert re.fullmatch(
        r" +hybrid +seed 0 +test accuracy \(%\): 50.0, best epoch 2, peak memory 3 GB", told[1]
    )
    assert told[2:] == []


# --- training ----------------------------------------------------------------------------------------------


def outcome(run):
    """All numbers of a run but its times and memory: rows in order, and the tensors of every checkpoint."""
    rows = [
        {name: value for name, value in row.items() if not name.startswith(("seconds", "peak_"))}
        for row in [*run.epochs().to_dict("records"), *run.finals().to_dict("records")]
    ]
    for training in gradients.read(run.folder).trainings.values():
        rows += training.rows
    tensors = {}
    for net in run.nets:
        for seed in run.seeds:
            tensors[f"{net}-{seed}-best"] = dict(runs.trained(run, net, seed).state_dict())
            state = Store(run.checkpoints(net, seed), run.identity(net, seed)).restore()
            tensors[f"{net}-{seed}-last"] = state["model"] | {
                f"{index} {name}": value
                for index, entries in state["optimizer"]["state"].items()
                for name, value in entries.items()
            }
    return rows, tensors


def same(one, other):
    (rows, tensors), (other_rows, other_tensors) = one, other
    return repr(rows) == repr(other_rows) and all(  # repr: a missing number is NaN on both sides
        tensors[part].keys() == other_tensors[part].keys()
        and all(torch.equal(value, other_tensors[part][name]) for name, value in tensors[part].items())
        for part in tensors
    )


def test_every_net_is_trained_once(tiny):
    run, epochs, before, threads = tiny(n_seeds=2, threads=1), [], torch.get_num_threads(), set()
    note = each_epoch(lambda row: (epochs.append(row), threads.add(torch.get_num_threads())))
    finals = runs.train_all(run, on_row=note)
    assert threads == {1} and torch.get_num_threads() == before
    pairs = [("hybrid", 0), ("classical", 0), ("hybrid", 1), ("classical", 1)]
    assert [(row["net"], row["seed"]) for row in finals] == pairs
    assert [(row["net"], row["seed"], row["epoch"]) for row in epochs] == [
        (*pair, epoch) for pair in pairs for epoch in (1, 2)
    ]
    for row in finals:
        assert 0 <= row["test_accuracy"] <= 1 and row["test_loss"] > 0 and row["best_epoch"] in (1, 2)
    hybrid, classical = finals[:2]
    assert hybrid["quantum"] == 12 and classical["quantum"] == 0  # one layer, four wires, three angles
    assert hybrid["quantum"] + hybrid["classical"] == classical["classical"]

    content = (run.folder / "metrics.jsonl").read_bytes()
    again = runs.open_run(run.folder)
    assert runs.train_all(again, on_row=each_epoch(epochs.append)) == finals
    assert len(epochs) == 8 and (run.folder / "metrics.jsonl").read_bytes() == content
    told = json.loads((run.folder / "provenance.json").read_text())
    assert told["data"] == run.splits.fingerprint() and told["device"] == "cpu"


def test_a_notebook_that_is_stopped_shows_one_sentence_and_goes_on(tiny, once, capsys):
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
    shell.run_cell("finals = runs.train_all(run)").raise_error()
    straight = once(3).finals()["test_loss"].tolist()
    assert [final["test_loss"] for final in shell.user_ns["finals"]] == straight


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


def test_the_same_seed_gives_the_same_numbers_and_another_does_not(tiny):
    controls = {"controls": ["classical", "no_entanglement", "frozen_random"], "label_smoothing": 0.1}
    controls["epochs"] = 1
    first, second, other = tiny("a", **controls), tiny("b", **controls), tiny("c", seed=1, **controls)
    for run in (first, second, other):
        runs.train_all(run)
    assert same(outcome(first), outcome(second))
    assert len(outcome(first)[0]) == 8 + 4  # epochs and tests, and the gradients of the epochs
    losses = [
        [row["test_loss"] for row in outcome(run)[0] if row["event"] == "test"] for run in (first, other)
    ]
    assert all(one != two for one, two in zip(*losses, strict=True))


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


# --- more epochs, forks, and two at once -------------------------------------------------------------------


def test_more_epochs_go_on_where_the_fewer_ended(trained, tmp_path):
    run = trained
    workspace.write_json(run.folder / "result.json", {"nets": []})
    (run.folder / "notebooks").mkdir()
    for name in ("02_gradient_check", "03_train", "04_analyze", "04b_inside"):
        run.notebook(name).write_text(name)
    before = {name: content for name, content in files(run.folder).items() if "checkpoint-" in name}

    more = runs.open_run(run.folder, epochs=4)
    assert more.config == run.config.override(epochs=4) == runs.open_run(run.folder).config
    assert more.result is None and not more.notebook("03_train").exists()
    assert more.notebook("02_gradient_check").exists()
    there = files(run.folder)
    assert {"result.epochs-2.json", "notebooks/03_train.epochs-2.ipynb"} <= set(there)
    assert not more.notebook("04b_inside").exists(), "it shows what was trained for fewer"
    assert {name: there[name] for name in before} == before
    (extended,) = more.provenance["extended"]
    assert (extended["from"], extended["to"]) == (2, 4)
    assert len(run.finals()) == 2 and len(more.finals()) == 0, "what was tested after fewer does not count"
    assert runs.fork(more.folder, tmp_path / "fork").config == more.config  # something is left to train

    epochs = []
    finals = runs.train_all(more, on_row=each_epoch(epochs.append))
    assert [row["epoch"] for row in epochs] == [3, 4, 3, 4] and len(finals) == 2
    assert more.epochs().groupby("net")["epoch"].apply(list).tolist() == [[1, 2, 3, 4]] * 2
    assert runs.train_all(more, on_row=each_epoch(epochs.append)) == finals and len(epochs) == 4


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


def test_a_fork_goes_on_elsewhere_and_leaves_its_source_alone(trained, tmp_path):
    source = trained
    before = files(source.folder)
    given = {"epochs": 3, "learning_rate": 0.001, "quantum_learning_rate": 0.001}
    run = runs.fork(source.folder, tmp_path / "fork", **given)
    assert run.config == source.config.override(**given)
    epochs = []
    runs.train_all(run, on_row=each_epoch(epochs.append))
    assert [row["epoch"] for row in epochs] == [3, 3] and epochs[0]["learning_rate"] < 0.001
    assert run.provenance["forked"]["of"] == source.provenance["begun"]
    assert run.provenance["forked"]["changed"] == given
    assert {
        name: content for name, content in files(source.folder).items() if not name.startswith(".")
    } == before
    report.finish(run)
    own = sum(row["seconds"] for row in run.rows("metrics") if row["event"] == "epoch" and row["epoch"] == 3)
    assert run.provenance["training_hours"] == pytest.approx(own / 3600), "counted from the fork"
    assert [row["epoch"] for row in run.epochs().to_dict("records")] == [3, 3]
    copied = shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name} copied")
    for place in (tmp_path, copied):  # the same command opens it again
        again = runs.fork(place / "run", place / "fork", **given)
        assert again.folder == place / "fork" and again.config == run.config and len(again.finals()) == 2
    with pytest.raises(ValueError, match="holds another experiment"):
        runs.fork(copied / "run", copied / "fork", learning_rate=0.5)


def test_a_finish_reads_each_file_once(trained, monkeypatch):
    seen, opened = [], Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: seen.append(path.name) or opened(path))
    report.finish(trained)
    assert seen.count("provenance.json") <= 3 and seen.count("metrics.jsonl") == 1, "it writes facts twice"


def test_a_fork_in_the_middle_of_an_epoch_with_another_batch_size(tiny, tmp_path):
    source = tiny(epochs=2, save_every_steps=1)
    with runs.training(source) as untrained:
        one = next(untrained)
        model = runs.build(source, one.net, one.seed)
        loaders, kept = one.prepare(model)
        train.fit(model, source.task, loaders, one.config, **kept)  # the hybrid net alone
    run = runs.fork(source.folder, tmp_path / "fork", epochs=3, batch_size=7, optimizer="sgd")
    assert len(runs.train_all(run)) == 2
    epochs = run.epochs().groupby("net")["epoch"].apply(list)
    assert epochs.to_dict() == {"hybrid": [3], "classical": [1, 2, 3]}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"seed": 5}, "and seed makes other nets or data"),
        ({"hidden": 3, "epochs": 9}, "and hidden makes other nets or data"),
        ({"test_fraction": 0.3}, "and test_fraction makes other nets or data"),
        ({"learning_rate": 0.5}, "Argument `epochs` must be 3 or more"),
        ({"epochs": 1}, "Argument `epochs` must be 3 or more"),
        ({"epochs": 5, "precision": "float16"}, "Argument `precision` must suit the device"),
    ],
)
def test_forks_that_are_refused_write_nothing(once, tmp_path, settings, told):
    with pytest.raises(ValueError, match=told):
        runs.fork(once(2).folder, tmp_path / "fork", **settings)
    assert not (tmp_path / "fork").exists()


@pytest.fixture
def holder():
    """Starts a process that holds a run folder; it is killed at the end."""
    with ExitStack() as ends:
        yield lambda folder, work: ends.enter_context(forked.holding(folder, work))


def test_a_second_process_is_refused_until_the_first_is_dead(tiny, holder, monkeypatch):
    monkeypatch.setattr(alone.__wrapped__, "__defaults__", (0.2,))
    run = tiny()
    process = holder(run.folder, "train")
    content = files(run.folder)
    with pytest.raises(BlockingIOError, match=r"is in use by another process.*same command again"):
        runs.train_all(run)
    assert files(run.folder) == content
    process.kill()  # as a machine that runs out of memory does: nobody tidies up
    process.wait()
    assert len(runs.train_all(run)) == 2
    holder(run.folder, "chain")
    for work in (lambda: runs.run_notebooks(run), lambda: runs.open_run(run.folder, epochs=9)):
        with pytest.raises(BlockingIOError, match="is in use"):
            work()
    assert runs.open_run(run.folder).config == run.config


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_a_run_goes_on_in_a_workspace_that_has_moved(pictures, once, tmp_path, monkeypatch, where):
    """Killed half-way, all of it moved, the old place gone: the same command goes on, in the same bits."""

    def place_of(workspace):
        return tmp_path / f"beside {workspace.name}" if where == "outside" else workspace / "my images"

    def open_(workspace):
        monkeypatch.setenv("QNNKIT_HOME", str(workspace))
        told = "my images" if where == "inside" else str(place_of(workspace))
        return runs.open_run("runs/a", "folder_quanv", data_dir=told, **{**TINY, "epochs": 3})

    def losses(run):
        return run.epochs()[["net", "seed", "epoch", "train_loss", "validation_loss"]].to_dict("records")

    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(pictures, place_of(first))

    class Killed(Exception):
        pass

    def kill(row):
        if row["epoch"] == 2:
            raise Killed

    with pytest.raises(Killed):
        runs.train_all(open_(first), on_row=each_epoch(kill))
    first.rename(second)
    if where == "outside":
        place_of(first).rename(place_of(second))
        with pytest.raises(FileNotFoundError, match="`data_dir` must be an existing folder"):
            runs.train_all(runs.open_run(second / "runs" / "a"))
    moved = open_(second)
    assert Path(moved.config.data_dir) == place_of(second)
    before = [path.name for path in moved.checkpoints("hybrid", 0).glob("checkpoint-*")]
    assert before  # what the killed one had
    runs.train_all(moved)
    assert losses(moved) == losses(once(3))
    assert runs.open_run(second / "runs" / "a").tested().keys() == moved.tested().keys()


def test_half_written_checkpoints_of_the_killed_are_cleared(trained):
    place = trained.checkpoints("hybrid", 0)
    for left in (".checkpoint-000009.0a1b2c3d", ".checkpoint-000009.0123abcd-77", ".tmp5eYpbD"):
        (place / left).touch()
    max(place.glob("checkpoint-*")).unlink()
    (trained.folder / "metrics.jsonl").unlink()
    runs.train_all(trained)
    assert not list(place.glob(".*"))


@pytest.mark.parametrize("net", ["hybrid", "classical"])
def test_a_net_starts_from_its_seed(tiny, net):
    run = tiny()
    first, again, other = (runs.build(run, net, seed).state_dict() for seed in (0, 0, 1))
    for name, value in first.items():
        assert torch.equal(value, again[name]) and not torch.equal(value, other[name])
    for name in ("quantum", "frozen_random"):  # no net at all, and one that this run was not asked for
        with refused("net"):
            runs.build(run, name, 0)


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


def test_parameters_that_fit(notebook):
    path = notebook()
    for given in (
        {},
        {"count": 5, "rate": 0.5},
        {"rate": 1, "size": 2},
        {"rate": None, "name": "", "flag": True},
    ):
        runs.chain.check_parameters(path, given)


@pytest.mark.parametrize(
    ("parameters", "error", "told"),
    [
        ({"cuont": 5}, ValueError, "Did you mean 'count'? The choices are count, rate, size, name, flag."),
        ({"count": 2.5}, TypeError, "`count` must be of type int, but is 2.5. Its meaning: how many"),
        ({"count": True}, TypeError, "`count` must be of type int, but is True"),
        ({"size": None}, TypeError, "`size` must be of type float, but is None"),
        ({"rate": True}, TypeError, "`rate` must be of type float, but is True"),
        ({"name": 0.5}, TypeError, "`name` must be of type str, but is 0.5"),
        ({"flag": 1}, TypeError, "`flag` must be of type bool, but is 1"),
    ],
)
def test_parameters_that_do_not_fit_start_nothing(notebook, tmp_path, parameters, error, told):
    source = notebook()
    with pytest.raises(error, match=re.escape(told)):
        runs.launch(source, tmp_path / "out" / "copy.ipynb", parameters)
    assert not (tmp_path / "out").exists()


def test_a_launch_that_succeeds(notebook, tmp_path, monkeypatch):
    """Parameters arrive, the kernel has the launch's folder, and sockets that no other has."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    source = notebook(
        "import json, ipykernel.connect as kernel\nip = json.loads(kernel.get_connection_info())['ip']",
        """
        from pathlib import Path
        told = {"count": count, "rate": rate, "name": name, "cwd": str(Path.cwd()), "ip": ip}
        Path("told.json").write_text(json.dumps(told))
        """,
    )
    before_source, environment = source.read_bytes(), dict(os.environ)
    output = tmp_path / "out" / "copy.ipynb"
    output.parent.mkdir()
    output.with_suffix(".failed.ipynb").write_text("of an earlier try")
    assert runs.launch(source, output, {"count": 5, "rate": 0.5}) == output
    told = json.loads((here / "told.json").read_text())
    ip = Path(told.pop("ip"))  # Jupyter's own lie in the current folder, where two at once take the same
    assert ip.is_absolute() and not ip.parent.exists(), "none is left"
    assert told == {"count": 5, "rate": 0.5, "name": "a", "cwd": str(here)}
    assert dict(os.environ) == environment
    assert [path.name for path in output.parent.iterdir()] == ["copy.ipynb"]
    assert source.read_bytes() == before_source
    counts = [cell.execution_count for cell in nbformat.read(output, 4).cells]
    assert len(counts) == 4 and all(counts)  # the cells and the injected parameters ran


def test_what_is_shared_names_no_folder_of_this_machine(notebook, tmp_path, monkeypatch, tiny):
    home = tmp_path / "person" / "work"
    home.mkdir(parents=True)
    monkeypatch.setenv("QNNKIT_HOME", str(home))
    monkeypatch.setenv("HOME", str(tmp_path / "person"))
    told = f"print({str(home / 'runs' / 'a')!r}, {str(tmp_path / 'person' / 'data')!r})"
    output = runs.launch(notebook(told), home / "copy.ipynb", {"name": str(home / "images")})
    text = output.read_text()
    assert "./runs/a ~/data" in text and 'name = \\"./images\\"' in text and str(home) not in text
    with pytest.raises(runs.NotebookError):
        runs.launch(notebook(told, "1 / 0"), output, {})
    assert str(tmp_path / "person") not in output.with_suffix(".failed.ipynb").read_text()
    run = tiny()
    run.note_provenance(machine={"workspace": str(home)})
    assert str(home) not in (run.folder / "provenance.json").read_text()


def test_a_notebook_that_stops(notebook, tmp_path):
    source = notebook('print("so far")', 'raise ValueError("The gradient is wrong.")', 'print("never")')
    output = tmp_path / "copy.ipynb"
    environment = dict(os.environ)
    with pytest.raises(runs.NotebookError) as caught:
        runs.launch(source, output, {})
    failed = tmp_path / "copy.failed.ipynb"
    assert str(caught.value) == (
        f"Notebook source.ipynb stopped: The gradient is wrong. The cell and the whole trace are in {failed}."
    )
    assert not output.exists() and not (tmp_path / "copy.running.ipynb").exists()
    outputs = [out for cell in nbformat.read(failed, 4).cells for out in cell.get("outputs", [])]
    assert {"ValueError"} == {out.ename for out in outputs if out.output_type == "error"}
    texts = "".join(out.text for out in outputs if out.output_type == "stream")
    assert "so far" in texts and "never" not in texts
    assert dict(os.environ) == environment


def test_a_full_disk_before_a_notebook_starts(notebook, tmp_path):
    source = notebook("x = 1  # " + "long " * 2000)
    with (
        room_for(4096),
        pytest.raises(OSError, match=r"Cannot write .*copy\.running\.ipynb.*Free some space"),
    ):
        runs.launch(source, tmp_path / "copy.ipynb", {})
    assert not (tmp_path / "copy.ipynb").exists()


def test_a_copy_beside_the_workspace_comes_before_the_kits_own(tmp_path, monkeypatch):
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    assert runs.open_run("runs/a", "digits_quanv").folder == tmp_path / "runs" / "a"
    mine, kits = tmp_path / "notebooks", Path(runs.__file__).parents[2] / "notebooks"
    mine.mkdir()
    (mine / "03_train.ipynb").write_text("{}")
    assert runs.chain.find_notebook("03_train") == mine / "03_train.ipynb"
    assert chain.replaced(runs.NOTEBOOKS) == ["03_train"]
    assert runs.chain.find_notebook("04_analyze") == kits / "04_analyze.ipynb"
    with pytest.raises(FileNotFoundError, match=f"but is '03_trian'. Put one into `{mine}`"):
        runs.chain.find_notebook("03_trian")
    with refused("notebook", FileNotFoundError):
        runs.launch(tmp_path / "none.ipynb", tmp_path / "copy.ipynb", {})


# --- many runs as one table --------------------------------------------------------------------------------


def test_runs_are_one_table(tiny, tmp_path):
    one, two = tiny("one", hidden=2, epochs=1), tiny("two", hidden=3, epochs=1)
    finals = [runs.train_all(run) for run in (one, two)]
    [first, *_] = [row for row in one.rows("metrics") if row["event"] == "epoch"]
    one.log("metrics", first)  # as a kill between a row and its checkpoint leaves it
    table = runs.frame([one.folder, two.folder, tmp_path / "nothing"])
    assert table["hidden"].tolist() == [2] * len(finals[0]) + [3] * len(finals[1])
    assert set(table["recipe"]) == {"folder_quanv"} and table["folder"].iloc[-1] == str(two.folder)
    for each, row in zip([*finals[0], *finals[1]], table.to_dict("records"), strict=True):
        assert each.items() <= row.items()
    epochs = runs.frame([one.folder, two.folder], "epoch")
    assert len(epochs) == len(one.epochs()) + len(two.epochs())
    assert not epochs.duplicated(["folder", "net", "seed", "epoch"]).any()
    assert runs.frame(two.folder).equals(runs.frame([two.folder])), "one folder is no list of letters"
    with pytest.raises(ValueError, match="`event` must be a known name, but is 'epochs'"):
        runs.frame([one.folder], "epochs")
    remote = tmp_path / "remote"
    with Mirror(two.folder, remote):
        pass
    stored = runs.frame([remote])
    names = ["folder", "run"]
    assert stored.drop(columns=names).equals(runs.frame([two.folder]).drop(columns=names))
    assert table.equals(runs.frame([one, two.folder, tmp_path / "nothing"])), "a run as its folder"


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
