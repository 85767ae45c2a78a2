"""Layers equal PennyLane's and are safe in mixed precision; quanvolutions equal a plain loop; controls."""

import copy
import itertools

import numpy as np
import pennylane as qp
import pytest
import torch
from torch import nn

from qnnkit import QuantumLayer, Quanv2d, circuits, controls, layers
from qnnkit.layers import ClassicalLayer, count_parameters, quantum_parameters
from qnnkit.layers.controls import Bypass
from tests.toys import layer_on, linear, measured, mixed_gradients, refused, same, shipped, uniform

FLOAT32, FLOAT64 = 1e-5, 1e-10
"""Largest allowed errors of values and gradients, by precision."""
BFLOAT16 = 2**-8
"""Relative spacing of bfloat16: the least error of a circuit computed in it."""
CONTROLS = ("no_entanglement", "frozen_random", "classical", "no_quantum")


# --- QuantumLayer -------------------------------------------------------------------------------------


def casting(enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=enabled)


HALF, BF, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64


@pytest.mark.parametrize(
    ("of_inputs", "of_weights", "context", "of_outputs"),
    [
        (HALF, SINGLE, torch.enable_grad, HALF),
        (HALF, HALF, torch.enable_grad, HALF),
        (BF, SINGLE, torch.enable_grad, BF),
        (BF, BF, torch.enable_grad, BF),
        (SINGLE, SINGLE, casting, BF),
        (BF, SINGLE, casting, BF),
        (DOUBLE, DOUBLE, casting, DOUBLE),  # as autocast does for a linear layer
        (SINGLE, SINGLE, torch.inference_mode, SINGLE),
        (SINGLE, SINGLE, torch.no_grad, SINGLE),
        (SINGLE, SINGLE, lambda: casting(False), SINGLE),
    ],
)
def test_circuits_are_computed_in_float32_at_least(of_inputs, of_weights, context, of_outputs):
    """Under any autocast; the result is rounded once, at the end."""
    layer, inputs = shipped().to(of_weights), uniform(4, 3).to(of_inputs)
    with context():
        outputs = layer(inputs)
    wide = torch.promote_types(of_inputs, SINGLE)
    true = copy.deepcopy(layer).to(wide)(inputs.to(wide))
    assert outputs.dtype == of_outputs and torch.equal(outputs, true.to(of_outputs))
    if outputs.requires_grad:
        outputs.float().sum().backward()
        assert layer.weights.grad.dtype == of_weights and layer.weights.grad.abs().max() > BFLOAT16


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("auto", "its Python reads only its arguments and constants, and ran once"),
        ("default.qubit", "all samples at once"),
        ("lightning.qubit", "one sample after the other"),
    ],
)
@pytest.mark.parametrize("device", ["default.qubit", "lightning.qubit"])
def test_backends_agree_stay_chosen_and_explain_themselves(device, backend, words):
    layer, plain = shipped(backend=backend, device=device), shipped(kind=qp.qnn.TorchLayer)
    same(measured(layer, uniform(4, 3)), measured(plain, uniform(4, 3)))
    assert layer.backend == copy.deepcopy(layer).backend == ("batched" if backend == "auto" else backend)
    sentence = layer.explain()
    assert words in sentence and (backend == "auto" or backend in sentence)
    assert sentence.endswith(".") and sentence.count(". ") == 0


MEASURED = {
    "a number": lambda: qp.expval(qp.Z(0)),
    "probabilities": lambda: qp.probs(0),
    "several circuits": lambda: [qp.expval(qp.Y(0)), qp.expval(qp.Z(0))],
}


@pytest.mark.parametrize("kind", MEASURED)
def test_controls_give_the_same_kind_of_output_as_the_circuit(kind):
    """Probabilities sum to 1 as well; the circuit's Python may need a batch."""
    layer = layer_on(2, lambda inputs, w: (qp.RX(inputs[:, 0] + w, 0), MEASURED[kind]())[-1], {"w": ()})
    layer.qnode, inputs = qp.transforms.split_non_commuting(layer.qnode), uniform(5, 2)
    for name, control in controls(layer).items():
        assert control(inputs).shape == layer(inputs).shape, name
        if name in CONTROLS and kind == "probabilities":
            assert control(inputs).sum(1).allclose(torch.ones(5))


def test_a_circuit_that_rejects_other_inputs_has_controls():
    def circuit(inputs, w):
        qp.RX(inputs[inputs > 0].view_as(inputs)[:, 0] + w, 0)
        return qp.probs(0)

    layer = layer_on(2, circuit, {"w": ()})
    assert layer(1 + uniform(5, 2).abs()).shape == (5, 2) and controls(layer).keys() >= {*CONTROLS}


def test_a_circuit_without_weights_has_no_classical_control():
    made = controls(layer_on(1, lambda inputs: (qp.RX(inputs[..., 0], 0), qp.probs(0))[-1], {}))
    assert made and not any(name.startswith("classical") for name in made)


# --- Quanv2d ------------------------------------------------------------------------------------------


def loop(quanv: Quanv2d, images: torch.Tensor) -> torch.Tensor:
    """The definition: one patch of one channel through one circuit at a time."""
    k, s = quanv.kernel_size, quanv.stride
    height, width = ((side - k) // s + 1 for side in images.shape[2:])
    maps = torch.zeros(len(images), quanv.out_channels, height, width)
    for i, y, x in itertools.product(range(len(images)), range(height), range(width)):
        patches = images[i, :, y * s : y * s + k, x * s : x * s + k].flatten(1)
        pairs = itertools.product(patches, quanv.filters)
        each_of = [each.qnode(patch, **each.qnode_weights) for patch, each in pairs]
        maps[i, :, y, x] = torch.stack(torch.utils._pytree.tree_leaves(each_of))
    return maps


@qp.qnode(circuits.make_device("default.qubit", 2))
def users(inputs, angles, turn):
    qp.AmplitudeEmbedding(inputs, wires=(0, 1), normalize=True)
    qp.RX(angles[0], wires=0)
    qp.CRY(angles[1], wires=(0, 1))
    qp.RX(turn, wires=1)
    return [qp.expval(qp.Z(1))]


single = qp.QNode(lambda inputs, angles, turn: users.func(inputs, angles, turn)[0], users.device)


@pytest.mark.parametrize(
    ("circuit", "embedding", "kernel_size", "stride", "channels", "filters", "size"),
    [
        ("data_reuploading", "angle", 2, 2, 1, 1, (4, 6)),
        ("data_reuploading", "angle", 2, 1, 2, 2, (3, 4)),
        ("data_reuploading", "angle", 2, 3, 1, 1, (6, 5)),  # the stride skips pixels
        ("data_reuploading", "angle", 1, 1, 2, 1, (2, 3)),
        ("strongly_entangling", "amplitude", 3, 1, 2, 1, (4, 5)),
        ("strongly_entangling", "amplitude", 3, 2, 1, 2, (5, 6)),
        ("hardware_efficient", "iqp", 2, 2, 1, 2, (4, 4)),
        ("random", "angle", 2, 2, 3, 2, (5, 4)),  # an odd side: the last row is dropped
        ("hardware_efficient", "angle", 3, 1, 1, 1, (3, 3)),  # nine wires
        ((users, {"angles": (2,), "turn": ()}), "angle", 2, 2, 2, 3, (4, 4)),
        ((single, {"angles": (2,), "turn": ()}), "angle", 2, 2, 2, 2, (4, 4)),
    ],
)
def test_a_quanvolution_equals_a_loop_over_patches(
    circuit, embedding, kernel_size, stride, channels, filters, size
):
    options = {"kernel_size": kernel_size, "stride": stride, "filters": filters, "embedding": embedding}
    quanv = Quanv2d(channels, circuit, **options, seed=3)
    images = uniform(2, channels, *size)
    maps = quanv(images)
    assert maps.shape[1] == quanv.out_channels and quanv(images[:0]).shape == (0, *maps.shape[1:])
    same([maps[:1], maps[1:]], [loop(quanv, images[:1]), quanv(images[1:])], FLOAT32)
    maps.square().sum().backward()
    assert all(weight.grad.abs().max() > FLOAT32 for weight in quanv.parameters())


def test_a_quanvolution_passes_gradients_to_its_images():
    quanv, images = Quanv2d(1, "data_reuploading").double(), uniform(1, 1, 2, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(quanv, images.requires_grad_(), atol=1e-6)


def quanvolution(**options) -> Quanv2d:
    return Quanv2d(**{"in_channels": 1, "circuit": "random", **options})


SIZED = "n_features", "n_outputs", "n_weights"
BAD = {  # argument, its value -> the call
    **{(name, value): lambda name=name, value=value: quanvolution(**{name: value}) for value in (0, 1.5, True)
       for name in ("in_channels", "kernel_size", "stride", "filters", "n_layers")},
    ("initialisation", "tiny"): lambda: quanvolution(initialisation="tiny"),
    ("n_layers", 3): lambda: quanvolution(n_layers=3, initialisation="identity_block"),
    **{("images", shape): lambda shape=shape: quanvolution()(torch.zeros(shape))
       for shape in ((4, 4), (1, 4, 4), (1, 1, 1, 4, 4), (1, 2, 4, 4), (1, 1, 1, 4), (1, 1, 4, 1))},
    **{(name, 0): lambda name=name: ClassicalLayer(**{**dict.fromkeys(SIZED, 2), name: 0}) for name in SIZED},
    ("inputs", (2, 3)): lambda: ClassicalLayer(4, 1, 3)(torch.zeros(2, 3)),
    **{("inputs", value): lambda given=given: shipped()(given)
       for value, given in (("list", [[0.1, 0.2]]), ("ndarray", np.zeros((3, 2))), ("NoneType", None),
                            ((), torch.tensor(0.1)), ((0,), torch.zeros(0)), ((3, 0), torch.zeros(3, 0)))},
    ("backend", "lightnig.qubit"): lambda: shipped(backend="lightnig.qubit"),
    ("control", "fourier"): lambda: controls(linear(2, 2)),
}  # fmt: skip


@pytest.mark.parametrize(("argument", "value"), BAD)
def test_errors_name_the_bad_argument(argument, value):
    with refused(argument) as caught:
        BAD[argument, value]()
    assert str(value) in str(caught.value)


# --- ClassicalLayer -----------------------------------------------------------------------------------

SIZES = [(4, 4, 24), (4, 4, 1), (4, 4, 3), (4, 4, 20), (1, 3, 10), (9, 4, 25), (2, 5, 61), (3, 2, 40)]


@pytest.mark.parametrize(("n_features", "n_outputs", "n_weights"), SIZES)
def test_a_classical_layer_has_exactly_the_given_number_of_weights(n_features, n_outputs, n_weights):
    layer = ClassicalLayer(n_features, n_outputs, n_weights, seed=1)
    assert sum(weight.numel() for weight in layer.parameters()) == n_weights
    inputs = uniform(6, n_features)
    outputs = layer(inputs)
    assert outputs.shape == (6, n_outputs) and outputs.abs().max() < 1
    (outputs * uniform(6, n_outputs, seed=2)).sum().backward()
    assert layer.weights.grad.abs().min() > 1e-8  # no weight is padding
    assert torch.equal(layer(inputs.reshape(2, 3, -1)), outputs.reshape(2, 3, -1))
    same, other = (ClassicalLayer(n_features, n_outputs, n_weights, seed=seed) for seed in (1, 2))
    assert torch.equal(same(inputs), outputs) and not torch.equal(other(inputs), outputs)
    assert list(layer.state_dict()) == ["weights"]


def test_a_classical_layer_continues_with_products():
    """Linear terms first, then products; weights follow this order. Inputs of 0 have second derivatives."""
    layer = ClassicalLayer(2, 1, 8).double()
    inputs = torch.cat([torch.zeros(1, 2), uniform(6, 2)]).double().requires_grad_()
    x, y = (inputs / np.pi).T
    polynomial = layer.weights @ torch.stack([x**0, x, y, x * x, x * y, y * y, x**3, x * x * y])
    outputs, true = layer(inputs)[:, 0], polynomial.tanh()
    sides = []
    for values in (outputs, true):
        [slopes] = torch.autograd.grad(values.sum(), inputs, create_graph=True)
        sides.append([values, slopes, *mixed_gradients(slopes, [inputs, layer.weights])])
    same(*sides, FLOAT64)


# --- controls -----------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.quanv = Quanv2d(2, "strongly_entangling", filters=2, stride=1, **options)
        self.middle = nn.Sequential(nn.Flatten(), linear(64, 3))
        self.head = shipped(n_qubits=3)

    def forward(self, images):
        return self.head(inputs=self.middle(self.quanv(images=images)))


IMAGES = uniform(4, 2, 3, 3)


def net(**options) -> Net:
    model = Net(**options)
    model(IMAGES)
    return model


def size(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def test_controls_have_equally_many_parameters():
    model = net()
    nets = {name: control for name, control in controls(model).items() if name in CONTROLS}
    assert tuple(nets) == CONTROLS
    quantum = 2 * 2 * 4 * 3 + 2 * 3 * 3
    assert count_parameters(model) == {"quantum": quantum, "classical": 195, "frozen": 0}
    assert count_parameters(nets["no_entanglement"]) == count_parameters(model)
    assert count_parameters(nets["frozen_random"]) == {"quantum": 0, "classical": 195, "frozen": quantum}
    assert count_parameters(nets["classical"]) == {"quantum": 0, "classical": 195 + quantum, "frozen": 0}
    assert count_parameters(nets["no_quantum"]) == {"quantum": 0, "classical": 195, "frozen": 0}


def test_controls_start_from_the_same_classical_weights_and_leave_the_model_unchanged():
    """Controls also keep its dtype and mode."""
    model, images = net().double().eval(), IMAGES.double()
    before, modules, outputs = copy.deepcopy(model.state_dict()), list(model.modules()), model(images)
    for name, control in controls(model).items():
        for ours, theirs in zip(model.middle.parameters(), control.middle.parameters(), strict=True):
            assert torch.equal(ours, theirs) and ours is not theirs
        assert not any(module.training for module in control.modules())
        values = control(images)
        values.sum().backward()
        trained = [weight for weight in control.parameters() if weight.requires_grad]
        assert all(weight.grad.abs().max() > 0 for weight in trained) and values.dtype == torch.float64, name
        with torch.no_grad():
            for weight in control.parameters():
                weight.add_(1)
    assert list(model.modules()) == modules and all(weight.grad is None for weight in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(images), outputs)


def test_no_entanglement_is_separable():
    layer = shipped(n_qubits=4).double()
    inputs = uniform(4, dtype=torch.float64)
    separable = controls(layer)["no_entanglement"]
    assert torch.equal(separable.weights, layer.weights)
    for model, alone in ((layer, False), (separable, True)):
        jacobian = torch.autograd.functional.jacobian(model, inputs)
        others = (jacobian - jacobian.diag().diag()).abs().max()
        assert jacobian.diag().abs().min() > FLOAT32 and (others < FLOAT64) == alone


def test_controls_are_reproducible_by_seed():
    model = net()
    for name in ("frozen_random", "classical"):
        one, same, other = (layers.control(model, name, seed=seed) for seed in (3, 3, 4))
        assert torch.equal(one(IMAGES), same(IMAGES)) and not torch.equal(one(IMAGES), other(IMAGES))
    assert not any(isinstance(module, QuantumLayer) for module in one.modules())
    mine, ours = (quantum_parameters(each) for each in (layers.control(model, "frozen_random"), model))
    assert not any(torch.equal(one, other) for one, other in zip(mine, ours, strict=True)), "another draw"


def test_controls_of_a_frozen_quanvolution_are_frozen():
    model = Quanv2d(1, "random", trainable=False)
    model(uniform(1, 1, 4, 4))
    nets = controls(model)
    trained = nets.pop("classical_trained")
    assert count_parameters(trained) == {"quantum": 0, "classical": 8, "frozen": 0}
    assert torch.equal(trained(uniform(1, 1, 4, 4)), nets["classical"](uniform(1, 1, 4, 4)))  # at its start
    for name in CONTROLS:
        control, frozen = nets[name], 0 if name == "no_quantum" else 8
        assert count_parameters(control) == {"quantum": 0, "classical": 0, "frozen": frozen}
    assert count_parameters(nets["fourier"]) == {"quantum": 0, "classical": 81 * 4, "frozen": 0}
    assert nets["fourier"](uniform(1, 1, 4, 4)).shape == model(uniform(1, 1, 4, 4)).shape


@pytest.mark.parametrize(("n_features", "n_outputs"), [(4, 4), (4, 2), (2, 4)])
def test_without_a_circuit_its_features_pass_through(n_features, n_outputs):
    """Divided by pi; averaged or repeated if the numbers of features and outputs differ."""
    inputs = uniform(5, n_features)
    values = Bypass(n_outputs)(inputs)
    share = n_features // n_outputs or 1
    expected = inputs.reshape(5, -1, share).mean(2).repeat_interleave(n_outputs // n_features or 1, 1)
    same([values], [expected / np.pi], FLOAT32)


def test_a_layer_used_twice_is_replaced_by_one_control():
    layer, tied = shipped(), shipped(seed=2)
    tied.weights = layer.weights
    model = nn.ModuleDict({"a": layer, "b": layer, "c": nn.Sequential(layer, shipped(seed=1)), "d": tied})
    assert len(quantum_parameters(model)) == 2
    for name, control in controls(model).items():
        assert control["a"] is control["b"] is control["c"][0]
        assert control["a"] is not layer and control["a"] is not control["c"][1]
        assert name not in CONTROLS or size(control) == (0 if name == "no_quantum" else size(model))


def test_circuits_are_recognised_under_vmap():
    model, inputs = nn.Sequential(shipped()), uniform(3, 5, 4)
    model.forward = torch.vmap(torch.vmap(model[0], in_dims=1), in_dims=2)
    assert torch.equal(layers.circuit_inputs(model, inputs)[model[0]], inputs.permute(2, 1, 0).reshape(20, 3))


# --- on a GPU -----------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("backend", ["default.qubit", "lightning.qubit"])
def test_cuda_agrees_with_the_cpu(backend):
    model = nn.Sequential(shipped(backend=backend), linear(3, 2, bias=False))
    inputs = uniform(4, 3)
    true = measured(model, inputs)
    same([each.cpu() for each in measured(model.cuda(), inputs.cuda())], true)
    for control in controls(model).values():
        assert control(inputs.cuda()).device.type == "cuda"
