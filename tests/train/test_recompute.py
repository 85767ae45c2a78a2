"""qnnkit.train.recompute: less is kept on the way forward, and nothing else changes."""

import contextlib
import copy

import pennylane as qp
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from qnnkit import circuits, layers, train
from qnnkit.settings import Settings
from qnnkit.tasks import Classification
from qnnkit.train.recompute import recomputing
from tests.nets import NETS, family
from tests.same import from_seed, same
from tests.toys import Batches

SIZES = {"channels": 3, "image_size": (16, 16), "n_classes": 4}
IMAGES = torch.randint(256, (16, 3, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def model_of(name, **settings):
    return family(name, {"width": 8, "hidden": 6}, sizes=SIZES, **settings)


def llama(**settings):
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    settings |= {"use_cache": False}  # with a cache, keys are joined to nothing first: other sums
    model = from_seed(lambda: LlamaForCausalLM(LlamaConfig(vocab_size=40, **shape, **settings)))
    tokens = torch.arange(4 * 12).reshape(4, 12) % 40
    return model, lambda: model(input_ids=tokens, labels=tokens).loss


def clip():
    from transformers import CLIPConfig, CLIPModel

    shape = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = shape | {"vocab_size": 40, "max_position_embeddings": 12, "eos_token_id": 2}
    vision = shape | {"image_size": 16, "patch_size": 8}
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=8)
    model = from_seed(lambda: CLIPModel(config))
    tokens = torch.arange(4 * 12).reshape(4, 12) % 40
    pixels = IMAGES[:4].float() / 255
    return model, lambda: model(input_ids=tokens, pixel_values=pixels, return_loss=True).loss


def of_images(model):
    return model, lambda: model(IMAGES).logsumexp(-1).sum()


class Block(nn.Module):
    """A custom block: dropout, running statistics, and two inputs."""

    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.SiLU(), nn.Dropout(0.5))
        self.cumulative = nn.BatchNorm1d(width, momentum=None)

    def forward(self, values, *, scale=1.0):
        return values + scale * self.cumulative(self.inner(values))


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(8) for _ in range(3))

    def forward(self, values):
        for block in self.blocks:
            values = block(values, scale=0.5)
        return values


def listed():
    model, values = from_seed(Listed), torch.rand(512, 8, generator=torch.Generator().manual_seed(1))
    return model, lambda: model(values).square().sum()


def with_spectral_norm():
    """Its buffers decide what comes out, and every pass moves them."""
    norm = nn.utils.parametrizations.spectral_norm
    model = from_seed(
        lambda: nn.ModuleList([nn.Sequential(norm(nn.Linear(8, 8)), nn.Tanh()), nn.Linear(8, 2)])
    )
    values = torch.rand(16, 8, generator=torch.Generator().manual_seed(1))
    return model, lambda: model[1](model[0](values)).square().sum()


def on_default_qubit():
    return of_images(family("resnet_circuit", sizes=SIZES | {"backend": "default.qubit"}, hidden=6))


CASES = {name: lambda name=name: of_images(model_of(name, dropout=0.3)) for name in NETS}
CASES |= {
    "frozen circuits": lambda: of_images(model_of("residual_quanv", trainable=False)),
    "frozen backbone": lambda: of_images(model_of("resnet_circuit", frozen_backbone=True)),
    "two filters": lambda: of_images(model_of("quanv", filters=2, circuit="random")),
    "default.qubit": on_default_qubit,
    "a list": listed,
    "spectral norm": with_spectral_norm,
    "llama": llama,
    "llama, dropout": lambda: llama(attention_dropout=0.4),
    "clip": clip,
}


def step(model, loss, again):
    """Loss, gradients and buffers of one step, and the next number of the generator."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        model.zero_grad()
        with recomputing(model) if again else contextlib.nullcontext():
            found = loss()
        found.backward()
        gradients = {name: weight.grad for name, weight in model.named_parameters()}
        return found.detach(), gradients, dict(model.named_buffers()), torch.rand(())


@pytest.mark.parametrize("name", CASES)
def test_gradients_buffers_and_random_numbers_are_the_same_bits_and_the_model_stays(name):
    model, loss = CASES[name]()
    model.train()
    step(model, loss, again=False)  # lazy things: shapes, the choice of a backend
    start = copy.deepcopy(model.state_dict())
    plain = copy.deepcopy(step(model, loss, again=False))
    model.load_state_dict(start)
    before = {path: dict(vars(module)) for path, module in model.named_modules()}
    with recomputing(model):
        assert list(model.state_dict()) == list(start)
        assert [path for path, _ in model.named_modules()] == list(before)
    for path, module in model.named_modules():
        assert before[path].keys() == vars(module).keys()
        assert all(value is vars(module)[key] for key, value in before[path].items())
    buffers = dict(model.named_buffers())
    again = step(model, loss, again=True)
    assert same(again, plain) and all(buffer is buffers[name] for name, buffer in model.named_buffers())
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in plain[1].values())


def test_a_graph_may_be_walked_twice():
    model, loss = listed()
    with torch.random.fork_rng(devices=[]), recomputing(model):
        found = loss()
    weights = list(model.parameters())
    first, second = (torch.autograd.grad(found, weights, retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))


def kept(loss):
    """Bytes that are there after a forward pass and were not before it: what is kept for the way back."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        result = loss()
    size = sum(event.self_cpu_memory_usage for event in found.key_averages())
    result.backward()
    return size


SMALLER = {
    "residual_quanv": 0.6, "resnet_circuit": 0.75, "cnn": 0.6, "quanv": 0.6,
    "two filters": 0.6, "default.qubit": 0.75, "a list": 0.5, "llama": 0.5, "clip": 0.6,
}  # fmt: skip


@pytest.mark.parametrize("name", SMALLER)
def test_less_is_kept(name, monkeypatch):
    monkeypatch.setattr("qnnkit.simulator.fused.SMALL_BYTES", 0)  # the profiler sees torch's memory alone
    model, loss = CASES[name]()
    model.train()
    with torch.random.fork_rng(devices=[]):
        kept(loss)
        plain = kept(loss)
        with recomputing(model):
            again = kept(loss)
    assert again < SMALLER[name] * plain


def trained(model, **settings):
    """Weights, rows and watched gradients of a short training."""
    labels = torch.arange(len(IMAGES)) % 4
    loaders = {name: Batches(IMAGES, labels, 12, shuffle=name == "train") for name in ("train", "validation")}
    rows, found = [], []
    watch = None
    if layers.quantum_parameters(model):
        from qnnkit import gradients

        groups = [train.Group("all", list(model.parameters()), 0.01)]
        watch = gradients.Watch(model, groups, log=found.append)
    config = Settings(epochs=2, micro_batch=6, **settings)
    train.fit(model, Classification(), loaders, config, watch=watch, log=rows.append)
    return model.state_dict(), [{**row, "seconds": None} for row in rows], found


TRAINED = {
    "quanvolution": lambda: model_of("residual_quanv", dropout=0.2),
    "cnn": lambda: model_of("cnn", dropout=0.2),
}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", TRAINED)
def test_a_training_ends_in_the_same_bits_and_leaves_the_net_as_it_was(name, precision):
    plain = trained(TRAINED[name](), precision=precision)
    again = trained(model := TRAINED[name](), precision=precision, gradient_checkpointing=True)
    assert same(plain[0], again[0]) and plain[1:] == again[1:]
    assert not any("forward" in vars(module) for module in model.modules())


def test_hooks_on_a_part_run_once():
    model, calls = model_of("residual_quanv"), []
    model.stem[3].register_forward_hook(lambda *given: calls.append(1))
    with recomputing(model):
        model(IMAGES).sum().backward()
    assert calls == [1]


class Mixed(nn.Module):
    """A part that holds a circuit beside other weights, so that it is computed again as a whole."""

    def __init__(self):
        super().__init__()
        self.reduce = nn.Linear(6, 4)
        circuit = circuits.build("data_reuploading", n_qubits=4, n_layers=2)
        self.circuit = layers.QuantumLayer(*circuit)

    def forward(self, values):
        return self.circuit(self.reduce(values))


def test_what_is_done_once_inside_a_part_is_not_missed_the_second_time():
    """The first batch of a form has its circuit traced."""
    values = torch.rand(8, 6, generator=torch.Generator().manual_seed(1))
    found = []
    for again in (True, False):
        model = from_seed(
            lambda: nn.Sequential(Mixed(), nn.Sequential(nn.Linear(4, 4), nn.Tanh()), nn.Tanh())
        )
        with torch.random.fork_rng(devices=[]), recomputing(model) if again else contextlib.nullcontext():
            model(values).square().sum().backward()
        assert model[0].circuit.explain().startswith("Runs as one fused program")
        found.append({name: weight.grad for name, weight in model.named_parameters()})
    assert same(*found)


@qp.qnode(qp.device("default.qubit", wires=2, seed=0), diff_method="parameter-shift")
def sampled(inputs, weights):
    qp.AngleEmbedding(inputs, wires=range(2))
    qp.BasicEntanglerLayers(weights, wires=range(2))
    return [qp.expval(qp.PauliZ(wire)) for wire in range(2)]


def test_a_circuit_with_shots_is_not_run_twice():
    layer = from_seed(lambda: layers.QuantumLayer(qp.set_shots(sampled, 50), {"weights": (1, 2)}))
    inputs = torch.rand(3, 2, generator=torch.Generator().manual_seed(0))
    counted = []
    layer.qnode.func = counting(layer.qnode.func, counted)
    with torch.random.fork_rng(devices=[]), recomputing(layer):
        layer(inputs)
        counted.clear()
        layer(inputs).sum().backward()
    assert len(counted) == 1


def counting(function, calls):
    def counted(*given, **named):
        calls.append(1)
        return function(*given, **named)

    return counted
