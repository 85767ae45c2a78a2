"""Adapters of equal parameter count, adapters made for another model, and their circuits."""

import itertools
import json
import math

import pennylane as qp
import pytest
import torch
from torch import nn

from qnnkit import adapters
from qnnkit.adapters import attach, orthogonal
from tests import nets
from tests.toys import refused, uniform

TARGETS = ["q_proj", "v_proj"]


def llama(hidden=128, n_layers=2):
    sizes = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "num_hidden_layers": n_layers}
    return nets.llama(1, **sizes).eval()


@pytest.fixture(scope="module")
def base():
    return llama()


@pytest.mark.parametrize("n_weights", [1000, 16000])
@pytest.mark.parametrize(
    ("name", "least", "step"), [("quantum_peft", 0, 0), ("lora", 1024, 1024), ("vera", 516, 4)]
)
def test_adapters_come_as_close_to_the_wanted_size_as_a_rank_allows(base, name, least, step, n_weights):
    n = adapters.size(base, name, n_weights=n_weights, targets=TARGETS)
    assert abs(n - max(least, n_weights)) <= (step / 2 or 0.05 * n_weights)
    assert not any("peft" in type(module).__module__ for module in base.modules())
    chosen = adapters.config(base, name, n_weights=n_weights, targets=TARGETS)
    assert all(weight.is_meta for weight in attach.trial(base, chosen).parameters())
    assert adapters.count(adapters.adapt(llama(), name, n_weights=n_weights, targets=TARGETS))["weights"] == n


def test_given_options_stay_and_controls_differ_in_nothing_else(base):
    def chosen(n_weights=4000, **options):
        return adapters.config(base, "quantum_peft", n_weights=n_weights, targets=TARGETS, **options)

    assert (chosen(n_layers=3, r=5).n_layers, chosen(n_layers=3, r=5).r) == (3, 5)
    assert (chosen(10).r, chosen(10).n_layers, chosen(10).n_terms) == (1, 1, 1)
    for options in ({"entangled": False}, {"train_circuit": False}):
        assert vars(chosen()) | options == vars(chosen(**options))
    assert adapters.config(base, "lora", r=3).lora_alpha == 6
    assert adapters.config(base, "lora", r=3, lora_alpha=5).lora_alpha == 5


@pytest.mark.parametrize(
    ("argument", "name", "options", "message"),
    [
        ("target_modules", "lora", {"targets": ["query"]}, "called down_proj, gate_proj, k_proj"),
        ("target_modules", "lora", {"target_modules": ["q_proj", "query"], "n_weights": 9}, "is 'query'"),
        ("target_modules", "quantum_peft", {"targets": ["embed_tokens", "q_proj"]}, "linear layers"),
        ("name", "lora", {"targets": "nothing.*"}, "Error: Target modules"),  # in PEFT's words
        ("name", "lorra", {}, "lora"), ("name", "qpa", {}, "quantum_peft"),
        ("options", "prompt_tuning", {"targets": TARGETS}, ""), ("options", "lora", {"rank": 4}, ""),
        ("options", "vera", {"lora_alpha": 4}, ""), ("n_weights", "lora", {"n_weights": -1}, ""),
        ("name", "lora", {"n_weights": 1000, "r": 4}, ""), ("name", "boft", {"n_weights": 1000}, ""),
        ("n_layers", "quantum_peft", {"n_layers": 0}, ""), ("n_terms", "quantum_peft", {"n_terms": 1.5}, ""),
        ("r", "quantum_peft", {"r": 140}, ""),
    ],
)  # fmt: skip
def test_a_failed_adapter_leaves_the_model_unchanged(base, argument, name, options, message):
    with refused(argument, says=message):
        adapters.adapt(base, name, **options)
    assert set(base.state_dict()) == set(llama().state_dict()) and not hasattr(base, "peft_config")


# --- loading ---------------------------------------------------------------------------------------


MADE_FOR = "meta-llama/Llama-3.2-3B"


def saved(folder, name):
    """An adapter that was made for another model than it says."""
    model = adapters.adapt(llama(32, 2), name, targets=TARGETS)
    model.save_pretrained(folder)
    config = json.loads((folder / attach.CONFIG).read_text())
    (folder / attach.CONFIG).write_text(json.dumps(config | {"base_model_name_or_path": MADE_FOR}))
    return model


OTHERS = {
    "one layer less": ("lora", lambda: llama(32, 1), "only one of them has"),
    "wider": ("vera", lambda: llama(80, 2), "size mismatch"),
    "one layer more": ("quantum_peft", lambda: llama(32, 3), "only one of them has"),
    "of no such layers": ("lora", lambda: nn.Sequential(nn.Linear(8, 8, device="meta")), "not found in"),
}


@pytest.mark.parametrize(("name", "make", "message"), OTHERS.values(), ids=OTHERS)
def test_an_adapter_loads_only_onto_its_own_model(tmp_path, name, make, message):
    model, base, other = saved(tmp_path, name), llama(32, 2), make()
    base.name_or_path = "somewhere/else"
    with pytest.warns(UserWarning, match=f"was made for {MADE_FOR}, the model is somewhere/else"):
        again = adapters.load(base, tmp_path, trainable=True)
    assert adapters.count(again) == adapters.count(model)
    with refused("name"):
        adapters.load(again, tmp_path)
    before = {key: weight.requires_grad for key, weight in other.named_parameters()}
    with refused("folder", says=f"was made for {MADE_FOR}") as caught:
        adapters.load(other, tmp_path)
    assert message in str(caught.value)
    assert {key: weight.requires_grad for key, weight in other.named_parameters()} == before
    assert not other._forward_pre_hooks


def test_folders_without_an_adapter(tmp_path):
    base = llama(32, 2)
    for folder in (tmp_path / "none", tmp_path):
        with refused("folder", FileNotFoundError):
            adapters.load(base, folder)
    saved(tmp_path, "lora")
    contents = ("{", "[]", '{"peft_type": "LORRA"}')
    for file, content in ((attach.WEIGHTS, "damaged"), *((attach.CONFIG, each) for each in contents)):
        (tmp_path / file).write_text(content)
        with refused("folder"):
            adapters.load(base, tmp_path)


# --- the circuits are PennyLane's, matrix for matrix -----------------------------------------------

EXACT = 1e-10  # float64


def by_pennylane(angles, entangled):
    """The matrix of one circuit, of shape (2**n, 2**n); angles of shape (n_layers + 1, n)."""
    wires = range(angles.shape[-1])

    def circuit(angles):
        for layer, of_wires in enumerate(angles):
            for pair in itertools.pairwise(wires) if layer and entangled else ():
                qp.CZ(wires=pair)
            for wire, angle in zip(wires, of_wires, strict=True):
                qp.RY(angle, wires=wire)

    return torch.as_tensor(qp.matrix(circuit, wire_order=wires)(angles.numpy()))


@pytest.mark.parametrize("entangled", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_matrices_equal_pennylanes(n, entangled):
    angles = uniform(2, 4, n, top=2 * math.pi, dtype=torch.float64)
    columns = orthogonal.columns(angles, 2**n, entangled=entangled)
    few = orthogonal.columns(angles, 1, entangled=entangled)
    assert (columns[..., :1] - few).abs().max() < EXACT
    for one, row in zip(columns, angles, strict=True):
        expected = by_pennylane(row, entangled)
        assert expected.imag.abs().max() < EXACT
        assert (one - expected.real).abs().max() < EXACT
