"""Circuits against closed forms and a second simulator that multiplies dense matrices in NumPy."""

import itertools
from functools import reduce

import numpy as np
import pennylane as qp
import pytest
import torch

from qnnkit import CIRCUITS, circuits
from tests.toys import refused

EXACT = 1e-10
"""Largest allowed error in float64."""

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


# --- the dense simulator ----------------------------------------------------------------------------

ONE, X, Y, Z = np.array([[[1, 0], [0, 1]], [[0, 1], [1, 0]], [[0, -1j], [1j, 0]], [[1, 0], [0, -1]]])

TURNED = {"RX": [X], "RY": [Y], "RZ": [Z], "Rot": [Z, Y, Z]}
"""Gate -> the axes of its rotations, in order."""


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
    if name in TURNED:
        turns = [rotation(pauli, angle) for pauli, angle in zip(TURNED[name], angles, strict=True)]
        return spread({wires[0]: reduce(np.matmul, turns[::-1])}, n_qubits)
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
def test_a_dense_simulator_agrees_sample_by_sample(ansatz, embedding, n_qubits):
    qnode, shapes = circuits.build(ansatz, n_qubits=n_qubits, n_layers=2, embedding=embedding)
    inputs, weights = arguments(ansatz, embedding, n_qubits, batch=(3,))
    assert weights.shape == shapes["weights"]
    states = [dense_state(tape_of(qnode, sample, weights), sample, n_qubits) for sample in inputs]
    expected = np.stack([dense_expectations(state, n_qubits) for state in states], axis=1)  # (wires, batch)
    np.testing.assert_allclose(qnode(inputs, weights), expected, rtol=0, atol=EXACT)
    np.testing.assert_allclose(qnode(inputs[0], weights), expected[:, 0], rtol=0, atol=EXACT)
    assert np.ptp(expected, axis=1).max() > 0.1, "outputs depend on the data"


# --- closed forms -----------------------------------------------------------------------------------


def iqp_as_z(inputs, wires):
    """With H RZ(x) on both wires and a ZZ rotation by xy, <X_0> is cos x cos xy; RY(-pi/2) makes it <Z_0>."""
    circuits.iqp(inputs, wires)
    for wire in wires:
        qp.RY(-np.pi / 2, wires=wire)


def ghz(inputs, wires):
    """CZ then RY(-pi/2) on the next wire, layer by layer, on |+...+>: a GHZ state, up to a sign."""
    n = len(wires)
    weights = np.zeros((n - 1, n, 2))
    weights[range(n - 1), range(1, n), 1] = -np.pi / 2
    circuits.angle(inputs, wires)
    circuits.hardware_efficient(weights, wires)


CLOSED = [
    (circuits.angle, [0.3, -1.0], np.cos([0.3, -1.0])),
    (iqp_as_z, [0.4, 1.1], np.cos([0.4, 1.1]) * np.cos(0.44)),
    *((circuits.amplitude, *each) for each in (
        ([1, 1, 0, 0], [1, 0]), ([3, 0, 0, 4], [-0.28, -0.28]), ([1, 0, 1], [0, 1]), ([0, -2], [1, -1])
    )),
    (ghz, [np.pi / 2] * 2, [0, 0, -1, 1]), (ghz, [np.pi / 2] * 3, [0, 0, 0, 1, 1, 1]),
]  # fmt: skip
"""Gates, inputs, and <Z> of each wire; then <X...X>, and <ZZ> of neighbours."""


@pytest.mark.parametrize(("function", "inputs", "expected"), CLOSED)
def test_closed_forms(function, inputs, expected):
    wires = range(len(inputs) if function is ghz else 2)

    @qp.qnode(circuits.make_device("default.qubit", wires))
    def circuit():
        function(np.array(inputs, dtype=float), wires)
        together = [qp.prod(*map(qp.X, wires)), *(qp.Z(i) @ qp.Z(i + 1) for i in wires[:-1])]
        return [qp.expval(each) for each in [*map(qp.Z, wires), *together]]

    np.testing.assert_allclose(circuit()[: len(expected)], expected, atol=EXACT)


# --- gates listed by hand ---------------------------------------------------------------------------


DRAWN = {
    ("data_reuploading", 2, 3): """
0: ──RY(0)──RY(1)──RZ(2)─╭●────╭X──RY(3)──RY(0)──RY(10)──RZ(11)─╭●────╭X──RY(12)─┤  <Z>
1: ──RY(0)──RY(4)──RZ(5)─╰X─╭●─│───RY(6)──RY(0)──RY(13)──RZ(14)─╰X─╭●─│───RY(15)─┤  <Z>
2: ──RY(0)──RY(7)──RZ(8)────╰X─╰●──RY(9)──RY(0)──RY(16)──RZ(17)────╰X─╰●──RY(18)─┤  <Z>
""",
    ("hardware_efficient", 3, 4): """
0: ──RY(0)─╭●──RZ(1)──RY(2)──RZ(9)───RY(10)─────────╭●──RZ(17)──RY(18)─┤  <Z>
1: ──RY(0)─╰Z──RZ(3)──RY(4)─╭●───────RZ(11)──RY(12)─╰Z──RZ(19)──RY(20)─┤  <Z>
2: ──RY(0)─╭●──RZ(5)──RY(6)─╰Z───────RZ(13)──RY(14)─╭●──RZ(21)──RY(22)─┤  <Z>
3: ──RY(0)─╰Z──RZ(7)──RY(8)──RZ(15)──RY(16)─────────╰Z──RZ(23)──RY(24)─┤  <Z>
""",
}
"""(ansatz, layers, wires) -> the drawing, with inputs 0 and weights 1, 2, 3, ..."""


@pytest.mark.parametrize(("ansatz", "n_layers", "n_qubits"), DRAWN)
def test_drawings_of_the_gates(ansatz, n_layers, n_qubits):
    qnode, shapes = circuits.build(ansatz, n_layers=n_layers, n_qubits=n_qubits)
    weights = np.arange(1, 1 + np.prod(shapes["weights"])).reshape(shapes["weights"])
    drawn = qp.draw(qnode, level="device", decimals=0, max_length=200)(np.zeros(n_qubits), weights)
    assert drawn == DRAWN[ansatz, n_layers, n_qubits].strip()


def test_random_has_one_structure_per_seed_and_uses_every_weight_once():
    inputs, weights = arguments("random", "angle", 4)

    def structure(seed: int) -> str:
        qnode, _ = circuits.build("random", n_qubits=4, seed=seed)
        return qp.draw(qnode, level="device", decimals=None)(inputs, weights)

    assert structure(3) == structure(3) and len({structure(seed) for seed in range(5)}) == 5
    tape = tape_of(circuits.build("random", n_qubits=4)[0], inputs, weights)
    np.testing.assert_allclose(tape.get_parameters()[4:], weights.flatten())


# --- blank samples ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("n_features", [1, 3, 4])
def test_a_blank_sample_becomes_the_zero_state_and_has_finite_gradients(n_features, dtype):
    qnode, _ = circuits.build("hardware_efficient", n_qubits=2, embedding="amplitude")
    weights = torch.tensor(arguments("hardware_efficient", "amplitude", 2)[1]).float().requires_grad_()
    inputs = torch.zeros(2, n_features, dtype=dtype)
    inputs[1, -1] = 3  # the other sample in the batch is not blank
    zero, last = torch.eye(4)[0], torch.eye(4)[n_features - 1]
    expected = torch.stack([torch.stack(qnode(state, weights)) for state in (zero, last)], dim=1)
    values = torch.stack(qnode(inputs.requires_grad_(dtype.is_floating_point), weights))
    torch.testing.assert_close(values, expected, check_dtype=False)
    values.sum().backward()
    assert all(leaf.grad.isfinite().all() for leaf in (inputs, weights) if leaf.requires_grad)


# --- without entanglement ---------------------------------------------------------------------------


def alone_and_together(qnode, inputs, weights) -> tuple[list, list]:
    """Gates on one wire (including a state preparation, which is data), and gates on several wires."""
    gates = tape_of(qnode, inputs, weights).operations
    alone = [gate for gate in gates if len(gate.wires) == 1 or isinstance(gate, qp.operation.StatePrepBase)]
    return alone, [gate for gate in gates if gate not in alone]


@pytest.mark.parametrize("n_qubits", [2, 3, 4])
@pytest.mark.parametrize(("ansatz", "embedding"), CASES)
def test_drop_entanglement(ansatz, embedding, n_qubits):
    qnode, _ = circuits.build(ansatz, n_qubits=n_qubits, n_layers=3, embedding=embedding)
    separable = circuits.drop_entanglement(qnode)
    inputs, weights = arguments(ansatz, embedding, n_qubits, n_layers=3)
    (alone, together), left = (alone_and_together(each, inputs, weights) for each in (qnode, separable))
    assert left == (alone, []) and together, "the circuit has entangling gates"
    assert sum(gate.num_params for gate in alone) >= weights.size, "every weight still has an effect"
    state = dense_state(tape_of(separable, inputs, weights), inputs, n_qubits)
    np.testing.assert_allclose(separable(inputs, weights), dense_expectations(state, n_qubits), atol=EXACT)


def test_drop_entanglement_decomposes_a_users_circuit():
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

    def matrix(wires):
        def gates():
            circuits.angle(inputs, wires)
            CIRCUITS[ansatz].function(*[inputs] * (CIRCUITS[ansatz].kind == "both"), weights, wires)

        return qp.matrix(gates, wire_order=wires)()

    np.testing.assert_allclose(matrix((7, 2, 5)), matrix((0, 1, 2)), atol=EXACT)


@pytest.mark.parametrize(
    ("name", "n_features", "n_qubits"),
    [("angle", 4, 4), ("iqp", 9, 9), ("data_reuploading", 1, 1)]
    + [("amplitude", *pair) for pair in ((1, 1), (2, 1), (3, 2), (4, 2), (9, 4), (16, 4))],
)
def test_the_fewest_wires_for_a_number_of_features(name, n_features, n_qubits):
    assert CIRCUITS[name].n_qubits(n_features) == n_qubits


@pytest.mark.parametrize(
    ("wrong", "argument", "contains"),
    [
        ({"ansatz": "strongly_entangled"}, "circuit", "Did you mean 'strongly_entangling'?"),
        ({"ansatz": "angle"}, "circuit", "data_reuploading"),  # an embedding has no weights
        ({"ansatz": "random", "embedding": "amplitud"}, "embedding", "Did you mean 'amplitude'?"),
        ({"ansatz": "random", "embedding": "random"}, "embedding", "angle, amplitude, iqp"),
        ({"ansatz": "random", "n_qubits": 2.5}, "n_qubits", "but is 2.5"),
    ],
)
def test_wrong_names_and_numbers_raise_an_error(wrong, argument, contains):
    with refused(argument) as caught:
        circuits.build(**wrong)
    assert contains in str(caught.value)
