"""What a fused program can do beside being right: several at once, a compiler, a fingerprint."""

import pytest
import torch

from qnnkit import QuantumLayer, Quanv2d, circuits
from qnnkit.simulator import fuse, together
from qnnkit.simulator.execute import Compiled

FLOAT32 = 1e-5


def program(ansatz="random", seed=0, **options):
    qnode, shapes = circuits.build(ansatz, seed=seed, **options)
    weights = torch.linspace(0.1, 3, 64)[: torch.Size(shapes["weights"]).numel()].reshape(shapes["weights"])
    return fuse(qnode, (2, 4), shapes), [weights * (seed + 1)]


@pytest.mark.parametrize("batch", [0, 1, 5, 20_000])
def test_filters_run_as_one_product(batch):
    programs, weights = zip(*(program(seed=seed) for seed in range(3)), strict=True)
    inputs = torch.linspace(-3, 3, 4 * batch).reshape(batch, 4)
    with torch.no_grad():
        values = together(programs, inputs, weights)
        assert values is not None and values.shape == (batch, 3, 4)
        for i, (one, given) in enumerate(zip(programs, weights, strict=True)):
            assert torch.allclose(values[:, i], one(inputs, given), atol=FLOAT32)


@pytest.mark.parametrize("other", [{"ansatz": "data_reuploading"}, {"embedding": "iqp"}, {"n_qubits": 5}])
def test_circuits_that_differ_in_more_than_a_matrix_run_by_themselves(other):
    (one, a), (another, b) = program(), program(**other)
    assert together([one, another], torch.zeros(2, 4), [a, b]) is None


def test_a_fingerprint_is_the_circuit():
    """The same circuit built twice has one; a gate, a seed or a measurement more or less has another."""
    same = {program()[0].fingerprint, program()[0].fingerprint}
    others = {
        program(seed=1)[0].fingerprint,
        program("strongly_entangling")[0].fingerprint,
        program("strongly_entangling", embedding="iqp")[0].fingerprint,
        program("strongly_entangling", embedding="amplitude", n_qubits=2)[0].fingerprint,
        program("data_reuploading")[0].fingerprint,
        program("data_reuploading", n_layers=1)[0].fingerprint,
    }
    assert len(same) == 1 and len(others) == 6 and not same & others


def test_a_compiler_that_is_missing_costs_nothing_but_a_sentence(monkeypatch):
    def fails(self, columns, vector):
        raise RuntimeError("No working C++ compiler found\nand more lines")

    monkeypatch.setattr(Compiled, "speed_up", fails)
    one, weights = program("data_reuploading")
    inputs = torch.linspace(-3, 3, 20).reshape(5, 4)
    expected = one(inputs, weights)
    one.wants_compiler = True
    assert torch.equal(one(inputs, weights), expected)
    assert one.no_compiler == "RuntimeError: No working C++ compiler found" and not one.wants_compiler


@pytest.mark.slow
def test_the_compiled_form_is_the_same_program():
    qnode, shapes = circuits.build("data_reuploading")
    layer = QuantumLayer(qnode, shapes, {"weights": torch.linspace(0.1, 3, 24).reshape(2, 4, 3)})
    inputs = torch.linspace(-3, 3, 64).reshape(16, 4).requires_grad_()
    found = []
    for _ in range(2):
        values = layer(inputs)
        found.append((values, *torch.autograd.grad(values.square().sum(), [inputs, layer.weights])))
        [one] = layer._programs.values()
        one.wants_compiler = True
    [compiled] = one._compiled.values()
    assert one.no_compiler is None and compiled.fast_batch == 16
    for plain, fast in zip(*found, strict=True):
        assert torch.allclose(plain, fast, atol=FLOAT32)
    assert torch.allclose(layer(inputs[:3]), found[0][0][:3], atol=FLOAT32), "another batch, not compiled for"


def test_frozen_filters_of_a_quanvolution_share_one_program(monkeypatch):
    from qnnkit.layers import quantum

    calls = []
    monkeypatch.setattr(quantum, "together", lambda *given: calls.append(1) or together(*given))
    frozen, trained = (Quanv2d(2, "random", filters=3, trainable=trainable) for trainable in (False, True))
    images = torch.linspace(0, 3, 2 * 2 * 36).reshape(2, 2, 6, 6)
    first = frozen(images)  # traces each filter by itself
    values = frozen(images)
    assert not values.requires_grad and calls
    assert torch.allclose(values, trained(images).detach(), atol=FLOAT32)
    assert torch.allclose(values, first, atol=FLOAT32)
    del calls[:]
    assert trained(images).requires_grad and not calls
    assert frozen(images.requires_grad_()).requires_grad, "the way to the images stays open"


def test_circuits_built_from_the_same_share_a_trace_and_no_others_do():
    from qnnkit.layers import QuantumLayer

    def layer(transform=None, **sizes):
        qnode, shapes = circuits.build("random", n_qubits=3, **sizes)
        start = torch.arange(6.0).reshape(2, 3)
        found = QuantumLayer(transform(qnode) if transform else qnode, shapes, {"weights": start})
        found(torch.ones(2, 3))
        return found

    def trace_of(made):
        [program] = made._programs.values()
        return program.trace

    one, same = layer(seed=5), layer(seed=5)
    assert trace_of(one) is trace_of(same) and torch.equal(one(torch.ones(2, 3)), same(torch.ones(2, 3)))
    for other in (layer(seed=6), layer(circuits.drop_entanglement, seed=5), layer(seed=5, embedding="iqp")):
        assert trace_of(other) is not trace_of(one)
        witness = other.with_qnode(other.qnode, backend="default.qubit")
        assert torch.allclose(other(torch.ones(2, 3)), witness(torch.ones(2, 3)), atol=1e-6)
