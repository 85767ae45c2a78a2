"""`QuantumLayer` in place of `pennylane.qnn.TorchLayer`: tuples, drawings, copies, bad input."""

import copy
import pickle
from collections.abc import Callable
from functools import partial
from types import MethodType, SimpleNamespace

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import Tensor, nn

from qnnkit import QuantumLayer, circuits, controls
from tests.same import from_seed
from tests.toys import linear, measured, refused, same, two_expvals, uniform

TorchLayer = qp.qnn.TorchLayer


WEIGHTS = uniform(3, 2, 3, seed=1, top=2 * np.pi)
INPUTS = uniform(5, 2)


def qnode_of(measure: Callable = two_expvals, shots=None, device: str = "default.qubit", wires: int = 2):
    """Embedding, entangling layers and the measurements of `measure()`; every device has the same seed."""

    def circuit(inputs, weights):
        qp.AngleEmbedding(inputs, wires=range(2))
        qp.StronglyEntanglingLayers(weights, wires=range(2))
        return measure()

    return qp.set_shots(qp.QNode(circuit, qp.device(device, wires=wires, seed=7)), shots=shots)


def make(kind: type, qnode: qp.QNode, weights: Tensor | dict[str, Tensor] = WEIGHTS, **options):
    named = weights if isinstance(weights, dict) else {"weights": weights}
    start = {name: value.clone() for name, value in named.items()}
    return kind(qnode, {name: tuple(value.shape) for name, value in named.items()}, start, **options)


# --- return values of a QNode -------------------------------------------------------------------------


def after_a_measurement() -> list:
    qp.cond(qp.measure(0), qp.RX)(0.7, wires=1)
    return two_expvals()


MEASUREMENTS = {
    "expvals": (two_expvals, 2),
    "expval, probs": (lambda: [qp.expval(qp.Z(0)), qp.probs(wires=[0, 1])], 5),
    "probs, var": (lambda: [qp.probs(wires=[0, 1]), qp.var(qp.X(1))], 5),
    "middle": (after_a_measurement, 2),
}


@pytest.mark.parametrize(("backend", "shots"), [("auto", None), ("default.qubit", None), ("auto", 5)])
@pytest.mark.parametrize("which", MEASUREMENTS)
def test_a_tuple_counts_as_a_list(which, backend, shots):
    """One column per number on every backend; TorchLayer does so only for lists."""
    listed, n_outputs = MEASUREMENTS[which]
    for shape in [(2,), (1, 2), (2, 3, 2)]:
        ours = make(QuantumLayer, qnode_of(lambda: tuple(listed()), shots, wires=3), backend=backend)
        theirs = make(TorchLayer, qnode_of(listed, shots, wires=3))
        inputs = uniform(*shape)
        outputs = ours(inputs).detach()
        assert outputs.shape == (*shape[:-1], n_outputs) and ours.n_outputs == n_outputs
        same([outputs], [theirs(inputs).detach()])
        if not shots:
            same(measured(ours, inputs), measured(theirs, inputs))


@pytest.mark.parametrize("shots", [[(20, 3)], [20, 30]])
@pytest.mark.parametrize(
    "measure",
    [two_expvals, lambda: tuple(two_expvals()), lambda: qp.expval(qp.Z(0)), lambda: qp.probs(wires=[0, 1])],
)
def test_several_numbers_of_shots(measure, shots):
    """TorchLayer puts the shots axis first; from PennyLane 0.46 on, a single measurement has columns."""
    ours, theirs = (make(kind, qnode_of(measure, shots)) for kind in (QuantumLayer, TorchLayer))
    outputs = theirs(INPUTS).detach()
    same([ours(INPUTS).detach()], [outputs])
    axis = outputs.shape.index(5)  # that of the batch
    assert ours(torch.zeros(4, 0, 2)).shape == (*outputs.shape[:axis], 4, 0, *outputs.shape[axis + 1 :])


@pytest.mark.parametrize("backend", ["auto", "default.qubit", "lightning.qubit"])
@pytest.mark.parametrize("shape", [(0, 2), (3, 0, 2)])
def test_an_empty_batch(backend, shape):
    layer = make(QuantumLayer, qnode_of(), backend=backend)
    inputs = torch.zeros(shape, requires_grad=True)
    outputs = layer(inputs)
    assert outputs.shape == (*shape[:-1], 2) and outputs.dtype == torch.float32
    outputs.sum().backward()
    assert inputs.grad.shape == shape and not layer.weights.grad.any()
    assert layer(INPUTS).shape == (5, 2)  # the next batch still works


# --- drawings and counts ------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["top", "user", "gradient", "device"])
def test_draw_and_specs(level):
    ours, theirs = make(QuantumLayer, qnode_of()), make(TorchLayer, qnode_of())
    for inputs in (INPUTS[0], INPUTS):
        assert qp.draw(ours, level=level)(inputs) == qp.draw(theirs, level=level)(inputs)
        assert qp.specs(ours, level=level)(inputs) == qp.specs(theirs, level=level)(inputs)


def test_another_input_name_in_last_place():
    @qp.qnode(circuits.make_device("default.qubit", 2))
    def circuit(weights, features=None):
        return plain(features, weights)

    TorchLayer.set_input_argument("features")
    try:
        layers = [make(kind, circuit) for kind in (QuantumLayer, TorchLayer)]
        same(*(measured(layer, INPUTS) for layer in layers))
        assert qp.draw(layers[0])(INPUTS) == qp.draw(circuit)(WEIGHTS, INPUTS)
    finally:
        TorchLayer.set_input_argument()


# --- replaced weights and QNodes ----------------------------------------------------------------------


class Doubled(nn.Module):
    def forward(self, weights: Tensor) -> Tensor:
        return 2 * weights


CHANGES = {
    "assigned": lambda layer: setattr(layer, "weights", nn.Parameter(2 * WEIGHTS)),
    "loaded": lambda layer: layer.load_state_dict({"weights": 2 * WEIGHTS}, assign=True),
    "tied": lambda layer: layer.qnode_weights.update(weights=nn.Parameter(2 * WEIGHTS)),
    "parametrized": lambda layer: nn.utils.parametrize.register_parametrization(layer, "weights", Doubled()),
}


@pytest.mark.parametrize("backend", ["auto", "default.qubit"])
@pytest.mark.parametrize("change", CHANGES)
def test_replaced_weights_are_used(change, backend):
    layer, doubled = (make(QuantumLayer, qnode_of(), times * WEIGHTS, backend=backend) for times in (1, 2))
    layer(INPUTS)
    CHANGES[change](layer)
    same([layer(INPUTS)], [doubled(INPUTS)])
    same([copy.deepcopy(layer)(INPUTS)], [doubled(INPUTS)])
    assert qp.draw(layer)(INPUTS) == qp.draw(doubled)(INPUTS)
    same([layer.with_qnode(layer.qnode)(INPUTS)], [doubled(INPUTS)])


# --- copies, files, threads, processes ----------------------------------------------------------------


@qp.qnode(circuits.make_device("default.qubit", 2))
def decorated(inputs, weights):
    return plain(inputs, weights)


def plain(inputs, weights):
    qp.IQPEmbedding(inputs, wires=range(2))
    qp.StronglyEntanglingLayers(weights, wires=range(2))
    return two_expvals()


QNODES = {
    "decorated": lambda: decorated,
    "built": lambda: circuits.build("data_reuploading", n_qubits=2, n_layers=3)[0],
}


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))])
@pytest.mark.parametrize("which", QNODES)
def test_copies(which, duplicate):
    layer = make(QuantumLayer, QNODES[which]())
    for ran in (False, True):
        twin = duplicate(layer)
        assert isinstance(twin, QuantumLayer) and twin.training == (not ran)
        assert twin.weights is not layer.weights and twin.qnode_weights["weights"] is twin.weights
        expected = measured(layer, INPUTS)
        same(measured(twin, INPUTS), expected)
        assert twin.backend == layer.backend == "batched"
        with torch.no_grad():
            twin.weights.add_(1)
        same(measured(layer, INPUTS), expected)
        assert not torch.allclose(twin(INPUTS), expected[0], atol=0.01)
        layer.eval()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copies_share_the_python_and_explain_themselves(duplicate):
    world = SimpleNamespace(measure=two_expvals)
    layer = make(QuantumLayer, qnode_of(lambda: world.measure()))
    assert "not run yet" in layer.explain() and layer(INPUTS).shape == (5, 2)
    twin, world.measure = duplicate(layer), lambda: qp.purity(0)
    assert twin(INPUTS).shape == (5,) and "purity" in twin.explain() and layer.backend == "batched"
    assert (twin.weights is layer.weights) == (duplicate is copy.copy)


def applied(inputs, weights):
    qp.AngleEmbedding(inputs, wires=range(2))
    qp.apply(qp.RX(weights[0, 0, 0], 0))
    return two_expvals()


REASONS = {
    "self": MethodType(lambda self, inputs, weights: plain(inputs, weights), 0),
    "partial": partial(plain),
}
REASONS |= {"apply": applied}


@pytest.mark.parametrize("name", REASONS)
def test_the_reason_for_running_python_at_every_call_is_named(name):
    layer = make(QuantumLayer, qp.QNode(REASONS[name], circuits.make_device("default.qubit", 2)))
    assert layer(INPUTS).shape == (5, 2) and f"since it uses `{name}`." in layer.explain() and repr(layer)


class Custom(QuantumLayer):
    """A subclass; copies must have the same class."""


def test_copies_keep_hooks_and_attributes():
    layer = make(Custom, qnode_of())
    model = nn.ModuleList([layer, layer, nn.ParameterList([layer.weights])])
    layer.register_forward_hook(lambda module, inputs, outputs: 2 * outputs)
    twin = copy.deepcopy(model)
    assert type(twin[0]) is Custom and twin[0] is twin[1] and twin[2][0] is twin[0].weights
    same([twin[0](INPUTS)], [layer(INPUTS)])
    assert twin[0].qnode is layer.qnode


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch itself hides it
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")
def test_torch_compile():
    """The compiler makes one graph before the circuit and one after it, and no others."""
    from torch._dynamo.testing import CompileCounter

    class Net(nn.Sequential):
        def forward(self, inputs):
            return self[2](self[1](self[0](inputs)))

    model = Net(linear(2, 2), make(QuantumLayer, qnode_of()), linear(2, 2))
    torch.compiler.reset()
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, dynamic=True)
    for batch in (5, 3):
        same(measured(compiled, INPUTS[:batch]), measured(model, INPUTS[:batch]))
    assert counter.frame_count == 2 and counter.op_count == 2
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore::UserWarning:torch.export")  # torch's own warning about the weights
def test_torch_export(tmp_path):
    """torch.export writes plain torch that needs neither the QNode nor qnnkit."""
    model = nn.Sequential(linear(2, 2), make(QuantumLayer, QNODES["built"]()), linear(2, 2))
    torch.export.save(torch.export.export(model, (INPUTS,)), tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2")
    assert not any("qnnkit" in str(node.target) for node in program.graph.nodes)
    same([program.module()(INPUTS)], [model(INPUTS)])


# --- errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["auto", "default.qubit"])
def test_a_note_names_the_number_of_features(backend):
    """After a call that worked; the error is TorchLayer's, with a note."""
    layer = make(QuantumLayer, qnode_of(), backend=backend)
    for notes in ([], ["The inputs have 3 features; the last successful call had 2."]):
        with pytest.raises(ValueError, match="Features must be of length 2") as caught:
            layer(torch.ones(4, 5, 3))
        assert getattr(caught.value, "__notes__", []) == notes
        layer(INPUTS)
    assert layer.backend == ("default.qubit" if backend == "default.qubit" else "batched"), layer.explain()


@pytest.mark.parametrize("backend", ["auto", "default.qubit"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.bool, torch.float64])
def test_other_types_of_numbers(backend, dtype):
    """TorchLayer would also truncate the outputs to whole numbers."""
    inputs = torch.tensor([[0, 1], [1, 1], [1, 0]]).to(dtype)
    layer, theirs = make(QuantumLayer, qnode_of(), backend=backend), make(TorchLayer, qnode_of())
    for rows in (inputs, inputs[0]):
        outputs = layer(rows)
        assert outputs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        same([outputs.float().detach()], [theirs(rows.float()).detach()])


# --- initial weights, and states ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "init", [None, nn.init.normal_, {"weights": nn.init.zeros_}], ids=["none", "one", "dict"]
)
def test_initial_weights(init):
    def start(kind: type) -> dict[str, Tensor]:
        return from_seed(lambda: kind(qnode_of(), {"weights": (3, 2, 3)}, init), seed=3).state_dict()

    states = [*map(start, (QuantumLayer, TorchLayer))]
    assert [list(state) for state in states] == [["weights"]] * 2
    assert torch.equal(*(state["weights"] for state in states))


def test_states_are_the_same_on_every_path():
    layers = [make(QuantumLayer, qnode_of(qp.state), backend=path) for path in ("auto", "default.qubit")]
    for inputs in (INPUTS, INPUTS.reshape(5, 1, 2), INPUTS[0]):
        batched, device = (layer(inputs).detach() for layer in layers)
        same([batched], [device])
        assert batched.dtype == torch.complex64 and batched.shape == (*inputs.shape[:-1], 4)
    assert [(layer.n_features, layer.n_outputs) for layer in layers] == [(2, None)] * 2
    with refused("qnode", NotImplementedError, "return real numbers"):
        controls(layers[0])
