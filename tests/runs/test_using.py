"""A run folder is enough to merge, evaluate, use and read the net elsewhere, without the data."""

import itertools
import json
import math
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import symusic
import torch
from PIL import Image
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from qnnkit import cli, runs, stats, tasks, workspace
from qnnkit.data import pieces
from qnnkit.data.pieces import of_midi, of_steps
from qnnkit.runs import using
from qnnkit.tasks.pictures import array
from tests.data.test_music_data import heard
from tests.recipes.test_your_own import RECIPE
from tests.toys import refused

TINY = {"epochs": 1, "n_seeds": 1, "threads": 1, "gradient_samples": 0}
SPEECHES = "the cat sat on the mat. it saw a dog! " * 200
OTHER = "a dog lay on the rug. " * 200


def command(*words):
    done = CliRunner().invoke(cli.app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def trained(recipe, name="one", **settings):
    run = runs.open_run(f"runs/{name}", recipe, **TINY | {"controls": []} | settings)
    runs.train_all(run)
    runs.export(run)
    return run


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """A workspace with a base and an adapter, moved and without its data."""
    before, after = (tmp_path_factory.mktemp("using") / name for name in ("before", "after"))
    before.mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("QNNKIT_HOME", str(before))
        (before / "text.txt").write_text(SPEECHES)
        (before / "other.txt").write_text(OTHER)
        trained("text_llama", "base", sequence_length=16, data_dir="text.txt", vocabulary=280)
        settings = {"data_dir": "other.txt", "pretrained": "runs/base/model", "adapter_weights": 300}
        run = trained("text_adapter", "two", sequence_length=16, **settings)
        ids = run.splits.test.input_ids[:2]
        with torch.no_grad():
            expected = ids, runs.trained(run)(input_ids=ids).logits
        (before / "text.txt").unlink()
        (before / "other.txt").unlink()
    before.rename(after)
    return after, expected


@pytest.fixture
def there(moved, monkeypatch):
    monkeypatch.setenv("QNNKIT_HOME", str(moved[0]))
    return moved[0]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_the_card_of_an_adapter_loads_it_without_the_kit(moved, there, monkeypatch):
    card = (there / "runs/two/adapter/README.md").read_text()
    for words in ("base model | `./runs/base/model`", "quantum_peft", "of circuits", "| data | other.txt |"):
        assert words in card
    assert re.search(r"test loss \| \d\.\d+ nats / token", card) and "More Information Needed" not in card
    [code] = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    monkeypatch.chdir(there)
    monkeypatch.setitem(sys.modules, "qnnkit", None)  # importing it now raises an error
    made = {}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        exec(code.replace('"adapter"', '"runs/two/adapter"'), made)
        logits = made["model"].eval()(moved[1][0]).logits
    torch.testing.assert_close(logits, moved[1][1], rtol=0, atol=1e-6)
    assert made["tokenizer"].eos_token_id is not None
    assert not any(type(each).__module__.startswith("qnnkit") for each in made["model"].modules())
    for place in ("base/model", "two/adapter"):
        for file in (there / "runs" / place).iterdir():
            assert str(there.parent).encode() not in file.read_bytes(), "it contains a local path"


def test_a_copied_adapter_is_merged_elsewhere(moved, there, tmp_path, monkeypatch):
    """Outside the workspace, next to its base, without the run and without data."""
    for place in ("runs/two/adapter", "runs/base/model"):
        shutil.copytree(there / place, tmp_path / "copy" / place)
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path / "empty"))
    command("merge", tmp_path / "copy/runs/two", tmp_path / "whole")
    ids, expected = moved[1]
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(tmp_path / "whole")(ids).logits
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)
    assert "model = AutoModelForCausalLM" in (tmp_path / "whole/README.md").read_text()
    shutil.rmtree(tmp_path / "copy/runs/base")
    with refused("run_dir", FileNotFoundError):
        runs.merge(tmp_path / "copy/runs/two", tmp_path / "again")
    with refused("run_dir"):
        runs.merge(there / "runs" / "base", tmp_path / "again")


def test_a_text_is_evaluated_in_blocks_to_its_last_token(there, tmp_path):
    (tmp_path / "new.txt").write_text(OTHER[:150])
    result = runs.evaluate("runs/two", tmp_path / "new.txt")
    model, about, _ = runs.load_model(there / "runs/two/adapter")
    ids = torch.tensor([*about.tokenizer.encode(OTHER[:150]), about.tokenizer.eos_token_id])
    losses = []
    with torch.no_grad():
        for block in ids.split(16):
            logits = model(block.unsqueeze(0)).logits[0, :-1]
            losses += torch.nn.functional.cross_entropy(logits, block[1:], reduction="none").tolist()
    assert len(losses) % 15, "the last block is not full"
    assert (result["tokens"], result["data"]) == (len(losses), "new.txt") and "interval" not in result
    assert result["loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert result["perplexity"] == pytest.approx(math.exp(result["loss"]))
    assert json.loads(command("evaluate", "runs/two", tmp_path / "new.txt", "--json")) == result
    chat = {"messages": [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]}
    (tmp_path / "chat.jsonl").write_text(json.dumps(chat) + "\n")
    assert runs.evaluate("runs/base", tmp_path / "chat.jsonl")["tokens"] < 8, "only the answers count"
    (tmp_path / "empty.txt").write_text("")
    with refused("data"):
        runs.evaluate("runs/two", tmp_path / "empty.txt")


def test_a_model_and_an_adapter_continue_a_text(there, tmp_path):
    for run, kind in (("base", "model"), ("two", "adapter")):
        [row] = runs.predict(f"runs/{run}", ["the cat"])
        assert row["input"] == "the cat" and isinstance(row["text"], str) and row["text"]
        copied = shutil.copytree(there / "runs" / run / kind, tmp_path / kind)
        assert list(runs.predict(copied, ["the cat"])) == [row]


def test_a_model_continues_a_piece_of_music(home, monkeypatch):
    monkeypatch.setattr("qnnkit.tasks.music.NEW_TOKENS", 400)
    for i in range(8):
        score = of_steps([[60 + (step + i) % 7] for step in range(64)])
        score.tracks[0].program, score.tempos = 40, [symusic.Tempo(0, 87)]
        score.dump_midi(workspace.make_folder(home / "pieces") / f"{i}.mid")
    trained("music_llama", data_dir="pieces", sequence_length=32)
    begun = (home / "pieces" / "0.mid").rename(home / "begun.mid")
    shutil.rmtree(home / "pieces")
    [row] = runs.predict("runs/one", [begun])
    assert (row["input"], row["file"]) == (str(begun), str(home / "begun.continued.mid"))
    before, after = (of_midi(Path(each).read_bytes()) for each in (begun, row["file"]))
    assert heard(after) > heard(before) and {program for program, *_ in heard(before)} == {40}
    assert round(after.tempos[0].qpm) == 87
    result = runs.evaluate("runs/one", begun)
    ids = pieces.writing(pieces.tokenizer_of(home / "runs/one/model")).encode(before)[0]
    assert len(ids) > 2 * 32 and (result["tokens"], result["score"]) == (len(ids) - 1, "loss")
    (home / "bad.mid").write_bytes(b"MThd")
    with refused("inputs"):
        list(runs.predict("runs/one", [home / "bad.mid"]))


# --- images ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def _pictured(tmp_path_factory, pictures):
    """A run on two class folders that no longer exist, its test images in a folder, and its test row."""
    root = tmp_path_factory.mktemp("pictured")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("QNNKIT_HOME", str(root))
        shutil.copytree(pictures, root / "images")
        run = trained("folder_quanv", data_dir="images", image_size=6, hidden=2, epochs=3)
        test, classes = run.splits.test, ["above", "below"]
        for i, (source, label) in enumerate(zip(test.sources, test.labels, strict=True)):
            place = root / "held" / "test" / classes[label] / f"deep/{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / "images" / source, place)
        shutil.make_archive(str(root / "held"), "zip", root / "held")
        shutil.rmtree(root / "images")
    return root, run


@pytest.fixture
def pictured(_pictured, monkeypatch):
    monkeypatch.setenv("QNNKIT_HOME", str(_pictured[0]))
    return _pictured[1]


def test_images_are_classified_without_the_training_data(pictured, tmp_path):
    test, paths = pictured.splits.test, [tmp_path / f"{i}.png" for i in range(3)]
    copied = shutil.copytree(workspace.home() / "runs/one/model", tmp_path / "net")
    written = workspace.read_json(copied / "about.json")
    known = {name: value for name, value in written["data"].items() if name not in ("captions", "shapes")}
    workspace.write_json(copied / "about.json", written | {"data": known | {"of_earlier_versions": 1}})
    net, about, recipe = runs.load_model(copied)
    assert (about.classes, recipe.name, net.training) == (("above", "below"), "folder_quanv", False)
    for name, damage, (argument, error) in (
        ("model.safetensors", b"cut", ("run_dir", ValueError)), ("about.json", b"{}", ("folder", OSError)),
    ):  # fmt: skip
        (copied / name).write_bytes(damage)
        with refused(argument, error):
            runs.load_model(copied)
    with torch.no_grad():
        shares = runs.trained(pictured)(test.images).softmax(1)
        assert torch.equal(net(test.images).softmax(1), shares)
    for image, path in zip(test.images, paths, strict=False):
        Image.fromarray(image[0].numpy()).save(path)
    answers = list(runs.predict("runs/one", paths))
    for row, each in zip(answers, shares, strict=False):
        assert row["class"] == about.classes[each.argmax()] and row["notes"] == []
        assert list(row["probabilities"].values()) == pytest.approx(each.tolist(), abs=1e-6)
    pixels = test.images[0, 0].numpy()
    changes = {"": pixels, "in colour": np.stack([pixels] * 3, -1), "squeezed to": np.tile(pixels, 2)}
    rows = [next(runs.predict("runs/one", [each])) for each in changes.values()]
    assert rows[0]["probabilities"] == answers[0]["probabilities"]
    assert all(change in "".join(row["notes"]) for change, row in zip(changes, rows, strict=True))
    palette = Image.fromarray(np.stack([pixels] * 3, -1)).quantize(40)
    same = [next(runs.predict("runs/one", [each])) for each in (palette, np.asarray(palette.convert("L")))]
    assert same[0]["probabilities"] == same[1]["probabilities"]
    [as_classical] = runs.predict("runs/one", paths[:1], classical=True)
    assert as_classical["probabilities"] == pytest.approx(answers[0]["probabilities"], abs=1e-4)
    assert as_classical["probabilities"] != answers[0]["probabilities"]
    assert json.loads(command("predict", "runs/one", paths[0], "--json")) == answers[0]
    paths[0].write_text("no image")
    bytes_ = [np.zeros(shape, np.uint8) for shape in ((1, 6, 6), (6, 6, 4), (0, 0))]
    for inputs in ([], ["nowhere.png"], ["."], paths[:1], [np.zeros((6, 6))], *zip(bytes_)):
        with refused("inputs"):
            runs.predict("runs/one", inputs)
    (pictured.folder.parent / "other").mkdir()
    for run, step in (("runs/other", "The run is waiting. Finish it"), ("runs/nowhere", "check the path")):
        with pytest.raises(FileNotFoundError, match=step):
            runs.predict(run, ["a.png"])


def test_labelled_images_get_the_scores_of_the_test_split(pictured):
    [row] = pictured.tested().values()
    for place in ("held", "held.zip"):
        result = runs.evaluate("runs/one", place)
        assert (result["samples"], result["notes"]) == (row["n_test"], []), place
        for name in ("accuracy", "loss", "macro_f1", "ece"):
            assert result[name] == pytest.approx(row[f"test_{name}"], abs=1e-6), place
        low, high = stats.clopper_pearson(result["accuracy"] * row["n_test"], row["n_test"])
        assert result["interval"] == [low, high] and low < result["accuracy"] <= high


def test_classes_are_matched_by_name(pictured, tmp_path):
    below, pixels = workspace.make_folder(tmp_path / "below"), np.zeros((6, 6), np.uint8)
    Image.fromarray(pixels).save(below / "a.png")
    (below / "b.png").write_text("no image")
    (below / "c.txt").write_text("words")
    result = runs.evaluate("runs/one", tmp_path)
    assert result["samples"] == 1 and ["above" in note for note in result["notes"]] == [False, False, True]
    shutil.copytree(below, tmp_path / "beneath")
    with refused("data") as caught:
        runs.evaluate("runs/one", tmp_path)
    assert "is 'beneath'" in str(caught.value)
    with refused("data", OSError):
        runs.evaluate("runs/one", tmp_path / "nowhere")


def test_captions_and_images_are_matched_by_clip(home):
    run = trained("digits_clip", train_fraction=0.1, n_qubits=2, n_layers=1, patch_size=8)
    image, texts = run.splits.test.images[0, 0].numpy(), ["a photo of a three", "a photo of a four"]
    [row] = runs.predict(run.folder, [image, *texts, texts[0]])
    assert set(row["probabilities"]) == set(texts) and sum(row["probabilities"].values()) == pytest.approx(1)
    for argument, error, use in (
        ("inputs", ValueError, lambda: runs.predict(run.folder, texts)),
        ("inputs", ValueError, lambda: runs.predict(run.folder, [image])),
        ("run_dir", NotImplementedError, lambda: runs.evaluate(run.folder, home)),
    ):
        with refused(argument, error):
            use()


# --- arrays for a user's recipe ----------------------------------------------------------------------------


BAD = {"0": "a\n0\n", "1": "a,b,c\n0,,1\n1,1,1\n", "2": "a,b,c\n0,0,0,0\n", "3": "", "4": "a,b,d\n0,0,0\n"}
DAYS = pd.DataFrame({"a": [0], "b": [0], "c": pd.to_datetime(["2026-11-28"])})
GAPS = (DAYS, [[0, np.nan, 0]], [["a", "b", "c"]], [[0, 1], [0]], [[1j, 0, 0]])


def test_arrays_and_tables_work_with_a_users_recipe(home, monkeypatch):
    listed, table = "[np.array([a, a * a, a**3]) for a in t]", 'pd.DataFrame({"a": t, "b": t * t, "c": t**3})'
    text = RECIPE.replace("import numpy", "import pandas as pd\nimport numpy")
    (home / "mine.py").write_text(text.replace(listed, table))
    run = trained("mine.py")
    with refused("run_dir", NotImplementedError):
        runs.evaluate("runs/one", home, recipe="mine.py")
    [row] = runs.predict("runs/one", [np.float32([0.5, 0.25, 0.125])], recipe="mine.py")
    # Named columns are selected by name, in any order and next to any other columns.
    rows = "c{0}größe{0}b{0}a\n0{0}x{0}0{0}0\n0.125{0}y{0}0.25{0}0.5\n"
    for text in (rows.format(","), "sep=;\n" + rows.format(";"), "0;0;0\n0.5;0.25;0.125\n"):
        (home / "new.csv").write_text(text, encoding="latin-1")
        [table] = runs.predict("runs/one", "new.csv", recipe="mine.py")
        assert table["output"][1] == pytest.approx(row["output"], abs=1e-6) and len(table["output"]) == 2
    frame = pd.DataFrame({"c": [0.125], "kind": ["y"], "b": [0.25], "a": [0.5]})
    for given in (frame, pa.Table.from_pandas(frame)):
        [table] = runs.predict("runs/one", given, recipe="mine.py")
        assert table["output"][0] == pytest.approx(row["output"], abs=1e-6) and len(table["output"]) == 1
    for name, ending in itertools.product([*BAD, "none"], ("csv", "npy")):
        if name in BAD:
            (home / f"{name}.{ending}").write_text(BAD[name])
        with refused("inputs"):
            runs.predict("runs/one", [f"{name}.{ending}"], recipe="mine.py")
    about = using.Data("a table", {}, {"": ["float32", 3]})  # a net that knows no names
    shares = np.float32([0.25, 0.25, 0.5])
    [item] = tasks.Classification().predict(lambda given: given, [shares], replace(about, classes=(*"abc",)))
    assert list(item["probabilities"].values()) == [*shares] and about.example(2).min() == 1
    for line in ("0,,1", "0,NA,1", "0,?,1"):  # a first line with an empty cell is no heading
        (home / "gap.CSV").write_text(f"{line}\n0,0,0\n")
        with refused("inputs"):
            array("gap.CSV", about)
    (home / "new.CSV").write_text("a, b, c\n0,0,0\n")
    assert array("new.CSV", replace(about, columns=("c", "b", "a")))[0].tolist() == [[0, 0, 0]]
    (home / "new.CSV").write_text("2020|2019|2021\n0|1|2\n")  # names that are numbers
    assert array("new.CSV", replace(about, columns=("2019", "2020", "2021")))[0].tolist() == [[1, 0, 2]]
    for given, dtype in [*((each, "float32") for each in GAPS), ([[0.5, 1, 0]], "uint8")]:
        with refused("inputs"):
            array(given, replace(about, shapes={"": [dtype, 3]}))
    task, mark = type(run.task.task), ["mine"]
    monkeypatch.setattr(task, "predict", lambda self, net, inputs: mark + inputs, raising=False)
    assert list(runs.predict("runs/one", ["a"], recipe="mine.py")) == ["mine", "a"]


def test_running_out_of_memory_is_not_reported_as_damage(tmp_path):
    with pytest.raises(torch.OutOfMemoryError), using._undamaged(tmp_path):
        raise torch.OutOfMemoryError("no memory")
