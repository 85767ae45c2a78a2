"""qnnkit.inspector: its pictures follow the choices, with and without circuits, gradients or training."""

import asyncio
import base64
import io
import json
import math
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pennylane as qp
import pytest
import torch
from PIL import Image

from qnnkit import gradients, layers, runs
from qnnkit.inspector import Inspector
from qnnkit.inspector.views import Views, image_figure, what_if_figure
from qnnkit.inspector.what_if import WhatIf
from qnnkit.plots import picture
from tests import toys
from tests.toys import Digits, layer_on, linear, refused

PARTS = ("gradients", "circuit", "image", "what_if")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> runs.Run:
    """Two epochs of the digits and a classical control, with recorded gradients."""
    folder = tmp_path_factory.mktemp("inspected") / "run"
    settings = {"stride": 2, "train_fraction": 0.2, "gradient_samples": 4, "n_layers": 1}
    settings |= {"epochs": 2, "n_seeds": 1, "controls": ["classical"]}
    return toys.trained(folder, "digits_quanv", **settings)


@pytest.fixture(scope="module")
def looked(trained) -> Inspector:
    """One inspector that several tests use; the first test gets it new."""
    return Inspector(trained)


@pytest.fixture(autouse=True)
def quick(request, monkeypatch):
    """Skips the layout of figures, half of the drawing time, except where pixels are compared."""
    image_figure.cache_clear()
    what_if_figure.cache_clear()
    if request.function is not test_events_on_several_threads_end_with_the_last_choice:
        monkeypatch.setattr(picture, "ConstrainedLayoutEngine", lambda **room: None)


def figures(inspector: Inspector) -> list[str]:
    """The figures that are shown."""
    return [name for name in PARTS if inspector.pngs[name].layout.display != "none"]


def begun(folder: Path, recipe: Any, **settings) -> runs.Run:
    return runs.open_run(folder, recipe, n_seeds=1, controls=[], **settings)


def shown(inspector: Inspector) -> dict[str, bytes]:
    return {name: inspector.pngs[name].value for name in PARTS}


def changed(inspector: Inspector, widget: str, value: Any) -> set[str]:
    before = shown(inspector)
    getattr(inspector, widget).value = value
    return {name for name, png in shown(inspector).items() if png != before[name]}


# --- widgets ----------------------------------------------------------------------------------------


def test_widgets_redraw_only_the_pictures_that_depend_on_them(trained, looked):
    choice = looked.choice
    row = next(row for row in trained.rows("gradients") if row.get("epoch") == 2 and row["net"] == "hybrid")
    stored = np.array(next(each for each in row["layers"] if each["layer"] == choice.layer)["gradient"])
    assert choice.epoch == 2 and choice.weight == np.abs(stored).mean(axis=0).argmax()
    np.testing.assert_array_equal(looked.views.recorded(2).to_numpy(), stored)
    weight = (choice.weight + 5) % 12
    for widget, value, redrawn in (
        ("epoch", 1, {"gradients", "circuit"}),
        ("weight", weight, {"circuit", "what_if"}),
        ("shift", 1.0, {"what_if"}),
        ("image", 3, {"image", "what_if"}),
    ):
        assert changed(looked, widget, value) == redrawn
    assert looked.choice == replace(choice, epoch=1, weight=weight, shift=1.0, image=3)
    assert looked.weight.label == looked.views.names[weight] in looked.moved.value
    assert "+1.00 rad" in looked.moved.value
    moves, drawn = looked.views._begun(weight, 3)
    there = moves.at(1.0)
    assert f"{moves.before.loss:.4f}, and <b>{there.loss:.4f}</b>" in looked.moved.value
    assert drawn.dot.get_xydata().tolist() == [[1.0, there.loss]]
    assert np.array_equal(drawn.there.get_xdata(), there.values)


def test_widgets_for_missing_features_are_hidden(looked):
    assert changed(looked, "layer", "reader.0") >= {"gradients", "circuit", "what_if"}
    assert looked.moving.layout.display == looked.pngs["circuit"].layout.display == "none"
    assert figures(looked) == ["gradients", "image"]
    looked.net.value = "classical"
    assert "Net classical has no circuit" in looked.message.value
    assert looked.choice.layer == "quanv.filters.0" and looked.pngs["circuit"].layout.display == "none"
    looked.net.value = "hybrid"
    assert looked.pngs["circuit"].layout.display is looked.moving.layout.display is None
    assert looked.choice.epoch == 2 and "no circuit" not in looked.message.value


def test_the_inspector_displays_widgets_and_a_static_picture(looked):
    bundle = looked._repr_mimebundle_()
    image = Image.open(io.BytesIO(base64.b64decode(bundle["image/png"])))
    parts = [Image.open(io.BytesIO(png)).convert("RGB") for png in looked.pictures()]
    assert image.height == sum(part.height for part in parts) and image.width >= 900
    assert np.array_equal(np.asarray(image)[: parts[0].height, : parts[0].width], np.asarray(parts[0]))
    view = bundle["application/vnd.jupyter.widget-view+json"]
    assert view["model_id"] == looked.widget.model_id
    assert "Net hybrid, seed 0" in bundle["text/plain"]
    assert sum(map(len, shown(looked).values())) < 500_000, "a saved notebook would be large"


def test_events_on_several_threads_end_with_the_last_choice(trained):
    """As JupyterLab sends them: on separate threads, while the pictures of the previous one are drawn."""
    acts = [("image", 4), ("weight", 7), ("epoch", 1), ("image", 8)]
    threads = set()

    async def kernel():
        inspector = Inspector(trained)
        draw = inspector.views.redraw

        def while_another_moves(choice):
            threads.add(threading.get_ident())
            if choice.shift == 1.0:
                other = threading.Thread(target=setattr, args=(inspector.shift, "value", 2.0))
                other.start()
                other.join()
            return draw(choice)

        inspector.views.redraw = while_another_moves
        moves = (asyncio.to_thread(setattr, inspector.inputs[name], "value", value) for name, value in acts)
        await asyncio.gather(*moves)
        await asyncio.sleep(0)  # callbacks scheduled on this loop
        inspector.shift.value = 1.0
        await asyncio.sleep(0)
        return inspector

    inspector = asyncio.run(kernel())
    chosen = inspector.choice
    assert threads == {threading.get_ident()}, "only the kernel's thread draws"
    assert chosen.shift == 2.0, "a choice during drawing is drawn next"
    assert {name: each.value for name, each in inspector.inputs.items()} == asdict(chosen)
    assert "could not be drawn" not in inspector.message.value and "+2.00 rad" in inspector.moved.value
    image_figure.cache_clear()
    what_if_figure.cache_clear()
    fresh = Views(trained, chosen.net, chosen.seed).redraw(chosen)[0]
    assert fresh == shown(inspector), "drawing over a saved background gives the whole figure"


# --- pictures ---------------------------------------------------------------------------------------


def two_tensors(inputs, fixed, turned):
    qp.AngleEmbedding(inputs, wires=[0, 1])
    for wire in (0, 1):
        qp.RX(fixed[wire], wires=wire)
        qp.RX(turned[wire], wires=wire)
    qp.RZ(turned[2], wires=1)  # commutes with the observable
    return [qp.expval(qp.PauliZ(wire)) for wire in (0, 1)]


class PartlyFrozen(torch.nn.Module):
    """Two pixels of an image through a circuit: its first weights are never trained, its last is dead."""

    def __init__(self, n_classes):
        super().__init__()
        self.circuit = layer_on(2, two_tensors, {"fixed": (2,), "turned": (3,)})
        self.circuit.qnode_weights["fixed"].requires_grad_(False)
        self.reader = linear(2, n_classes)

    def forward(self, images):
        return self.reader(self.circuit(images.flatten(1)[:, [20, 43]].float() / 255))


class OfPartlyFrozen(Digits):
    """The recipe of `Partly`."""

    def build(settings, splits, seed):
        return PartlyFrozen(splits.n_classes)


def test_a_partly_frozen_circuit_shows_each_gradient_at_its_weight(tmp_path):
    run = begun(tmp_path / "run", OfPartlyFrozen, epochs=1, train_fraction=0.2)
    batch, train = Inspector(run), run.splits.train
    assert batch.choice.weight in (2, 3, 4) and figures(batch) == list(PARTS)
    loss = run.task(batch.views.model, (train.images[:64], train.labels[:64])).loss
    [expected] = torch.autograd.grad(loss, [batch.views.circuit.qnode_weights["turned"]])
    frame = batch.views.recorded(0)
    assert frame.columns.tolist()[1:3] == ["fixed[1]", "turned[0]"]
    np.testing.assert_allclose(frame.to_numpy(), [[np.nan, np.nan, *expected.tolist()]], rtol=6e-4)
    assert ": turned[2] (RZ on wire 1). " in batch.sentences()[-1] in batch.message.value


def test_a_move_shows_the_net_with_that_weight(tmp_path):
    run = begun(tmp_path / "run", OfPartlyFrozen, vary_split=True)
    views, splits = Views(run, "hybrid", 1), run.splits_of(1)
    model, image, (validation, test) = views.model, views.images[4:5], (splits.validation, splits.test)
    moves = WhatIf(run, 1, model, views.circuit, 3, image[0])
    moved, start, (shifts, losses) = moves.at(0.5), moves.before, moves.curve
    assert moves.n_images >= 8 and torch.equal(views.images[0], test.images[test.labels == 0][0])
    images, labels = torch.cat([image, validation.images]), validation.labels[: moves.n_images]

    def computed():
        with torch.no_grad():
            logits = model(images[: 1 + moves.n_images]).double()
            values = model.circuit(layers.circuit_inputs(model, image)[model.circuit])[0]
        loss = torch.nn.functional.cross_entropy(logits[1:], labels)
        return values.numpy(), logits[0].softmax(0).numpy(), float(loss)

    before = computed()
    model.circuit.qnode_weights["turned"].data[1] += 0.5  # the fourth weight is dead
    after = computed()
    for ours, exact in zip((*start, *moved), (*before, *after), strict=True):
        np.testing.assert_allclose(ours, exact, atol=1e-6)
    assert abs(after[2] - before[2]) > 1e-3, "the weight has no effect, so the test could not fail"
    assert losses[0] == pytest.approx(losses[-1], abs=1e-4), "an angle has period 2 pi"
    assert losses[len(losses) // 2] == pytest.approx(before[2], abs=1e-6)
    assert (shifts[0], shifts[-1]) == (-math.pi, math.pi)


# --- incomplete runs --------------------------------------------------------------------------------


def test_the_inspector_follows_a_run_in_progress(trained, tmp_path):
    """First nothing, then rows, then a checkpoint: running the cell again shows each."""
    folder = tmp_path / "run"
    shutil.copytree(trained.folder, folder, ignore=shutil.ignore_patterns("checkpoints", "gradients.jsonl"))
    assert gradients.read(trained.folder).warnings == [], "a false alarm"
    run, rows = runs.open_run(folder), [json.dumps(row) + "\n" for row in trained.rows("gradients")]

    def look():
        views = Views(run, "hybrid", 0)
        assert views.first.epoch == views.training.epochs[-1]
        return views.training.epochs, views.sentences(views.first.epoch)

    epochs, [starts, none] = look()
    assert epochs == [0] and "with initial weights: it has no checkpoint yet" in starts
    assert none == "No gradients were recorded; those of 64 training images are shown."
    (folder / "gradients.jsonl").write_text(rows[0])
    assert look() == ([1], [starts])
    shutil.copytree(trained.folder / "checkpoints", folder / "checkpoints")
    (folder / "gradients.jsonl").write_text("".join(rows[:2]))
    best = runs.best(trained, "hybrid", 0)[1]
    assert look() == ([1, 2], [f"Net hybrid, seed 0, at its best epoch ({best})."])


def test_a_frozen_circuit_of_a_slow_backend_can_be_moved_without_gradients(tmp_path):
    settings = {"trainable": False, "circuit": "random", "backend": "lightning.qubit", "stride": 2}
    inspector = Inspector(begun(tmp_path / "run", "digits_quanv", **settings))
    assert inspector.views.circuit.backend == "batched"
    assert figures(inspector) == ["circuit", "image", "what_if"]
    assert "is not trained, so it has no gradient" in inspector.message.value


def test_a_wrong_choice_raises_an_error(trained):
    for wrong in ({"net": "hybird"}, {"seed": 5}, {"layer": "quanv.filters.1"}):
        with refused(*wrong):
            Inspector(trained, **wrong)


def test_a_drawing_error_is_reported_and_changes_nothing(looked, monkeypatch):
    def fails(choice):
        raise ValueError("Rows of\n<another> net.")

    before = looked.choice
    monkeypatch.setattr(looked.views, "redraw", fails)
    assert changed(looked, "shift", 2.0) == set()
    assert "could not be drawn: Rows of &lt;another&gt; net." in looked.message.value
    assert looked.choice == before and looked.shift.value == before.shift


# --- another version of ipywidgets ------------------------------------------------------------------

OLDER = "import ipywidgets, pytest, sys; assert ipywidgets.__version__ == '7.7.1'; sys.exit(pytest.main())"


@pytest.mark.slow
def test_the_same_tree_works_in_the_ipywidgets_of_colab(tmp_path):
    """The tests of widgets with 7.7.1 and its dependencies in front of the installed version."""
    place, root = tmp_path / "older", Path(runs.__file__).parents[2]
    command = [sys.executable, "-m", "uv", "pip", "install", "-q", "--no-deps", "--target", str(place)]
    subprocess.run([*command, "ipywidgets==7.7.1", "ipython-genutils==0.2.0"], check=True)
    options = f"{__file__} -q -n0 -p no:cacheprovider -W ignore -k 'widgets and not tree'"
    given = os.environ | {"PYTHONPATH": f"{place}{os.pathsep}{root}", "PYTEST_ADDOPTS": options}
    done = subprocess.run([sys.executable, "-c", OLDER], cwd=root, env=given, capture_output=True, text=True)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout + done.stderr
