"""qnnkit.train.recompute: the forward pass stores less, and nothing else changes."""

import contextlib
from functools import partial

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from qnnkit import circuits, gradients, layers, train
from qnnkit.train.recompute import recomputing
from tests import nets
from tests.nets import NETS, family
from tests.same import from_seed, same
from tests.toys import Batches, uniform
from tests.train.test_train import fit, timeless

SIZES = {"channels": 3, "image_size": (16, 16), "n_classes": 4}
IMAGES = torch.randint(256, (16, 3, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def model_of(name, **settings):
    return family(name, {"width": 8, "hidden": 6}, sizes=SIZES, **settings)


TOKENS = torch.arange(4 * 12).reshape(4, 12) % 40


def llama():
    # with a cache, keys are first joined to an empty tensor, which changes sums
    model = nets.llama(num_hidden_layers=3, use_cache=False, attention_dropout=0.4)
    return model, lambda: model(input_ids=TOKENS, labels=TOKENS).loss


def of_images(model):
    return model, lambda: model(IMAGES).logsumexp(-1).sum()


def with_a_circuit(backend="auto"):
    """A part that has a circuit and other weights, so that it is recomputed as a whole."""
    circuit = layers.QuantumLayer(*circuits.build("data_reuploading"), backend=backend)
    return nn.Sequential(nn.Sequential(nn.Linear(8, 4), circuit), nn.Sequential(nn.Tanh()))


def of_values(make, n=16):
    model, values = from_seed(make), uniform(n, 8, seed=1, top=1.0)
    return model, lambda: model(values).square().sum()


def with_spectral_norm():
    """A net whose buffers affect the output and change in every pass."""
    norm = nn.utils.parametrizations.spectral_norm
    part = nn.Sequential(norm(nn.Linear(8, 8)), nn.Tanh())
    return nn.Sequential(part, nn.Linear(8, 2))


CASES = {name: lambda name=name: of_images(model_of(name, dropout=0.3)) for name in NETS}
CASES |= {
    "frozen circuits": lambda: of_images(model_of("residual_quanv", trainable=False)),
    "two filters": lambda: of_images(model_of("quanv", filters=2, circuit="random")),
    "default.qubit": lambda: of_values(partial(with_a_circuit, "default.qubit")),
    "spectral norm": lambda: of_values(with_spectral_norm),
    "a circuit in a part": lambda: of_values(with_a_circuit),
    "llama": llama,
}


def step(model, loss, again):
    """Loss, gradients (of two backward passes) and buffers of one step, and the next random number."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        with recomputing(model) if again else contextlib.nullcontext():
            value = loss()
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        options = {"retain_graph": True, "allow_unused": True}
        walks = [torch.autograd.grad(value, weights, **options) for _ in range(2)]
        return value.detach(), walks, dict(model.named_buffers()), torch.rand(())


@pytest.mark.parametrize("name", CASES)
def test_gradients_buffers_and_random_numbers_are_bitwise_the_same(name):
    """Also at the first step, in which a circuit is traced."""
    (model, loss), (twin, loss_of_twin) = CASES[name](), CASES[name]()
    model.train()
    plain = step(twin.train(), loss_of_twin, again=False)
    before = {path: dict(vars(module)) for path, module in model.named_modules()}
    with recomputing(model):
        assert list(model.state_dict()) == list(twin.state_dict())
        assert [path for path, _ in model.named_modules()] == list(before)
    for path, module in model.named_modules():
        assert before[path].keys() == vars(module).keys()
        assert all(value is vars(module)[key] for key, value in before[path].items())
    buffers = dict(model.named_buffers())
    again = step(model, loss, again=True)
    assert same(again, plain) and all(buffer is buffers[name] for name, buffer in model.named_buffers())
    assert any(gradient is not None and gradient.any() for gradient in plain[1][0])


def stored(loss):
    """Bytes that a forward pass adds: those stored for the backward pass."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        result = loss()
    size = sum(event.self_cpu_memory_usage for event in profiled.key_averages())
    result.backward()
    return size


@pytest.mark.parametrize("name", ["residual_quanv", "cnn", "two filters", "llama"])
def test_less_memory_is_used(name, monkeypatch):
    monkeypatch.setattr("qnnkit.simulator.fused.SMALL_BYTES", 0)  # the profiler sees only torch's memory
    model, loss = CASES[name]()
    model.train()
    with torch.random.fork_rng(devices=[]):
        stored(loss)
        plain = stored(loss)
        with recomputing(model):
            again = stored(loss)
    assert again < 0.6 * plain


def trained(**settings):
    """Weights, rows and watched gradients of a short training."""
    model, labels = model_of("residual_quanv", dropout=0.2), torch.arange(len(IMAGES)) % 4
    data = {name: Batches(IMAGES, labels, 12, shuffle=name == "train") for name in ("train", "validation")}
    groups = [train.Group("all", list(model.parameters()), 0.01)]
    watch = gradients.Watch(model, groups)
    rows = fit(model, data=data, epochs=2, micro_batch=6, groups=groups, watch=watch, **settings).rows
    assert not any("forward" in vars(module) for module in model.modules())
    return model.state_dict(), timeless(rows), watch.rows


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_training_ends_bitwise_the_same_and_restores_the_net(precision):
    again = trained(precision=precision, gradient_checkpointing=True)
    assert same(again, trained(precision=precision))
