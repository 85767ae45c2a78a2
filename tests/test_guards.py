"""`QuantumLayer` against `TorchLayer`, call by call, while what the QNode's Python reads changes in between.

Tables of small QNodes. Each runs several times, with a change before every further call; at each call
values and gradients (by the inputs, by every weight, by tensors from outside) are TorchLayer's. Without the
guard that a case names, they are not.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import functools
import gc
import importlib
import itertools
import math
import random
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from qnnkit import QuantumLayer, circuits
from qnnkit.simulator import graph, programs
from tests import toys

FLOAT32, FLOAT64 = 1e-5, 1e-10
"""Largest errors allowed of values and gradients, by precision."""
FAR = 1e-8
"""Likewise in float64, of angles so large that their own spacing is 1e-10 radians."""
TorchLayer = qp.qnn.TorchLayer
tracing, watching = (importlib.import_module(f"qnnkit.simulator.{name}") for name in ("trace", "guards"))

# --- the comparison -----------------------------------------------------------------------------------


@dataclass
class Case:
    """A QNode, and what happens between its calls. Sequences are gone through again when they end."""

    function: Callable[..., Any] | None = None
    changes: Sequence[Callable[[], Any]] = ()
    """Before the second call, before the third, ..."""
    shapes: dict[str, tuple[int, ...]] = field(default_factory=lambda: {"weights": (3,)})
    qnode: qp.QNode | None = None
    device: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    """Of the QNode."""
    rows: Sequence[int | tuple[int, ...] | None] = ()
    """Leading shape of the inputs; None is a single sample without a batch axis.

    By default all changes are met at one size of batch: at another, the Python is traced again.
    """
    n_features: int = 3
    tops: Sequence[float] = (math.pi,)
    """Inputs lie between 0 and this."""
    scales: Sequence[float] = (1.0,)
    """What the weights are multiplied by."""
    before: Callable[[int], Any] = lambda call: None
    """Run before each of the two layers' calls, so that both meet the same state of the world."""
    grad: Sequence[bool] = (True,)
    outside: Sequence[Tensor] = ()
    """Tensors that no layer owns, whose gradients are compared."""
    is_complex: bool = False
    raises: bool = False
    """Whether TorchLayer raises at some calls; the layer must, too."""
    tolerance: float = FLOAT64

    def __post_init__(self) -> None:
        if self.qnode is None:
            self.qnode = qp.QNode(self.function, self.device or on(3), **self.options)
        self.rows = self.rows or (*[5] * (len(self.changes) + 1), 3)
        lengths = map(len, (self.rows, self.tops, self.scales, self.grad))
        self.n_calls = max(len(self.changes) + 1, *lengths, 3)

    def inputs(self, call: int) -> Tensor:
        rows = self.rows[call % len(self.rows)]
        leading = () if rows is None else (rows,) if isinstance(rows, int) else rows
        return uniform(*leading, self.n_features, seed=call, top=self.tops[call % len(self.tops)])


class Entry(NamedTuple):
    make: Callable[[pytest.MonkeyPatch], Case]
    where: str
    """Where it runs: "batched" at every call, or on the QNode's own "device"."""
    guard: str
    """Of `WITHOUT`; "" where nothing simple can be taken away."""


CASES: dict[str, Entry] = {}


ROW = re.compile(r"== (\w+) ?(\w*)|(\w+)(\(.*?\))?: (.*)((?:\n    .*)*)")


def written(table: str) -> None:
    """Takes up cases that are written as a user would: `name(options): angles; weights; results | changes`.

    Below a row stands its code, run before, which may also define the `circuit` itself, its `device`, a
    `transform`, the `qnode` with the `shapes` of its weights, what goes on `before` each call, and tensors
    from `outside`. VALUE makes two changes of one.
    """
    rows = [ROW.fullmatch(row) for row in re.split(r"\n(?! )", table.strip("\n"))]
    assert all(rows)
    for row in rows:
        if row[1]:  # a heading: where the cases below it run, and their guard
            where, guard = row[1], row[2]
        else:
            assert row[3] not in CASES, row[3]
            CASES[row[3]] = Entry(functools.partial(of_row, row), where, guard)


def of_row(row: re.Match, monkeypatch: pytest.MonkeyPatch) -> Case:
    space: dict[str, Any] = {**globals(), "__name__": "notebook"}
    space |= {"put": monkeypatch.setattr, "drop": monkeypatch.delattr}
    exec(START + textwrap.dedent(row[6]), space)
    first, *changes = row[5].split(" | ")
    if "circuit" not in space:
        parts = first.split("; ")
        exec(CIRCUIT.format(*parts, *("w", "expvals()")[len(parts) - 1 :]), space)
    both = [(each, VALUES if "VALUE" in each else VALUES[:1]) for each in changes]
    lines = [each.replace("VALUE", value) for each, values in both for value in values]
    names = "device", "before", "outside", "qnode", "shapes"
    given = {name: space[name] for name in names if name in space} | eval(f"dict{row[4] or '()'}")
    if "transform" in space:
        given["qnode"] = space["transform"](qp.QNode(space["circuit"], given.get("device") or on(3)))
    return Case(space["circuit"], [functools.partial(exec, line, space) for line in lines], **given)


VALUES = "0.5", "1.0"
"""What stands in place of 1.0 after each change; the last of them is the first again."""
START = """
import abc, builtins, collections, dataclasses, functools, itertools, math, operator, os, random, time, types
import scipy.special
scale, state, settings, net = 1.0, {"scale": 1.0}, Settings(), Net()
class Maker:
    def __init__(self): self.scale = settings.scale
maker = Maker()
"""
CIRCUIT = """
def angles(x):
    return {}
def circuit(inputs, weights):
    w = weights
    gates(angles(inputs), {})
    return {}
"""


class States(TorchLayer):
    """PennyLane's layer would discard the imaginary part of a state."""

    def _evaluate_qnode(self, x: Tensor) -> Tensor:
        weights = {name: weight.to(x) for name, weight in self.qnode_weights.items()}
        return self.qnode(inputs=x, **weights).to(x.dtype.to_complex())


def uniform(*shape: int, seed: int = 0, top: float = math.pi) -> Tensor:
    """Numbers that float32 holds exactly, in float64."""
    return toys.uniform(*shape, seed=seed, top=top).double()


@pytest.fixture
def restored() -> Iterator[None]:
    """A case may seed and set global state; here it ends."""
    python, numpy, dtype = random.getstate(), np.random.get_state(), torch.get_default_dtype()  # noqa: NPY002
    printed = np.printoptions(), torch._tensor_str.printoptions()
    with torch.random.fork_rng(devices=[]), np.errstate(), printed[0], printed[1]:
        yield
    random.setstate(python)
    np.random.set_state(numpy)  # noqa: NPY002
    torch.set_default_dtype(dtype)


def measured(layer: nn.Module, inputs: Tensor, outside: Sequence[Tensor]) -> list[Tensor]:
    """Outputs, and gradients of a mixture of them by inputs, weights and what lies outside."""
    inputs = inputs.clone().requires_grad_()
    outputs = layer(inputs)
    outputs = torch.view_as_real(outputs) if outputs.is_complex() else outputs
    leaves = [inputs, *layer.parameters(), *outside]
    for leaf in leaves:
        leaf.grad = None
    if outputs.requires_grad:
        (outputs * toys.mixture(outputs)).sum().backward()
    gradients = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.clone() for leaf in leaves]
    return [outputs.detach(), *gradients]


def attempted(case: Case, call: int, layer: nn.Module, inputs: Tensor) -> list[Tensor] | Exception:
    case.before(call)
    try:
        with torch.set_grad_enabled(case.grad[call % len(case.grad)]):
            return measured(layer, inputs, case.outside)
    except Exception as error:
        return error


def layers(case: Case, dtype: torch.dtype = torch.float64, ours: type = QuantumLayer) -> tuple[Any, Any]:
    """PennyLane's layer and ours, of equal weights."""
    starts = {name: uniform(*shape, seed=100 + i) for i, (name, shape) in enumerate(case.shapes.items())}
    types_ = States if case.is_complex else TorchLayer, ours
    both = (kind(case.qnode, case.shapes, {k: v.clone() for k, v in starts.items()}) for kind in types_)
    theirs, layer = (each.to(dtype) for each in both)
    return theirs, layer


def agree(case: Case, dtype: torch.dtype = torch.float64, ours: type = QuantumLayer) -> list[str]:
    """Runs both layers through a case, and compares them at every call; why ours ran where, at each."""
    theirs, layer = layers(case, dtype, ours)
    explained = []
    starts = {name: value.detach().clone() for name, value in theirs.named_parameters()}
    tolerance = case.tolerance if dtype == torch.float64 else FLOAT32
    for call in range(case.n_calls):
        if 0 < call <= len(case.changes):
            case.changes[call - 1]()
        for each, (name, start) in itertools.product((theirs, layer), starts.items()):
            each.get_parameter(name).data.copy_(start * case.scales[call % len(case.scales)])
        inputs = case.inputs(call).to(dtype)
        true, found = (attempted(case, call, each, inputs) for each in (theirs, layer))
        if isinstance(true, Exception):
            assert case.raises, f"TorchLayer itself raises at call {call}: {true!r}"
            assert isinstance(found, Exception), f"call {call}, values: TorchLayer raises {true!r}"
            continue
        assert not isinstance(found, Exception), f"call {call}: {found!r}"
        names = "values", "to inputs", *(f"to {name}" for name in starts), *["to outside"] * len(case.outside)
        for name, mine, other in zip(names, found, true, strict=True):
            what = f"call {call}, {name}"
            assert mine.shape == other.shape and mine.dtype == other.dtype, what
            torch.testing.assert_close(
                mine, other, rtol=0, atol=tolerance, equal_nan=True, msg=lambda m, what=what: f"{what}: {m}"
            )
        explained.append(layer.explain() if ours is QuantumLayer else "")
    return explained


def ran(explained: Sequence[str]) -> str:
    """Where a case ran: "device" if it did so at any call, and then it says why, in one sentence."""
    on_device = [text for text in explained if not text.startswith("Runs as one fused program")]
    for text in on_device:
        assert re.fullmatch(r"[A-Z].* because \S.*\.", text) and not re.search(r"[.!?] [A-Z]", text), text
    return "device" if on_device else "batched"


# --- the guards, taken away ---------------------------------------------------------------------------

Patch = Callable[[Any, str, Any], None]


def without_sizes(put: Patch) -> None:
    """Other sizes of batch are not traced."""
    put(programs, "MOST_SIZES", 0)


def without_watch(put: Patch) -> None:
    put(watching.Watch, "holds", lambda self: True)
    without_sizes(put)


def without_merge(put: Patch) -> None:
    """One size of batch is recorded, not two that are compared."""
    known = tracing.merge

    def merge(nodes: Any, others: Any, sizes: Any) -> None:
        known(nodes, nodes, sizes[:1] * 2)
        for node in nodes:
            if node.sources & graph.INPUTS and node.shadow is not None and sizes[0] in node.shadow.shape:
                node.axis = list(node.shadow.shape).index(sizes[0])

    put(tracing, "merge", merge)
    put(tracing, "_signature", lambda *given: ())
    without_sizes(put)


def without_refusals(put: Patch) -> None:
    """Of the watch, of random numbers, of gradients from outside, and of two traces that differ."""
    known = graph.Recorder.__torch_dispatch__

    def dispatch(self: Any, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = lambda leaf: leaf.detach() if type(leaf) in (Tensor, nn.Parameter) else leaf  # noqa: E731
        args, kwargs = tree_map(plain, (args, kwargs or {}))
        is_traced = any(type(leaf) is graph.Traced for leaf in tree_leaves((args, kwargs)))
        return known(self, func, kinds, args, kwargs) if is_traced else func(*args, **kwargs)

    put(programs, "watch", lambda qnode: types.SimpleNamespace(holds=lambda: True))
    put(graph.Recorder, "__torch_dispatch__", dispatch)
    without_merge(put)


def without_degrees(put: Patch) -> None:
    """Every angle is taken for an affine one."""
    known = graph._degree
    put(graph, "_degree", lambda *given: min(known(*given), 1))


def without_pipeline(put: Patch) -> None:
    """Transforms are left out."""
    known = tracing._circuit

    def circuit(qnode: Any, *given: Any) -> Any:
        plain = copy.copy(qnode)
        plain._compile_pipeline = qp.CompilePipeline()
        return known(plain, *given)

    put(tracing, "_circuit", circuit)


WITHOUT: dict[str, Callable[[Patch], None]] = {
    "watch": without_watch, "sizes": without_sizes, "refusals": without_refusals, "merge": without_merge,
    "degrees": without_degrees, "pipeline": without_pipeline,
    # wires lie in the order in which they are used
    "labels": lambda put: put(tracing, "_wires", lambda qnode, tape: tuple(tape.wires)),
    # what a transform computes with the measured values is left out
    "results": lambda put: put(tracing, "_of", lambda finish, mark: mark),
}  # fmt: skip

# --- what the cases are made of -----------------------------------------------------------------------


def gates(inputs: Tensor, weights: Tensor) -> None:
    """Features, weights and entanglement on three wires."""
    qp.AngleEmbedding(inputs, wires=range(3))
    for i in range(3):
        qp.RY(weights[i], wires=i)
    qp.CNOT(wires=[0, 1])
    qp.CNOT(wires=[1, 2])


def expvals() -> list:
    return [qp.expval(qp.Z(i)) for i in range(3)]


def last(*values: Any) -> Any:
    return values[-1]


def body(inputs: Tensor, weights: Tensor) -> list:
    """The gates, and <Z> of each wire."""
    gates(inputs, weights)
    return expvals()


@dataclass
class Settings:
    scale: float = 1.0


class Net(nn.Module):
    """A researcher's module, whose method is the quantum function."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64))
        self.angle = nn.Parameter(torch.tensor(0.4, dtype=torch.float64))

    def by_mode(self, inputs, weights):
        if self.training:
            qp.RZ(0.7, wires=1)
        return body(inputs if self.training else 0.5 * inputs, weights)

    def by_buffer(self, inputs, weights):
        return body(inputs + self.shift, weights)

    def by_parameter(self, inputs, weights):
        return body(self.angle * inputs, weights)


class Mode(enum.Enum):
    WHOLE, HALF = 1.0, 0.5

    def factor(self):
        return self.value


def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as people write them."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def of_its_own(scale: float) -> Any:
    """Changes lists, arrays and numbers that it has made itself, in blocks that end."""
    found, known, array, total = [], {}, np.zeros(3), 0.0
    tensor = torch.ones(3, dtype=torch.float64)
    found.append(scale)
    found += [scale, scale]
    found[0] *= 2
    known["all"] = found
    known.setdefault("sum", sum(found))
    del known["all"]
    array[0] = scale
    array += 1
    tensor.mul_(scale)
    tensor[1:] -= 0.5
    for _ in range(3):
        total += scale
    try:
        with contextlib.nullcontext(known["sum"]) as given:
            return given + total + tensor * float(array.sum())
    finally:
        total += 1


def redundant(inputs, weights):
    """Gates that can be left out, merged, moved or swapped back."""
    qp.Hadamard(0)
    qp.Hadamard(0)
    qp.RX(weights[0], wires=0)
    qp.RX(inputs[..., 0], wires=0)
    qp.CNOT(wires=[1, 0])
    qp.X(0)
    qp.SWAP(wires=[0, 2])
    return body(inputs, weights)


def measured_in_the_middle(inputs, weights):
    qp.AngleEmbedding(inputs[..., :2], wires=range(2))
    qp.cond(qp.measure(0), qp.RX)(weights[0], wires=1)
    return [qp.expval(qp.Z(0)), qp.expval(qp.Z(1))]


def post_processed(process: Callable[[Any], Any]) -> Callable:
    """A transform that leaves the circuit as it is, and changes what comes out of it."""
    return qp.transform(lambda tape: ([tape], lambda results: process(results[0])))


@qp.transform
def kicked(tape, angles: Any):
    """Adds gates in front."""
    kicks = [qp.RX(angle, wires=0) for angle in (angles() if callable(angles) else angles)]
    return [tape.copy(operations=[*kicks, *tape.operations])], lambda results: results[0]


@qp.transform
def measuring_otherwise(tape):
    """Measures something else in the end."""
    others = [qp.expval(qp.X(i)) for i in range(3)]
    return [tape.copy(measurements=others)], lambda results: results[0]


class Share(qp.operation.Operation):
    """A gate of a part of its angle."""

    num_wires, num_params, ndim_params = 1, 1, (0,)

    def __init__(self, angle, wires, parts=2, id=None):
        super().__init__(angle, wires=wires, id=id)
        self._hyperparameters = {"parts": parts}

    @staticmethod
    def compute_matrix(angle, parts):
        return qp.RX.compute_matrix(angle / parts)


def wired(labels: Sequence[Any], measure: Callable[[], Any]) -> Callable:
    """A circuit on three labels."""

    def circuit(inputs, weights):
        for i, wire in enumerate(labels):
            qp.RX(inputs[..., i], wires=wire)
            qp.RY((1 + i) * weights[i], wires=wire)
        qp.CNOT(wires=labels[:2])
        return measure()

    return circuit


def on(wires: Any, name: str = "default.qubit") -> Any:
    return circuits.make_device(name, wires)


def kit(ansatz: str = "data_reuploading") -> tuple[qp.QNode, dict[str, tuple[int, ...]]]:
    """A circuit of the kit that has run already."""
    qnode, shapes = circuits.build(ansatz, n_qubits=3, n_layers=2)
    QuantumLayer(qnode, shapes, {"weights": uniform(*shapes["weights"])}).double()(uniform(2, 3))
    return qnode, shapes


def wrapped(qnode: qp.QNode, read: Callable[[], float]) -> qp.QNode:
    """As a decorator does it: with the function's own name and attributes."""

    @functools.wraps(qnode.func)
    def function(inputs, weights):
        return qnode.func(read() * inputs, weights)

    return qp.QNode(function, on(3))


def noisy(qnode: qp.QNode) -> qp.QNode:
    flips = qp.NoiseModel({qp.noise.op_in([qp.RY]): qp.noise.partial_wires(qp.PhaseFlip, 0.2)})
    return qp.add_noise(qp.QNode(qnode.func, qp.device("default.mixed", wires=3)), flips)


MATRIX = uniform(3, 3, seed=9)
MATRIX_OF_NUMBERS = MATRIX.numpy().copy()
ONE, OTHER = float("1.5"), float("1.5")
NAN, OTHER_NAN = float("nan"), float("nan")
TEXT, OTHER_TEXT = "".join(["a", "b"]), "".join(["a", "b"])
SHARES = {bool: 0.5, int: 0.25}

# --- cases as a user writes them ----------------------------------------------------------------------
ONE_TOO = 5, None, 1, 3
# PennyLane's gradients of integers are float32, and numbers that come from rounding have none
INTEGERS = {"grad": (False,), "tolerance": FLOAT32}
LIGHTNING = {"device": on(3, "lightning.qubit"), "tolerance": FLOAT32}
SHIFTED = {"options": {"diff_method": "parameter-shift"}, "rows": (None,)}
TABLE = """
== batched watch
attribute_of_a_function: read.scale * x | read.scale = VALUE
    def read(): pass
    read.scale = 1.0
static_and_class_methods: (Helper.one() + Helper.other()) * x | scale = VALUE | Helper.factor = 0.5
    class Helper:
        factor = 1.0
        @staticmethod
        def one(): return scale
        @classmethod
        def other(cls): return cls.factor
named_tuple_handed_on: (lambda each: each.scale * each.factor())(pair) * x | pair = Pair(0.5) | scale = VALUE
    class Pair(NamedTuple):
        scale: float
        def factor(self): return scale
    pair = Pair(1.0)
method_of_a_dict: get("scale", 1.0) * x | state["scale"] = VALUE
    get = state.get
transform_that_reads_a_global: x | scale = VALUE
    transform = functools.partial(kicked, angles=lambda: [0.7 * scale])
transform_with_an_argument: x | kicks.append(0.4) | kicks.pop()
    kicks = [0.3]
    transform = functools.partial(kicked, angles=kicks)
labels_that_change(rows=(5, 3), device=on(["a", "b", "c"])): x | labels.reverse() | labels.sort()
    labels = ["b", "a", "c"]
    circuit = wired(labels, qp.probs)
built_and_wrapped_by_what_changes: x | scale = VALUE
    qnode, shapes = kit()
    qnode = wrapped(qnode, lambda: scale)
built_of_a_patched_part: x | put(circuits, "angle", by_x)
    qnode, shapes = kit()
    def by_x(inputs, wires): qp.AngleEmbedding(inputs, wires=wires, rotation="X")
closure_float: read(x) | change(VALUE)
    def make():
        value = 1.0
        def change(new):
            nonlocal value
            value = new
        return change, lambda x: value * x
    change, read = make()
module_global: scale * x | scale = VALUE
training_flag: net | net.eval() | net.train() | net.eval()
    circuit = net.by_mode
module_buffer: net | net.shift.mul_(3) | net.shift = torch.ones(3).double()
    circuit = net.by_buffer
global_of_another_module: config.scale * x | config.scale = VALUE
    config = types.ModuleType("config")
    config.scale = 1.0
order_of_a_dict: x; w; last([getattr(qp, name)(0.7, wires=i) for name, i in kinds.items()], expvals()) \
| kinds.update(RX=kinds.pop("RX")) | kinds.update(RY=2)
    kinds = {"RX": 0, "RZ": 0, "RY": 1}
list_entry: x * scales[0] + sum(scales) | scales[0] = VALUE | scales.append(0.3) | scales.pop()
    scales = [1.0, 2.0, 3.0]
attribute_of_a_base_class: it.scale * x | Base.scale = 0.5 | New.scale = -1.5 | it.scale = 3.0 | del it.scale
    class Base: scale = 1.0
    class New(Base): pass
    it = New()
method_of_a_helper: helper.encode(x) | helper.low = 0.3 | helper.high = 3.0 | helper.span = lambda: 0.1
    class Helper:
        low, high = 0.0, 1.0
        def span(self): return self.high - self.low
        def encode(self, x): return self.low + self.span() * x
    helper = Helper()
class_exchanged: embed.scale() * x | embed.__class__ = Narrow | embed.__class__ = Wide
    class Wide:
        def scale(self): return 1.0
    class Narrow(Wide):
        def scale(self): return super().scale() / 4
    embed = Wide()
class_taken_from_an_object: type(maker)().scale * x | settings.scale = VALUE
class_of_an_object: maker.__class__().scale * x | settings.scale = VALUE
object_that_is_indexed: schedule[0] * x | schedule.epoch = 1 | schedule.epoch = 2
    class Schedule:
        epoch = 0
        @classmethod
        def share(cls, epoch): return 1 / (1 + epoch)
        def __getitem__(self, wire): return wire + self.share(self.epoch)
    schedule = Schedule()
property_of_an_attribute: (lambda each: each.scale)(schedule) * x | schedule.epoch = 1 | schedule.epoch = 2
    class Schedule:
        epoch = 0
        @property
        def scale(self): return 1 / (1 + self.epoch)
    schedule = Schedule()
equal_to_everything: state["of"].scale * x | state["of"] = Config(0.5) | state["of"] = Config(2.0)
    class Config:
        def __init__(self, scale): self.scale = scale
        def __eq__(self, other): return isinstance(other, Config)
        def __hash__(self): return 7
    state["of"] = Config(1.0)
array_in_place: torch.stack([x[..., i] * each[i] for i in range(3)], -1) | each[1] = VALUE | each.fill(1.0)
    each = np.array([1.0, 2.0, 3.0])
tensor_through_numpy: scales * x | array[0] = 5.0 | array.fill(0.3)
    array = np.array([1.0, 2.0, 3.0])
    scales = torch.from_numpy(array)
code_exchanged: read(x) | read.__code__ = halved.__code__ | read.__code__ = first
    def read(x): return x
    def halved(x): return 0.5 * x
    first = read.__code__
partial_with_changed_keywords: read(x) | read.keywords["factor"] = VALUE
    read = functools.partial(lambda x, factor: factor * x, factor=1.0)
default_arguments: read(x) | read.__defaults__ = (VALUE,) | read.__kwdefaults__ = {"shift": 0.3}
    def read(x, scale=1.0, *, shift=0.0): return scale * x + shift
coefficients: x; w; [qp.expval(qp.Hamiltonian(factors, [qp.Z(0), qp.X(1)]))] | factors[0] = VALUE
    factors = [0.5, -1.0]
hamiltonian_in_place: x; w; [qp.expval(hamiltonian)] | term.scalar = 2.0 | term.scalar = -1.0
    hamiltonian = 0.5 * qp.Z(0) + 0.3 * qp.X(1)
    term = hamiltonian.operands[0]
pauli_words_in_place: hamiltonian.pauli_rep[word] * x | hamiltonian.pauli_rep[word] = VALUE
    hamiltonian = 1.0 * qp.Z(0) + 0.3 * qp.X(1)
    word = next(iter(hamiltonian.pauli_rep))
constant_state: amplitudes | amplitudes[:] = [0.0, 0.6, 0.8, 0.0] | amplitudes[:] = [0.5] * 4
    amplitudes = [0.6, 0.8, 0.0, 0.0]
    def circuit(inputs, weights):
        qp.StatePrep(np.array(amplitudes), wires=[2, 0])
        return body(inputs, weights)
other_containers: scales[0] * x + layered["shift"] | scales.append(0.5) | layered["shift"] = 0.9
    scales, layered = collections.deque([1.0, 2.0], maxlen=2), collections.ChainMap({}, {"shift": 0.1})
decorated_method: helper.angles(x) | helper.scale = VALUE
    class Helper:
        scale = 1.0
        @passed_on
        def angles(self, x): return self.scale * x
    helper = Helper()
two_class_methods_of_an_object_handed_on: share(schedule) * x | scale = VALUE
    class Schedule:
        @classmethod
        def one(cls): return 1.0
        @classmethod
        def other(cls): return scale
    def share(schedule): return schedule.one() * schedule.other()
    schedule = Schedule()
operator_of_an_operator: x; w; last(undone(), expvals()) | scale = VALUE
    undone = qp.adjoint(qp.adjoint(lambda: qp.RX(scale, wires=0)))
operation_with_an_attribute: x; w; last(Kick(wires=0), expvals()) | Kick.strength = VALUE
    class Kick(qp.operation.Operation):
        num_wires, num_params, strength = 1, 0, 1.0
        def decomposition(self): return [qp.RX(self.strength, wires=self.wires)]
attribute_of_a_method: helper.angles(x) | Helper.angles.scale = VALUE
    class Helper:
        def angles(self, x): return x * helper.angles.scale
    Helper.angles.scale, helper = 1.0, Helper()
attribute_of_a_partial: read(x) | read.scale = VALUE
    read = functools.partial(lambda x: x * read.scale)
    read.scale = 1.0
name_of_a_function: x; w; last(getattr(qp, RX.__name__)(0.7, wires=0), expvals()) \
| RX.__name__ = "RY" | RX.__name__ = "RZ"
    def RX(): pass
class_that_is_told_to_be_another: (0.5 if isinstance(number, Angle) else 1.0) * x | Angle.register(Number)
    class Angle(abc.ABC): pass
    class Number: pass
    number = Number()
name_that_is_put_together: x; w; last(getattr(qp, f"R{axis}")(0.7, wires=0), expvals()) \
| axis = "Z" | axis = "Y"
    axis = "X"
operator_exchanged_in_pennylane: x; w; last([getattr(qp, name)(0.7, 0) for name in ("RX", "RY")], expvals()) \
| put(qp, "RX", qp.RY) | put(qp, "RX", RX) | put(qp, "RX", qp.RZ)
    RX = qp.RX
method_of_all_tensors: x.scaled() | scale = VALUE
    put(Tensor, "scaled", lambda self: self * scale, raising=False)
attribute_that_all_tensors_may_have: x * getattr(x, "share", 1.0) | Tensor.share = VALUE
    put(Tensor, "share", 1.0, raising=False)
    drop(Tensor, "share")
builtin_in_its_place: SCALE_OF_ALL * x | builtins.SCALE_OF_ALL = VALUE
    put(builtins, "SCALE_OF_ALL", 1.0, raising=False)
attribute_of_a_librarys_function: qp.expval.share * x | qp.expval.share = VALUE
    put(qp.expval, "share", 1.0, raising=False)
attribute_of_an_operator_in_a_variable: x * (gate := qp.RX(0.3, wires=0)).share \
| qp.operation.Operator.share = VALUE
    put(qp.operation.Operator, "share", 1.0, raising=False)
attribute_put_on_an_operator: (lambda gate: getattr(gate, "share", 1.0))(gate) * x | gate.share = VALUE
    gate = qp.RX(0.3, wires=0)
class_that_looks_like_a_librarys: (lambda made: made.scale)(Config) * x | Config.scale = VALUE
    class Config: scale, __module__, __qualname__ = 1.0, "types", "Config"
name_of_the_class_of_a_tensor: x if type(x).__name__ == name else x / 2 | name = "Parameter" | name = "Tensor"
    name = "Tensor"
fields_by_a_library: dataclasses.astuple(settings)[0] * x | settings.scale = VALUE
tensor_in_place: tensor[0].item() * x | tensor.zero_() | tensor.data.fill_(1)
    tensor = torch.ones(3)
which_of_two_objects: (1.0 if held is settings else 0.5) * x | held = settings | held = None
    held = None
global_in_place_of_a_builtin: abs(-1) * x | abs = lambda x: 0.5 | del abs
object_handed_on: (lambda each: each.scale)(settings) * x | settings.scale = VALUE
namespace_handed_on: (lambda each: each.scale)(space) * x | space.scale = VALUE
    space = types.SimpleNamespace(scale=1.0)
attribute_by_a_computed_name: getattr(settings, "sc" + "ale") * x | settings.scale = VALUE
changes_of_its_own: of_its_own(scale) * x | scale = VALUE
type_of_a_number: (scale if type(scale) is float and scale is not None else 2.0) * x | scale = VALUE
text_of_a_number: (float(f"{scale:.2f}") + len(str(scale))) * x | scale = VALUE
members_of_a_tuple: (2.0 if scale in (1.0, 2.0) else 1.0) * x | scale = VALUE
number_then_tensor: scale * x | scale = tensor | scale = 0.25 | scale = np.float64(0.125) | scale = 2 * tensor
    tensor = torch.tensor(0.5, dtype=torch.float64)
equal_numbers_of_other_types: SHARES.get(type(n), 1.0) * x | n = 2.0 | n = 2 | n = 1 | n = True | n = 1.0
    n = 2
tuple_for_a_list: (1.0 if isinstance(held, list) else 0.5) * x | held = (1.0,) | held = [1.0] | held = (1.0,)
    held = [1.0]
negative_zero: (math.copysign(0.7, zero) + 0.1) * x | zero = -0.0 | zero = -0.0
    zero = 0.0
not_a_number: scale * x | scale = math.nan | scale = math.nan | scale = 0.5
python_that_raises(raises=True, rows=(5, 3)): 1 / scale * x | scale = 0 | scale = 2.0
member_of_an_enumeration: mode.factor() * Mode.HALF.value * x | mode = Mode.HALF | mode = Mode.WHOLE
    mode = Mode.WHOLE
slice_exchanged: sum([1.0, 2.0, 4.0][part]) * x | part = slice(0, 3) | part = slice(1, 2)
    part = slice(2)
which_of_two_equal_numbers: (1.0 if one is ONE else 0.5) * x | one = OTHER | one = ONE
    one = ONE
which_of_two_equal_texts: (1.0 if operator.is_(text, TEXT) else 0.5) * x | text = OTHER_TEXT | text = TEXT
    text = TEXT
which_not_a_number: (1.0 if NAN in known else 0.5) * x | known = (OTHER_NAN,) | known = (NAN,)
    known = (NAN,)
function_exchanged: read() * x | read = lambda: 0.5 | read = lambda: state["scale"] | state["scale"] = 3.0
    read = lambda: 1.0
dict_entry_that_appears: found.get("scale", 1.0) * x | found["scale"] = 0.5 | found.clear()
    found = {}
clock_of_ones_own: (1.0 if clock() < 10 else 0.5) * x | clock.now = 20.0 | clock.now = 5.0
    class Clock:
        now = 0.0
        def __call__(self): return self.now
    clock = Clock()
constant_in_the_default_dtype: x * torch.tensor(0.1) | change(torch.float64) | change(torch.float32)
    change = torch.set_default_dtype
list_or_not(rows=(5, 3)): x; w; expvals() if listed else qp.probs(wires=0) \
| listed = False | listed = True | listed = False
    listed = True
== device refusals
module_that_makes_up_attributes: config.scale * x | state["scale"] = VALUE
    config = types.ModuleType("config")
    config.__getattr__ = lambda name: state[name]
local_variables_as_a_dictionary: read() * x | scale = VALUE
    def read():
        factor = scale
        return vars()["factor"]
closure_that_counts: count() * x
    def make():
        n = 0
        def before(call):
            nonlocal n
            n = call
        def count():
            nonlocal n
            n += 1
            return 1 / n
        return before, count
    before, count = make()
switch_that_two_runs_leave_as_it_was: read() * x
    # Each layer has a world of its own, in which its next call meets what its last one left.
    switch, worlds, turns = {"on": False}, collections.deque([False, False]), itertools.count()
    def read():
        found = switch
        found["on"] = not found["on"]
        return state["scale"]
    def before(call):
        if next(turns):
            worlds.append(switch["on"])
            worlds.popleft()
        switch["on"] = worlds[0]
        state["scale"] = 1.0 if worlds[0] else 0.5
class_of_a_tensor: x if type(x) is Tensor else x / 2
descriptor_in_the_end: config.part.scale * x | Part.__get__ = lambda *given: other
    class Part: scale = 1.0
    class Config: part = Part()
    config, other = Config(), Settings(0.5)
descriptor_that_comes_before_the_object: config.part.scale * x | Part.__set__ = lambda *given: None
    class Part:
        scale = 1.0
        def __get__(self, owner, kind): return self
    class Config: part = Part()
    config = Config()
    vars(config)["part"] = Settings(0.5)
device_of_ones_own: x
    class Noisy(type(on(3))):
        def execute(self, *given, **named):
            return tuple(tuple(value / 2 for value in each) for each in super().execute(*given, **named))
    device = Noisy(wires=3)
device_that_is_patched: x | device.execute = execute
    device = on(3)
    known = device.execute
    def execute(*given, **named):
        return tuple(tuple(value / 2 for value in each) for each in known(*given, **named))
device_with_a_transform: x
    device = circuits.drop_entanglement(on(3))
metaclass_that_makes_up_attributes: Config.scale * x | state["scale"] = VALUE
    class Meta(type):
        def __getattr__(cls, name): return state[name]
    class Config(metaclass=Meta): pass
attributes_made_up: config.scale * x | state["scale"] = VALUE
    class Config:
        def __getattr__(self, name): return state[name]
    config = Config()
slots: config.scale * x | config.scale = VALUE
    class Config: __slots__ = ("scale",)
    config = Config()
    config.scale = 1.0
module_parameter: net | net.angle.data.add_(0.5) | net.angle.data.add_(0.5)
    circuit, outside = net.by_parameter, [net.angle]
module_handed_on: (1.0 if getattr(net, "training") else 0.5) * x | net.eval() | net.train()
linear_inside: linear(x) | linear.weight.data.sub_(0.1) | linear.weight.data.sub_(0.1)
    linear = toys.linear(3, 3, dtype=torch.float64)
    outside = list(linear.parameters())
python_random(before=random.seed): random.random() * x
numpy_random(before=np.random.seed): np.random.rand() * x
torch_random(before=torch.manual_seed): x + 0.1 * torch.rand(3, dtype=x.dtype)
deadline: (1.0 if time.time() < until else 0.5) * x | until = 0 | until = 0
    until = math.inf
environment_variable: float(os.environ.get("SCALE", "1")) * x | os.environ["SCALE"] = "VALUE"
    put(os, "environ", {**os.environ})
counter: x
    class Counting(nn.Module):
        def circuit(self, inputs, weights):
            self.calls += 1
            return body(inputs / self.calls, weights)
    counting = Counting()
    circuit, before = counting.circuit, functools.partial(setattr, counting, "calls")
class_that_counts: count() * x
    class Config: n = 0
    before = functools.partial(setattr, Config, "n")
    def count():
        Config.n += 1
        return 1 / Config.n
log_that_is_read: (log.append("called") or 1 / len(log)) * x
    log = []
    before = lambda call: log.__setitem__(slice(None), [""] * call)
array_under_another_name: halved(array) * x
    array = np.ones(2)
    before = lambda call: array.fill(1.0 + call)
    def halved(array):
        array *= 0.5
        return float(array[0])
result_written_to_an_array: float(np.add(array, 1, out=array)[0]) * x
    array = np.ones(2)
    before = lambda call: array.fill(1.0 + call)
dictionary_under_another_name: counted(state) * x
    before = lambda call: state.update(n=call)
    def counted(store):
        seen = store
        seen["n"] = seen.get("n", 0) + 1
        return 1 / seen["n"]
attributes_by_their_dictionary: read() * x
    before = lambda call: setattr(settings, "scale", 1.0 + call)
    def read():
        found = vars(settings)
        found["scale"] *= 0.5
        return settings.scale
list_changed_where_the_size_of_the_state_is_asked_for: x
    found, device, before = [], on(None), lambda call: found.clear()
    def circuit(inputs, weights):
        seen = found
        scale = 1.0 if inputs.sum() > -1 else 2.0
        seen.append(1)
        return body(inputs * scale / len(seen), weights)
list_changed_before_values_are_looked_at: x
    found, before = [], lambda call: found.clear()
    def circuit(inputs, weights):
        seen = found
        seen.append(1)
        return body(inputs * (1.0 if inputs.sum() > -1 else 2.0) / len(seen), weights)
gradient_mode(grad=(True, False), rows=(5, 1, 3, 5)): x if torch.is_grad_enabled() else 0.5 * x
== batched
gate_of_a_quarter_of_its_angle: x; w; last(Share(inputs[..., 0], wires=0, parts=4), expvals())
inverses_cancelled(rows=(5, None, 1)): x
    circuit, transform = redundant, qp.transforms.cancel_inverses
deferred_measurements: x
    circuit, transform = measured_in_the_middle, qp.defer_measurements
probs_of_labels_out_of_order(rows=ONE_TOO, device=on(None)): x
    circuit = wired((2, 5, 0), lambda: [qp.probs(wires=[5, 2])])
expvals_of_strings(rows=ONE_TOO, device=on(None)): x
    circuit = wired(("x", "y", "aux"), lambda: [qp.expval(qp.Z("aux")), qp.expval(qp.Z("x") @ qp.X("y"))])
wires_only_measured(rows=ONE_TOO, device=on(8)): x
    circuit = wired((2, 0, 1), lambda: [qp.expval(qp.Z(7)), qp.expval(qp.Z(0))])
hermitian_on_swapped_wires(rows=ONE_TOO, device=on(None)): x
    circuit = wired((2, 1, 0), lambda: [qp.expval(qp.Hermitian(np.diag([1.0, 2, 4, 8]), wires=[0, 2]))])
projector_on_swapped_wires(rows=ONE_TOO, device=on(None)): x
    circuit = wired((2, 1, 0), lambda: [qp.expval(qp.Projector([0, 1], wires=[2, 0]))])
built_and_wrapped: x
    qnode, shapes = kit()
    qnode = wrapped(qnode, lambda: 0.5)
built_then_on_more_wires: x
    qnode, shapes = kit()
    qnode = qp.QNode(qnode.func, on([3, 2, 1, 0]))
settings_that_do_not_matter: (float(np.exp(MATRIX_OF_NUMBERS[0, 0]) / 2) if text() else 0.0) * x \
| np.set_printoptions(precision=2) | torch.set_printoptions(precision=2) | np.seterr(all="raise")
    def text(): return f"angles {MATRIX_OF_NUMBERS} {MATRIX}"
centred_features(rows=ONE_TOO): x - x.mean(-1, keepdim=True)
sorted_features(rows=ONE_TOO): x.sort(-1).values
times_a_matrix: x @ MATRIX
rows_by_their_number: (x.reshape(len(x), 3) + torch.zeros(len(x), 1)) * torch.ones(len(x), 3)
norm_that_pennylane_looks_at(rows=(1, 1)): 1 within rounding; the rule of state preparation is not for it
    def circuit(inputs, weights):
        directions = inputs / inputs.square().sum(-1, keepdim=True).sqrt()
        norm = torch.linalg.norm(1.000003 * directions, dim=-1)
        with qp.QueuingManager.stop_recording():
            qp.dot([norm], [qp.Z(0)])
        qp.RX(100 * norm, wires=0)
        return body(weights / 2, weights)
single_value(rows=ONE_TOO): x; w; qp.expval(qp.Z(1))
all_kinds(rows=ONE_TOO): x; w; [qp.expval(qp.Y(0)), qp.var(qp.Z(1)), qp.probs(wires=[0, 2])]
parameter_shift(**SHIFTED): x
on_lightning(**LIGHTNING): x
inputs_without_use(rows=(None, 1)): TorchLayer takes no batches of these
    def circuit(inputs, weights): return body(weights / 2, weights)
three_weights(shapes={"first": (2, 3), "second": (3,), "shift": ()}, rows=(5, None, 1)): x
    def circuit(inputs, first, second, shift): return body(inputs * shift, first[0] + second)
== device merge
array_that_is_printed(rows=(5,)): len(str(MATRIX_OF_NUMBERS)) / 9 * x | digits(1) | digits(3)
    digits = lambda n: np.set_printoptions(precision=n)
number_that_is_printed(rows=(5,)): len(repr(MATRIX_OF_NUMBERS[0, 0])) / 9 * x \
| np.set_printoptions(legacy="1.25") | np.set_printoptions(legacy=False)
tensor_that_is_printed(rows=(5,)): len(f"{MATRIX}") / 99 * x | change(precision=1) | change(precision=3)
    change = torch.set_printoptions
centred_batch: x - x.mean(0)
over_the_batch_size: x / x.shape[0]
flipped_batch: x.flip(0)
minus_the_first: x - x[:1]
large_batches_differ: x if len(x) > 3 else 0.5 * x
slice_that_may_be_empty(rows=(3, 5, 9, 8)): x + x[7:].sum(0)
== device
features_changed_in_place: x.clone().mul_(2)
features_drawn_in_place(before=torch.manual_seed): x + 0.1 * x.clone().uniform_()
measured_value_in_the_middle(device=on(None)): x; w; qp.expval(qp.measure(0))
state_whose_norm_is_checked(n_features=8): x
    def circuit(inputs, weights):
        qp.StatePrep(inputs / inputs.norm(dim=-1, keepdim=True), wires=range(3), validate_norm=True)
        return body(weights, weights)
gate_of_a_third_of_its_angle: x; w; last(Share(inputs[..., 0], wires=0, parts=3), expvals())
single_tapes_added: x; w; [qp.expval(qp.Z(0)), qp.expval(qp.X(0) @ qp.Y(1)), qp.expval(qp.Y(0) + qp.Z(1))]
    transform = qp.transforms.split_non_commuting
rotations_merged: x
    circuit, transform = redundant, qp.transforms.merge_rotations
state_of_strings(rows=ONE_TOO, device=on(None), is_complex=True): x
    circuit = wired(("b", "a", "c"), qp.state)
density_matrix(rows=ONE_TOO, device=on(None), is_complex=True): x
    circuit = wired((2, 0, 1), lambda: qp.density_matrix([1, 0]))
built_then_with_noise: x
    qnode, shapes = kit()
    qnode = noisy(qnode)
shots(rows=(None,)): x
    device, before = on(3), lambda call: setattr(device, "_rng", np.random.default_rng(call))
    transform, circuit = functools.partial(qp.set_shots, shots=20), body
division_that_may_raise(raises=True): (1 + float(np.sign(1 / zero))) * x | np.seterr(all="raise")
    zero = np.array(0.0)
    np.seterr(all="ignore")
special_function_that_may_raise(raises=True): float(np.sign(scipy.special.gammaln(-1.0))) * x \
| scipy.special.seterr(all="raise") | scipy.special.seterr(all="ignore")
error_that_is_caught: of_values(x)
    def of_values(x):
        try:
            return x * float(f"{x.detach().sum():.3f}")
        except TypeError:
            return x
error_of_any_kind_that_is_caught: of_values(x)
    def of_values(x):
        try:
            return x * float(f"{x.detach().sum():.3f}")
        except:
            return x
error_that_a_block_swallows: of_values(x)
    class Swallowing:
        def __enter__(self): return self
        def __exit__(self, *error): return True
    def of_values(x):
        with Swallowing():
            return x * float(f"{x.detach().sum():.3f}")
        return x
two_operators_that_are_equal: x; w; last(qp.RX(w[0], 0) == qp.RX(w[0], 0) and qp.RY(0.7, 0), expvals())
loop_over_rows: torch.stack([row / row.sum() for row in x])
branch_on_a_value: x if x.sum() > 8 else 0.5 * x
branch_on_a_weight(scales=(1.0, 10.0, 1.0)): x; w if w[0] > 10 else w / 2
bits_of_the_inputs(rows=(None,)): x
    def circuit(inputs, weights):
        qp.BasisEmbedding((inputs > 1.5).int(), wires=range(3))
        return body(weights, weights)
finite_differences(rows=(None,), options={"diff_method": "finite-diff", "gradient_kwargs": {"h": 0.1}}): x
one_angle_for_one_sample(shapes={"weights": (1,)}, rows=(None,)): PennyLane takes the weight for a batch
    def circuit(inputs, weights):
        qp.RX(weights, wires=0)
        qp.RY(inputs[0], wires=1)
        return qp.probs(wires=[0, 1])
== batched degrees
tanh_far_out(tops=(1.0, 1e5, 3.0), tolerance=FAR): 3 * torch.tanh(1e-5 * x)
faint_square(tops=(1.0, 1e6, 3.0), tolerance=FAR): x + 1e-14 * x**2
where(tops=(3.0, 1e3, 1.0), tolerance=FAR): torch.where(x > 100, x / 3, x)
gated_by_a_comparison(tops=(3.0, 1e3, 1.0), tolerance=FAR): x + x * (x > 100)
root_of_a_square(tops=(3.0, 1e2, 1.0), tolerance=FAR): 2 * x + (x - 10).square().sqrt()
remainder(tops=(3.0, 1e3, 1.0), tolerance=FAR): torch.remainder(x, 40.0)
straight_through(tops=(3.0, 30.0, 1.0), tolerance=FAR): x + (torch.round(x) - x).detach()
tanh_of_large_weights(scales=(1.0, 1e5, 1.0), tolerance=FAR): x; 3 * torch.tanh(1e-5 * w)
clamped_large_weights(scales=(1.0, 100.0, -100.0), tolerance=FAR): x; w.clamp(-30, 30) + w * (w > 100)
sum_of_integers(**INTEGERS): x * x.sum(-1, keepdim=True, dtype=torch.int64)
cumsum_of_integers(**INTEGERS): x.cumsum(-1, dtype=torch.int32) * 0.3
== batched pipeline
without_entanglement: x
    transform = circuits.drop_entanglement
two_kicks: x
    transform = lambda qnode: kicked(circuits.drop_entanglement(kicked(qnode, [0.7])), [1.1])
other_measurements(rows=(5, None, 1)): x
    transform = measuring_otherwise
built_without_entanglement: x
    qnode, shapes = kit("strongly_entangling")
    qnode = circuits.drop_entanglement(qnode)
== device results
results_in_another_order: x
    transform = post_processed(lambda result: tuple(result[::-1]))
scaled_results: x | scale = VALUE
    transform = post_processed(lambda result: tuple((1 + scale) * value for value in result))
== batched labels
probs_in_order_of_use(rows=ONE_TOO, device=on(None)): x
    circuit = wired((2, 0, 1), qp.probs)
state_in_order_of_use(rows=ONE_TOO, device=on(None), is_complex=True): x
    circuit = wired((2, 0, 1), qp.state)
state_of_strings_on_the_device(rows=ONE_TOO, device=on(["a", "b", "c"]), is_complex=True): x
    circuit = wired(("b", "a", "c"), qp.state)
mixed_labels_on_the_device(rows=ONE_TOO, device=on([0, "a", 1])): x
    circuit = wired(("a", 1, 0), qp.probs)
device_reversed(rows=ONE_TOO, device=on([2, 1, 0])): x
    circuit = wired((0, 1, 2), qp.probs)
== device sizes
one_size_differs(rows=(32, 64, 5)): x / (1 + (len(x) == 64))
"""
written(TABLE)

# --- the tests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_every_call_agrees(name, monkeypatch, restored):
    explained = agree(CASES[name].make(monkeypatch))
    assert ran(explained) == CASES[name].where, explained


IN_FLOAT32 = "training_flag", "number_then_tensor", "centred_features", "built_and_wrapped", "all_kinds"


@pytest.mark.parametrize("name", [*IN_FLOAT32, "state_in_order_of_use"])
def test_every_call_agrees_in_float32(name, monkeypatch, restored):
    assert ran(agree(CASES[name].make(monkeypatch), torch.float32)) == "batched"


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_table_itself(name, monkeypatch, restored):
    """TorchLayer agrees with TorchLayer: both meet the same world at every call."""
    case = CASES[name].make(monkeypatch)
    agree(case, ours=States if case.is_complex else TorchLayer)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, entry in CASES.items() if entry.guard])
def test_needs_its_guard(name, monkeypatch, restored):
    """Without it, the fused program runs, and some value or gradient is another than TorchLayer's."""
    case = CASES[name].make(monkeypatch)
    WITHOUT[CASES[name].guard](monkeypatch.setattr)
    with pytest.raises(AssertionError, match=r"^call \d+, (values|to )"):
        agree(case)


# --- many calls ---------------------------------------------------------------------------------------


@pytest.fixture
def traces(monkeypatch):
    """One entry for every trace; each runs the QNode's Python twice."""
    counted, known = [], programs.trace
    monkeypatch.setattr(programs, "trace", lambda *given: counted.append(given[1]) or known(*given))
    return counted


def scheduled(read: Callable[[Any], Any] = lambda now: now.scale) -> tuple[Any, Callable[..., bool], Any]:
    """What `read` gets, whether both layers agree at a call in which its `scale` is such, and our layer."""
    now = types.SimpleNamespace(scale=1.0, shifts=[0.25], array=np.ones(3))
    both = layers(Case(lambda inputs, weights: body(read(now) * inputs, weights)))

    def agrees(call: int, scale: float) -> bool:
        now.scale, inputs = scale, uniform(5, 3, seed=call)
        true, found = (measured(each, inputs, ()) for each in both)
        return all(torch.allclose(a, b, rtol=0, atol=FLOAT64) for a, b in zip(true, found, strict=True))

    return now, agrees, both[1]


def test_a_closure_that_changes_at_every_call_settles_on_the_device(traces):
    (_, agrees, layer), backends = scheduled(), []
    for call in range(20):
        assert agrees(call, 1 + 0.1 * call)
        backends.append(layer.backend)
    n = programs.MOST_STATES
    assert backends == ["batched"] * n + ["default.qubit"] * (20 - n) and len(traces) == n
    assert ran([layer.explain()]) == "device" and "changed" in layer.explain()


def test_alternating_values_do_not_retrace(traces):
    _, agrees, layer = scheduled()
    assert all(agrees(call, (0.5, -1.5, 1.0)[call % 3]) for call in range(40))
    assert layer.backend == "batched" and len(traces) == 3


def test_a_value_that_changes_now_and_then_keeps_the_program(traces):
    """As an annealed one does, however many values it has."""
    _, agrees, layer = scheduled()
    for value in range(12):
        assert agrees(value, 1 + 0.1 * value)
        for call in range(programs.CALLS_OF_A_STATE):
            layer(uniform(5, 3, seed=call))
    assert layer.backend == "batched" and len(traces) == 12 + 1  # and an audit


def test_equal_values_in_other_objects_do_not_retrace(traces):
    """A schedule that sets the same number, list or array at every step; and each is still looked at."""
    now, agrees, layer = scheduled(lambda now: now.scale * now.array.sum() + now.shifts[0])
    for call in range(40):
        now.shifts, now.array = [float("0.25")], np.ones(3)
        now.array[0] = 1.0 if call < 20 else 3.0  # of the array that was just put there
        assert agrees(call, float("1.5") if call < 30 else float("0.5"))
    assert layer.backend == "batched" and len(traces) == 3


def test_python_is_run_again_now_and_then(monkeypatch, traces):
    """What the watch misses is met at the next audit."""
    monkeypatch.setattr(watching.Watch, "holds", lambda self: True)
    (_, agrees, layer), audit = scheduled(), min(programs.AUDITS)
    agreed = [agrees(call, 1.0 if call < 10 else 0.5) for call in range(1, audit + 3)]
    assert agreed == [call < 10 or call >= audit for call in range(1, audit + 3)]
    assert len(traces) == 2 and ran([layer.explain()]) == "device"


def test_hundreds_of_calls_neither_retrace_nor_grow(traces):
    layer = layers(Case(Net().by_mode))[1]
    optimizer, inputs_of = torch.optim.Adam(layer.parameters(), lr=0.01), (uniform(32, 3), uniform(8, 3))

    def train(n):
        for call in range(n):
            optimizer.zero_grad()
            layer(inputs_of[call % 2]).square().sum().backward()
            optimizer.step()
        gc.collect()
        return sys.getallocatedblocks()

    blocks = [train(100) for _ in range(8)]  # of memory; now and then a cache fills up still
    grown = np.median(np.diff(blocks))
    assert layer.backend == "batched" and 2 * len(traces) <= 20 and grown < 90


def halved_at_64(inputs: Tensor) -> Tensor:
    return inputs / 2 if len(inputs) == 64 else inputs


@pytest.mark.parametrize(
    "sizes", [(32, 64, 5, 1), (64, 32, 5, 1), (1, 5, 64, 5), (*range(2, 42), 64)], ids=str
)
def test_every_size_of_batch_agrees(sizes):
    """However many there were before it."""
    agree(Case(lambda inputs, weights: body(halved_at_64(inputs), weights), rows=sizes))


def test_a_feature_that_nothing_reads_may_be_missing():
    """As TorchLayer's, values and gradients of the rows that are read are finite."""
    both, inputs = layers(Case(lambda inputs, weights: body(inputs[..., [0, 1, 0]], weights))), uniform(4, 3)
    inputs[1, 2], inputs[2, 2] = math.nan, math.inf
    for found, true in zip(*(measured(each, inputs, ()) for each in reversed(both)), strict=True):
        assert found.isfinite().all() and torch.allclose(found, true, rtol=0, atol=FLOAT64)
    assert both[1].backend == "batched"
