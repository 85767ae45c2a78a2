"""Circuits: closed forms, and a second simulator that multiplies dense matrices in NumPy."""

from __future__ import annotations

import itertools
from functools import reduce

import numpy as np
import pennylane as qp
import pytest
import torch

from qnnkit import CIRCUITS, circuits
from tests.toys import refused

EXACT = 1e-10
"""Largest error allowed in float64."""
NO_GRADIENT, SOME_GRADIENT = 1e-12, 1e-5

CASES = [
    ("data_reuploading", "angle"),
    *itertools.product(("strongly_entangling", "hardware_efficient", "random"), circuits.EMBEDDINGS),
]


def arguments(ansatz: str, embedding: str, n_qubits: int, *, n_layers: int = 2, batch: tuple[int, ...] = ()):
    """Inputs in [0, pi] and weights in [0, 2 pi], the same at every call."""
    generator = np.random.default_rng(n_qubits)
    n_features = circuits.embedding_of(ansatz, embedding).n_features(n_qubits)
    inputs = generator.uniform(0, np.pi, (*batch, n_features))
    return inputs, generator.uniform(0, 2 * np.pi, CIRCUITS[ansatz].weights_shape(n_layers, n_qubits))


def tape_of(qnode, inputs, weights):
    return qp.workflow.construct_tape(qnode, level="device")(inputs, weights)


def gates(qnode, inputs, weights) -> list[tuple]:
    """The tape as (name, wires, angles), for comparison with a list written by hand."""
    return [
        (gate.name, tuple(gate.wires), *(round(float(angle), 6) for angle in gate.parameters))
        for gate in tape_of(qnode, inputs, weights).operations
    ]


# --- the second witness -----------------------------------------------------------------------------

ONE, X, Y, Z = (
    np.array(matrix, dtype=complex)
    for matrix in (((1, 0), (0, 1)), ((0, 1), (1, 0)), ((0, -1j), (1j, 0)), ((1, 0), (0, -1)))
)


def rotation(pauli: np.ndarray, angle: float) -> np.ndarray:
    """exp(-i angle pauli / 2), as pauli squared is 1."""
    return np.cos(angle / 2) * np.eye(len(pauli)) - 1j * np.sin(angle / 2) * pauli


def spread(factors: dict[int, np.ndarray], n_qubits: int) -> np.ndarray:
    """The Kronecker product of `factors` by wire and the identity elsewhere; wire 0 is leftmost."""
    return reduce(np.kron, [factors.get(wire, ONE) for wire in range(n_qubits)])


def controlled(gate: np.ndarray, wires, n_qubits: int) -> np.ndarray:
    control, target = wires
    off, on = (ONE + Z) / 2, (ONE - Z) / 2
    return spread({control: off}, n_qubits) + spread({control: on, target: gate}, n_qubits)


def dense_matrix(gate, n_qubits: int) -> np.ndarray:
    name, wires, angles = gate.name, list(gate.wires), [float(angle) for angle in gate.parameters]
    if name in ("RX", "RY", "RZ"):
        return spread({wires[0]: rotation({"X": X, "Y": Y, "Z": Z}[name[1]], angles[0])}, n_qubits)
    if name == "Rot":
        first, second, third = (rotation(p, a) for p, a in zip((Z, Y, Z), angles, strict=True))
        return spread({wires[0]: third @ second @ first}, n_qubits)
    if name == "Hadamard":
        return spread({wires[0]: (X + Z) / np.sqrt(2)}, n_qubits)
    if name in ("CNOT", "CZ"):
        return controlled(X if name == "CNOT" else Z, wires, n_qubits)
    if name == "MultiRZ":
        return rotation(spread(dict.fromkeys(wires, Z), n_qubits), angles[0])
    raise NotImplementedError(name)


def dense_state(tape, inputs: np.ndarray, n_qubits: int) -> np.ndarray:
    """The state after the tape; a state preparation is taken to prepare `inputs`, padded and normalised."""
    state = np.zeros(2**n_qubits, dtype=complex)
    state[0] = 1
    for gate in tape.operations:
        if isinstance(gate, qp.operation.StatePrepBase):
            state = np.zeros(2**n_qubits, dtype=complex)
            state[: len(inputs)] = inputs / np.sqrt((inputs**2).sum())
        else:
            state = dense_matrix(gate, n_qubits) @ state
    return state


def dense_expectations(state: np.ndarray, n_qubits: int) -> list[float]:
    return [float((state.conj() @ spread({i: Z}, n_qubits) @ state).real) for i in range(n_qubits)]


@pytest.mark.parametrize("n_qubits", [1, 2, 3, 4, 5])
@pytest.mark.parametrize(("ansatz", "embedding"), CASES)
def test_a_dense_simulator_agrees(ansatz, embedding, n_qubits):
    qnode, shapes = circuits.build(ansatz, n_qubits=n_qubits, n_layers=2, embedding=embedding)
    inputs, weights = arguments(ansatz, embedding, n_qubits)
    assert weights.shape == shapes["weights"]
    expected = dense_expectations(dense_state(tape_of(qnode, inputs, weights), inputs, n_qubits), n_qubits)
    np.testing.assert_allclose(qnode(inputs, weights), expected, rtol=0, atol=EXACT)


# --- closed forms -----------------------------------------------------------------------------------


@pytest.mark.parametrize("angle", [0.0, 0.3, np.pi / 2, 2.5, -1.0])
def test_the_angle_embedding_gives_the_cosine(angle):
    qnode, _ = circuits.build("hardware_efficient", n_qubits=1, n_layers=1)
    np.testing.assert_allclose(qnode([angle], np.zeros((1, 1, 2))), [np.cos(angle)], atol=EXACT)


def test_the_iqp_embedding_of_two_features():
    # With H RZ(x) on both wires and a ZZ rotation by xy, <X_0> = cos x cos xy; RY(-pi/2) turns X into Z.
    x, y = 0.4, 1.1

    @qp.qnode(circuits.make_device("default.qubit", 2))
    def circuit():
        circuits.iqp([x, y], (0, 1))
        for wire in (0, 1):
            qp.RY(-np.pi / 2, wires=wire)
        return [qp.expval(qp.Z(0)), qp.expval(qp.Z(1))]

    np.testing.assert_allclose(circuit(), [np.cos(x) * np.cos(x * y), np.cos(y) * np.cos(x * y)], atol=EXACT)


@pytest.mark.parametrize(
    ("features", "expected"),
    [([1, 1, 0, 0], [1, 0]), ([3, 0, 0, 4], [-0.28, -0.28]), ([1, 0, 1], [0, 1]), ([0, -2], [1, -1])],
)
def test_the_amplitude_embedding_of_two_wires(features, expected):
    @qp.qnode(circuits.make_device("default.qubit", 2))
    def circuit(inputs):
        circuits.amplitude(inputs, (0, 1))
        return [qp.expval(qp.Z(0)), qp.expval(qp.Z(1))]

    np.testing.assert_allclose(circuit(np.array(features, dtype=float)), expected, atol=EXACT)


def bell_weights(n_qubits: int) -> np.ndarray:
    """CZ then RY(-pi/2) on the next wire, layer by layer: on |+...+> it makes a GHZ state, up to a sign."""
    weights = np.zeros((n_qubits - 1, n_qubits, 2))
    for layer in range(n_qubits - 1):
        weights[layer][layer + 1][1] = -np.pi / 2
    return weights


@pytest.mark.parametrize(("n_qubits", "sign"), [(2, -1), (3, 1)])
def test_bell_and_ghz(n_qubits, sign):
    wires = tuple(range(n_qubits))

    @qp.qnode(circuits.make_device("default.qubit", wires))
    def circuit():
        circuits.angle([np.pi / 2] * n_qubits, wires)
        circuits.hardware_efficient(bell_weights(n_qubits), wires)
        flips = qp.prod(*(qp.X(wire) for wire in wires))
        ones = [qp.expval(qp.Z(wire)) for wire in wires]
        return [*ones, *(qp.expval(qp.Z(i) @ qp.Z(i + 1)) for i in wires[:-1]), qp.expval(flips)]

    expected = [0] * n_qubits + [1] * (n_qubits - 1) + [sign]
    np.testing.assert_allclose(circuit(), expected, atol=EXACT)


# --- gates, written by hand -------------------------------------------------------------------------


def test_the_gates_of_data_reuploading():
    qnode, _ = circuits.build("data_reuploading", n_qubits=3, n_layers=2)
    a, b, c = 0.1, 0.2, 0.3
    weights = np.arange(1, 19).reshape(2, 3, 3)
    # fmt: off
    assert gates(qnode, [a, b, c], weights) == [
        ("RY", (0,), a), ("RY", (1,), b), ("RY", (2,), c),
        ("RY", (0,), 1), ("RZ", (0,), 2), ("RY", (1,), 4), ("RZ", (1,), 5), ("RY", (2,), 7), ("RZ", (2,), 8),
        ("CNOT", (0, 1)), ("CNOT", (1, 2)), ("CNOT", (2, 0)),
        ("RY", (0,), 3), ("RY", (1,), 6), ("RY", (2,), 9),
        ("RY", (0,), a), ("RY", (1,), b), ("RY", (2,), c),
        ("RY", (0,), 10), ("RZ", (0,), 11), ("RY", (1,), 13), ("RZ", (1,), 14),
        ("RY", (2,), 16), ("RZ", (2,), 17),
        ("CNOT", (0, 1)), ("CNOT", (1, 2)), ("CNOT", (2, 0)),
        ("RY", (0,), 12), ("RY", (1,), 15), ("RY", (2,), 18),
    ]
    # fmt: on


def test_a_block_of_hardware_efficient_alternates_from_its_place():
    for first, pairs in ((0, [[0, 1], [2, 3]]), (1, [[1, 2]])):
        tape = qp.tape.make_qscript(circuits.hardware_efficient)(np.zeros((1, 4, 2)), range(4), first=first)
        assert [each.wires.tolist() for each in tape.operations if each.name == "CZ"] == pairs


def test_hardware_efficient_alternates_its_pairs():
    qnode, _ = circuits.build("hardware_efficient", n_qubits=4, n_layers=3)
    weights = np.arange(1, 25).reshape(3, 4, 2)
    rotations = [
        [(name, (wire,), weights[layer][wire][k]) for wire in range(4) for k, name in enumerate(("RZ", "RY"))]
        for layer in range(3)
    ]
    assert gates(qnode, [0.1, 0.2, 0.3, 0.4], weights) == [
        *(("RY", (wire,), round(0.1 * (wire + 1), 6)) for wire in range(4)),
        *[("CZ", (0, 1)), ("CZ", (2, 3)), *rotations[0]],
        *[("CZ", (1, 2)), *rotations[1]],
        *[("CZ", (0, 1)), ("CZ", (2, 3)), *rotations[2]],
    ]


def test_random_keeps_its_structure_by_seed_and_uses_every_weight_once():
    inputs, weights = arguments("random", "angle", 4)

    def structure(seed: int) -> list[tuple]:
        return gates(circuits.build("random", n_qubits=4, seed=seed)[0], inputs, weights)[4:]

    assert structure(3) == structure(3)
    assert len({str([gate[:2] for gate in structure(seed)]) for seed in range(5)}) == 5
    angles = [gate[2] for gate in structure(0) if len(gate) == 3]
    np.testing.assert_allclose(angles, weights.flatten(), atol=1e-6)


# --- batches, gradients -----------------------------------------------------------------------------


@pytest.mark.parametrize("n_qubits", [1, 3])
@pytest.mark.parametrize(("ansatz", "embedding"), CASES)
def test_a_batch_is_a_loop_over_its_samples(ansatz, embedding, n_qubits):
    qnode, _ = circuits.build(ansatz, n_qubits=n_qubits, embedding=embedding)
    inputs, weights = arguments(ansatz, embedding, n_qubits, batch=(5,))
    one_by_one = np.stack([qnode(sample, weights) for sample in inputs], axis=1)  # (n_qubits, batch)
    np.testing.assert_allclose(qnode(inputs, weights), one_by_one, rtol=0, atol=EXACT)
    assert np.ptp(one_by_one, axis=1).max() > 0.1  # the data matter


@pytest.mark.parametrize("n_qubits", [1, 2, 4])
@pytest.mark.parametrize(("ansatz", "embedding"), CASES)
def test_weights_have_gradients(ansatz, embedding, n_qubits):
    """All but the last angle of strongly_entangling's last layer, which commutes with Z."""
    qnode, _ = circuits.build(ansatz, n_qubits=n_qubits, embedding=embedding)
    inputs, weights = map(torch.tensor, arguments(ansatz, embedding, n_qubits, batch=(5,)))
    outputs = torch.stack(list(qnode(inputs, weights.requires_grad_())))
    mixture = torch.rand(outputs.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    outputs.backward(mixture)
    size = weights.grad.abs()
    if ansatz == "strongly_entangling":
        assert size[-1, :, 2].max() < NO_GRADIENT
        size[-1, :, 2] = 1
    if ansatz == "random":  # a rotation about Z may come last
        assert size.max() > SOME_GRADIENT
    else:
        assert size.min() > SOME_GRADIENT


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("n_features", [1, 3, 4])
def test_a_blank_sample_becomes_the_zero_state_and_has_finite_gradients(n_features, dtype):
    qnode, _ = circuits.build("hardware_efficient", n_qubits=2, embedding="amplitude")
    weights = torch.tensor(arguments("hardware_efficient", "amplitude", 2)[1]).float().requires_grad_()
    inputs = torch.zeros(2, n_features, dtype=dtype)
    inputs[1, -1] = 3  # its neighbour in the batch is not blank
    zero, last = torch.eye(4)[0], torch.eye(4)[n_features - 1]
    expected = torch.stack([torch.stack(qnode(state, weights)) for state in (zero, last)], dim=1)
    found = torch.stack(qnode(inputs.requires_grad_(dtype.is_floating_point), weights))
    torch.testing.assert_close(found, expected, check_dtype=False)
    found.sum().backward()
    assert all(leaf.grad.isfinite().all() for leaf in (inputs, weights) if leaf.requires_grad)


# --- without entanglement ---------------------------------------------------------------------------


def product_inputs(embedding: str, n_qubits: int) -> np.ndarray:
    """Features that no embedding entangles: amplitudes of a product state for the amplitude embedding."""
    angles = np.linspace(0.3, 2.5, n_qubits)
    if embedding != "amplitude":
        return angles
    return reduce(np.kron, [np.array([np.cos(angle), np.sin(angle)]) for angle in angles])


def purities(state: np.ndarray, n_qubits: int) -> list[float]:
    """Of each wire alone: 1 for a product state, less for an entangled one."""
    found = []
    for wire in range(n_qubits):
        matrix = np.moveaxis(state.reshape([2] * n_qubits), wire, 0).reshape(2, -1)
        density = matrix @ matrix.conj().T
        found.append(float((density @ density).trace().real))
    return found


@pytest.mark.parametrize("n_qubits", [2, 3, 4])
@pytest.mark.parametrize(("ansatz", "embedding"), CASES)
def test_drop_entanglement(ansatz, embedding, n_qubits):
    qnode, _ = circuits.build(ansatz, n_qubits=n_qubits, n_layers=3, embedding=embedding)
    separable = circuits.drop_entanglement(qnode)
    _, weights = arguments(ansatz, embedding, n_qubits, n_layers=3)
    inputs = product_inputs(embedding, n_qubits)
    whole, tape = tape_of(qnode, inputs, weights), tape_of(separable, inputs, weights)

    def angles_of(tape) -> list[float]:
        return [float(angle) for gate in tape.operations if len(gate.wires) == 1 for angle in gate.parameters]

    prepares = qp.operation.StatePrepBase
    assert [gate for gate in tape.operations if len(gate.wires) > 1 and not isinstance(gate, prepares)] == []
    assert angles_of(tape) == angles_of(whole)
    assert len(angles_of(tape)) >= weights.size  # every weight still acts
    state = dense_state(tape, inputs, n_qubits)
    np.testing.assert_allclose(purities(state, n_qubits), 1, atol=EXACT)
    np.testing.assert_allclose(separable(inputs, weights), dense_expectations(state, n_qubits), atol=EXACT)
    assert min(purities(dense_state(whole, inputs, n_qubits), n_qubits)) < 0.99  # there was something to drop


def test_drop_entanglement_keeps_entangled_data():
    """Amplitudes are the data itself: they stay, and only the gates after them act wire by wire."""
    qnode, _ = circuits.build("hardware_efficient", n_qubits=2, n_layers=1, embedding="amplitude")
    bell = np.array([[1.0, 0, 0, 1], [3, 0, 0, 4]])
    weights = np.array([[[0.3, 0.7], [0.4, 1.1]]])
    # RZ changes no <Z>, and RY(t) turns it into cos t <Z> - sin t <X>, where <X> is zero on one wire.
    expected = [[0, -0.28 * np.cos(0.7)], [0, -0.28 * np.cos(1.1)]]
    np.testing.assert_allclose(circuits.drop_entanglement(qnode)(bell, weights), expected, atol=EXACT)


def test_drop_entanglement_takes_a_users_circuit_apart():
    @qp.qnode(circuits.make_device("default.qubit", 3))
    def circuit(inputs, weights):
        qp.adjoint(qp.StronglyEntanglingLayers)(weights, wires=range(3))
        qp.AngleEmbedding(inputs, wires=range(3))
        qp.prod(qp.CNOT((0, 1)), qp.RX(weights[0][0][0], 2))
        qp.SWAP((0, 1))
        qp.Toffoli((0, 1, 2))
        qp.IsingXX(weights[0][0][1], (0, 2))
        qp.ctrl(qp.RY, control=1)(weights[0][0][2], wires=2)
        return [qp.expval(qp.Z(0))]

    tape = tape_of(circuits.drop_entanglement(circuit), *arguments("strongly_entangling", "angle", 3))
    assert {gate.name for gate in tape.operations if len(gate.wires) > 1} == {"SWAP"}
    assert sum(gate.num_params for gate in tape.operations) == 2 * 3 * 3 + 3 + 1


# --- the registry -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ansatz", circuits.ANSAETZE)
def test_circuits_take_any_wires(ansatz):
    inputs, weights = arguments(ansatz, "angle", 3)

    def values(wires):
        @qp.qnode(circuits.make_device("default.qubit", wires))
        def circuit():
            if CIRCUITS[ansatz].kind == "both":
                CIRCUITS[ansatz].function(inputs, weights, wires)
            else:
                circuits.angle(inputs, wires)
                CIRCUITS[ansatz].function(weights, wires)
            return [qp.expval(qp.Z(wire)) for wire in wires]

        return circuit()

    np.testing.assert_allclose(values((7, 2, 5)), values((0, 1, 2)), atol=EXACT)


@pytest.mark.parametrize(
    ("name", "n_features", "n_qubits"),
    [("angle", 4, 4), ("iqp", 9, 9), ("data_reuploading", 1, 1)]
    + [("amplitude", *pair) for pair in ((1, 1), (2, 1), (3, 2), (4, 2), (9, 4), (16, 4))],
)
def test_the_fewest_wires_for_so_many_features(name, n_features, n_qubits):
    assert CIRCUITS[name].n_qubits(n_features) == n_qubits


def test_an_ansatz_takes_no_features():
    with pytest.raises(TypeError, match="ask its embedding"):
        CIRCUITS["random"].n_qubits(4)


@pytest.mark.parametrize(
    ("wrong", "argument", "contains"),
    [
        ({"ansatz": "strongly_entangled"}, "circuit", "Did you mean 'strongly_entangling'?"),
        ({"ansatz": "angle"}, "circuit", "data_reuploading"),  # an embedding has nothing to train
        ({"ansatz": "random", "embedding": "amplitud"}, "embedding", "Did you mean 'amplitude'?"),
        ({"ansatz": "random", "embedding": "random"}, "embedding", "angle, amplitude, iqp"),
        ({"ansatz": "random", "n_qubits": 0}, "n_qubits", "but is 0"),
        ({"ansatz": "random", "n_qubits": -2}, "n_qubits", "but is -2"),
        ({"ansatz": "random", "n_layers": 0}, "n_layers", "but is 0"),
    ],
)
def test_wrong_names_and_numbers(wrong, argument, contains):
    with refused(argument) as caught:
        circuits.build(**wrong)
    assert contains in str(caught.value)
