"""A trained net without its training data: `model/` of a run, `qnnkit predict` and `runs.predict`."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import symusic
import torch
from PIL import Image
from typer.testing import CliRunner

from qnnkit import cli, runs, tasks, workspace
from qnnkit.data import pieces
from qnnkit.data.pieces import of_midi, of_steps
from qnnkit.runs import export
from qnnkit.runs.using import line
from qnnkit.tasks import pictures
from tests.data.test_music_data import heard
from tests.runs.test_using import moved, pictured  # noqa: F401  fixtures
from tests.toys import refused

TINY = {"epochs": 1, "n_seeds": 1, "controls": [], "threads": 1, "gradient_samples": 0}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    return tmp_path


def trained(recipe, **settings):
    run = runs.open_run("runs/one", recipe, **TINY, **settings)
    runs.train_all(run)
    export(run)
    return run


@pytest.fixture
def expected(pictured, monkeypatch):  # noqa: F811
    """The test images of a run on two class folders that are gone, and what its net gives for them."""
    root, _, run = pictured
    monkeypatch.setenv("QNNKIT_HOME", str(root))
    with torch.no_grad():
        return run.splits.test, runs.trained(run)(run.splits.test.images).softmax(1)


def test_images_are_classified_as_the_net_does_without_the_data(expected, tmp_path):
    (test, shares), paths = expected, []
    for i, image in enumerate(test.images[:3]):
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(image[0].numpy()).save(paths[-1])
    found = list(runs.predict("runs/one", paths))
    assert [row["class"] for row in found] == [("above", "below")[i] for i in shares[:3].argmax(1)]
    for row, each in zip(found, shares, strict=False):
        assert list(row["probabilities"].values()) == pytest.approx(each.tolist(), abs=1e-6)
        assert row["notes"] == []
    [of_array] = runs.predict("runs/one", [test.images[0, 0].numpy()])
    assert of_array["probabilities"] == found[0]["probabilities"]
    [as_classical] = runs.predict("runs/one", paths[:1], classical=True)
    assert as_classical["probabilities"] == pytest.approx(found[0]["probabilities"], abs=1e-4)
    assert as_classical["probabilities"] != found[0]["probabilities"]
    told = CliRunner().invoke(cli.app, ["predict", "runs/one", str(paths[0]), "--json"])
    assert json.loads(told.output) == found[0]
    [told] = CliRunner().invoke(cli.app, ["predict", "runs/one", str(paths[0])]).output.splitlines()
    assert told.startswith(f"input: {paths[0]}  class: {found[0]['class']}  probabilities: ")
    elsewhere = shutil.copytree(workspace.home() / "runs/one/model", tmp_path / "net")
    net, data, recipe = runs.load_model(elsewhere)
    assert (data.classes, recipe.name, net.training) == (("above", "below"), "folder_quanv", False)
    with torch.no_grad():
        assert torch.equal(net(test.images).softmax(1), shares)


UNLIKE = {
    "colour": (lambda pixels: np.stack([pixels] * 3, -1), "in colour"),
    "wide": (lambda pixels: np.concatenate([pixels] * 2, 1), "squeezed to the training images' 6x6"),
}


def test_images_unlike_those_of_the_training_are_said_to_be(expected):
    pixels = expected[0].images[0, 0].numpy()
    for kind, (change, told) in UNLIKE.items():
        [row] = runs.predict("runs/one", [change(pixels)])
        assert any(told in note for note in row["notes"]), kind


def test_captions_and_images_are_matched_by_clip(home):
    run = trained("digits_clip", train_fraction=0.1, n_qubits=2, n_layers=1, patch_size=8)
    image = run.splits.test.images[0, 0].numpy()
    [row] = runs.predict(run.folder, [image])
    assert len(row["probabilities"]) == 10 and sum(row["probabilities"].values()) == pytest.approx(1)
    texts = ["a photo of the digit three", "a photo of the digit four"]
    [chosen] = runs.predict(run.folder, [image, *texts])
    assert set(chosen["probabilities"]) == set(texts)
    with pytest.raises(ValueError, match="hold an image file"):
        runs.predict(run.folder, texts)


@pytest.mark.parametrize("place", ["base/model", "two/adapter"])
def test_a_text_is_gone_on_with_by_a_model_and_by_an_adapter(moved, tmp_path, monkeypatch, place):  # noqa: F811
    monkeypatch.setenv("QNNKIT_HOME", str(moved[0]))
    [row] = runs.predict(f"runs/{place.split('/')[0]}", ["the cat"])
    assert row["input"] == "the cat" and isinstance(row["text"], str) and row["text"]
    copied = shutil.copytree(moved[0] / "runs" / place, tmp_path / "copied")
    assert [list(runs.predict(each, ["the cat"])) for each in (f"runs/{place}", copied)] == [[row]] * 2


@pytest.mark.parametrize("tokens", ["remi", "midi_v2"])
def test_a_piece_is_gone_on_with(home, monkeypatch, tokens):
    monkeypatch.setattr("qnnkit.tasks.music.NEW_TOKENS", 400)
    for composer, first in (("ann", 60), ("bob", 48)):
        for i in range(8):
            score = of_steps([[first + (step + i) % 7] for step in range(64)])
            score.tracks[0].program, score.tempos = 40, [symusic.Tempo(0, 87)]
            (home / "pieces" / composer).mkdir(parents=True, exist_ok=True)
            score.dump_midi(home / "pieces" / composer / f"{i}.mid")
    trained("music_llama", data_dir="pieces", sequence_length=32, tokens=tokens)
    begun = (home / "pieces" / "ann" / "0.mid").rename(home / "begun.mid")
    shutil.rmtree(home / "pieces")
    [row] = runs.predict("runs/one", [begun])
    assert (row["input"], row["file"]) == (str(begun), str(home / "begun.continued.mid"))
    assert row["tokens_per_second"] > 0 and ("events_per_second" in row) == (tokens != "remi")
    before, after = (of_midi(Path(each).read_bytes()) for each in (begun, row["file"]))
    assert heard(after) > heard(before) and {program for program, *_ in heard(before)} == {40}
    assert round(after.tempos[0].qpm) == 87
    found = runs.evaluate("runs/one", begun)
    tokenizer = pieces.tokenizer_of(home / "runs/one/model")
    written = pieces.writing(tokenizer)
    ids = written.encode(of_midi(begun.read_bytes()))[0]
    n = sum(token != written.pad for token in ids[written.width :])  # and the end, but no beginning
    assert n > 2 * 32 and (found["tokens"], found["score"]) == (n, "loss")
    assert found["perplexity"] == pytest.approx(np.exp(found["loss"]))
    (home / "bad.mid").write_bytes(b"MThd")
    with refused("inputs"):
        list(runs.predict("runs/one", [home / "bad.mid"]))


class Guess:
    monitor = "accuracy"

    def __call__(self, net, batch):
        return tasks.Classification()(net, batch)

    def predict(self, net, inputs):
        return [{"input": each, "output": f"{type(net).__name__} of {each}"} for each in inputs]


def test_a_task_that_knows_how_is_asked(home):
    from qnnkit.recipes import digits_quanv

    class Mine:
        Settings, load, build = digits_quanv.Settings, digits_quanv.load, digits_quanv.build

        def task(settings):
            return Guess()

    run = trained(Mine, train_fraction=0.1, hidden=2)
    assert list(runs.predict(run.folder, ["a"], recipe=Mine)) == [{"input": "a", "output": "QuanvNet of a"}]


def test_what_cannot_be_predicted_is_refused_in_a_sentence(expected, tmp_path):
    (tmp_path / "broken.png").write_text("no image")
    for given in ([], ["nowhere.png"], ["."], [tmp_path / "broken.png"], [np.zeros((6, 6))]):
        with refused("inputs"):
            runs.predict("runs/one", given)
    with pytest.raises(FileNotFoundError, match="Finish the run"):
        runs.predict("runs/other", ["a.png"])


def test_what_is_no_array_is_told_in_a_sentence(tmp_path):
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "folder.npy").mkdir()
    for name in ("none", "folder", "text"):
        with refused("inputs"):
            pictures.array(tmp_path / f"{name}.npy", None)


def test_what_is_told_to_people():
    row = {"input": "x", "class": "b", "probabilities": {"a": 0.25, "b": 0.74999}, "notes": ["It is grey."]}
    assert line(row) == "input: x  class: b  probabilities: b 0.75, a 0.25\n  Note: It is grey."
    assert line({"output": [[0.123456789], [1e-9]]}) == "output: 0.1235, 1e-09"
    several = {"input": "x", "output": [{"class": "b", "probabilities": {"b": 1.0}}] * 2}
    assert line(several).splitlines()[1] == "input: x, row 2  class: b  probabilities: b 1"
