"""One contract for every entry of MODELS."""

from __future__ import annotations

import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from qnnkit import MODELS, controls
from qnnkit.config import ModelConfig
from qnnkit.layers import count_parameters, quantum_parameters
from qnnkit.models import build

FLOAT32 = 1e-5
SIZES = {"channels": 3, "image_size": (6, 5), "n_classes": 4}
IMAGES = torch.randint(256, (5, 3, 6, 5), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)

each = pytest.mark.parametrize("name", MODELS)


def model_of(name: str, *, seed: int = 0, backend: str = "auto", **settings):
    return build(ModelConfig(model=name, **settings), **SIZES, seed=seed, backend=backend)


def close(ours, theirs, tolerance=FLOAT32) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


@each
def test_shape_and_batch(name):
    model = model_of(name)
    logits = model(IMAGES)
    assert logits.shape == (5, 4) and logits.dtype == torch.float32
    close(logits, torch.cat([model(image[None]) for image in IMAGES]))
    assert (logits.max(0).values - logits.min(0).values).min() > 100 * FLOAT32  # the images matter


@each
def test_every_weight_gets_a_gradient(name):
    model = model_of(name)
    model(IMAGES).logsumexp(-1).sum().backward()
    assert all(weight.grad.abs().max() > 1e-6 for weight in model.parameters())
    assert count_parameters(model)["quantum"] == sum(w.numel() for w in quantum_parameters(model)) > 0


@each
def test_a_frozen_circuit_gets_none(name):
    model = model_of(name, trainable=False)
    model(IMAGES).logsumexp(-1).sum().backward()
    assert all(weight.grad is None for weight in quantum_parameters(model))
    assert count_parameters(model)["quantum"] == 0 < count_parameters(model)["frozen"]


@each
def test_saved_and_loaded_it_gives_the_same(name, tmp_path):
    model, other = model_of(name), model_of(name, seed=1)
    assert not torch.equal(other(IMAGES), model(IMAGES))
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(other(IMAGES), model(IMAGES))


@each
def test_one_seed_gives_one_net(name):
    one, same, other = (model_of(name, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert all(not torch.equal(one[key], other[key]) for key in one)


@each
def test_the_hyperparameters_arrive(name):
    small, large = model_of(name), model_of(name, filters=2, n_layers=3, hidden=7)
    assert count_parameters(large)["quantum"] == 3 * count_parameters(small)["quantum"]
    assert large(IMAGES).shape == (5, 4)


@each
@pytest.mark.parametrize("settings", [{"stride": 1}, {"stride": 3}, {"circuit": "random", "kernel_size": 1}])
@pytest.mark.parametrize("embedding", ["amplitude", "iqp"])
def test_other_settings(name, settings, embedding):
    settings = {"circuit": "strongly_entangling"} | settings
    assert model_of(name, embedding=embedding, **settings)(IMAGES).shape == (5, 4)


@each
def test_controls_share_the_shape(name):
    model = model_of(name)
    logits = model(IMAGES)
    for control in controls(model).values():
        assert control(IMAGES).shape == logits.shape
        assert sum(count_parameters(control).values()) == sum(count_parameters(model).values())


@each
def test_precision_and_backend(name):
    model = model_of(name)
    precise = model_of(name).double()
    assert precise(IMAGES).dtype == torch.float64
    close(model(IMAGES), precise(IMAGES).float())
    close(model_of(name, backend="lightning.qubit")(IMAGES[:1]), model(IMAGES[:1]))
    with torch.autocast("cpu", torch.bfloat16):
        assert model(IMAGES).dtype == torch.bfloat16


def test_quanv_reads_angles_between_0_and_pi():
    """Without layers to train, one wire and weights of zero: <Z> of a pixel is the cosine of its angle."""
    model = model_of("quanv", circuit="hardware_efficient", kernel_size=1, stride=1, n_layers=1)
    with torch.no_grad():
        model.quanv.filters[0].weights.zero_()
    pixels = torch.tensor([0, 51, 255], dtype=torch.uint8)
    maps = model.feature_maps(pixels.reshape(1, 3, 1, 1).expand(1, 3, 6, 5))
    close(maps[0, :, 0, 0], torch.cos(torch.tensor([0, 0.2 * torch.pi, torch.pi])))


@each
@pytest.mark.parametrize("image_size", [(1, 5), (5, 1)])
def test_images_smaller_than_a_patch(name, image_size):
    with pytest.raises(ValueError) as caught:
        build(ModelConfig(model=name), channels=1, image_size=image_size, n_classes=2)
    text = str(caught.value)
    assert re.fullmatch(r"Argument `image_size` must .+, but is \(\d, \d\)\. [A-Z].+\.", text), text


def test_an_unknown_model():
    with pytest.raises(ValueError, match="Did you mean 'quanv'"):
        build(ModelConfig(model="quan"), **SIZES)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@each
def test_cuda_and_its_generator(name):
    state = torch.cuda.get_rng_state()
    model = model_of(name, seed=5)
    assert torch.equal(torch.cuda.get_rng_state(), state)
    expected = model(IMAGES)
    close(model.cuda()(IMAGES.cuda()).cpu(), expected, 100 * FLOAT32)  # TF32 convolutions
