"""One contract for every net of the kit and of its recipes."""

import copy
import functools
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from qnnkit import QuantumLayer, controls, models
from qnnkit.layers import count_parameters, feature_maps_of, quantum_parameters
from tests.nets import HYBRID, NETS, SLIDING, family
from tests.toys import refused

FLOAT32 = 1e-5
SIZES = {"channels": 3, "image_size": (12, 10), "n_classes": 4}
SMALL = {"width": 8, "hidden": 6}
IMAGES = torch.randint(256, (5, 3, 12, 10), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)

each = pytest.mark.parametrize("name", NETS)


@functools.cache
def made(name: str, *, seed: int = 0, **settings) -> torch.nn.Module:
    return family(name, SMALL, sizes=SIZES | {"seed": seed}, **settings)


def model_of(name: str, **settings) -> torch.nn.Module:
    """A net, made once and copied."""
    return copy.deepcopy(made(name, **settings))


close = functools.partial(torch.testing.assert_close, rtol=0, atol=FLOAT32)


@each
def test_shape_batch_gradients_and_precision(name):
    model, precise = model_of(name).eval(), model_of(name).double().eval()
    logits = model(IMAGES)
    assert logits.shape == (5, 4) and logits.dtype == torch.float32
    close(logits, torch.cat([model(image[None]) for image in IMAGES]))
    assert (logits.max(0).values - logits.min(0).values).min() > 5 * FLOAT32, "outputs depend on the images"
    logits.logsumexp(-1).sum().backward()
    assert all(weight.grad.abs().max() > 0 for weight in model.parameters())
    n_quantum = sum(weight.numel() for weight in quantum_parameters(model))
    assert (count_parameters(model)["quantum"], n_quantum > 0) == (n_quantum, name in HYBRID)
    assert precise(IMAGES).dtype == torch.float64
    close(logits, precise(IMAGES).float(), atol=10 * FLOAT32)
    with torch.autocast("cpu", torch.bfloat16):
        assert model(IMAGES).dtype == torch.bfloat16
    if name in HYBRID:
        [circuit] = [layer for layer in model.modules() if isinstance(layer, QuantumLayer)]
        assert circuit.input_dtype == torch.float32


@each
def test_only_the_seed_decides_the_start_and_a_saved_net_is_the_same(name, tmp_path):
    one, other = (model_of(name, seed=seed).eval() for seed in (0, 4))
    same = family(name, SMALL, sizes=SIZES | {"seed": 0})
    assert all(torch.equal(value, same.state_dict()[key]) for key, value in one.state_dict().items())
    drawn = [key for key, weight in one.named_parameters() if weight.ndim > 1]  # the rest starts at 0 or 1
    assert drawn and all(not torch.equal(one.state_dict()[key], other.state_dict()[key]) for key in drawn)
    save_file(one.state_dict(), tmp_path / "model.safetensors")
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(other(IMAGES), one(IMAGES))


def test_without_its_circuit_the_residual_net_keeps_only_the_skip():
    model = model_of("residual_quanv").eval()
    model(IMAGES)
    control = controls(model)["no_quantum"]
    with torch.no_grad():
        model.middle.scale.zero_()  # attention then scales zeros
    assert torch.equal(control(IMAGES), model(IMAGES))


# --- sizes named in the documentation ----------------------------------------------------------------------


LARGE = {"filters": 2, "n_layers": 3, "hidden": 7}


@pytest.mark.parametrize(
    ("name", "n_classes", "settings", "quantum", "classical", "n_circuits"),
    [
        ("residual_quanv", 44, {"hidden": 114, "blocks": 2}, 24, 87_912 + 2 * (64 * 64 * 9 + 2 * 64), 64),
        ("residual_quanv", 4, LARGE, 72, 57_853, 128),
        ("quanv", 4, LARGE, 72, (8 * 9 + 1) * 7 + (7 * 16 * 16 + 1) * 4, 512),
        ("resnet_circuit", 4, {"n_qubits": 3, "n_layers": 5}, 45, 11_169_357, 1),
        ("cnn", 28, {"width": 32, "hidden": 512}, 0, 1_350_332, 0),
    ],
)
def test_sizes(name, n_classes, settings, quantum, classical, n_circuits):
    sizes = {"channels": 1, "image_size": (32, 32), "n_classes": n_classes}
    model = family(name, sizes=sizes, dropout=0.3, **settings)
    assert count_parameters(model) == {"quantum": quantum, "classical": classical, "frozen": 0}
    model.keys = torch.nn.Parameter(torch.zeros(2))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    frame = models.table(model, torch.zeros(1, 1, 32, 32, dtype=torch.uint8))
    expected = {"quantum": quantum, "classical": classical + 2, "frozen": 0, "circuits / sample": n_circuits}
    assert dict(frame.loc["all", list(expected)]) == dict(frame[list(expected)][:-1].sum()) == expected
    assert model.training and all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)] == [0.3]


def test_a_stem_shrinks_images_as_requested():
    sizes = {"channels": 1, "image_size": (32, 32), "n_classes": 28}
    for stride in (1, 2, 4):
        with torch.device("meta"):
            stem = family("resnet_circuit", sizes=sizes, stem_stride=stride).backbone.net.embedder
            assert stem(torch.zeros(1, 1, 32, 32)).shape == (1, 64, 32 // stride, 32 // stride)


# --- ResNets with pretrained weights -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a small ResNet, as transformers saves it."""
    from transformers import ResNetConfig, ResNetModel

    folder = tmp_path_factory.mktemp("resnet")
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    with torch.random.fork_rng(devices=[]):
        ResNetModel(config).save_pretrained(folder)
    return folder


def test_weights_from_a_local_folder(saved):
    sizes = {"channels": 1, "image_size": (12, 10), "n_classes": 3}
    shared = {"sizes": sizes, "pretrained": str(saved)}
    one, other = (family("resnet_circuit", {"seed": seed}, **shared).eval() for seed in (0, 1))
    assert one.backbone.n_features == 12
    grey = IMAGES[:, :1]
    close(one.features(grey), other.features(grey))  # the folder's weights for any seed
    stored = load_file(saved / "model.safetensors")
    assert all(torch.equal(stored[key], value) for key, value in one.backbone.net.state_dict().items())


def test_a_frozen_backbone_never_changes():
    model = model_of("resnet_circuit", frozen_backbone=True).train()
    before = {key: value.clone() for key, value in model.backbone.state_dict().items()}
    model(IMAGES).logsumexp(-1).sum().backward()
    assert all(torch.equal(before[key], value) for key, value in model.backbone.state_dict().items())
    assert all(weight.grad is None for weight in model.backbone.parameters())
    assert all(weight.grad is not None for weight in model.head.parameters())
    assert models.table(model, IMAGES[:1]).loc["backbone", "kind"] == "ResNet from scratch, frozen"
    maps = model.features(IMAGES).detach()
    close(model.eval()(maps), model(IMAGES))
    with refused("images"):
        model(maps[:, :7])


WRONG = {
    "another net's": lambda path: save_file({f"other.{k}": v for k, v in load_file(path).items()}, path),
    "cut off": lambda path: os.truncate(path, 2000),
    "pickled": lambda path: (torch.save(load_file(path), path.parent / "pytorch_model.bin"), path.unlink()),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_unusable_weights_raise_an_error(saved, tmp_path, wrong):
    """transformers itself keeps random values for missing weights and calls the net pretrained."""
    WRONG[wrong](shutil.copytree(saved, tmp_path / "resnet") / "model.safetensors")
    sizes = {"channels": 1, "image_size": (9, 9), "n_classes": 2}
    with refused("pretrained"):
        family("resnet_circuit", sizes=sizes, pretrained=str(tmp_path / "resnet"))


# --- quanvolutions -----------------------------------------------------------------------------------------


def test_quanv_scales_pixels_to_angles_between_0_and_pi():
    """One wire, no trained layers and zero weights: <Z> of a pixel is the cosine of its angle."""
    model = model_of("quanv", circuit="hardware_efficient", kernel_size=1, stride=1, n_layers=1)
    with torch.no_grad():
        model.quanv.filters[0].weights.zero_()
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(1, 3, 1, 1).expand(1, 3, 12, 10)
    maps = model.features(images)
    close(maps[0, :, 0, 0], torch.cos(torch.tensor([0, 0.2 * torch.pi, torch.pi])))
    assert torch.equal(feature_maps_of(model, images), maps)


def test_arguments_that_raise_an_error():
    with refused("initialisation"):
        models.circuit_layer(4, initialisation="large")
    with refused("stem_stride"):
        models.Backbone(1, stem_stride=8)


@pytest.mark.parametrize("name", [*SLIDING, "cnn"])
def test_images_smaller_than_a_patch(name):
    with refused("image_size"):
        family(name, sizes={"channels": 1, "image_size": (9, 1), "n_classes": 2})
