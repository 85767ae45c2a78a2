"""The adapters' circuits are PennyLane's, matrix for matrix, and orthogonal."""

import itertools
import math

import pennylane as qp
import pytest
import torch

from qnnkit.adapters import orthogonal

EXACT = 1e-10  # float64


def angles_of(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return 2 * math.pi * torch.rand(*shape, generator=generator, dtype=torch.float64)


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
def test_matrices_are_pennylanes(n, entangled):
    angles = angles_of(2, 4, n)
    found = orthogonal.columns(angles, 2**n, entangled=entangled)
    for one, given in zip(found, angles, strict=True):
        expected = by_pennylane(given, entangled)
        assert expected.imag.abs().max() < EXACT
        assert (one - expected.real).abs().max() < EXACT


def test_fewer_columns_are_the_first_of_more_and_no_two_circuits_share_angles():
    angles = angles_of(2, 4, 6)
    whole, few, free = (orthogonal.columns(angles, n, entangled=n != 4) for n in (64, 3, 4))
    assert torch.equal(whole[..., :3], few) and (whole[..., :4] - free).abs().max() > 0.1
    assert torch.equal(few[1:], orthogonal.columns(angles[1:], 3))
