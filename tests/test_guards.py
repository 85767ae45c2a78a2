"""`QuantumLayer` against `TorchLayer`, call by call, while what the QNode's Python reads changes in between.

One table of small QNodes. Each runs several times, with a change before every further call; at each call
values and gradients (by the inputs, by every weight, by tensors from outside) are TorchLayer's. Without the
guard that a case names, they are not.
"""

from __future__ import annotations

import abc
import builtins
import collections
import contextlib
import copy
import enum
import functools
import gc
import importlib
import inspect
import itertools
import math
import operator
import os
import random
import re
import time
import tracemalloc
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pennylane as qp
import pytest
import scipy.special
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from qnnkit import QuantumLayer, circuits
from qnnkit.simulator import graph, programs

FLOAT32, FLOAT64 = 1e-5, 1e-10
"""Largest errors allowed of values and gradients, by precision."""
FAR = 1e-8
"""Likewise in float64, of angles so large that their own spacing is 1e-10 radians."""
TorchLayer = qp.qnn.TorchLayer
tracing, watching = (importlib.import_module(f"qnnkit.simulator.{name}") for name in ("trace", "watch"))

# --- the comparison -----------------------------------------------------------------------------------


@dataclass
class Case:
    """A QNode, and what happens between its calls. Sequences are gone through again when they end."""

    function: Callable[..., Any] | None = None
    changes: Sequence[Callable[[], Any]] = ()
    """Before the second call, before the third, ...; after the last one, there are two calls."""
    shapes: dict[str, tuple[int, ...]] = field(default_factory=lambda: {"weights": (3,)})
    qnode: qp.QNode | None = None
    device: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    """Of the QNode."""
    rows: Sequence[int | tuple[int, ...] | None] = (5, 3, 1)
    """Leading shape of the inputs; None is a single sample without a batch axis."""
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
            device = circuits.make_device("default.qubit", 3) if self.device is None else self.device
            self.qnode = qp.QNode(self.function, device, **self.options)

    @property
    def n_calls(self) -> int:
        return max(len(self.changes) + 2, *map(len, (self.rows, self.tops, self.scales, self.grad)), 3)

    def inputs(self, call: int) -> Tensor:
        rows = self.rows[call % len(self.rows)]
        leading = () if rows is None else (rows,) if isinstance(rows, int) else rows
        return uniform(*leading, self.n_features, seed=call, top=self.tops[call % len(self.tops)])


class Entry(NamedTuple):
    make: Callable[..., Case]
    kind: str
    where: str
    """Where it runs: "batched" at every call, or on the QNode's own "device"."""
    guard: str
    """Of `WITHOUT`; "" where nothing simple can be taken away."""

    def build(self, request: pytest.FixtureRequest) -> Case:
        names = inspect.signature(self.make).parameters
        return self.make(**{name: request.getfixturevalue(name) for name in names})


CASES: dict[str, Entry] = {}
RAN: dict[str, str] = {}
"""Name of a case -> where it ran."""


def case(kind: str, where: str, guard: str = "") -> Callable[..., Any]:
    """Takes up functions that make cases: the one that it decorates, or those that it is given by name."""

    def register(make: Callable[..., Case] | None = None, **named: Callable[..., Case]) -> Any:
        for name, each in {**named, **({make.__name__: make} if make else {})}.items():
            assert name not in CASES, name
            CASES[name] = Entry(each, kind, where, guard)
        return make

    return register


class States(TorchLayer):
    """PennyLane's layer would discard the imaginary part of a state."""

    def _evaluate_qnode(self, x: Tensor) -> Tensor:
        weights = {name: weight.to(x) for name, weight in self.qnode_weights.items()}
        return self.qnode(inputs=x, **weights).to(x.dtype.to_complex())


def uniform(*shape: int, seed: int = 0, top: float = math.pi) -> Tensor:
    """Numbers that float32 holds exactly, in float64."""
    return (top * torch.rand(shape, generator=torch.Generator().manual_seed(seed))).double()


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """A case may seed and set global state; here it ends."""
    python, numpy, dtype = random.getstate(), np.random.get_state(), torch.get_default_dtype()  # noqa: NPY002
    printed = np.printoptions(), torch._tensor_str.printoptions()
    with torch.random.fork_rng(devices=[]), np.errstate(), printed[0], printed[1]:
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002
            torch.set_default_dtype(dtype)


def measured(layer: nn.Module, inputs: Tensor, outside: Sequence[Tensor]) -> list[Tensor]:
    """Outputs, and gradients of a mixture of them by inputs, weights and what lies outside."""
    inputs = inputs.clone().requires_grad_()
    outputs = layer(inputs)
    outputs = torch.view_as_real(outputs) if outputs.is_complex() else outputs
    mixture = torch.linspace(-0.9, 1.1, outputs.numel(), dtype=outputs.dtype).reshape(outputs.shape)
    leaves = [inputs, *layer.parameters(), *outside]
    for leaf in leaves:
        leaf.grad = None
    if outputs.requires_grad:
        (outputs * mixture).sum().backward()
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
    plain = States if case.is_complex else TorchLayer
    both = (
        kind(case.qnode, case.shapes, {k: v.clone() for k, v in starts.items()}) for kind in (plain, ours)
    )
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


def is_a_reason(text: str) -> bool:
    """One sentence that says why."""
    return bool(re.fullmatch(r"[A-Z].* because \S.*\.", text)) and not re.search(r"[.!?] [A-Z]", text)


# --- the guards, taken away ---------------------------------------------------------------------------


class Unwatched:
    """In place of a `Watch`: nothing is read, nothing changes."""

    def holds(self) -> bool:
        return True


def without_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching.Watch, "holds", lambda self: True)
    without_sizes(monkeypatch)


def without_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other sizes of batch are not traced."""
    monkeypatch.setattr(programs, "MOST_SIZES", 0)


def without_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the watch, of random numbers, of gradients from outside, and of two traces that differ."""
    known = graph.Recorder.__torch_dispatch__

    def dispatch(self: Any, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = Tensor, nn.Parameter
        args, kwargs = tree_map(
            lambda leaf: leaf.detach() if type(leaf) in plain else leaf, (args, kwargs or {})
        )
        is_traced = any(type(leaf) is graph.Traced for leaf in tree_leaves((args, kwargs)))
        return known(self, func, kinds, args, kwargs) if is_traced else func(*args, **kwargs)

    monkeypatch.setattr(programs, "watch", lambda qnode: Unwatched())
    monkeypatch.setattr(graph.Recorder, "__torch_dispatch__", dispatch)
    without_merge(monkeypatch)


def without_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    """One size of batch is recorded, not two that are compared."""
    known = tracing.merge

    def merge(nodes: Any, others: Any, sizes: Any) -> None:
        known(nodes, nodes, sizes[:1] * 2)
        for node in nodes:
            if node.sources & graph.INPUTS and node.shadow is not None and sizes[0] in node.shadow.shape:
                node.axis = list(node.shadow.shape).index(sizes[0])

    monkeypatch.setattr(tracing, "merge", merge)
    monkeypatch.setattr(tracing, "_signature", lambda *given: ())
    without_sizes(monkeypatch)


def without_degrees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every angle is taken for an affine one."""
    known = graph._degree
    monkeypatch.setattr(graph, "_degree", lambda *given: min(known(*given), 1))


def without_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wires lie in the order in which they are used."""
    monkeypatch.setattr(tracing, "_wires", lambda qnode, tape: tuple(tape.wires))


def without_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a transform computes with the measured values is left out."""
    monkeypatch.setattr(tracing, "_of", lambda finish, mark: mark)


def without_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transforms are left out."""
    known = tracing._circuit

    def circuit(qnode: Any, *given: Any) -> Any:
        plain = copy.copy(qnode)
        plain._compile_pipeline = qp.CompilePipeline()
        return known(plain, *given)

    monkeypatch.setattr(tracing, "_circuit", circuit)


WITHOUT: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "watch": without_watch, "sizes": without_sizes, "refusals": without_refusals, "merge": without_merge,
    "degrees": without_degrees, "labels": without_labels, "results": without_results,
    "pipeline": without_pipeline,
}  # fmt: skip

# --- what the cases are made of -----------------------------------------------------------------------


def gates(inputs: Tensor, weights: Tensor) -> None:
    """Features, weights and entanglement on three wires."""
    qp.AngleEmbedding(inputs, wires=range(3))
    for i in range(3):
        qp.RY(weights[i], wires=i)
    qp.CNOT(wires=[0, 1])
    qp.CNOT(wires=[1, 2])


def body(inputs: Tensor, weights: Tensor) -> list:
    """The gates, and <Z> of each wire."""
    gates(inputs, weights)
    return [qp.expval(qp.Z(i)) for i in range(3)]


def scaled(read: Callable[[], Any]) -> Callable[..., list]:
    """A circuit that multiplies its features by what `read()` gives."""

    def circuit(inputs, weights):
        return body(read() * inputs, weights)

    return circuit


def embedded(angles: Callable[[Tensor], Tensor]) -> Callable[..., list]:
    """A circuit whose angles are a function of the features."""

    def circuit(inputs, weights):
        return body(angles(inputs), weights)

    return circuit


def observed(measure: Callable[[], Any]) -> Callable[..., Any]:
    """A circuit that measures something else."""

    def circuit(inputs, weights):
        gates(inputs, weights)
        return measure()

    return circuit


VALUES = 0.5, -1.5, 1.0
"""What stands in place of 1.0 after each change; the last of them is the first again."""


def attributes(holder: Any, name: str, *values: Any) -> list[Callable[[], None]]:
    """One change for each value of an attribute."""
    return [functools.partial(setattr, holder, name, value) for value in values or VALUES]


def items(holder: Any, key: Any, *values: Any) -> list[Callable[[], None]]:
    """One change for each value of an item."""
    return [functools.partial(operator.setitem, holder, key, value) for value in values or VALUES]


def patched(owner: Any, name: str, circuit: Callable[..., Any]) -> Callable[..., Case]:
    """An attribute that somebody added to what is not theirs."""

    def make(monkeypatch):
        monkeypatch.setattr(owner, name, 1.0, raising=False)
        return Case(circuit, attributes(owner, name))

    return make


def of_one(read: Callable[[Any], Any], *values: Any, start: Any = 1.0, **options: Any) -> Callable[[], Case]:
    """A value in a dictionary that is exchanged, and the factor that Python makes of it by itself."""

    def make():
        state = {"value": start}
        return Case(scaled(lambda: read(state["value"])), items(state, "value", *values), **options)

    return make


def of_object(
    make: Callable[[], Any], read: Callable[[Any], Any], name: str = "scale", *values: Any
) -> Callable[[], Case]:
    """An object that is handed to a function, and one attribute of it that changes."""

    def made():
        owner = make()
        return Case(scaled(lambda: read(owner)), attributes(owner, name, *values))

    return made


# --- 1: what the Python reads -------------------------------------------------------------------------

SCALE = 1.0
MATRIX = uniform(3, 3, seed=9)
MATRIX_OF_NUMBERS = MATRIX.numpy().copy()
reads = case("reads", "batched", "watch")
reads_on_device = case("reads", "device", "refusals")


def global_helper(inputs: Tensor) -> Tensor:
    return SCALE * inputs


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


@reads
def closure_float():
    scale = 1.0

    def put(value):
        nonlocal scale
        scale = value

    def circuit(inputs, weights):
        return body(scale * inputs, weights)

    return Case(circuit, [functools.partial(put, value) for value in VALUES])


@reads
def training_flag():
    net = Net()
    return Case(net.by_mode, [net.eval, net.train, net.eval])


@reads
def module_buffer():
    net = Net()
    return Case(net.by_buffer, [lambda: net.shift.mul_(3), *attributes(net, "shift", torch.ones(3).double())])


@reads
def module_global(monkeypatch):
    put = functools.partial(monkeypatch.setitem, globals(), "SCALE")
    return Case(embedded(global_helper), [functools.partial(put, value) for value in VALUES])


@reads
def global_of_another_module():
    config = types.ModuleType("config")
    config.scale = 1.0
    return Case(scaled(lambda: config.scale), attributes(config, "scale"))


@reads
def order_of_a_dict():
    gates = {"RX": 0, "RZ": 0, "RY": 1}

    def circuit(inputs, weights):
        for name, wire in gates.items():
            getattr(qp, name)(0.7, wires=wire)
        return body(inputs, weights)

    return Case(circuit, [lambda: gates.update(RX=gates.pop("RX")), lambda: gates.update(RY=2)])


@reads
def list_entry():
    scales = [1.0, 2.0, 3.0]
    circuit = embedded(lambda inputs: inputs * scales[0] + sum(scales))
    return Case(circuit, [*items(scales, 0), lambda: scales.append(0.3), scales.pop])


@reads
def attribute_of_a_base_class():
    class Base:
        scale = 1.0

    class Config(Base):
        pass

    config = Config()
    owners = zip((Base, Config, config), (0.5, -1.5, 3.0), strict=True)
    changes = [functools.partial(setattr, owner, "scale", value) for owner, value in owners]
    return Case(scaled(lambda: config.scale), [*changes, lambda: delattr(config, "scale")])


@reads
def method_of_a_helper():
    class Encoder:
        low, high = 0.0, 1.0

        def span(self):
            return self.high - self.low

        def encode(self, inputs):
            return self.low + self.span() * inputs

    encoder = Encoder()
    changes = [*attributes(encoder, "low", 0.3), *attributes(encoder, "high", 3.0)]
    return Case(embedded(encoder.encode), [*changes, *attributes(encoder, "span", lambda: 0.1)])


@reads
def class_exchanged():
    class Wide:
        def scale(self):
            return 1.0

    class Narrow(Wide):
        def scale(self):
            return super().scale() / 4

    embed = Wide()
    return Case(scaled(lambda: embed.scale()), attributes(embed, "__class__", Narrow, Wide))


@dataclass
class Settings:
    scale: float = 1.0
    layers: list[float] = field(default_factory=list)


class Mode(enum.Enum):
    WHOLE, HALF = 1.0, 0.5

    def factor(self):
        return self.value


@reads
def class_taken_from_an_object():
    start = Settings()

    class Maker:
        def __init__(self):
            self.scale = start.scale

    maker = Maker()
    return Case(scaled(lambda: type(maker)().scale), attributes(start, "scale"))


@reads
def object_that_is_indexed():
    class Schedule:
        epoch = 0

        @classmethod
        def share(cls, epoch):
            return 1 / (1 + epoch)

        def __getitem__(self, wire):
            return wire + self.share(self.epoch)

    schedule = Schedule()
    return Case(scaled(lambda: schedule[0]), attributes(schedule, "epoch", 1, 2))


@reads
def equal_to_everything():
    """A configuration whose == compares something else."""

    class Config:
        def __init__(self, scale):
            self.scale = scale

        def __eq__(self, other):
            return isinstance(other, Config)

        def __hash__(self):
            return 7

    holder = {"config": Config(1.0)}
    return Case(scaled(lambda: holder["config"].scale), items(holder, "config", Config(0.5), Config(2.0)))


@reads
def array_in_place():
    scales = np.array([1.0, 2.0, 3.0])

    def circuit(inputs, weights):
        for i in range(3):
            qp.RX(inputs[..., i] * scales[i], wires=i)
        return body(inputs, weights)

    return Case(circuit, [*items(scales, 1, 0.3, 7.0), lambda: scales.fill(1.0)])


@reads
def tensor_through_numpy():
    array = np.array([1.0, 2.0, 3.0])
    scales = torch.from_numpy(array)
    return Case(scaled(lambda: scales), [*items(array, 0, 5.0), lambda: array.fill(0.3)])


@reads
def code_exchanged():
    """What a reload of edited source does to a function."""

    def angles(inputs):
        return inputs

    def halved(inputs):
        return 0.5 * inputs

    return Case(embedded(angles), attributes(angles, "__code__", halved.__code__, angles.__code__))


@reads
def partial_with_changed_keywords():
    angles = functools.partial(lambda inputs, scale: scale * inputs, scale=1.0)
    return Case(embedded(angles), items(angles.keywords, "scale"))


@reads
def default_arguments():
    def angles(inputs, scale=1.0, *, shift=0.0):
        return scale * inputs + shift

    changes = attributes(angles, "__defaults__", (0.5,), (2.0,))
    return Case(embedded(angles), [*changes, *attributes(angles, "__kwdefaults__", {"shift": 0.3})])


@reads
def coefficients():
    weights = [0.5, -1.0]
    measure = lambda: [qp.expval(qp.Hamiltonian(weights, [qp.Z(0), qp.X(1)])), qp.expval(qp.Y(2))]  # noqa: E731
    return Case(observed(measure), items(weights, 0))


@reads
def hamiltonian_in_place():
    hamiltonian = 0.5 * qp.Z(0) + 0.3 * qp.X(1)
    term = hamiltonian.operands[0]
    return Case(observed(lambda: [qp.expval(hamiltonian)]), attributes(term, "scalar", 2.0, -1.0))


@reads
def constant_state():
    state = [0.6, 0.8, 0.0, 0.0]

    def circuit(inputs, weights):
        qp.StatePrep(np.array(state), wires=[2, 0])
        return body(inputs, weights)

    return Case(circuit, items(state, slice(None), [0.0, 0.6, 0.8, 0.0], [0.5] * 4))


@reads
def other_containers():
    scales, layered = collections.deque([1.0, 2.0], maxlen=2), collections.ChainMap({}, {"shift": 0.1})
    circuit = embedded(lambda inputs: scales[0] * inputs + layered["shift"])
    return Case(circuit, [lambda: scales.append(0.5), *items(layered, "shift", 0.9)])


def passed_on(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator as people write them."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@reads
def decorated_method():
    class Encoder:
        scale = 1.0

        @passed_on
        def angles(self, inputs):
            return self.scale * inputs

    encoder = Encoder()
    return Case(embedded(encoder.angles), attributes(encoder, "scale"))


@reads
def two_class_methods_of_an_object_handed_on():
    state = {"scale": 1.0}

    class Schedule:
        @classmethod
        def one(cls):
            return 1.0

        @classmethod
        def other(cls):
            return state["scale"]

    def share(schedule):
        return schedule.one() * schedule.other()

    schedule = Schedule()
    return Case(scaled(lambda: share(schedule)), items(state, "scale"))


@reads
def operator_of_an_operator():
    state = {"angle": 1.0}

    def turn():
        qp.RX(state["angle"], wires=0)

    undone = qp.adjoint(qp.adjoint(turn))

    def circuit(inputs, weights):
        undone()
        return body(inputs, weights)

    return Case(circuit, items(state, "angle"))


@reads
def attribute_of_a_method():
    class Encoder:
        def angles(self, inputs):
            return inputs * encoder.angles.scale

    Encoder.angles.scale, encoder = 1.0, Encoder()
    return Case(embedded(encoder.angles), attributes(Encoder.angles, "scale"))


@reads
def name_of_a_function():
    def RX():
        pass

    def circuit(inputs, weights):
        getattr(qp, RX.__name__)(0.7, wires=0)
        return body(inputs, weights)

    return Case(circuit, attributes(RX, "__name__", "RY", "RZ"))


@reads
def attribute_of_a_partial():
    angles = functools.partial(lambda inputs: inputs * angles.scale)
    angles.scale = 1.0
    return Case(embedded(angles), attributes(angles, "scale"))


@reads
def class_that_is_told_to_be_another():
    class Angle(abc.ABC):  # noqa: B024
        pass

    class Number:
        pass

    number = Number()
    circuit = scaled(lambda: 0.5 if isinstance(number, Angle) else 1.0)
    return Case(circuit, [lambda: Angle.register(Number)])


def named_gate(inputs, weights):
    for name in ("RX", "RZ"):
        getattr(qp, name)(0.7, wires=0)
    return body(inputs, weights)


@reads
def operator_exchanged_in_pennylane(monkeypatch):
    put = functools.partial(monkeypatch.setattr, qp)
    changes = [functools.partial(put, name, getattr(qp, name)) for name in ("RY", "RX")]
    return Case(named_gate, [lambda: put("RX", qp.RY), *changes[:1], lambda: put("RX", qp.RZ), *changes[1:]])


@reads
def attribute_that_all_tensors_may_have(monkeypatch):
    monkeypatch.setattr(Tensor, "share", 1.0, raising=False)
    monkeypatch.delattr(Tensor, "share")
    circuit = embedded(lambda inputs: inputs * getattr(inputs, "share", 1.0))
    return Case(circuit, [*attributes(Tensor, "share"), lambda: delattr(Tensor, "share")])


@reads
def method_of_all_tensors(monkeypatch):
    state = {"scale": 1.0}
    monkeypatch.setattr(Tensor, "scaled", lambda self: self * state["scale"], raising=False)
    return Case(embedded(lambda inputs: inputs.scaled()), items(state, "scale"))


def in_lists(scale: float) -> float:
    found, known = [], {}
    found.append(scale)
    found += [scale, scale]
    found[0] *= 2
    known["all"] = found
    known.setdefault("sum", sum(found))
    del known["all"]
    return known["sum"]


def in_arrays(scale: float) -> Any:
    array, tensor = np.zeros(3), torch.ones(3, dtype=torch.float64)
    array[0] = scale
    array += 1
    tensor.mul_(scale)
    tensor[1:] -= 0.5
    return tensor * float(array.sum())


def in_loops(scale: float) -> float:
    total = 0.0
    for _ in range(3):
        total += scale
    return total


def in_a_block(scale: float) -> float:
    try:
        with contextlib.nullcontext(scale) as given:
            return 2 * given
    finally:
        scale += 1


ONE, OTHER = float("1.5"), float("1.5")
NAN, OTHER_NAN = float("nan"), float("nan")
TEXT, OTHER_TEXT = "".join(["a", "b"]), "".join(["a", "b"])
TWICE = {"scale": 2.0}
SHARES = {bool: 0.5, int: 0.25}
TENSORS = tuple(torch.tensor(value, dtype=torch.float64) for value in (0.5, 2.0))


def by_share_of_a_gate(inputs, weights):
    gate = qp.RX(0.3, wires=0)
    return body(inputs * gate.share, weights)


class Schedule:
    epoch = 0

    @property
    def scale(self):
        return 1 / (1 + self.epoch)


reads(
    changes_of_its_own_lists=of_one(in_lists),
    changes_of_its_own_arrays=of_one(in_arrays),
    changes_of_its_own_numbers=of_one(in_loops),
    blocks_that_end=of_one(in_a_block),
    type_of_a_number=of_one(lambda scale: scale if type(scale) is float and scale is not None else 2.0),
    text_of_a_number=of_one(lambda scale: float(f"{scale:.2f}") + len(str(scale))),
    members_of_a_tuple=of_one(lambda scale: 2.0 if scale in (1.0, 2.0) else 1.0),
    number_then_tensor=of_one(lambda scale: scale, TENSORS[0], 0.25, np.float64(0.125), TENSORS[1]),
    equal_numbers_of_other_types=of_one(
        lambda scale: SHARES.get(type(scale), 1.0), 2.0, 2, 1, True, 1.0, np.float64(1.0), start=2
    ),
    negative_zero=of_one(lambda shift: math.copysign(0.7, shift) + 0.1, -0.0, -0.0, start=0.0),
    not_a_number=of_one(lambda scale: scale, math.nan, math.nan, 0.5),
    python_that_raises=of_one(lambda scale: 1 / scale, 0, 2.0, raises=True, rows=(5, 3)),
    member_of_an_enumeration=of_one(lambda mode: mode.factor(), Mode.HALF, Mode.WHOLE, start=Mode.WHOLE),
    slice_exchanged=of_one(lambda part: sum([1.0, 2.0, 4.0][part]), slice(0, 3), slice(1, 2), start=slice(2)),
    which_of_two_equal_numbers=of_one(lambda one: 1.0 if one is ONE else 0.5, OTHER, ONE, start=ONE),
    which_of_two_equal_texts=of_one(
        lambda text: 1.0 if operator.is_(text, TEXT) else 0.5, OTHER_TEXT, TEXT, start=TEXT
    ),
    which_not_a_number=of_one(lambda known: 1.0 if NAN in known else 0.5, (OTHER_NAN,), (NAN,), start=(NAN,)),
    function_exchanged=of_one(lambda read: read(), lambda: 0.5, lambda: TWICE["scale"], start=lambda: 1.0),
    dict_entry_that_appears=of_one(lambda found: found.get("scale", 1.0), {"scale": 0.5}, {}, start={}),
    object_handed_on=of_object(Settings, lambda settings: settings.scale),
    namespace_handed_on=of_object(lambda: types.SimpleNamespace(scale=1.0), lambda settings: settings.scale),
    attribute_by_a_computed_name=of_object(Settings, lambda settings: getattr(settings, "sc" + "ale")),
    attribute_put_on_an_operator=of_object(
        lambda: qp.RX(0.3, wires=0), lambda gate: getattr(gate, "share", 1.0), "share"
    ),
    class_that_looks_like_a_librarys=of_object(
        lambda: types.new_class("Config", (), {}, lambda space: space.update(scale=1.0, __module__="types")),
        lambda made: made.scale,
    ),
    builtin_in_its_place=patched(builtins, "SCALE_OF_ALL", scaled(lambda: SCALE_OF_ALL)),  # noqa: F821  # pyright: ignore
    attribute_of_a_librarys_function=patched(qp.expval, "share", scaled(lambda: qp.expval.share)),
    attribute_of_an_operator_in_a_variable=patched(qp.operation.Operator, "share", by_share_of_a_gate),
    property_of_an_attribute=of_object(Schedule, lambda schedule: schedule.scale, "epoch", 1, 2, 0),
)


@reads
def pauli_words_in_place():
    hamiltonian = 1.0 * qp.Z(0) + 0.3 * qp.X(1)
    word = next(iter(hamiltonian.pauli_rep))
    return Case(scaled(lambda: hamiltonian.pauli_rep[word]), items(hamiltonian.pauli_rep, word))


@reads
def name_of_the_class_of_a_tensor():
    state = {"name": "Tensor"}
    circuit = embedded(lambda inputs: inputs if type(inputs).__name__ == state["name"] else inputs / 2)
    return Case(circuit, items(state, "name", "Parameter", "Tensor"))


@reads
def name_that_is_put_together():
    state = {"axis": "X"}

    def circuit(inputs, weights):
        getattr(qp, f"R{state['axis']}")(0.7, wires=0)
        return body(inputs, weights)

    return Case(circuit, items(state, "axis", "Z", "Y"))


@reads_on_device
def class_of_a_tensor():
    return Case(embedded(lambda inputs: inputs if type(inputs) is Tensor else inputs / 2))


@reads_on_device
def descriptor_in_the_end():
    class Part:
        scale = 1.0

    class Config:
        part = Part()

    config, other = Config(), types.SimpleNamespace(scale=0.5)
    change = attributes(Part, "__get__", lambda self, owner, kind: other)
    return Case(scaled(lambda: config.part.scale), change, rows=(5,))


@reads_on_device
def descriptor_that_comes_before_the_object():
    class Part:
        scale = 1.0

        def __get__(self, owner, kind):
            return self

    class Config:
        part = Part()

    config = Config()
    vars(config)["part"] = types.SimpleNamespace(scale=0.5)
    change = attributes(Part, "__set__", lambda self, owner, value: None)
    return Case(scaled(lambda: config.part.scale), change, rows=(5,))


@reads_on_device
def device_of_ones_own():
    class Noisy(type(circuits.make_device("default.qubit", 3))):
        def execute(self, *given, **named):
            return tuple(tuple(value / 2 for value in each) for each in super().execute(*given, **named))

    return Case(body, device=Noisy(wires=3))


@reads_on_device
def device_that_is_patched():
    device = circuits.make_device("default.qubit", 3)
    known = device.execute

    def execute(*given, **named):
        return tuple(tuple(value / 2 for value in each) for each in known(*given, **named))

    return Case(body, attributes(device, "execute", execute), device=device)


@reads_on_device
def device_with_a_transform():
    return Case(body, device=circuits.drop_entanglement(circuits.make_device("default.qubit", 3)))


@reads_on_device
def metaclass_that_makes_up_attributes():
    state = {"scale": 1.0}

    class Meta(type):
        def __getattr__(cls, name):
            return state[name]

    class Config(metaclass=Meta):
        pass

    return Case(scaled(lambda: Config.scale), items(state, "scale"))


@reads_on_device
def module_parameter():
    """Its gradient is asked for as well."""
    net = Net()
    step = functools.partial(torch.Tensor.add_, net.angle.data, 0.5)
    return Case(net.by_parameter, [step, step], outside=[net.angle])


@reads_on_device
def module_handed_on():
    net = Net()
    circuit = scaled(lambda: 1.0 if getattr(net, "training") else 0.5)  # noqa: B009
    return Case(circuit, [net.eval, net.train])


@reads_on_device
def slots():
    class Config:
        __slots__ = ("scale",)

    config = Config()
    config.scale = 1.0
    return Case(scaled(lambda: config.scale), attributes(config, "scale"))


@reads_on_device
def linear_inside():
    """A classical module in the QNode itself, trained by a step in between."""
    linear = torch.nn.utils.skip_init(nn.Linear, 3, 3, dtype=torch.float64)
    linear.load_state_dict({"weight": uniform(3, 3, seed=1), "bias": uniform(3, seed=2)})
    step = lambda: linear.weight.data.sub_(0.1)  # noqa: E731
    return Case(embedded(linear), [step, step], outside=list(linear.parameters()))


@reads_on_device
def attributes_made_up():
    class Config:
        def __init__(self):
            self.__dict__["found"] = {"scale": 1.0}

        def __getattr__(self, name):
            return self.found[name]

    config = Config()
    return Case(scaled(lambda: config.scale), items(config.found, "scale"))


@reads
def operation_with_an_attribute():
    class Kick(qp.operation.Operation):
        num_wires, num_params, strength = 1, 0, 0.5

        def decomposition(self):
            return [qp.RX(self.strength, wires=self.wires)]

    def circuit(inputs, weights):
        Kick(wires=0)
        return body(inputs, weights)

    return Case(circuit, attributes(Kick, "strength"))


# --- 2: randomness and the world outside --------------------------------------------------------------

world, world_on_device = case("world", "batched", "watch"), case("world", "device", "refusals")


@world
def clock_of_ones_own():
    class Clock:
        now = 0.0

        def __call__(self):
            return self.now

    clock = Clock()
    return Case(scaled(lambda: 1.0 if clock() < 10 else 0.5), attributes(clock, "now", 20.0, 5.0))


@world
def constant_in_the_default_dtype():
    dtypes = torch.float64, torch.float32
    changes = [functools.partial(torch.set_default_dtype, dtype) for dtype in dtypes]
    return Case(embedded(lambda inputs: inputs * torch.tensor(0.1)), changes)


world_on_device(
    python_random=lambda: Case(scaled(lambda: random.random()), before=random.seed),
    numpy_random=lambda: Case(scaled(lambda: np.random.rand()), before=np.random.seed),  # noqa: NPY002
    deadline=of_one(lambda until: 1.0 if time.time() < until else 0.5, 0, 0, start=math.inf),
)


@world_on_device
def torch_random():
    return Case(embedded(lambda x: x + 0.1 * torch.rand(3, dtype=x.dtype)), before=torch.manual_seed)


@world_on_device
def environment_variable(monkeypatch):
    monkeypatch.setenv("QNN_SCALE", "1")
    changes = [functools.partial(monkeypatch.setenv, "QNN_SCALE", value) for value in ("0.5", "2")]
    return Case(scaled(lambda: float(os.environ.get("QNN_SCALE", "1"))), changes)


@world_on_device
def counter():
    class Counting(nn.Module):
        def circuit(self, inputs, weights):
            self.calls += 1
            return body(inputs / self.calls, weights)

    net = Counting()
    return Case(net.circuit, before=functools.partial(setattr, net, "calls"))


@world_on_device
def log_that_is_read():
    log = []

    def circuit(inputs, weights):
        log.append("called")
        return body(inputs / len(log), weights)

    return Case(circuit, before=lambda call: log.__setitem__(slice(None), [""] * call))


def changing(read: Callable[[Any], float], start: Callable[[int], Any]) -> Case:
    """A circuit that changes an outside value under another name; before a call it is `start(call)`."""
    value = start(0)

    def before(call):
        if isinstance(value, np.ndarray):
            value[...] = start(call)
        else:
            value.clear()
            value.update(start(call))

    return Case(scaled(lambda: read(value)), before=before)


def halved(array: Any) -> float:
    array *= 0.5
    return float(array[0])


def counted(store: Any) -> float:
    seen = store
    seen["n"] = seen.get("n", 0) + 1
    return 1 / seen["n"]


world_on_device(
    array_under_another_name=lambda: changing(halved, lambda call: np.full(2, 1.0 + call)),
    result_written_to_an_array=lambda: changing(
        lambda array: float(np.add(array, 1, out=array)[0]), lambda call: np.full(2, 1.0 + call)
    ),
    dictionary_under_another_name=lambda: changing(counted, lambda call: {"n": call, "m": 2}),
)


@world_on_device
def attributes_by_their_dictionary():
    settings = Settings()

    def read():
        found = vars(settings)
        found["scale"] *= 0.5
        return settings.scale

    return Case(scaled(read), before=lambda call: setattr(settings, "scale", 1.0 + call))


@world_on_device
def switch_that_two_runs_leave_as_it_was():
    """Each layer has a world of its own, in which its next call meets what its last one left."""
    state, known = {"on": False}, {"scale": 1.0}
    worlds, turns = collections.deque([False, False]), itertools.count()

    def read():
        found = state
        found["on"] = not found["on"]
        return known["scale"]

    def before(call):
        if next(turns):
            worlds.append(state["on"])
            worlds.popleft()
        state["on"] = worlds[0]
        known["scale"] = 1.0 if worlds[0] else 0.5

    return Case(scaled(read), before=before)


case("world", "device", "merge")(
    array_that_is_printed=lambda: Case(
        scaled(lambda: len(str(MATRIX_OF_NUMBERS)) / 9),
        [functools.partial(np.set_printoptions, precision=n) for n in (1, 3)],
        rows=(5,),
    ),
    number_that_is_printed=lambda: Case(
        scaled(lambda: len(repr(MATRIX_OF_NUMBERS[0, 0])) / 9),
        [functools.partial(np.set_printoptions, legacy=version) for version in ("1.25", False)],
        rows=(5,),
    ),
    tensor_that_is_printed=lambda: Case(
        scaled(lambda: len(f"{MATRIX}") / 99),
        [functools.partial(torch.set_printoptions, precision=n) for n in (1, 3)],
        rows=(5,),
    ),
)


@case("world", "batched")
def settings_that_do_not_matter():
    """Of printing, where nothing depends on the text, and of divisions, where there is none by zero."""

    def read():
        text = f"angles {MATRIX_OF_NUMBERS} {MATRIX}"
        return float(np.exp(MATRIX_OF_NUMBERS[0, 0]) / 2) if text else 0.0

    settings = np.set_printoptions, torch.set_printoptions
    changes = [functools.partial(change, precision=2) for change in settings]
    return Case(scaled(read), [*changes, lambda: np.seterr(all="raise")])


@case("world", "device")
def division_that_may_raise():
    np.seterr(all="ignore")
    zero = np.array(0.0)
    changes = [functools.partial(np.seterr, all=action) for action in ("raise", "ignore")]
    return Case(scaled(lambda: 1 + float(np.sign(1 / zero))), changes, raises=True)


@case("world", "device")
def special_function_that_may_raise():
    changes = [functools.partial(scipy.special.seterr, all=action) for action in ("raise", "ignore")]
    return Case(scaled(lambda: float(np.sign(scipy.special.gammaln(-1.0)))), changes, raises=True)


@case("world", "device")
def error_that_is_caught():
    """Of a number that only the trace has not."""

    def angles(inputs):
        try:
            return inputs * float(f"{inputs.detach().sum():.3f}")
        except TypeError:
            return inputs

    return Case(embedded(angles))


@case("world", "device")
def error_that_a_block_swallows():
    class Swallowing:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            return True

    def angles(inputs):
        with Swallowing():
            return inputs * float(f"{inputs.detach().sum():.3f}")
        return inputs

    return Case(embedded(angles))


@case("world", "device")
def two_operators_that_are_equal():
    def circuit(inputs, weights):
        gates = [qp.RX(weights[0], wires=0), qp.RX(weights[0], wires=0)]
        if gates[0] == gates[1]:
            qp.RY(0.7, wires=0)
        return body(inputs, weights)

    return Case(circuit)


@world_on_device
def list_changed_where_values_are_looked_at():
    """The size of the state is asked for first, on a device without wires: that runs the Python as well."""
    found = []

    def angles(inputs):
        seen = found
        scale = 1.0 if inputs.sum() > -1 else 2.0
        seen.append(1)
        return inputs * scale / len(seen)

    device = circuits.make_device("default.qubit", None)
    return Case(embedded(angles), device=device, before=lambda call: found.clear())


@world_on_device
def gradient_mode():
    angles = embedded(lambda inputs: inputs if torch.is_grad_enabled() else 0.5 * inputs)
    return Case(angles, grad=(True, False), rows=(5, 1, 3, 5))


# --- 3: the batch as a whole --------------------------------------------------------------------------

PER_SAMPLE: dict[str, Callable[[Tensor], Tensor]] = {
    "centred_features": lambda x: x - x.mean(-1, keepdim=True),
    "softmax_of_features": lambda x: torch.softmax(x, -1),
    "unit_length": lambda x: x / x.norm(dim=-1, keepdim=True),
    "sorted_features": lambda x: x.sort(-1).values,
    "features_and_squares": lambda x: torch.cat([x, x**2], -1)[..., 1:4],
    "column_by_column": lambda x: torch.stack([x[..., i] * x[..., i - 1] for i in range(3)], -1),
}
WHOLE_BATCH: dict[str, Callable[[Tensor], Tensor]] = {
    "centred_batch": lambda x: x - x.mean(0),
    "over_the_batch_size": lambda x: x / x.shape[0],
    "flipped_batch": lambda x: x.flip(0),
    "minus_the_first": lambda x: x - x[:1],
    "large_batches_differ": lambda x: x if len(x) > 3 else 0.5 * x,
}
# without a guard that could be taken away alone
UNTRACED: dict[str, Callable[[Tensor], Tensor]] = {
    "attention_among_samples": lambda x: torch.softmax(x @ x.T, -1) @ x,
    "loop_over_rows": lambda x: torch.stack([row / row.sum() for row in x]),
    "branch_on_a_value": lambda x: x if x.sum() > 8 else 0.5 * x,
}


def of_batch(angles: Callable[[Tensor], Tensor], *rows: Any) -> Callable[[], Case]:
    return lambda: Case(embedded(angles), rows=rows)


case("batch", "batched")(**{name: of_batch(angles, 5, None, 1, 3) for name, angles in PER_SAMPLE.items()})
case("batch", "batched")(times_a_matrix=of_batch(lambda x: x @ MATRIX, 5, 1, 3))
case("batch", "device", "merge")(**{name: of_batch(angles, 5, 1, 3) for name, angles in WHOLE_BATCH.items()})
case("batch", "device")(**{name: of_batch(angles, 5, 1, 3) for name, angles in UNTRACED.items()})
case("batch", "device", "merge")(slice_that_may_be_empty=of_batch(lambda x: x + x[7:].sum(0), 3, 5, 9, 8))
case("batch", "device", "sizes")(one_size_differs=of_batch(lambda x: x / (1 + (len(x) == 64)), 32, 64, 5))

# --- 4: angles that only look linear ------------------------------------------------------------------

# name -> (angles, largest inputs by call)
CURVED: dict[str, tuple[Callable[[Tensor], Tensor], tuple[float, ...]]] = {
    "tanh_far_out": (lambda x: 3 * torch.tanh(1e-5 * x), (1.0, 1e5, 3.0)),
    "slow_sine": (lambda x: torch.sin(1e-7 * x) * 1e7, (1.0, 1e6, 3.0)),
    "faint_square": (lambda x: x + 1e-14 * x**2, (1.0, 1e6, 3.0)),
    "clamp_far_out": (lambda x: x.clamp(max=50.0), (3.0, 1e3, 1.0)),
    "round": (lambda x: x + torch.round(x / 50), (3.0, 1e3, 1.0)),
    "where": (lambda x: torch.where(x > 100, x / 3, x), (3.0, 1e3, 1.0)),
    "gated_by_a_comparison": (lambda x: x + x * (x > 100), (3.0, 1e3, 1.0)),
    "abs": (lambda x: 2 * x + (x - 10).abs(), (3.0, 1e2, 1.0)),
    "folded": (lambda x: torch.asin(torch.sin(x)), (1.5, 1e2, 1.0)),
    "root_of_a_square": (lambda x: 2 * x + (x - 10).square().sqrt(), (3.0, 1e2, 1.0)),
    "remainder": (lambda x: torch.remainder(x, 40.0), (3.0, 1e3, 1.0)),
    "straight_through": (lambda x: x + (torch.round(x) - x).detach(), (3.0, 30.0, 1.0)),
}
OF_WEIGHTS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[float, ...]]] = {
    "tanh_of_large_weights": (lambda w: 3 * torch.tanh(1e-5 * w), (1.0, 1e5, 1.0)),
    "clamped_large_weights": (lambda w: w.clamp(-30, 30) + w * (w > 100), (1.0, 100.0, -100.0, 1.0)),
    "rounded_weights": (lambda w: w + w.round() / 3, (0.1, 1.0, 7.0)),
}


def curved(angles: Callable[[Tensor], Tensor], tops: tuple[float, ...]) -> Callable[[], Case]:
    return lambda: Case(embedded(angles), tops=tops, tolerance=FAR)


def curved_in_weights(angles: Callable[[Tensor], Tensor], scales: tuple[float, ...]) -> Callable[[], Case]:
    return lambda: Case(lambda inputs, weights: body(inputs, angles(weights)), scales=scales, tolerance=FAR)


case("curved", "batched", "degrees")(**{name: curved(*given) for name, given in CURVED.items()})
case("curved", "batched", "degrees")(
    **{name: curved_in_weights(*given) for name, given in OF_WEIGHTS.items()}
)


def of_numbers(angles: Callable[[Tensor], Tensor]) -> Callable[[], Case]:
    """Numbers that come from rounding have no gradients."""
    return lambda: Case(
        embedded(angles), grad=(False,), tolerance=FLOAT32
    )  # PennyLane's of integers are float32


case("curved", "batched", "degrees")(
    sum_of_integers=of_numbers(lambda x: x * x.sum(-1, keepdim=True, dtype=torch.int64)),
    cumsum_of_integers=of_numbers(lambda x: x.cumsum(-1, dtype=torch.int32) * 0.3),
)


@case("curved", "batched")
def norm_that_pennylane_looks_at():
    """A norm is 1 within rounding; the state preparation's rule is not for it."""

    def circuit(inputs, weights):
        directions = inputs / inputs.square().sum(-1, keepdim=True).sqrt()
        norm = torch.linalg.norm(1.000003 * directions, dim=-1)
        with qp.QueuingManager.stop_recording():
            qp.dot([norm], [qp.Z(0)])
        qp.RX(100 * norm, wires=0)
        return body(weights / 2, weights)

    return Case(circuit, rows=(1, 1))


case("curved", "device")(
    branch_on_a_weight=curved_in_weights(lambda w: w if w[0] > 10 else w / 2, (1.0, 10.0, 1.0))
)

# --- 5: transforms ------------------------------------------------------------------------------------


def transformed(*transforms: Callable, function: Callable = body, **options: Any) -> Case:
    """A case of a QNode after some transforms."""
    qnode = qp.QNode(function, circuits.make_device("default.qubit", 3))
    for transform in transforms:
        qnode = transform(qnode)
    return Case(qnode=qnode, **options)


def post_processed(process: Callable[[Any], Any]) -> Callable:
    """A transform that leaves the circuit as it is, and changes what comes out of it."""

    @qp.transform
    def processed(tape):
        return [tape], lambda results: process(results[0])

    return processed


def kicked(read: Callable[[], float]) -> Callable:
    """A transform that adds a gate in front."""

    @qp.transform
    def with_a_kick(tape):
        kick = qp.RX(read(), wires=0)
        return [tape.copy(operations=[kick, *tape.operations])], lambda results: results[0]

    return with_a_kick


@qp.transform
def measuring_otherwise(tape):
    """Measures something else in the end."""
    others = [qp.expval(qp.X(i)) for i in range(3)]
    return [tape.copy(measurements=others)], lambda results: results[0]


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


def not_commuting():
    return [qp.expval(qp.Z(0)), qp.expval(qp.X(0) @ qp.Y(1)), qp.expval(0.3 * qp.Y(0) + qp.Z(1))]


def measured_in_the_middle(inputs, weights):
    qp.AngleEmbedding(inputs[..., :2], wires=range(2))
    qp.cond(qp.measure(0), qp.RX)(weights[0], wires=1)
    return [qp.expval(qp.Z(0)), qp.expval(qp.Z(1))]


case("transforms", "batched")(
    inverses_cancelled=lambda: transformed(
        qp.transforms.cancel_inverses, function=redundant, rows=(5, None, 1)
    ),
    controlled_commuted=lambda: transformed(qp.transforms.commute_controlled, function=redundant),
    deferred_measurements=lambda: transformed(qp.defer_measurements, function=measured_in_the_middle),
)
case("transforms", "batched", "pipeline")(
    without_entanglement=lambda: transformed(circuits.drop_entanglement),
    two_kicks=lambda: transformed(kicked(lambda: 0.7), circuits.drop_entanglement, kicked(lambda: 1.1)),
    other_measurements=lambda: transformed(measuring_otherwise, rows=(5, None, 1)),
)
case("transforms", "device")(
    single_tapes_added=lambda: transformed(
        qp.transforms.split_non_commuting, function=observed(not_commuting)
    ),
    rotations_merged=lambda: transformed(qp.transforms.merge_rotations, function=redundant),
)
case("transforms", "device", "results")(
    results_in_another_order=lambda: transformed(post_processed(lambda result: tuple(result[::-1]))),
)


@case("transforms", "device", "results")
def scaled_results():
    state = {"scale": 3.0}
    flip = post_processed(lambda result: tuple(state["scale"] * value for value in result))
    return transformed(flip, changes=items(state, "scale"))


@case("transforms", "batched", "watch")
def transform_that_reads_a_closure():
    signs = {"sign": -1.0}
    return transformed(kicked(lambda: 0.7 * signs["sign"]), changes=items(signs, "sign"))


@case("transforms", "batched", "watch")
def transform_with_an_argument():
    settings = {"angles": [0.3]}

    @qp.transform
    def kicks(tape, given):
        added = [qp.RX(angle, wires=0) for angle in given["angles"]]
        return [tape.copy(operations=[*added, *tape.operations])], lambda results: results[0]

    transform = functools.partial(kicks, given=settings)
    return transformed(transform, changes=items(settings, "angles", [1.3], [0.3, 0.4]))


# --- 6: wires -----------------------------------------------------------------------------------------


def wired(labels: Sequence[Any], measure: Callable[[], Any], device: Any = None, **options: Any) -> Case:
    """A circuit on three labels, on a device that has no wires unless they are given."""

    def circuit(inputs, weights):
        for i, wire in enumerate(labels):
            qp.RX(inputs[..., i], wires=wire)
            qp.RY((1 + i) * weights[i], wires=wire)
        qp.CNOT(wires=labels[:2])
        return measure()

    options.setdefault("rows", (5, None, 3, 1))
    return Case(circuit, device=circuits.make_device("default.qubit", device), **options)


case("wires", "batched", "labels")(
    probs_in_order_of_use=lambda: wired((2, 0, 1), lambda: qp.probs()),
    state_in_order_of_use=lambda: wired((2, 0, 1), lambda: qp.state(), is_complex=True),
    state_of_strings_on_the_device=lambda: wired(
        ("b", "a", "c"), lambda: qp.state(), is_complex=True, device=["a", "b", "c"]
    ),
    mixed_labels_on_the_device=lambda: wired(("a", 1, 0), lambda: qp.probs(), device=[0, "a", 1]),
    device_reversed=lambda: wired((0, 1, 2), lambda: qp.probs(), device=[2, 1, 0]),
    device_reversed_state=lambda: wired((0, 1, 2), lambda: qp.state(), is_complex=True, device=[2, 1, 0]),
)
case("wires", "batched")(
    probs_of_labels_out_of_order=lambda: wired((2, 5, 0), lambda: [qp.probs(wires=[5, 2])]),
    expvals_of_strings=lambda: wired(
        ("x", "y", "aux"), lambda: [qp.expval(qp.Z("aux")), qp.expval(qp.Z("x") @ qp.X("y"))]
    ),
    wires_only_measured=lambda: wired((2, 0, 1), lambda: [qp.expval(qp.Z(7)), qp.expval(qp.Z(0))], device=8),
    hermitian_on_swapped_wires=lambda: wired(
        (2, 1, 0), lambda: [qp.expval(qp.Hermitian(np.diag([1.0, 2, 4, 8]), wires=[0, 2]))]
    ),
    projector_on_swapped_wires=lambda: wired(
        (2, 1, 0), lambda: [qp.expval(qp.Projector([0, 1], wires=[2, 0])), qp.expval(qp.Z(0))]
    ),
    variance_and_probs=lambda: wired(
        ("q1", "q0", "q2"), lambda: [qp.var(qp.X("q0")), qp.probs(wires=["q2", "q1"])]
    ),
)
case("wires", "device")(
    state_of_strings=lambda: wired(("b", "a", "c"), lambda: qp.state(), is_complex=True),
    density_matrix=lambda: wired((2, 0, 1), lambda: qp.density_matrix([1, 0]), is_complex=True),
)


@case("wires", "batched", "watch")
def labels_that_change():
    labels, device = ["b", "a", "c"], ["a", "b", "c"]
    return wired(labels, lambda: qp.probs(), device, changes=[labels.reverse, labels.sort], rows=(5, 3))


# --- 7: the kit's own circuits ------------------------------------------------------------------------


def kit(change: Callable[[qp.QNode], qp.QNode], ansatz: str = "data_reuploading", **options: Any) -> Case:
    """A circuit of the kit that has run already, and what a user made of it."""
    qnode, shapes = circuits.build(ansatz, n_qubits=3, n_layers=2)
    QuantumLayer(qnode, shapes, {"weights": uniform(*shapes["weights"])}).double()(uniform(2, 3))
    return Case(qnode=change(qnode), shapes=shapes, **options)


def wrapped(around: Callable[..., Any]) -> Callable[[qp.QNode], qp.QNode]:
    """As a decorator does it: with the function's own name and attributes."""

    def change(qnode):
        @functools.wraps(qnode.func)
        def function(inputs, weights):
            return around(qnode.func, inputs, weights)

        return qp.QNode(function, circuits.make_device("default.qubit", 3))

    return change


def moved(name: str, wires: Any, **options: Any) -> Callable[[qp.QNode], qp.QNode]:
    device = qp.device(name, wires=wires) if name == "default.mixed" else circuits.make_device(name, wires)
    return lambda qnode: qp.QNode(qnode.func, device, **options)


def flipped_phases(qnode):
    noise = qp.NoiseModel({qp.noise.op_in([qp.RY]): qp.noise.partial_wires(qp.PhaseFlip, 0.2)})
    return qp.add_noise(moved("default.mixed", 3)(qnode), noise)


case("kit", "batched")(
    built=lambda: kit(lambda qnode: qnode, rows=(5, None, 1, 3)),
    built_and_wrapped=lambda: kit(wrapped(lambda function, inputs, weights: function(inputs / 2, weights))),
    built_then_on_more_wires=lambda: kit(moved("default.qubit", [3, 2, 1, 0])),
    built_then_on_no_wires=lambda: kit(moved("default.qubit", None)),
    built_then_on_lightning=lambda: kit(
        moved("lightning.qubit", 3, diff_method="adjoint"), tolerance=FLOAT32
    ),
)
case("kit", "batched", "pipeline")(
    built_without_entanglement=lambda: kit(circuits.drop_entanglement, "strongly_entangling"),
    built_with_other_measurements=lambda: kit(measuring_otherwise, "hardware_efficient", rows=(5, None, 1)),
)
case("kit", "device")(built_then_with_noise=lambda: kit(flipped_phases))
case("kit", "device", "results")(
    built_and_post_processed=lambda: kit(post_processed(lambda result: tuple(-value for value in result))),
)


@case("kit", "batched", "watch")
def built_and_wrapped_by_what_changes():
    state = {"scale": 1.0}
    around = wrapped(lambda function, inputs, weights: function(state["scale"] * inputs, weights))
    return kit(around, changes=items(state, "scale"))


@case("kit", "batched", "watch")
def built_of_a_patched_part(monkeypatch):
    def by_x(inputs, wires):
        qp.AngleEmbedding(inputs, wires=wires, rotation="X")

    replace = functools.partial(monkeypatch.setattr, circuits, "angle", by_x)
    return kit(lambda qnode: qnode, changes=[replace], rows=(5, 3))


# --- 8: odd QNodes ------------------------------------------------------------------------------------

case("odd", "batched")(
    single_value=lambda: Case(observed(lambda: qp.expval(qp.Z(1))), rows=(5, None, 1, 3)),
    all_kinds=lambda: Case(
        observed(lambda: [qp.expval(qp.Y(0)), qp.var(qp.Z(1)), qp.probs(wires=[0, 2])]), rows=(5, None, 1, 3)
    ),
    parameter_shift=lambda: Case(body, options={"diff_method": "parameter-shift"}, rows=(None,)),
    on_lightning=lambda: Case(body, device=circuits.make_device("lightning.qubit", 3), tolerance=FLOAT32),
    # TorchLayer takes no batches of these
    inputs_without_use=lambda: Case(lambda inputs, weights: body(weights / 2, weights), rows=(None, 1)),
)
case("odd", "device")(middle_measured=lambda: Case(measured_in_the_middle))


@case("odd", "batched")
def three_weights():
    def circuit(inputs, first, second, shift):
        return body(inputs * shift, first[0] + second)

    return Case(circuit, shapes={"first": (2, 3), "second": (3,), "shift": ()}, rows=(5, None, 1))


@case("odd", "batched", "watch")
def list_or_not():
    state = {"listed": True}

    def circuit(inputs, weights):
        gates(inputs, weights)
        return [qp.expval(qp.Z(0)), qp.expval(qp.X(1))] if state["listed"] else qp.probs(wires=0)

    return Case(circuit, items(state, "listed", False, True, False), rows=(5, 3))


@case("odd", "device")
def shots():
    device = circuits.make_device("default.qubit", 3)

    def before(call):
        device._rng = np.random.default_rng(call)

    return Case(qnode=qp.set_shots(qp.QNode(body, device), 20), rows=(None,), before=before)


@case("odd", "batched")
def amplitudes():
    def circuit(inputs, weights):
        qp.AmplitudeEmbedding(inputs, wires=range(3), normalize=True)
        return body(weights, weights)

    return Case(circuit, n_features=8, rows=(5, None, 1))


@case("odd", "device")
def bits_of_the_inputs():
    def circuit(inputs, weights):
        qp.BasisEmbedding((inputs > 1.5).int(), wires=range(3))
        return body(weights, weights)

    return Case(circuit, rows=(None,))


@case("odd", "device")
def finite_differences():
    """Their gradients are not the exact ones."""
    settings = {"diff_method": "finite-diff", "gradient_kwargs": {"h": 0.1}}
    return Case(body, rows=(None,), options=settings)


@case("odd", "device")
def one_angle_for_one_sample():
    """PennyLane takes a weight of shape (1,) for a batch."""

    def circuit(inputs, weights):
        qp.RX(weights, wires=0)
        qp.RY(inputs[0], wires=1)
        return qp.probs(wires=[0, 1])

    return Case(circuit, shapes={"weights": (1,)}, rows=(None,))


# --- the tests ----------------------------------------------------------------------------------------


@pytest.fixture
def built(request):
    """Builds a case of the table, whose changes of the world's state end with the test."""
    with restored():
        yield lambda name: CASES[name].build(request)


def ran(explained: Sequence[str]) -> str:
    """Where a case ran: "device" if it did so at any call, and then it says why."""
    on_device = [text for text in explained if not text.startswith("Runs as one fused program")]
    assert all(map(is_a_reason, on_device)), on_device
    return "device" if on_device else "batched"


@pytest.mark.parametrize("name", CASES)
def test_every_call_agrees(name, built):
    RAN[name] = "device"  # unless the case gets through
    explained = agree(built(name))
    RAN[name] = ran(explained)
    assert RAN[name] == CASES[name].where, explained


@pytest.mark.parametrize("name", [name for name, entry in CASES.items() if entry.guard == "watch"])
def test_a_change_is_seen_at_one_size_of_batch(name, built):
    """Without another size, at which the Python would be traced again, and the change be found."""
    case = built(name)
    case.rows = case.rows[:1]
    explained = agree(case)
    assert ran(explained) == "batched", explained


IN_FLOAT32 = (
    "closure_float", "training_flag", "array_in_place", "number_then_tensor", "centred_batch",
    "centred_features", "built_and_wrapped", "scaled_results", "state_in_order_of_use", "all_kinds",
)  # fmt: skip


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_every_call_agrees_in_float32(name, built):
    assert ran(agree(built(name), torch.float32)) == CASES[name].where


def test_the_table_is_large_and_mostly_batched():
    if len(RAN) < len(CASES):
        pytest.skip("only some of the cases ran")
    assert len(RAN) >= 60
    assert list(RAN.values()).count("device") <= len(RAN) / 3


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_the_table_itself(name, built):
    """TorchLayer agrees with TorchLayer: both meet the same world at every call."""
    case = built(name)
    agree(case, ours=States if case.is_complex else TorchLayer)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, entry in CASES.items() if entry.guard])
def test_needs_its_guard(name, built, monkeypatch):
    """Without it, the fused program runs, and some value or gradient is another than TorchLayer's."""
    case = built(name)
    WITHOUT[CASES[name].guard](monkeypatch)
    with pytest.raises(AssertionError, match=r"^call \d+, (values|to )"):
        agree(case)


# --- many calls ---------------------------------------------------------------------------------------


@pytest.fixture
def traces(monkeypatch):
    """One entry for every trace; each runs the QNode's Python twice."""
    counted, known = [], programs.trace
    monkeypatch.setattr(programs, "trace", lambda *given: counted.append(given[1]) or known(*given))
    return counted


def compared(case: Case, both: tuple[Any, Any], call: int, rows: int = 5) -> bool:
    """Whether both layers' values and gradients agree."""
    inputs = uniform(rows, case.n_features, seed=call)
    true, found = (measured(each, inputs, ()) for each in both)
    return all(torch.allclose(a, b, rtol=0, atol=FLOAT64) for a, b in zip(true, found, strict=True))


def test_a_closure_that_changes_at_every_call_settles_on_the_device(traces):
    state = {"scale": 1.0}
    case = Case(scaled(lambda: state["scale"]))
    both, backends = layers(case), []
    for call in range(20):
        state["scale"] = 1 + 0.1 * call
        assert compared(case, both, call)
        backends.append(both[1].backend)
    n = programs.MOST_STATES
    assert backends == ["batched"] * n + ["default.qubit"] * (20 - n)
    assert len(traces) == n
    assert is_a_reason(both[1].explain()) and "changed" in both[1].explain()


def test_alternating_values_do_not_retrace(traces):
    state = {"scale": 1.0}
    case = Case(scaled(lambda: state["scale"]))
    both = layers(case)
    for call in range(40):
        state["scale"] = VALUES[call % 3]
        assert compared(case, both, call)
    assert both[1].backend == "batched"
    assert len(traces) == 3


def test_a_value_that_changes_now_and_then_keeps_the_program(traces):
    """As an annealed one does, however many values it has."""
    state = {"scale": 1.0}
    case = Case(scaled(lambda: state["scale"]))
    both = layers(case)
    for value in range(12):
        state["scale"] = 1 + 0.1 * value
        assert compared(case, both, value)
        for call in range(programs.CALLS_OF_A_STATE):
            both[1](uniform(5, 3, seed=call))
    assert both[1].backend == "batched"
    assert len(traces) == 12 + 1  # and an audit


def test_equal_values_in_other_objects_do_not_retrace(traces):
    """A schedule that sets the same number, list or array at every step; and each is still looked at."""
    state = {"scale": 1.0, "shifts": [0.5], "array": np.ones(3)}
    read = lambda: state["scale"] * state["array"].sum() + state["shifts"][0]  # noqa: E731
    case = Case(scaled(read))
    both = layers(case)
    for call in range(40):
        state["scale"] = float("1.5") if call < 30 else float("0.5")
        state["shifts"], state["array"] = [float("0.25")], np.ones(3)
        state["array"][0] = 1.0 if call < 20 else 3.0  # of the array that was just put there
        assert compared(case, both, call)
    assert both[1].backend == "batched"
    assert len(traces) == 3


def test_a_thousand_calls_neither_retrace_nor_grow(traces):
    net = Net()
    layer = layers(Case(net.by_mode))[1]
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)

    def train(n):
        for call in range(n):
            inputs = inputs_of[call % 2]
            optimizer.zero_grad()
            layer(inputs).square().sum().backward()
            optimizer.step()

    inputs_of = uniform(32, 3), uniform(8, 3)
    tracemalloc.start()
    try:
        train(100)
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        train(900)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert layer.backend == "batched"
    assert 2 * len(traces) <= 20
    assert grown < 100_000


def test_the_fortieth_size_of_batch_agrees():
    """However many there were before it."""
    agree(Case(embedded(lambda x: x / 2 if len(x) == 45 else x), rows=(*range(2, 42), 45)))


def test_a_feature_that_nothing_reads_may_be_missing():
    """As TorchLayer's, values and gradients of the rows that are read are finite."""
    function = embedded(lambda x: torch.stack([x[..., 0], x[..., 1], x[..., 0]], -1))
    both, inputs = layers(Case(function)), uniform(4, 3)
    inputs[1, 2], inputs[2, 2] = math.nan, math.inf
    for found, true in zip(*(measured(each, inputs, ()) for each in reversed(both)), strict=True):
        assert found.isfinite().all() and torch.allclose(found, true, rtol=0, atol=FLOAT64)
    assert both[1].backend == "batched"


@pytest.mark.parametrize("sizes", [(32, 64, 5, 1), (64, 32, 5, 1), (1, 5, 64, 5)])
def test_every_size_of_batch_agrees(sizes):
    agree(Case(embedded(lambda x: x / 2 if len(x) == 64 else x), rows=sizes))


def test_python_is_run_again_now_and_then(monkeypatch, traces):
    """What the watch misses is met at the next audit."""
    monkeypatch.setattr(watching.Watch, "holds", lambda self: True)
    state, audit = {"scale": 1.0}, min(programs.AUDITS)
    case = Case(scaled(lambda: state["scale"]))
    both = layers(case)
    agreed = []
    for call in range(1, audit + 3):
        state["scale"] = 1.0 if call < 10 else 0.5
        agreed.append(compared(case, both, call))
    assert agreed == [call < 10 or call >= audit for call in range(1, audit + 3)]
    assert len(traces) == 2
    assert ran([both[1].explain()]) == "device"
