"""qnnkit.models.features: frozen circuits run once; another circuit, weight or image gets another file."""

import os
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pennylane as qp
import pytest
import torch

from qnnkit import controls, data, runs
from qnnkit.data import ImageSplits
from qnnkit.data.splits import SPLITS
from qnnkit.layers import QuantumLayer
from qnnkit.models import QuanvNet, features
from tests.toys import TINY, refused, room_for

FLOAT32 = 1e-6  # a batch of another size may sum in another order


def net_of(**settings):
    return QuanvNet(1, (6, 6), 2, **{"trainable": False, "n_layers": 1, "hidden": 2} | settings)


def close(result: ImageSplits, net, images: ImageSplits) -> None:
    """Asserts that the maps are those of the net, and everything else is unchanged."""
    assert result is not images
    for name in SPLITS:
        part, original = result.split(name), images.split(name)
        torch.testing.assert_close(part.images, net.eval().features(original.images), rtol=0, atol=FLOAT32)
        assert part.labels is original.labels and part.sources is original.sources
        assert part.images.grad_fn is None and not part.images.requires_grad


@pytest.fixture
def splits(pictures, home) -> ImageSplits:
    """Splits of 24 images."""
    return data.load("class_folder", root=pictures)


def files(home):
    return sorted((home / "features").glob("*"))


# --- the cached maps --------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"filters": 2}, {"backend": "default.qubit"}])
def test_maps_are_read_back_and_recomputed_if_their_file_is_truncated(home, splits, settings):
    net = net_of(**settings)
    with room_for(0):  # if nothing can be written, the maps stay in memory
        close(features.of(net, splits), net, splits)
    assert files(home) == []
    maps = features.of(net, splits)
    close(maps, net, splits)
    torch.testing.assert_close(net(maps.train.images), net(splits.train.images), rtol=0, atol=10 * FLOAT32)
    [path] = files(home)
    size, written = path.stat().st_size, path.stat().st_mtime_ns
    for length in (size, size - 7, 0):
        os.truncate(path, length)
        os.utime(path, ns=(written, written))
        close(features.of(net_of(**settings), splits), net, splits)
        assert files(home) == [path] and path.stat().st_size == size
        assert (path.stat().st_mtime_ns == written) == (length == size)


def changed(change):
    """A net whose first filter runs another QNode."""
    net = net_of()
    layer = net.quanv.filters[0]
    net.quanv.filters[0] = layer.with_qnode(change(layer.qnode)).requires_grad_(False)
    return net


NOT_KEPT = {
    "trained": lambda: net_of(trainable=True),
    "shots": lambda: changed(lambda qnode: qp.set_shots(qnode, 10)),
    "device": lambda: changed(lambda qnode: qnode.update(device=qp.device("default.mixed", wires=4, seed=0))),
    "another net": lambda: torch.nn.Flatten(),
}


def test_only_frozen_exact_circuits_whose_maps_fit_in_memory_are_cached(home, splits, monkeypatch):
    for name, make in NOT_KEPT.items():
        assert features.of(make(), splits) is splits and files(home) == [], name
    batch = splits.train.images, splits.train.labels
    for how, n, is_kept in (("none", 18, True), ("affine", 18, False), ("none", 10**12, False)):
        config = SimpleNamespace(of_kit=lambda name, default, how=how: how)
        inputs = features.training_batch(net_of(), batch, config, n)[0]
        assert inputs.is_floating_point() == is_kept, "different in every epoch, too many"
    monkeypatch.setattr(features, "MOST_BYTES", 24 * 4 * 9 * 4 - 1)  # 4 maps of 3x3, 4 bytes
    assert features.of(net_of(), splits) is splits
    with refused("images"):
        net_of()(torch.ones(2, 1, 6, 6))


# --- one file per circuit ---------------------------------------------------------------------------


def turned():
    """The same net with one angle slightly changed."""
    net = net_of()
    with torch.no_grad():
        net.quanv.filters[0].weights.view(-1)[3] += 1e-6
    return net


def plain(size=1.0):
    """The same net with another circuit, which has an observable of this size."""

    def circuit(inputs, weights):
        for wire in range(4):
            qp.RY(inputs[..., wire], wires=wire)
            qp.RY(weights[0][wire][0], wires=wire)
        return [qp.expval(qp.Hermitian(size * np.eye(2), 0)), *(qp.expval(qp.Z(wire)) for wire in range(3))]

    return changed(lambda qnode: qp.QNode(circuit, qp.device("default.qubit", wires=4, seed=0)))


def normalised():
    """A net whose frozen part normalises, in training mode: its features are those of evaluation."""
    net = net_of()
    net.quanv = torch.nn.Sequential(torch.nn.BatchNorm2d(1), net.quanv).requires_grad_(False)
    return net


CHANGES = {
    "itself": net_of,
    "normalised": normalised,
    "an angle": turned,
    "embedding": lambda: net_of(circuit="strongly_entangling", embedding="iqp"),
    "separable": lambda: controls(net_of())["no_entanglement"],
    "gates": plain,
    "nearly that observable": lambda: plain(size=1 + 1e-9),
}


def test_every_change_has_its_own_file(home, splits):
    seen = set()
    for name, make in CHANGES.items():
        net = make()
        close(features.of(net, splits), net, splits)
        [new] = set(files(home)) - seen or [name]
        assert new != name, "it has read another net's file"
        seen.add(new)
    images = splits.test.images.clone()
    images[0, 0, 3, 3] ^= 1
    other = replace(splits, test=replace(splits.test, images=images))
    close(features.of(net_of(), other), net_of(), other)
    assert len(files(home)) == len(seen) + 1, "a changed pixel"


# --- in a run ---------------------------------------------------------------------------------------


def test_circuits_run_once_and_the_training_is_unchanged(pictures, tmp_path, home, monkeypatch):
    """On 24 images of 6x6 pixels, with frozen circuits."""
    rows_seen, right = [], QuantumLayer.forward
    frozen = {"trainable": False, "controls": ["no_entanglement", "classical"]}
    settings = {**TINY, **frozen, "data_dir": str(pictures)}

    def forward(self, inputs):
        rows_seen.append(len(inputs) if inputs.ndim > 1 else 1)
        return right(self, inputs)

    def losses(name):
        """The losses of every net and epoch, in training and evaluation."""
        run = runs.open_run(tmp_path / name, "folder_quanv", **settings)
        rows_seen.clear()
        list(runs.train_all(run))
        every = [row.items() for row in run.rows("metrics")]
        return [value for row in every for name, value in row if name.endswith("_loss")]

    monkeypatch.setattr(QuantumLayer, "forward", forward)
    first, patches = losses("run"), 24 * 9
    assert patches <= sum(rows_seen) // 2 < patches + 100, "two nets, each patch once"
    assert len(files(home)) == 3, "the frozen classical layer as well"
    assert losses("again") == first
    assert sum(rows_seen) < 300, "single images, to determine shapes and sizes"
    monkeypatch.setattr(features, "of", lambda net, splits, device="cpu": splits)
    assert losses("uncached") == pytest.approx(first, abs=1e-4) and len(first) == 3 * (2 * 2 + 1)
