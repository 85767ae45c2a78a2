"""`QuantumLayer` equals PennyLane's `TorchLayer` call by call, while everything that may change changes.

The table has small QNodes by kind. Each runs several times, with a change before each further call. Values
and gradients (with respect to inputs, weights and outside tensors) equal TorchLayer's at every call.
"""

import copy
import functools
import pickle
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pennylane as qp
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import grad, gradgradcheck
from torch.autograd.functional import jacobian

from qnnkit import QuantumLayer, circuits
from qnnkit.simulator.programs import circuit as traced
from tests.toys import mixed_gradients, uniform

TorchLayer = qp.qnn.TorchLayer

# --- the comparison -----------------------------------------------------------------------------------


USUAL = {
    "options": {},
    "transform": lambda qnode: qnode,
    "shapes": {"weights": (3,)},
    "rows": [(5,)],
    "scale": 1.0,
    "before": lambda call, layer: None,
    "layout": lambda inputs: inputs,
    "outside": (),
    "dtype": torch.float64,
}
"""What a row of the table may set, in addition to `circuit` and `device`.

- options, transform: arguments of the QNode
- shapes: shapes of the weights
- rows: leading shapes of the inputs, one after another; () is a single sample without a batch axis
- scale: factor of the inputs and the weights, which are between 0 and pi
- before: code that runs before each layer's call, so that both start from the same state
- layout: changes the memory layout of the inputs
- outside: tensors that no layer owns, whose gradients are compared
- dtype: dtype of all tensors
"""


def both(case: Any) -> list[Any]:
    """PennyLane's layer and ours, with equal weights."""
    made = []
    for kind in (TorchLayer, QuantumLayer):
        starts = {
            name: case.scale * uniform(*case.shapes[name], seed=i) for i, name in enumerate(case.shapes)
        }
        made.append(kind(case.qnode, case.shapes, starts).to(case.dtype))
    return made


def attempted(case: Any, call: int, layer: nn.Module) -> list[Tensor] | Exception:
    """Outputs and gradients, or the exception that the layer raises."""
    shape = (*case.rows[call % len(case.rows)], 3)
    inputs = (case.scale * uniform(*shape, seed=call)).to(case.dtype).requires_grad_()
    try:
        with torch.enable_grad():
            case.before(call, layer)
            outputs = layer(case.layout(inputs))
        return [outputs.detach(), *mixed_gradients(outputs, [inputs, *layer.parameters(), *case.outside])]
    except Exception as error:
        return error


def same(ours: Any, true: Any, tolerance: float = 1e-10) -> None:
    """Asserts that tensors agree one by one, or that the same exception was raised."""
    if isinstance(ours, Exception) or isinstance(true, Exception):
        assert (type(ours), str(ours)) == (type(true), str(true)), f"{ours!r}, where TorchLayer: {true!r}"
    else:
        torch.testing.assert_close(ours, true, rtol=0, atol=tolerance, equal_nan=True)


# --- parts of the cases -------------------------------------------------------------------------------


def gates(inputs: Tensor, weights: Tensor) -> None:
    """Features, weights and entanglement on three wires."""
    qp.AngleEmbedding(inputs, wires=range(3))
    for i in range(3):
        qp.RY(weights[i], wires=i)
        qp.CNOT(wires=[i, (i + 1) % 3])


def expvals(*queued: Any) -> list:
    """<Z> of each wire, after gates that are queued as arguments."""
    return [qp.expval(qp.Z(i)) for i in range(3)]


def basic(inputs: Tensor, weights: Tensor) -> list:
    """Templates whose gates have one angle each."""
    return expvals(qp.AngleEmbedding(inputs, range(3)), qp.BasicEntanglerLayers(weights, range(3)))


def wired(labels: Sequence[Any], measure: Callable[[], Any]) -> Callable:
    """A circuit on three labels."""
    embed = functools.partial(qp.AngleEmbedding, wires=labels)
    return lambda inputs, weights: last(embed(inputs * weights), qp.CNOT(labels[:2]), measure())


def last(*values: Any) -> Any:
    return values[-1]


def on(wires: Any, name: str = "default.qubit") -> Any:
    return circuits.make_device(name, wires)


def halved(run: Callable) -> Callable:
    """A PennyLane function that returns half of its numbers."""
    return lambda *args, **named: torch.utils._pytree.tree_map(lambda each: each / 2, run(*args, **named))


WORLD = """
import builtins, dataclasses, random, numpy as np
from tests.toys import linear
scale, axis, bit, state, items = 1.0, "X", 0, {"scale": 1.0, "n": 0}, [1.0, 2.0]
net, device, tensor = linear(3, 3).double(), on(3), torch.ones(3).double()
dice, numbers, generator = random.Random(), np.random.RandomState(), torch.Generator()
matrix = np.eye(64, dtype=complex)  # which prints alike whatever its middle
hamiltonian = 0.5 * qp.Z(0) + 0.3 * qp.X(1)
class Base: scale = 1.0
class It(Base):
    def of(self, x): return self.scale * x
class Kick(qp.operation.Operation):
    num_wires, num_params, strength = 1, 0, 1.0
    def decomposition(self): return [qp.RX(self.strength, wires=self.wires)]
class Half(qp.RX): compute_matrix = staticmethod(lambda angle: qp.RX.compute_matrix(angle / 2))
def read(x, factor=1.0): return factor * scale * x
read.T = 1.0
def roll(call, layer): return dice.seed(call), numbers.seed(call), generator.manual_seed(call)
def reseed(call, layer): device._rng = np.random.default_rng(call)
def tie(of): return lambda call, layer: setattr(layer, "qnode_weights", {"weights": of(call)})
def large(): put("qnnkit.simulator.fused.SMALL_BYTES", 0)
it, rule = It(), staticmethod(lambda angles, *given, **named: [qp.RY(angles.flatten()[0], 0)])
own = dataclasses.replace(circuits.CIRCUITS["data_reuploading"], \\
embeds=lambda inputs, wires: qp.AngleEmbedding(scale * inputs, wires))
put(builtins, "SCALE", 1.0, raising=False)
"""
"""The globals of every case: numbers, containers, objects and functions, which the changes modify."""
CIRCUIT = "def circuit(inputs, weights):\n x, w = inputs, weights\n gates({}, {})\n return {}"
VALUES = "0.5", "1.25", "1.0"
"""The values that replace VALUE in a change, one after another."""
SIZES, ROWS, SAMPLE = ((5,), (), (1,), (2, 3)), ((5,), (3,), (1,)), ((),)
DEVICE, EXPECTATION = qp.devices.DefaultQubit, qp.measurements.ExpectationMP
FAR = {"dtype": torch.float32, "scale": 1e6}
BASIC = {"shapes": {"weights": (2, 3)}, "circuit": basic}
BACKPROP, ADJOINT, SHIFT = ({"diff_method": name} for name in ("backprop", "adjoint", "parameter-shift"))
TABLE = r"""
== batched
plain(rows=SIZES): x
scaled_and_shifted(rows=SIZES): 0.3 - 2.5 * x; 2 * w + 0.7
module_global: scale * x | scale = VALUE
containers: state["scale"] * x + sum(items) | state["scale"] = VALUE | items[0] = 2.0 | items.append(0.3)
attributes_of_classes: it.of(x) | Base.scale = 0.5 | It.scale = -1.5 | it.scale = 2.0
attributes_of_functions: read.T * x | read.T = VALUE
parts_of_a_function: read(x) | read.__defaults__ = (VALUE,) | read.__code__ = (lambda x, y: x / 2).__code__
function_exchanged: read(x) | read = lambda x: x / 2 | read = lambda x: x * items[0] | items[0] = 3
builtins_exchanged: SCALE * abs(-1) * x | builtins.SCALE = VALUE | abs = lambda x: 0.5
tensor_in_place: tensor * x | tensor.mul_(2) | tensor.data.fill_(0.3) | tensor.numpy()[0] = 2.0
number_then_tensor: scale * x | scale = tensor / 2 | scale = np.float64(0.125) | scale = 2
module_with_weights(outside=[*net.parameters()]): net(x) | net.bias.data.add_(0.5)
training_flag: x if net.training else x / 2 | net.eval() | net.train()
tensor_that_asks_for_gradients(outside=[tensor.requires_grad_()]): x * tensor | tensor.data.add_(0.5)
random_numbers(before=roll): dice.random() * numbers.rand() * x + 0.1 * torch.rand(3, generator=generator)
annealed(before=lambda call, layer: state.update(scale=1 / (1 + call))): state["scale"] * x
centred_batch(rows=ROWS): x - x.mean(0)
large_batches_differ(rows=ROWS): x if len(x) > 3 else 0.5 * x
branch_on_a_value: x if x.sum() > 23 else 0.5 * x
numbers_of_values: x * x.sum().item() / 9 + w[0].item() + torch.tensor(x.tolist())
features_changed_in_place(before=roll): x.clone().mul_(2) + 0.1 * x.clone().uniform_(generator=generator)
straight_through: x + (x.round() - x).detach()
gradient_mode(before=lambda call, layer: torch.set_grad_enabled(call != 1)): x / (1 + torch.is_grad_enabled())
features_of_a_sample(rows=SIZES): torch.tanh(x - x.mean(-1, keepdim=True)) * w + x.sort(-1).values
three_weights(rows=SIZES, shapes={"a": (3,), "b": ()}, circuit=lambda inputs, a, b: \
expvals(gates(inputs * b, a))): x
no_weights(rows=SIZES, shapes={}, circuit=lambda inputs: expvals(qp.AngleEmbedding(inputs, range(3)))): x
one_angle_for_one_sample(shapes={"weights": (1,)}, rows=SAMPLE): x; w[[0, 0, 0]]; expvals(qp.RX(w, 0))
inputs_without_use(rows=((), (1,))): w / 2
feature_without_use_is_nan(layout=lambda x: x.index_fill(-1, torch.tensor(2), torch.nan)): x[..., [0, 1, 0]]
bits_of_the_inputs(rows=SAMPLE): w; w; expvals(qp.BasisState((x > 1.5).int(), wires=range(3)))
state_behind_a_barrier(layout=lambda x: nn.functional.normalize(x.detach()), circuit=lambda inputs, weights: \
expvals(qp.Barrier(), qp.StatePrep(inputs, [2, 0], 0))): x
matrix_of_a_tensor(rows=SIZES): x; w; expvals(qp.QubitUnitary(torch.tensor([[0, 1j], [1j, 0]]), 0))
state_of_another_norm(circuit=lambda inputs, weights: expvals(qp.StatePrep(inputs, [2, 0], 0))): x
contiguous_or_not(layout=lambda x: x.T.contiguous().T): x if x.is_contiguous() else x / 2
stride_of_the_inputs(layout=lambda x: x[:, :1].expand(-1, 3)): (1 + x.stride()[-1]) * x
angle_far_out(**FAR): x; 2 * w | large()
angle_far_out_of_changing_python(**FAR): scale * x * torch.pi; scale * w | scale = 2.0 | large()
angles_far_out_added(**FAR): x + w; x.sum() * w / 1e6 | large()
angle_by_a_large_factor(dtype=torch.float32): 400 * (x / 1e3) + 0.3; 50 * w
angle_afar(dtype=torch.float32): x + 1e6; w - 1e6; expvals(qp.RX(tensor[0] / 3e-6, 0), qp.RY(1 / 3e-6, 1))
sums_evolve: x; w; expvals(qp.qaoa.cost_layer(w[0], qp.Z(0) @ qp.Z(1) + scale * qp.Z(2)), \
qp.TrotterProduct(qp.X(0) @ qp.X(1) + scale * qp.Z(2), w[1], n=2)) | scale = VALUE
templates_farther_out(**{**FAR, **BASIC, "scale": 1e8}): x | large()
operator_exchanged: x; w; expvals(qp.RX(0.7, 0), qp.RY(0.7, 0)) | put(qp, "RX", qp.RZ) | put(qp, "RX", qp.RY)
matrix_exchanged: x | put(qp.RX, "compute_matrix", staticmethod(qp.RZ.compute_matrix))
template_exchanged(**BASIC): x | put(qp.BasicEntanglerLayers, "compute_decomposition", rule)
random_wires(before=roll): x; w; expvals(qp.CNOT(dice.sample(range(3), 2)), qp.RX(0.3, dice.randrange(3)))
barriers_and_phases: x; w; expvals(qp.Barrier(), qp.GlobalPhase(scale), qp.Snapshot()) | scale = VALUE
powers_and_exponentials: x; w; expvals(qp.pow(qp.RX(w[0], 0), scale), qp.exp(qp.X(1), -0.3j)) | scale = VALUE
other_operators_of_operators: x; w; expvals(qp.adjoint(qp.RX(scale, 0)), qp.prod(qp.X(0), qp.Z(1)), \
qp.ctrl(qp.RX(x[..., 0], 1), 0, control_values=[bit])) | scale = VALUE | bit = 1
matrix_in_place(device=on(6)): x; w; expvals(qp.QubitUnitary(matrix, range(6))) | matrix[30, 30] = -1
decomposed_by_an_attribute: x; w; expvals(Kick(0)) | Kick.strength = VALUE
hamiltonian_in_place: x; w; qp.expval(hamiltonian) | hamiltonian.operands[0].scalar = VALUE
results_exchanged: x; w; qp.probs(wires=2) if bit else [qp.var(getattr(qp, axis)(0))] | axis = "Y" | bit = 1
labels_on_the_device(rows=SIZES, device=on(["x", 1, "y"]), circuit=wired(("y", "x", 1), qp.probs)): x
numbers_without_a_device(rows=SIZES, device=on(None), circuit=wired((2, 0, 1), qp.probs)): x
rotations_merged(rows=SIZES, transform=qp.transforms.merge_rotations): x; w; expvals(qp.Z(2), qp.RY(w[0], 1))
compiled_by_pennylane(transform=qp.compile): scale * x | scale = VALUE
inserted(transform=lambda q: qp.noise.insert(q, lambda x, wires: qp.RX(scale * x, wires), 1)): x | scale = 0.5
deferred(transform=qp.defer_measurements, device=on(4)): x; w; expvals(qp.cond(qp.measure(0), qp.X)(1))
terms_apart(rows=SIZES, transform=qp.transforms.split_non_commuting): x; w; qp.expval(qp.X(0) + 0.3 * qp.Z(0))
gates_added_and_results_scaled(transform=qp.transform(lambda tape: ([tape.copy(operations=[qp.RX(scale, 0), \
*tape.operations])], lambda results: tuple(scale * value for value in results[0] + ())))): x | scale = VALUE
qnode_changed(transform=lambda q: state.update(q=q) or q): x | state["q"].func = wired((0, 1, 2), expvals)
parameter_shift(rows=SAMPLE, options=SHIFT): scale * x | scale = VALUE
adjoint(options={**ADJOINT, "device_vjp": True}): x; w; [qp.expval(qp.Z(0)), qp.probs(wires=1)]
backprop(options={**BACKPROP, "gradient_kwargs": {"h": 1}, "max_diff": 2, "cache": True}): x
lightning(device=on(3, "lightning.qubit"), dtype=torch.float32): scale * x | scale = VALUE
templates_inverted_and_controlled: x; w; expvals(qp.adjoint(qp.BasicEntanglerLayers)(w[None], range(3)), \
qp.ctrl(qp.AngleEmbedding, 2)(x[..., :2], range(2)), qp.pow(qp.RX(w[0], 0), 3))
phase_estimation: x; w; expvals(qp.QuantumPhaseEstimation(qp.RZ(w[0], 0), estimation_wires=[1, 2]))
gates_in_a_loop: x; w; expvals(qp.for_loop(0, 3, 1)(lambda i: last(qp.RY(w[i], i), None))())
weights_of_a_net(outside=[*net.parameters()], before=tie(lambda call: net(tensor))): sum(items) * x
weights_of_another_shape(before=tie(lambda call: torch.ones(3 + call).double())): x
sample_that_is_not_a_number(layout=lambda x: x.index_fill(0, torch.tensor(1), torch.nan)): x
sample_that_is_infinite(layout=lambda x: x.index_fill(0, torch.tensor(1), -torch.inf)): sum(items) * x
circuit_of_ones_own(shapes={"weights": (2, 3, 3)}, transform=lambda q: put(circuits, "CIRCUITS", \
circuits.CIRCUITS | {"data_reuploading": own}) or circuits.build("data_reuploading", n_qubits=3, \
mirrored=True)[0]): x | scale = VALUE
a_few_of_many_wires(device=on(40)): x
many_wires(rows=SAMPLE, device=on(17)): x; w; last(qp.BasicEntanglerLayers(w[:1] / 9 * torch.ones(1, 17), \
range(17)), qp.CRX(w[1], (16, 0)), [qp.expval(qp.Z(0) @ qp.Y(16)), qp.expval(qp.Z(8))])
transform_appended(transform=lambda q: state.update(q=q) or q): x | state["q"].compile_pipeline.append( \
qp.transform(lambda t: ([t.copy(ops=[*t.operations, qp.RX(scale, 0)])], lambda rs: rs[0]))) | scale = VALUE
wires_of_values(rows=SAMPLE): x; w; expvals(qp.RX(w[0], int(3 * x[0]) % 3))
values_by_wire(shapes={"weights": (2,)}, rows=((5,),)): x; w[[0, 1, 1]]; expvals(*map(qp.RX, x.T, range(3)))
one_value_is_another(layout=lambda x: x.index_fill(-1, torch.tensor(0), 0.5)): x + (x == 0.5)
bends_and_steps(scale=1e3): abs(x - 500) % 700 / 9
conditions_on_values: x; w; expvals(qp.cond(w[0] > 0.5, qp.RX, qp.RY)(w[1], wires=0))
== device
gates_without_a_seed(before=roll): x; w; expvals(put(np.random, "default_rng", lambda seed: numbers), \
qp.adjoint(qp.RandomLayers(w[None], range(3), seed=None)))
complex_angle(rows=SIZES): x; w; expvals(qp.RX(torch.complex(x[..., 0], 0 * x[..., 1]), 0))
operator_of_ones_own: x; w; expvals(Half(x[..., 0], 0))
coefficients_of_weights: x; w; qp.expval(qp.dot([w[0], 0.3], [qp.Z(0), qp.X(1)]))
finite_differences(rows=SAMPLE, options={"diff_method": "finite-diff", "gradient_kwargs": {"h": 0.1}}): x
shots(rows=SAMPLE, transform=functools.partial(qp.set_shots, shots=20), before=reseed): x
matrix_that_is_not_unitary: x; w; expvals(qp.QubitUnitary(np.diag([1.0, scale]), 0)) | scale = 0.5
matrix_of_inputs_that_is_not_unitary: x; w; expvals(qp.QubitUnitary(1.1 * qp.RX.compute_matrix(x[..., 0]), 0))
operators_that_are_no_gates(options=ADJOINT): x; w; expvals(qp.sum(qp.X(0), qp.Z(1)), qp.s_prod(0.5, qp.X(1)))
qnode_exchanged(rows=SAMPLE, before=lambda call, layer: last(reseed(call, layer), \
setattr(layer, "qnode", qp.set_shots(layer.qnode, [20, None, 20][call])))): x
shots_of_a_transform(rows=SAMPLE, options=SHIFT, before=reseed, \
transform=qp.transform(lambda tape: ([tape.copy(shots=20)], lambda results: results[0]))): x
qnode_of_ones_own(transform=lambda q: type("Own", (qp.QNode,), {"__call__": halved(qp.QNode.__call__)})( \
q.func, q.device)): x
device_of_ones_own: x | put(device, "preprocess_transforms", circuits.drop_entanglement( \
on(3)).preprocess_transforms) | put(device, "execute", halved(device.execute))
== exchanged
device_of_a_subclass(device=type("Own", (DEVICE,), {"execute": halved(DEVICE.execute)})(3, seed=7)): x
class_of_the_device(transform=lambda q: put(DEVICE, "execute", halved(DEVICE.execute)) or q): x
constant_gate: x | put(qp.CNOT, "compute_matrix", staticmethod(lambda: np.eye(4)))
observable: sum(items) * x | put(qp.Z, "compute_eigvals", staticmethod(lambda: np.array([2.0, -1.0])))
measurement: x | put(EXPECTATION, "process_state", halved(EXPECTATION.process_state))
== error
python_that_raises: (1 / scale) * x | scale = 0 | scale = 2.0
loop_over_samples: x.sum(0)
samples_by_number(rows=((2,), (5,))): x[:3]
feature_set(rows=((2, 2),), layout=lambda x: x if bit else 2 * x): [x for x[..., 0] in [1]][0] | bit = 1
wires_that_the_device_lacks: x; w; expvals(qp.X(state["n"])) | state["n"] = 7 | state["n"] = 2
results_in_another_order: x; w; expvals()[::-1]
sample_without_shots: x; w; qp.sample(qp.Z(0))
dictionary_of_results: x; w; {"a": qp.expval(qp.Z(0))}
shots_with_backprop(options=BACKPROP, transform=functools.partial(qp.set_shots, shots=20)): x
adjoint_of_probs_on_lightning(device=on(3, "lightning.qubit"), options=ADJOINT): x; w; qp.probs(wires=[0, 1])
device_vjp_of_parameter_shift(options={**SHIFT, "device_vjp": True}): x
no_derivatives(options={"diff_method": None}): x
no_wire_is_free(rows=SAMPLE, options={"diff_method": "hadamard"}): x
gradients_on_execution(options={**SHIFT, "grad_on_execution": True}): x
no_results: x; w; []
results_in_a_list_of_ones_own: x; w; type("Results", (list,), {})(expvals())
too_many_features(rows=SIZES, layout=lambda x: torch.cat([x, x], -1)): x
too_few_features(rows=(*SIZES, (5,)), layout=lambda x: x if len(x) == 5 else x[..., :2]): x[..., [0, 1, 2]]
gradient_kwargs_that_are_unknown(rows=SAMPLE, options={**SHIFT, "gradient_kwargs": {"foo": 1}}): x
state_of_a_wrong_norm(circuit=lambda inputs, weights: expvals(qp.AmplitudeEmbedding(inputs, [2, 0], 0))): x
projector_as_a_gate: x; w; expvals(qp.Projector([0], 0))
coefficients_of_many_inputs: x; w; qp.expval(qp.dot([x[..., 0], 0.3], [qp.Z(0), qp.X(1)]))
"""
"""Rows `name(options): angles; weights; results | changes`; options are those of `USUAL`."""
CASES: dict[str, tuple[str, str, str]] = {}
for row in TABLE.replace("\\\n", "").strip().split("\n"):
    heading = row[3:] if row.startswith("==") else heading  # noqa: F821
    CASES |= {name: (heading, *rest) for name, *rest in re.findall(r"^(\w+)(\(.*?\))?: (.*)$", row)}


def of(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The case of a row of the table."""
    (first, *changes), space = CASES[name][2].split(" | "), {**globals(), "put": monkeypatch.setattr}
    parts = first.split("; ")
    exec(WORLD + CIRCUIT.format(*parts, *("w", "expvals()")[len(parts) - 1 :]), space)
    given = {key: space[key] for key in ("circuit", "device")} | eval(f"dict{CASES[name][1] or '()'}", space)
    case = SimpleNamespace(**USUAL | given)
    case.qnode = case.transform(qp.QNode(case.circuit, case.device, **case.options))
    lines = [line.replace("VALUE", v) for line in changes for v in VALUES[: 3 if "VALUE" in line else 1]]
    case.changes = [functools.partial(exec, line, space) for line in lines]
    return case


# --- the tests ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::pennylane.exceptions.PennyLaneDeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_every_call_agrees(name, monkeypatch):
    """Compares both layers at every call, and checks the backend of ours."""
    case, where = of(name, monkeypatch), CASES[name][0]
    (theirs, layer), places = both(case), set()
    for call in range(max(len(case.changes) + 1, len(case.rows), 3)):
        if 0 < call <= len(case.changes):
            case.changes[call - 1]()
        true, result = (attempted(case, call, each) for each in (theirs, layer))
        same(result, true, 1e-10 if case.dtype == torch.float64 else 1e-5)
        places.add("error" if isinstance(true, Exception) else layer.backend)
    raised, elsewhere = "error" in places, case.qnode.device.name in places
    assert raised == (where == "error") and elsewhere == (where in ("device", "exchanged")), places
    assert not elsewhere or re.fullmatch(r"(?!.*[.!?] [A-Z])[A-Z].* because \S.*\.", layer.explain())
    assert where != "exchanged" or "unmodified PennyLane" in layer.explain()


INPUTS = uniform(4, 3).double()
PURE_AND_NOT = pytest.mark.parametrize("name", ["plain", "containers"])


@pytest.mark.parametrize("name", ["module_global", *(n for n in CASES if CASES[n][0] != "batched")])
def test_python_runs_exactly_once_per_call(name, monkeypatch):
    case = of(name, monkeypatch)
    case.qnode.func = spy = mock.create_autospec(case.qnode.func, side_effect=case.qnode.func)
    layer = both(case)[1]
    for call in range(3):
        attempted(case, call, layer)
    assert spy.call_count == 3


def replica(layer: Any) -> Any:
    """A replica as torch's DataParallel makes it, with plain tensors as weights."""
    twin = layer._replicate_for_data_parallel()
    twin.weights = layer.weights.clone()
    return twin


@PURE_AND_NOT
@pytest.mark.parametrize("duplicate", [lambda layer: layer, copy.deepcopy, replica])
def test_four_threads(name, duplicate, monkeypatch):
    theirs, layer = both(of(name, monkeypatch))
    batches = [uniform(3 + i, 3, seed=i).double() for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        twins = [duplicate(layer) for _ in batches]
        results = list(pool.map(lambda twin, batch: twin(batch), twins, batches))
    true = [theirs(batch) for batch in batches]
    same(results, true)
    if duplicate is not copy.deepcopy:
        pairs = zip((results, true), (layer, theirs), strict=True)
        same(*(mixed_gradients(torch.cat(values), [of.weights])[0] for values, of in pairs))


WAYS = {
    "jacobian": lambda f, x, w: jacobian(f, x, vectorize=True),
    "is_grads_batched": lambda f, x, w: grad(
        f(x), w, torch.eye(12).double().view(12, 4, 3), is_grads_batched=True
    )[0],
    "jit.trace": lambda f, x, w: torch.jit.trace(f, x, check_trace=False)(x + 1),
    "jvp": lambda f, x, w: torch.func.jvp(f, (x,), (x + 1,))[1],
    "gradgradcheck": lambda f, x, w: torch.random.fork_rng(())(gradgradcheck)(f, x[:1].requires_grad_()),
    "inputs alone": lambda f, x, w: grad(f.requires_grad_(False)(x.requires_grad_()), x, x._neg_view())[0],
    "inference": lambda f, x, w: grad(f(torch.inference_mode()(torch.clone)(x)).sum(), w)[0],
    "changed": lambda f, x, w: grad(last(y := f(x).sum(), x.zero_(), torch.no_grad()(w.add_)(1), y), w)[0],
    "twice": lambda f, x, w: last(y := f(x).sum(), grad(y, w, retain_graph=True), grad(y, w)[0]),
}
"""Derivatives; for "changed", inputs and weights change after the values are computed."""
OVER_WEIGHTS = {
    "grad": (lambda f, w: torch.func.grad(lambda w: f(w).sum())(w), lambda f, w: jacobian(f, w).sum((0, 1))),
    "jacrev": (lambda f, w: torch.func.jacrev(f)(w), jacobian),
    "jvp": (lambda f, w: torch.func.jvp(f, (w,), (w,))[1], lambda f, w: jacobian(f, w) @ w),
    "vmap": (lambda f, w: torch.func.vmap(f)(w.outer(w)), lambda f, w: torch.stack([*map(f, w.outer(w))])),
}
"""Compares a functional call, which TorchLayer does not support, with the QNode itself."""


@pytest.mark.filterwarnings("ignore:.torch.jit:", "ignore::torch.jit.TracerWarning")  # torch calls it
@PURE_AND_NOT
@pytest.mark.parametrize("way", WAYS)
def test_ways_of_differentiating(name, way, monkeypatch):
    results = [WAYS[way](layer, INPUTS.clone(), layer.weights) for layer in both(of(name, monkeypatch))]
    same(results[1], results[0])


@pytest.mark.filterwarnings("ignore:.torch.jit:")
@pytest.mark.parametrize("name", ["plain", "containers", "matrix_of_inputs_that_is_not_unitary"])
@pytest.mark.parametrize("way", OVER_WEIGHTS)
def test_functions_of_the_weights(name, way, monkeypatch):
    """Both layers agree, and ours can be pickled afterwards."""
    layer, (of_layer, of_qnode) = both(of(name, monkeypatch))[1], OVER_WEIGHTS[way]
    weights, call = layer.weights.detach(), functools.partial(torch.func.functional_call, layer)
    result = of_layer(lambda weights: call({"weights": weights}, (INPUTS,)), weights)
    same(result, of_qnode(lambda weights: torch.stack(layer.qnode(INPUTS, weights), -1), weights))
    same(pickle.loads(pickle.dumps(layer))(INPUTS), layer(INPUTS))


def test_a_changing_circuit_is_traced_once(monkeypatch):
    """Directly and queued: each trace would take a hundred times as long as the call."""
    case, spy = of("module_global", monkeypatch), mock.Mock(wraps=traced)
    layer = both(case)[1]
    monkeypatch.setattr("qnnkit.simulator.programs.circuit", spy)
    for change in (lambda: None, *case.changes):
        change()
        layer(INPUTS)
    assert spy.call_count == 2 and "has changed" in layer.explain()


def test_circuits_that_never_recur_get_no_program():
    """Recurring ones get a program after any number of others; meanwhile explain() says so."""
    net = SimpleNamespace(n=0)
    circuit = lambda inputs, weights: expvals(gates(inputs, weights), *map(qp.X, [0] * net.n))  # noqa: E731
    layer, answers = QuantumLayer(qp.QNode(circuit, on(3)), {"weights": 3}, torch.nn.init.ones_), []
    for net.n in (*range(12), 11, 0):
        layer(INPUTS)
        answers.append((layer.backend, "at nearly every call" in layer.explain()))
    assert answers == [("batched", False)] * 8 + [("default.qubit", True)] * 4 + [("batched", False)] * 2


@PURE_AND_NOT
@pytest.mark.parametrize("context", [qp.queuing.AnnotatedQueue, qp.tape.QuantumTape, torch.enable_grad])
def test_a_first_call_during_recording(name, context, monkeypatch):
    """In a queue, a tape or a QNode: values are correct, and nothing is added to the recording."""
    (theirs, layer), outputs = both(of(name, monkeypatch)), []
    outer = lambda: last(qp.X(0), outputs.append(layer(INPUTS)), qp.expval(qp.Z(0)))  # noqa: E731
    with context() as queue:
        value = outer() if queue is not None else qp.QNode(outer, on(1))()
    assert value == -1 if queue is None else queue.queue == [qp.X(0), value]
    same(outputs, [theirs(INPUTS)])
