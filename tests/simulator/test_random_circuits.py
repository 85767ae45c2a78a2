"""The batched simulator against `default.qubit`: random circuits over every gate, template and measurement.

Every value and gradient of a circuit is compared, in float64 (gradients by hand, and by autograd in plain
torch) and in float32. The tables list what a circuit may contain; the draws are always the same.
"""

import os
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import Tensor

from qnnkit import QuantumLayer
from qnnkit.simulator import fused
from tests.toys import mixed_gradients, mixture

FLOAT32, FLOAT64 = 1e-5, 1e-10
"""Largest allowed errors of values, and of gradients relative to the largest if it exceeds 1."""
N_WEIGHTS, N_FEATURES = 4, 3

# --- gates --------------------------------------------------------------------------------------------

NAMES = (
    "Identity", "Hadamard", "PauliX", "PauliY", "PauliZ", "S", "T", "SX", "RX", "RY", "RZ", "PhaseShift",
    "U1", "U2", "U3", "Rot", "GlobalPhase", "CNOT", "CY", "CZ", "CH", "SWAP", "ISWAP", "ECR", "SISWAP", "CRX",
    "CRY", "CRZ", "CRot", "ControlledPhaseShift", "CPhaseShift00", "CPhaseShift01", "CPhaseShift10",
    "IsingXX", "IsingYY", "IsingZZ", "IsingXY", "PSWAP", "FermionicSWAP", "SingleExcitation",
    "SingleExcitationPlus", "SingleExcitationMinus", "CSWAP", "CCZ", "Toffoli", "DoubleExcitation",
    "DoubleExcitationPlus", "DoubleExcitationMinus", "OrbitalRotation",
)  # fmt: skip


def bits(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 2, n).tolist()


def word(n: int, seed: int) -> str:
    return "".join(np.random.default_rng(seed).choice(list("XYZXYZI"), n))


def unitary(n: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return np.linalg.qr(generator.normal(size=(2**n, 2**n)) + 1j * generator.normal(size=(2**n, 2**n)))[0]


def hermitian(n: int, seed: int) -> np.ndarray:
    matrix = unitary(n, seed)
    return (matrix + matrix.conj().T) / 2


def plain(name: str) -> Callable[..., Any]:
    return lambda v, w, s: getattr(qp, name)(*v, wires=w)


# (angles, wires, seed) -> the gate, with other arguments drawn from the seed
CONSTRUCTED: dict[str, tuple[int, int, Callable[..., Any]]] = {
    "GlobalPhase of all": (1, 1, lambda v, w, s: qp.GlobalPhase(v[0])),
    "GlobalPhase of 5": (5, 1, lambda v, w, s: qp.GlobalPhase(v[0], wires=w)),
    **{f"PauliRot {n}": (n, 1, lambda v, w, s: qp.PauliRot(v[0], word(len(w), s), wires=w))
       for n in (1, 2, 3, 4)},
    **{f"MultiRZ {n}": (n, 1, lambda v, w, s: qp.MultiRZ(v[0], wires=w)) for n in (3, 5)},
    **{f"PCPhase {n}": (n, 1, lambda v, w, s: qp.PCPhase(v[0], dim=s % (2 ** len(w) + 1), wires=w))
       for n in (2, 3)},
    **{f"QubitUnitary {n}": (n, 0, lambda v, w, s: qp.QubitUnitary(unitary(len(w), s), wires=w))
       for n in (1, 2, 3)},
    **{f"DiagonalQubitUnitary {n}": (
        n, 0, lambda v, w, s: qp.DiagonalQubitUnitary(np.exp(1j * np.arange(2 ** len(w)) ** 2 * s), wires=w)
    ) for n in (1, 3)},
    "ControlledQubitUnitary": (
        3, 0, lambda v, w, s: qp.ControlledQubitUnitary(unitary(1, s), wires=w, control_values=bits(2, s))
    ),
    **{f"MultiControlledX {n}": (
        n, 0, lambda v, w, s: qp.MultiControlledX(wires=w, control_values=bits(len(w) - 1, s))
    ) for n in (2, 4, 5)},
    "Permute": (4, 0, lambda v, w, s: qp.Permute(np.random.default_rng(s).permutation(w).tolist(), wires=w)),
    "power": (2, 1, lambda v, w, s: qp.pow(qp.IsingXY(v[0], wires=w), s % 5 - 2)),
    "power of CRX": (2, 1, lambda v, w, s: qp.pow(qp.CRX(v[0], wires=w), 1 + s % 2)),
    "root": (1, 0, lambda v, w, s: qp.pow([qp.X, qp.Z, qp.SX, qp.Hadamard][s % 4](w[0]), 0.5 + s % 3)),
    "exponential": (2, 0, lambda v, w, s: qp.exp(qp.X(w[0]) @ qp.Y(w[1]), 0.3j * (s % 7))),
    "evolution": (2, 1, lambda v, w, s: qp.evolve(qp.Z(w[0]) @ qp.Y(w[1]), v[0])),
    "product": (2, 1, lambda v, w, s: qp.prod(qp.RX(v[0], w[0]), qp.CNOT(w), qp.RY(v[0], w[1]))),
    "Barrier": (2, 0, lambda v, w, s: qp.Barrier(wires=w)),
}  # fmt: skip
GATES = {
    name: (getattr(qp, name).num_wires or 1, getattr(qp, name).num_params, plain(name)) for name in NAMES
}
GATES |= CONSTRUCTED
"""Name -> number of wires, number of angles, and the gate itself."""
NEVER_CONTROLLED = {"U2", "U3", "Rot", "CRot", "PCPhase 3", "evolution", "Barrier", "OrbitalRotation"}
"""Gates whose controlled forms PennyLane decomposes only for numeric angles."""


def shaped(values: Sequence[Any], shape: tuple[int, ...]) -> Tensor:
    """Angles of a template from a few weights, each of which is used more than once."""
    flat = [values[i % len(values)] * (1 + 0.1 * i) for i in range(int(np.prod(shape)))]
    return torch.stack(flat).reshape(shape)


def repeated(inputs: Tensor, n: int) -> Tensor:
    """One feature per wire; the last feature is used on several wires."""
    return torch.stack([inputs[..., min(i, N_FEATURES - 1)] for i in range(n)], dim=-1)


# (inputs, weights, wires, seed) -> gates
TEMPLATES: dict[str, Callable[..., Any]] = {
    "AngleEmbedding": lambda x, v, w, s: qp.AngleEmbedding(repeated(x, len(w)), w, "XYZ"[s % 3]),
    "IQPEmbedding": lambda x, v, w, s: qp.IQPEmbedding(repeated(x, len(w)), wires=w, n_repeats=1 + s % 2),
    "BasicEntanglerLayers": lambda x, v, w, s: qp.BasicEntanglerLayers(
        shaped(v, (1 + s % 2, len(w))), wires=w, rotation=[qp.RX, qp.RY, qp.RZ][s % 3]
    ),
    "StronglyEntanglingLayers": lambda x, v, w, s: qp.StronglyEntanglingLayers(
        shaped(v, (1 + s % 2, len(w), 3)), wires=w, imprimitive=[qp.CNOT, qp.CZ][s % 2]
    ),
    "RandomLayers": lambda x, v, w, s: qp.RandomLayers(shaped(v, (2, 3)), wires=w, seed=s),
    "SimplifiedTwoDesign": lambda x, v, w, s: qp.SimplifiedTwoDesign(
        shaped(v, (len(w),)), shaped(v, (1, len(w) - 1, 2)), wires=w
    ),
    "QFT": lambda x, v, w, s: qp.QFT(wires=w),
    "adjoint of QFT": lambda x, v, w, s: qp.adjoint(qp.QFT)(wires=w),
    "GroverOperator": lambda x, v, w, s: qp.GroverOperator(wires=w),
}


def amplitudes(inputs: Tensor, wires: Sequence[int], **options: Any) -> None:
    qp.AmplitudeEmbedding(inputs, wires=wires, normalize=True, **options)


# (inputs, weights, wires, seed) -> an initial state, and other gates that read the inputs
FIRST: dict[str, Callable[..., Any]] = {
    "all": lambda x, v, w, s: amplitudes(torch.cat([x] * 43, -1)[..., : 2 ** len(w)], w),
    "padded": lambda x, v, w, s: amplitudes(x, w, pad_with=0.5),
    "function": lambda x, v, w, s: amplitudes(torch.sin(x) + 1.5, w, pad_with=0.3),
    "some wires": lambda x, v, w, s: amplitudes(x[..., :2], w[1:2]),
    "and angles": lambda x, v, w, s: (amplitudes(x, w, pad_with=0.5), qp.AngleEmbedding(x, wires=w)),
    "bits": lambda x, v, w, s: (qp.BasisEmbedding([1] + [0] * (len(w) - 1), w), qp.AngleEmbedding(x, w)),
}


class Gate(NamedTuple):
    """A gate of a circuit, a template or an initial state."""

    name: str
    wires: tuple[int, ...]
    sources: tuple[tuple[str, int], ...] = ()
    """Sources of its angles: (kind, number)."""
    seed: int = 0
    wraps: tuple[str, ...] = ()
    """Operations that wrap it, last one first."""


# (inputs, weights, number) -> an angle
ANGLES: dict[str, Callable[[Tensor, Tensor, int], Any]] = {
    "weight": lambda x, v, i: v[i],
    "input": lambda x, v, i: x[..., i % N_FEATURES],
    "scaled": lambda x, v, i: 0.3 - 2.5 * x[..., i % N_FEATURES],
    "sum": lambda x, v, i: x[..., i % N_FEATURES] + 2 * v[i],
    "product": lambda x, v, i: torch.sin(x[..., i % N_FEATURES]) * v[i] + 0.3,
    "function": lambda x, v, i: torch.tanh(v[i]) * v[i - 1] + v.mean(),
    "features": lambda x, v, i: (1.5 - x[..., 0]) * (1.5 - x[..., 1]),
    "clamped": lambda x, v, i: x[..., i % N_FEATURES].clamp(max=1.2),  # looks linear for small inputs
    "folded": lambda x, v, i: torch.asin(torch.sin(x[..., i % N_FEATURES])),  # the identity for small inputs
    "turned": lambda x, v, i: torch.remainder(v[i] + 3, 5),  # looks linear for small weights
    "number": lambda x, v, i: 0.4 * i - 0.6,
}


def apply(gate: Gate, inputs: Tensor, weights: Tensor) -> None:
    if template := (TEMPLATES | FIRST).get(gate.name):
        template(inputs, weights, list(gate.wires), gate.seed)
        return
    values = [ANGLES[kind](inputs, weights, i) for kind, i in gate.sources]
    if len(values) > 1:  # default.qubit stacks the angles of a gate
        values = [torch.as_tensor(value, dtype=inputs.dtype) for value in values]
    function, wires = GATES[gate.name][2], list(gate.wires)
    for wrap in gate.wraps:
        if wrap == "adjoint":
            function = qp.adjoint(function)
            continue
        wires, control = wires[:-1], wires[-1:]
        function = qp.ctrl(function, control=control, control_values=bits(1, gate.seed + len(wires)))
    function(values, wires, gate.seed)


# --- measurements -------------------------------------------------------------------------------------

DIAGONAL = {
    "Z": lambda w, s: qp.expval(qp.Z(w[0])),
    "ZZ": lambda w, s: qp.expval(qp.prod(*map(qp.Z, w))),
    "projector": lambda w, s: qp.expval(qp.Projector(bits(len(w[:2]), s), wires=w[:2])),
    "probs": lambda w, s: qp.probs(wires=w[:2]),
    "var of ZZ": lambda w, s: qp.var(qp.prod(*map(qp.Z, w[:2]))),
    "probs of all": lambda w, s: qp.probs(),
}
OTHERS = {
    "X": lambda w, s: qp.expval(qp.X(w[0])),
    "word": lambda w, s: qp.expval(observable(w, s)),
    "Hamiltonian": lambda w, s: qp.expval(
        qp.Hamiltonian([0.7, -1.1, 0.4], [observable(w, s + i) for i in range(3)])
    ),
    "sum": lambda w, s: qp.expval(0.3 * qp.X(w[0]) + 2 * observable(w, s) - 0.5 * qp.Identity(w[0])),
    "Hermitian 1": lambda w, s: qp.expval(qp.Hermitian(hermitian(1, s), wires=w[0])),
    "Hermitian 2": lambda w, s: qp.expval(qp.Hermitian(hermitian(len(w[:2]), s), wires=w[:2])),
    "Hermitian and a Z": lambda w, s: qp.expval(
        qp.prod(qp.Hermitian(hermitian(1, s), wires=w[0]), *map(qp.Z, w[1:2]))
    ),
    "var": lambda w, s: qp.var(qp.X(w[0]) + 0.5 * observable(w, s)),
    "var of Hermitian": lambda w, s: qp.var(qp.Hermitian(hermitian(1, s), wires=w[-1])),
}
MEASUREMENTS = {**DIAGONAL, **OTHERS}


def observable(wires: Sequence[int], seed: int) -> Any:
    return qp.prod(
        *(getattr(qp, letter)(on) for letter, on in zip(word(len(wires), seed), wires, strict=True))
    )


# --- circuits -----------------------------------------------------------------------------------------


class Circuit(NamedTuple):
    n_wires: int
    gates: list[Gate]
    measurements: list[tuple[str, tuple[int, ...], int]]
    """(kind, wires, seed); the QNode returns a single one without a list."""
    listed: bool
    batch: int | None
    """None: a single sample without a batch axis."""

    def qnode(self) -> qp.QNode:
        def circuit(inputs: Tensor, weights: Tensor) -> Any:
            for gate in self.gates:
                apply(gate, inputs, weights)
            kinds = MEASUREMENTS | {"state": lambda w, s: qp.state()}
            values = [kinds[kind](list(wires), seed) for kind, wires, seed in self.measurements]
            return values if self.listed else values[0]

        return qp.QNode(circuit, qp.device("default.qubit", wires=self.n_wires, seed=None))

    def arguments(self) -> tuple[Tensor, Tensor]:
        """Inputs and weights in float64 that are exact in float32."""
        generator = torch.Generator().manual_seed(len(self.gates))
        shape = (N_FEATURES,) if self.batch is None else (self.batch, N_FEATURES)
        inputs = 3 * torch.rand(shape, generator=generator) - 1
        return inputs.double(), (6 * torch.rand(N_WEIGHTS, generator=generator)).double()


def drawn_gate(generator: random.Random, n_wires: int, names: Any, wraps: Sequence[tuple[str, ...]]) -> Gate:
    seed = generator.randrange(100)
    name = generator.choice([name for name in names if fewest_wires(name) <= n_wires])
    everywhere = generator.sample(range(n_wires), n_wires)
    if name in TEMPLATES:
        return Gate(name, tuple(everywhere[: max(fewest_wires(name), n_wires - seed % 3)]), seed=seed)
    n, n_angles, _ = GATES[name]
    free = 0 if name in NEVER_CONTROLLED else n_wires - n
    wrap = generator.choice([wrap for wrap in wraps if wrap.count("ctrl") <= free])
    sources = [(generator.choice([*ANGLES]), generator.randrange(N_WEIGHTS)) for _ in range(n_angles)]
    return Gate(name, tuple(everywhere[: n + wrap.count("ctrl")]), tuple(sources), seed, wrap)


def fewest_wires(name: str) -> int:
    return GATES[name][0] if name in GATES else 1 + (name in ("GroverOperator", "SimplifiedTwoDesign"))


def drawn(
    seed: int,
    wires: tuple[int, int],
    names: Sequence[str],
    wraps: Sequence[tuple[str, ...]] = ((),),
    most: int = 12,
) -> Circuit:
    """A circuit that depends only on the seed, on the given wires and with at most `most` gates."""
    generator = random.Random(seed)
    n_wires, n_gates = generator.randint(*wires), generator.randint(1, most)
    gates = [drawn_gate(generator, n_wires, names, wraps) for _ in range(n_gates)]
    if generator.random() < 0.5:
        gates.insert(0, Gate("AngleEmbedding", tuple(range(n_wires)), seed=seed))
    kinds, measured = [*generator.choice([MEASUREMENTS, DIAGONAL])], []
    for _ in range(generator.randint(1, 3)):
        on = generator.sample(range(n_wires), min(n_wires, generator.randint(1, 3)))
        measured.append((generator.choice(kinds), tuple(on), generator.randrange(100)))
    listed = len(measured) > 1 or generator.random() < 0.5
    return Circuit(n_wires, gates, measured, listed, generator.choice([2, None, 3, 1]))


# --- both simulators ----------------------------------------------------------------------------------


def exact(qnode: qp.QNode, inputs: Tensor, weights: Tensor, listed: bool) -> Tensor:
    """The outputs of TorchLayer for a QNode, sample by sample.

    PennyLane's IsingXY and PSWAP take no batches that need gradients.
    """
    if inputs.ndim == 2:
        return torch.stack([exact(qnode, row, weights, listed) for row in inputs])
    values = qnode(inputs, weights)  # NumPy values if nothing depends on a tensor
    return torch.cat([torch.as_tensor(v).reshape(-1) for v in values]) if listed else torch.as_tensor(values)


def with_gradients(run: Callable, *args: Tensor) -> tuple[Tensor, ...]:
    leaves = [tensor.clone().requires_grad_() for tensor in args]
    values = run(*leaves)
    return values.detach(), *mixed_gradients(values, leaves)


def close(ours: Sequence[Tensor], theirs: Sequence[Tensor], tolerance: float) -> None:
    for name, mine, true in zip(("values", "to inputs", "to weights"), ours, theirs, strict=True):
        assert mine.shape == true.shape, name
        error = float((mine - true).abs().max() / true.abs().max().clamp(min=1))
        assert error < tolerance, f"{name}: {error:.1e}"


def real(values: Tensor) -> Tensor:
    return torch.view_as_real(values) if values.is_complex() else values


def agree(circuit: Circuit, *, single: bool = True, backend: str = "batched") -> None:
    """Compares a layer with its QNode, by hand and in float32 or by autograd; "auto": on any backend."""
    if qp.workflow.construct_tape(circuit.qnode())(*circuit.arguments()).batch_size is None:
        circuit = circuit._replace(batch=None)  # no gate reads the inputs: TorchLayer takes no batch
    angles, qnode = circuit.arguments(), circuit.qnode()
    start = {"weights": angles[1].detach().clone()}
    layer = QuantumLayer(qnode, {"weights": tuple(angles[1].shape)}, start, backend=backend)

    def run(inputs: Tensor, weights: Tensor) -> Tensor:
        return real(torch.func.functional_call(layer, {"weights": weights}, (inputs,)))

    true = with_gradients(lambda x, w: real(exact(qnode, x, w, circuit.listed)), *angles)
    close(with_gradients(run, *angles), true, FLOAT64)
    if backend == "auto":
        return
    if single:
        result = with_gradients(run, *(tensor.float() for tensor in angles))
        assert all(tensor.dtype == torch.float32 for tensor in result)
        close(result, true, FLOAT32)
    else:
        values, pull = torch.func.vjp(run, *angles)  # no gradients by hand
        close((values, *pull(mixture(values))), true, FLOAT64)
    with mock.patch.multiple(fused, SMALL_BYTES=0, chunks=lambda samples, threads: samples):  # as large ones
        close(with_gradients(run, *angles), true, FLOAT64)


# --- every gate, template and measurement alone -------------------------------------------------------

WRAPS = [("adjoint",), ("ctrl",), ("ctrl", "adjoint"), ("adjoint", "ctrl"), ("ctrl", "ctrl")]
LAYER = Gate("BasicEntanglerLayers", (2, 0, 1, 4, 3), seed=4)  # one layer of RY
MIDDLE = [("Z", (1,), 0), ("word", (3, 0, 4), 2), ("word", (2, 1), 7)]


def after_a_layer(*gates: Gate, measurements: list = MIDDLE, n_wires: int = 5) -> Circuit:
    gates = Gate("AngleEmbedding", tuple(range(n_wires))), LAYER, *gates
    return Circuit(n_wires, [*gates], measurements, True, 2)


def of_state(circuit: Circuit) -> Circuit:
    return circuit._replace(measurements=[("state", (), 0)], listed=False)


@pytest.mark.parametrize("name", [*GATES, *TEMPLATES])
def test_every_gate_and_template(name: str) -> None:
    """Compares the whole state, including phases: with angles from the inputs, then from the weights.

    Wide gates run in blocks of wires, the others as one matrix; random circuits mix them.
    """
    fewest, n_angles = GATES[name][:2] if name in GATES else (5, 0)
    n_wires = 7 if fewest > 2 else 5
    on = [wire if wire < 4 else n_wires - 1 for wire in (3, 1, 4, 0, 2)]
    gates = [Gate(name, tuple(on[:fewest]), (("input", 1), ("scaled", 0), ("number", 3))[:n_angles], 3)]
    if n_angles:  # a constant gate is alone: two wrong signs would cancel
        of_weights = (("weight", 1), ("weight", 1), ("function", 0))[:n_angles]
        gates.append(Gate(name, tuple(on[::-1][:fewest]), of_weights, 5))
    agree(of_state(after_a_layer(*gates, n_wires=n_wires)), single=False)


@pytest.mark.parametrize(("n_wires", "listed"), [(7, True), (5, False)], ids=["list", "single"])
@pytest.mark.parametrize("kind", MEASUREMENTS)
def test_every_measurement(kind: str, listed: bool, n_wires: int) -> None:
    circuit = after_a_layer(measurements=[(kind, (3, 0, 1), 2)], n_wires=n_wires)
    agree(circuit._replace(listed=listed, batch=None if listed else 2), single=listed)


# --- random circuits ----------------------------------------------------------------------------------


KINDS: dict[str, tuple[int, Callable[[int], Circuit]]] = {
    "on any number of wires": (200, lambda seed: drawn(seed, (1, 6), [*GATES])),
    "controlled and adjoint": (90, lambda seed: drawn(seed, (2, 6), [*GATES], WRAPS)),
    "templates": (80, lambda seed: drawn(seed, (1, 6), [*TEMPLATES, "RX", "RY", "CNOT"], most=5)),
    "wide": (110, lambda seed: drawn(seed, (7, 8), [*GATES, *TEMPLATES], [(), (), *WRAPS], most=9)),
    "states": (40, lambda seed: of_state(drawn(seed, (1, 8), [*GATES, *TEMPLATES], most=6))),
}
"""Kind -> how many circuits `make slow` draws (default: a ninth), and how to draw one."""


@pytest.mark.parametrize("kind", KINDS)
def test_random_circuits(kind: str) -> None:
    """Every other circuit runs in float32, the rest by autograd, because it is the same program."""
    number, of_seed = KINDS[kind]
    for seed in range(number if os.environ.get("QNNKIT_EXAMPLES") == "all" else number // 9):
        agree(of_seed(seed), single=seed % 2 == 1)


# --- other ways to run --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Rot", "U2", "U3", "CRot", "OrbitalRotation", "evolution"])
@pytest.mark.parametrize("wrap", [("ctrl",), ("ctrl", "adjoint")])
def test_gates_that_may_lack_a_fused_form(name: str, wrap: tuple[str, ...]) -> None:
    n_wires, n_angles, _ = GATES[name]
    wires = (3, 1, 4, 0, 2, 5)[: n_wires + wrap.count("ctrl")]
    sources = (("weight", 2), ("weight", 1), ("function", 0))[:n_angles]
    agree(after_a_layer(Gate(name, wires, sources, 3, wrap), n_wires=6), backend="auto")


@pytest.mark.parametrize(("batch", "n_wires"), [(None, 3), (1, 3), (3, 3), (3, 7)])
@pytest.mark.parametrize("name", FIRST)
def test_every_initial_state(name: str, n_wires: int, batch: int | None) -> None:
    gates = [Gate(each, tuple(range(n_wires)), seed=2) for each in (name, "StronglyEntanglingLayers")]
    measured = [("word", (0, n_wires - 1), 1), ("Z", (1,), 0), ("probs", (1, 0), 0)]
    agree(Circuit(n_wires, gates, measured, True, batch), backend="auto")
