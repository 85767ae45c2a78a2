"""The adapters' circuits are PennyLane's, matrix for matrix, and orthogonal."""

import itertools
import math

import pennylane as qp
import pytest
import torch

from qnnkit.adapters import orthogonal
from qnnkit.circuits import make_device
from qnnkit.models.blocks import seeded

EXACT = 1e-10  # float64


def angles_of(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * math.pi * torch.rand(*shape, generator=generator, dtype=torch.float64)


def gates(angles, wires, entangled=True):
    """The circuit, in PennyLane's words; angles of shape (n_layers + 1, n_wires)."""
    for layer, of_wires in enumerate(angles):
        if layer and entangled:
            for one, other in itertools.pairwise(wires):
                qp.CZ(wires=(one, other))
        for wire, angle in zip(wires, of_wires, strict=True):
            qp.RY(angle, wires=wire)


def by_pennylane(angles, entangled):
    """The matrix of one circuit, of shape (2**n, 2**n)."""
    wires = tuple(range(angles.shape[-1]))

    def function(weights):
        gates(weights, wires, entangled)

    return torch.as_tensor(qp.matrix(function, wire_order=wires)(angles.numpy()))


@pytest.mark.parametrize("entangled", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_matrices_are_pennylanes(n, entangled):
    angles = angles_of(2, 4, n)
    found = orthogonal.columns(angles, 2**n, entangled=entangled)
    for one, given in zip(found, angles, strict=True):
        expected = by_pennylane(given, entangled)
        assert expected.imag.abs().max() < EXACT
        assert (one - expected.real).abs().max() < EXACT


def test_the_first_state_is_default_qubits():
    angles = angles_of(1, 3, 5)

    @qp.qnode(make_device("default.qubit", range(5)))
    def probabilities(weights):
        gates(weights, range(5))
        return qp.probs(wires=range(5))

    found = orthogonal.columns(angles, 1)[0, :, 0] ** 2
    assert (found - torch.as_tensor(probabilities(angles[0].numpy()))).abs().max() < EXACT


@pytest.mark.parametrize("n", [1, 3, 8])
def test_columns_are_orthonormal_before_cropping(n):
    columns = orthogonal.columns(angles_of(3, 6, n), min(4, 2**n))
    eye = torch.eye(columns.shape[-1], dtype=torch.float64)
    assert (columns.mT @ columns - eye).abs().max() < EXACT


def test_fewer_columns_are_the_first_of_more():
    angles = angles_of(2, 4, 6)
    assert torch.equal(orthogonal.columns(angles, 64)[..., :3], orthogonal.columns(angles, 3))


@pytest.mark.parametrize("entangled", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_gradients_are_exact(n, entangled):
    angles = angles_of(2, 3, n).requires_grad_()

    def columns(given):
        return orthogonal.columns(given, 2, entangled=entangled)

    assert torch.autograd.gradcheck(columns, angles)
    with seeded(0):
        assert torch.autograd.gradgradcheck(columns, angles)
    by_torch = torch.func.jacrev(columns)(angles)
    by_hand = torch.autograd.functional.jacobian(columns, angles)
    assert (by_torch - by_hand).abs().max() < EXACT


def test_entanglers_make_a_difference_and_no_two_circuits_share_angles():
    angles = angles_of(2, 3, 4)
    bound, free = orthogonal.columns(angles, 4), orthogonal.columns(angles, 4, entangled=False)
    assert (bound - free).abs().max() > 0.1
    assert torch.equal(bound[1:], orthogonal.columns(angles[1:], 4))
