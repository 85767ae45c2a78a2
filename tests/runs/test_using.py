"""What a run leaves is enough: merged, evaluated and read by plain libraries elsewhere, without its data."""

import json
import math
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from qnnkit import adapters, cli, data, runs, stats, tasks
from qnnkit.tasks import saving
from tests.toys import refused

TINY = ("epochs=1", "n_seeds=1", "threads=1", "gradient_samples=0", "sequence_length=16")
SPEECHES = "the cat sat on the mat. it saw a dog! " * 200
OTHER = "a dog lay on the rug. " * 200


def command(*words):
    found = CliRunner().invoke(cli.app, [str(word) for word in words], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def train(recipe, name, **settings):
    given = [f"{key}={value}" for key, value in settings.items()]
    sets = [word for each in (*TINY, *given) for word in ("--set", each)]
    return command("train", "--recipe", recipe, "--run-dir", f"runs/{name}", *sets)


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """A workspace with a base and an adapter, trained by `qnnkit train`, moved after its data have gone."""
    before, after = (tmp_path_factory.mktemp("using") / name for name in ("before", "after"))
    before.mkdir()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("QNNKIT_HOME", str(before))
        (before / "text.txt").write_text(SPEECHES)
        (before / "other.txt").write_text(OTHER)
        assert "The trained net is in" in train("text_llama", "base", data_dir="text.txt", vocabulary=280)
        given = {"data_dir": "other.txt", "pretrained": "runs/base/model", "controls": "[]"}
        train("text_adapter", "two", **given, adapter_weights=300)
        run = runs.open_run("runs/two")
        net, ids = runs.trained(run), run.splits.test.input_ids[:2]
        with torch.no_grad():
            expected = ids, net(input_ids=ids).logits
        (before / "text.txt").unlink()
        (before / "other.txt").unlink()
    before.rename(after)
    return after, expected


@pytest.fixture
def home(moved, monkeypatch):
    monkeypatch.setenv("QNNKIT_HOME", str(moved[0]))
    return moved[0]


def fresh(code, folder):
    """Runs code in a new process, which never imports qnnkit; returns the JSON that it prints last."""
    code += "\nimport sys; assert 'qnnkit' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_card_of_an_adapter_loads_it_without_the_kit(moved, home):
    card = (home / "runs/two/adapter/README.md").read_text()
    for told in ("base model | `./runs/base/model`", "quantum_peft", "of circuits", "| data | other.txt |"):
        assert told in card
    assert re.search(r"test loss \| \d\.\d+ nats / token", card) and "More Information Needed" not in card
    [code] = re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)
    code = code.replace('"adapter"', '"runs/two/adapter"')
    ids, expected = moved[1]
    code += f"\nimport torch, json\nids = torch.tensor({ids.tolist()})"
    code += "\nwith torch.no_grad(): logits = model.eval()(ids).logits"
    code += "\nassert tokenizer.eos_token_id is not None\nprint(json.dumps(logits.tolist()))"
    torch.testing.assert_close(torch.tensor(fresh(code, home)), expected, rtol=0, atol=1e-6)


def test_no_file_of_a_model_names_a_path_of_the_machine(moved, home):
    for place in ("base/model", "two/adapter"):
        for file in (home / "runs" / place).iterdir():
            assert str(moved[0].parent).encode() not in file.read_bytes(), file
    described = json.loads((home / "runs/two/adapter/adapter_config.json").read_text())
    assert described["base_model_name_or_path"] == "./runs/base/model"


def test_an_adapter_is_merged_where_it_is_copied_to(moved, home, tmp_path, monkeypatch):
    """In another folder than the workspace, with its base beside it; without the run, and without data."""
    for place in ("runs/two/adapter", "runs/base/model"):
        shutil.copytree(home / place, tmp_path / "copy" / place)
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
        runs.merge(home / "runs" / "base", tmp_path / "again")


def test_a_base_in_a_run_outside_of_the_workspace_is_named_from_the_adapter(home, tmp_path):
    for run in ("one", "two"):
        (tmp_path / run / "model").mkdir(parents=True)
    base, adapter = tmp_path / "one/model", tmp_path / "two/model"
    for given in (str(base), "meta-llama/Llama-3.2-3B"):  # of nobody's run, or on the Hub
        assert saving._base_name({"base_model_name_or_path": given}, adapter) == given
    (tmp_path / "one" / "provenance.json").touch()
    name = saving._base_name({"base_model_name_or_path": str(base)}, adapter)
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": name}))
    assert name == "../../one/model" and adapters.base_of(adapter) == str(base)


def test_a_text_is_evaluated_block_by_block_to_its_last_token(home, tmp_path):
    (tmp_path / "new.txt").write_text(OTHER[:150])
    found = runs.evaluate("runs/two", tmp_path / "new.txt")
    model, about, _ = runs.using.load_language(home / "runs/two/adapter")
    ids = torch.tensor([*about.tokenizer.encode(OTHER[:150]), about.tokenizer.eos_token_id])
    losses = []
    with torch.no_grad():
        for block in ids.split(16):
            logits = model(block.unsqueeze(0)).logits[0, :-1]
            losses += torch.nn.functional.cross_entropy(logits, block[1:], reduction="none").tolist()
    assert len(losses) % 15, "the last block is not full"
    assert (found["tokens"], found["data"]) == (len(losses), "new.txt")
    assert found["loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"])) and "interval" not in found
    told = command("evaluate", "runs/two", tmp_path / "new.txt")
    assert told.startswith(f"data: new.txt  tokens: {len(losses)}  ")
    assert f"perplexity: {found['perplexity']:.4g}" in told
    assert json.loads(command("evaluate", "runs/two", tmp_path / "new.txt", "--json")) == found
    with refused("root"):
        (tmp_path / "empty.txt").write_text("")
        data.unsplit.tokens(tmp_path / "empty.txt", about.tokenizer, 16)


def test_of_chats_only_the_answers_are_evaluated(home, tmp_path):
    chat = {"messages": [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]}
    (tmp_path / "chat.jsonl").write_text(json.dumps(chat) + "\n")
    found = runs.evaluate("runs/base", tmp_path / "chat.jsonl")
    assert found["tokens"] < 8 and any("no chat template" in note for note in found["notes"])


# --- labelled samples --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pictured(tmp_path_factory, pictures):
    """A run on two class folders that are gone, its test images in a folder, and its test row."""
    root = tmp_path_factory.mktemp("pictured")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("QNNKIT_HOME", str(root))
        shutil.copytree(pictures, root / "images")
        given = {"data_dir": "images", "image_size": 6, "hidden": 2, "controls": []}
        shared = {"epochs": 1, "n_seeds": 1, "threads": 1, "gradient_samples": 0}
        run = runs.open_run("runs/one", "folder_quanv", **shared, **given)
        [row] = runs.train_all(run)
        runs.export(run)
        for i, (source, label) in enumerate(
            zip(run.splits.test.sources, run.splits.test.labels, strict=True)
        ):
            place = root / "held" / "test" / run.splits.classes[label] / f"deep/{i}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / "images" / source, place)
        shutil.rmtree(root / "images")
    return root, row, run


def test_labelled_images_are_judged_as_the_test_split_was(pictured, monkeypatch):
    root, row, _ = pictured
    monkeypatch.setenv("QNNKIT_HOME", str(root))
    shutil.make_archive(str(root / "held"), "zip", root / "held")
    for place in ("held", "held.zip"):
        found = runs.evaluate("runs/one", place)
        assert (found["samples"], found["notes"]) == (row["n_test"], []), place
        for name in ("accuracy", "loss", "macro_f1", "ece"):
            assert found[name] == pytest.approx(row[f"test_{name}"], abs=1e-6), place
        low, high = stats.clopper_pearson(found["accuracy"] * row["n_test"], row["n_test"])
        assert found["interval"] == [low, high] and low < found["accuracy"] <= high
    assert "accuracy: " in (told := command("evaluate", "runs/one", "held")) and "interval: " in told


def test_classes_are_matched_by_name(pictured, tmp_path, monkeypatch):
    root, *_ = pictured
    monkeypatch.setenv("QNNKIT_HOME", str(root))
    pixels = np.zeros((6, 6), np.uint8)
    (tmp_path / "below").mkdir()
    Image.fromarray(pixels).save(tmp_path / "below" / "a.png")
    (tmp_path / "below" / "b.png").write_text("no image")
    (tmp_path / "below" / "c.txt").write_text("words")
    found = runs.evaluate("runs/one", tmp_path)
    assert found["samples"] == 1 and ["above" in note for note in found["notes"]] == [False, False, True]
    (tmp_path / "beneath").mkdir()
    Image.fromarray(pixels).save(tmp_path / "beneath" / "a.png")
    with refused("data") as caught:
        runs.evaluate("runs/one", tmp_path)
    assert "is 'beneath'" in str(caught.value)
    (tmp_path / "none").mkdir()
    np.savez(tmp_path / "held.npz", inputs=pixels[None], targets=[1])
    for name in ("held.npz", "none", "nowhere"):
        with refused("data", (ValueError, OSError)):
            runs.evaluate("runs/one", tmp_path / name)


def test_arrays_of_a_recipe_of_ones_own_are_judged_by_its_task(tmp_path, monkeypatch):
    class Moons:
        from qnnkit import Settings

        def load(settings):
            points = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
            return data.arrays(settings, points, points.sum(1, keepdim=True))

        def build(settings, splits, seed):
            return torch.nn.Linear(2, 1)

        def task(settings):
            return Squares()

    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    run = runs.open_run("runs/one", Moons, epochs=1, n_seeds=1, controls=[], threads=1, gradient_samples=0)
    [row] = runs.train_all(run)
    runs.export(run)
    np.savez(tmp_path / "test.npz", inputs=run.splits.test.inputs, targets=run.splits.test.targets)
    found = runs.evaluate("runs/one", "test.npz", recipe=Moons)
    assert found["mse"] == pytest.approx(row["test_mse"], abs=1e-6) and found["score"] == "mse"
    for name, arrays in {
        "wide": {"inputs": np.zeros((4, 3)), "targets": np.zeros((4, 1))},
        "short": {"inputs": np.zeros((4, 2)), "targets": np.zeros((3, 1))},
        "bare": {"pictures": np.zeros((4, 2))},
        "code": {"inputs": np.array([{}], dtype=object), "targets": np.zeros((1, 1))},
    }.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
        with refused("data"):
            runs.evaluate("runs/one", f"{name}.npz", recipe=Moons)


class Squares:
    monitor = "mse"

    def __call__(self, net, batch):
        errors = (net(batch[0]) - batch[1]).square().mean(1)
        return tasks.Step(errors.mean(), {"mse": errors.sum().detach()}, len(errors))


def test_what_cannot_be_evaluated_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("QNNKIT_HOME", str(tmp_path))
    given = {"train_fraction": 0.1, "n_qubits": 2, "n_layers": 1, "patch_size": 8, "controls": []}
    run = runs.open_run(
        "runs/one", "digits_clip", epochs=1, n_seeds=1, threads=1, gradient_samples=0, **given
    )
    runs.train_all(run)
    runs.export(run)
    with refused("run_dir", NotImplementedError):
        runs.evaluate("runs/one", tmp_path)
    with refused("raw"):
        runs.predict("runs/one", ["a.png"], raw=True)
