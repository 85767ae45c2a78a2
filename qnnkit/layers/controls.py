"""Control models: circuits replaced by classical or restricted stand-ins, and counts of their parameters."""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import pennylane as qp
import torch
from pennylane.measurements import ProbabilityMP
from torch import Tensor, nn

from qnnkit import checks, circuits
from qnnkit.layers.counting import Given, look
from qnnkit.layers.fourier import FourierLayer, fourier_fit, seeded_linear, sizes_of
from qnnkit.layers.quantum import QuantumLayer


class ClassicalLayer(nn.Module):
    """The classical stand-in of a circuit, with exactly as many weights and outputs in (-1, 1).

    Every output is tanh of a polynomial in the features (divided by pi, so that angles are of order 1).
    Weights are assigned in turn: a constant for every output, then each feature, then products of two, of
    three ... until `n_weights` are used. With n_weights = n_outputs * (n_features + 1) it is an ordinary
    linear layer or convolution with a tanh. No weight is unused, whatever the count. If the circuit returns
    probabilities, the layer ends in a softmax instead.

    Args:
        n_features: Length of the inputs' last axis.
        n_outputs: Length of the outputs' last axis.
        n_weights: Number of trainable weights.
        seed: Fixes the initial weights.

    Raises:
        ValueError: A number is below 1.

    Example:
        >>> layer = ClassicalLayer(4, 4, 24)
        >>> sum(weight.numel() for weight in layer.parameters()), layer(torch.zeros(8, 4)).shape
        (24, torch.Size([8, 4]))
    """

    factors: Tensor
    of_probabilities = False

    def __init__(self, n_features: int, n_outputs: int, n_weights: int, *, seed: int = 0):
        super().__init__()
        for name in ("n_features", "n_outputs", "n_weights"):
            checks.positive(name, locals()[name])
        self.n_features, self.n_outputs = n_features, n_outputs
        terms = [*itertools.islice(_terms(n_features), math.ceil(n_weights / n_outputs))]
        degree = len(terms[-1])  # lower terms are filled up with the factor 1, which follows the features
        factors = [[*term, *[n_features] * (degree - len(term))] for term in terms]
        self.register_buffer("factors", torch.tensor(factors, dtype=torch.int64), persistent=False)
        generator = torch.Generator().manual_seed(seed)
        bound = 1 / math.sqrt(n_features)  # as in torch.nn.Linear
        self.weights = nn.Parameter((2 * torch.rand(n_weights, generator=generator) - 1) * bound)

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs of shape (..., n_outputs) for features of shape (..., n_features), in radians."""
        checks.last_axis("inputs", inputs, self.n_features, "Give as many features as the layer has.")
        scaled = nn.functional.pad(inputs / math.pi, (0, 1), value=1.0)  # (..., n_features + 1)
        terms = scaled[..., self.factors].prod(-1)  # (..., n_terms, degree) -> (..., n_terms)
        n_unused = len(self.factors) * self.n_outputs - len(self.weights)
        matrix = nn.functional.pad(self.weights, (0, n_unused)).reshape(-1, self.n_outputs)
        values = terms.to(matrix.dtype) @ matrix
        return values.softmax(-1) if self.of_probabilities else values.tanh()


class Bypass(nn.AdaptiveAvgPool1d):
    """Returns a circuit's features, divided by pi, in place of its outputs. Has no weights.

    If the numbers of features and outputs differ, features are averaged or repeated. If the circuit returns
    probabilities, a softmax follows.
    """

    of_probabilities = False

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs of shape (..., output_size) for features of shape (..., n_features), in radians."""
        values = super().forward(inputs.reshape(-1, 1, inputs.shape[-1]) / math.pi)
        values = values.softmax(-1) if self.of_probabilities else values
        return values.reshape(*inputs.shape[:-1], values.shape[-1])


CONTROLS = ("no_entanglement", "frozen_random", "classical", "classical_trained", "no_quantum")
"""Names of the controls that a run trains by default."""
MORE_CONTROLS = ("fourier", "fourier_random", "compute_matched", "frozen_classical")
"""Names of the controls that a run trains only on request."""


def controls(model: nn.Module, *, seed: int = 0, example: Given | None = None) -> dict[str, nn.Module]:
    """Copies of a network in which only the quantum part is replaced, each for one question.

    - `no_entanglement`: the circuit without its entangling gates. Does entanglement help?
    - `frozen_random`: the circuit with random weights that are not trained. Does training the circuit help?
    - `classical`: a bounded polynomial map with the same number of parameters, trained if the circuit is.
      Does the circuit help at all? This control and the next require a circuit with weights.
    - `classical_trained`, only for a model whose circuits are frozen: the same map, trained. Does a circuit
      that is not trained do as well as a layer that is?
    - `no_quantum`: the features in place of the circuit's outputs; if the circuit has a skip connection, the
      skip connection alone. Is there anything for a circuit to do?
    - `fourier`: a trained linear map of the circuit's own trigonometric features, see `FourierLayer`. Is the
      circuit better than the function class that its embedding defines?
    - `fourier_random`: the same with as many random frequencies. Do these particular frequencies matter?
    - `compute_matched`: two linear layers with as many multiplications as a simulation of the circuit. What
      else could the same computation achieve?
    - `frozen_classical`, only with an `example`: the trained weights before the circuit, frozen at their
      initial values. Does the circuit learn, or do these weights?

    A circuit that does not embed its inputs as angles has no `fourier` and no `fourier_random`. Everything
    classical starts from the same weights as in `model`, which is not changed. `no_entanglement` keeps swaps
    and amplitude embeddings, which write the data into a state as a whole.

    Args:
        model: Any module that holds at least one `QuantumLayer` and has run once (so that shapes are known).
        seed: Fixes the weights of the replaced parts.
        example: A batch as the model takes it; `frozen_classical` finds the weights before a circuit with it.

    Raises:
        ValueError: The model holds no `QuantumLayer`.
        NotImplementedError: A layer has not run yet, or its QNode returns a state.
    """
    copies = {name: control(model, name, seed=seed) for name in control_names(model)}
    for name in MORE_CONTROLS if example is not None else MORE_CONTROLS[:-1]:
        with contextlib.suppress(NotImplementedError):
            copies[name] = control(model, name, seed=seed, example=example)
    return copies


def control_names(model: nn.Module) -> tuple[str, ...]:
    """Names from `CONTROLS` that apply to a model; empty if it holds no `QuantumLayer`."""
    if not any(isinstance(module, QuantumLayer) for module in model.modules()):
        return ()
    trained = [weight.requires_grad for weight in quantum_parameters(model)]
    has = {"classical": bool(trained), "classical_trained": bool(trained) and not any(trained)}
    return tuple(name for name in CONTROLS if has.get(name, True))


def control(model: nn.Module, name: str, *, seed: int = 0, example: Given | None = None) -> nn.Module:
    """One of `controls`, without building the others.

    Args:
        model: As in `controls`; it is not changed.
        name: Name of the control; `controls` explains each.
        seed: Fixes the weights of the replaced parts.
        example: A batch as the model takes it, which only `frozen_classical` needs.

    Raises:
        ValueError: The model has no control of that name, or `frozen_classical` has no `example`.
        NotImplementedError: As in `controls`, or the control does not apply; the message says why.
    """
    names = control_names(model)
    step = "A net without a QuantumLayer has no controls: set controls=[]."
    checks.choice("control", name, (*names, *MORE_CONTROLS) if names else (), step)
    twin = copy.deepcopy(model)
    if name == "frozen_classical":
        return _freeze_before_circuits(twin, example)
    twin = _without_quantum(twin) if name == "no_quantum" else twin
    return _exchange(twin, lambda layer, i: _MAKE[name](layer, seed * 1000 + i))


def as_classical(model: nn.Module, **options: Any) -> tuple[nn.Module, float]:
    """A copy of a network in which equivalent classical functions replace the circuits; see `fourier_fit`.

    Args:
        model: A model that has run once, so that shapes are known.
        options: Options of `fourier_fit`: `most`.

    Returns:
        The copy, and the largest difference between the outputs of a circuit and its replacement.

    Raises:
        NotImplementedError: A circuit has no such function, or too many features.
    """
    differences = [0.0]

    def fitted(layer: QuantumLayer, i: int) -> nn.Module:
        twin, difference = fourier_fit(layer, **options)
        differences.append(difference)
        return twin

    return _exchange(copy.deepcopy(model), fitted), max(differences)


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Numbers of parameters: `quantum` and `classical` (trained), and `frozen` (of either kind).

    Example:
        >>> layer = QuantumLayer(*circuits.build("data_reuploading", n_qubits=4, n_layers=2))
        >>> count_parameters(nn.Sequential(nn.Linear(3, 4), layer))
        {'quantum': 24, 'classical': 16, 'frozen': 0}
    """
    quantum, counts = set(quantum_parameters(model)), {"quantum": 0, "classical": 0, "frozen": 0}
    for parameter in model.parameters():
        kind = "quantum" if parameter in quantum else "classical"
        counts[kind if parameter.requires_grad else "frozen"] += parameter.numel()
    return counts


def quantum_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The weights of every circuit in `model`, trained or frozen: QuantumLayers, and circuits of adapters."""
    return list(nn.ModuleList(filter(_is_circuit, model.modules())).parameters())


def exchanged_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The weights of every circuit in `model`, or of the `ClassicalLayer`s that replace them.

    Both train alike. Other layers that replace a circuit train with the learning rate of classical weights.
    """
    modules = [m for m in model.modules() if _is_circuit(m) or isinstance(m, ClassicalLayer)]
    return list(nn.ModuleList(modules).parameters())


def on_backend(model: nn.Module, backend: str) -> nn.Module:
    """Moves the circuits of `model` to a backend, in place; skips circuits with a chosen backend.

    Raises:
        ValueError: The backend is not one of `BACKENDS`.
    """

    def make(layer: QuantumLayer, i: int) -> QuantumLayer:
        return layer.with_qnode(layer.qnode, backend) if layer.wanted_backend == "auto" else layer

    return _exchange(model, make)


def has_circuit(model: nn.Module) -> bool:
    """Whether `model` contains a circuit, trained or frozen."""
    return any(map(_is_circuit, model.modules()))


def _is_circuit(module: nn.Module) -> bool:
    """Whether a module's parameters are a circuit's weights; adapters keep angles in a separate module."""
    return isinstance(module, QuantumLayer) or getattr(type(module), "of_circuit", False)


def _terms(n_features: int):
    """The monomials of the features by degree: (), (0,), (1,), ..., (0, 0), (0, 1), ..."""
    for degree in itertools.count():
        yield from itertools.combinations_with_replacement(range(n_features), degree)


def _no_entanglement(layer: QuantumLayer, seed: int) -> QuantumLayer:
    drop: Any = circuits.drop_entanglement  # PennyLane's type of a transform depends on its argument
    return layer.with_qnode(drop(layer.qnode))


def _frozen_random(layer: QuantumLayer, seed: int) -> QuantumLayer:
    frozen = layer.with_qnode(layer.qnode).requires_grad_(False)
    generator = torch.Generator().manual_seed(2**31 + seed)  # unlike any initial seed of a quanvolution
    for weight in frozen.parameters():
        weight.copy_(2 * math.pi * torch.rand(weight.shape, generator=generator))
    return frozen


def _classical(layer: QuantumLayer, seed: int) -> ClassicalLayer:
    weights = list(layer.parameters())
    twin = ClassicalLayer(*sizes_of(layer), sum(weight.numel() for weight in weights), seed=seed)
    return _bounded(twin, layer).requires_grad_(any(weight.requires_grad for weight in weights))


def _bounded(twin: Any, layer: QuantumLayer) -> Any:
    """Makes a stand-in end in a softmax if probabilities are all that the circuit returns."""
    with contextlib.suppress(NotImplementedError):
        kinds = [type(each) for tape in _tapes(layer, "top") for each in tape.measurements]
        twin.of_probabilities = kinds == [ProbabilityMP]
    return twin


def _tapes(layer: QuantumLayer, level: str) -> Any:
    """The tapes of a layer's QNode for one sample that is valid as bits, angles or amplitudes.

    Raises:
        NotImplementedError: The QNode's Python does not take this sample.
    """
    batch = torch.eye(1, sizes_of(layer)[0])
    for sample in (batch[0], batch):
        with contextlib.suppress(Exception):
            return qp.workflow.construct_batch(layer.qnode, level)(**layer._arguments(sample))[0]
    rule, step = "take one feature of 1 and others of 0", "Omit the control compute_matched."
    raise NotImplementedError(checks.message("qnode", rule, "one that raises an error", step))


def _matched(layer: QuantumLayer, seed: int) -> nn.Sequential:
    """The classical stand-in with the circuit's computing budget: two linear layers with tanh in between.

    The width of the hidden layer makes the number of multiplications equal to that of a gate-by-gate
    simulation of the circuit: 4 * 2**(n_wires + k) for a gate on k wires.
    """
    (n_features, n_outputs), generator = sizes_of(layer), torch.Generator().manual_seed(seed)
    gates = [(tape.wires, gate) for tape in _tapes(layer, "device") for gate in tape.operations]
    n_multiplications = sum(4 * 2 ** (len(wires) + len(gate.wires)) for wires, gate in gates)
    n_hidden = max(1, n_multiplications // (n_features + n_outputs))
    first = seeded_linear(n_features, n_hidden, generator)
    return _Perceptron(first, nn.Tanh(), seeded_linear(n_hidden, n_outputs, generator))


class _Perceptron(nn.Sequential):
    def forward(self, inputs: Tensor) -> Tensor:  # callers may name the argument, as of a circuit
        return super().forward(inputs)


_MAKE: dict[str, Callable[[QuantumLayer, int], nn.Module]] = {
    "no_entanglement": _no_entanglement,
    "frozen_random": _frozen_random,
    "classical": _classical,
    "classical_trained": lambda layer, seed: _classical(layer, seed).requires_grad_(True),
    "no_quantum": lambda layer, seed: _bounded(Bypass(sizes_of(layer)[1]), layer),
    "fourier": lambda layer, seed: FourierLayer(layer, seed=seed),
    "fourier_random": lambda layer, seed: FourierLayer(layer, seed=seed, random=True),
    "compute_matched": _matched,
}
"""Functions by control name that build a layer's replacement from the layer and a seed."""


def _freeze_before_circuits(model: nn.Module, example: Given | None) -> nn.Module:
    """Freezes, in place, the trained weights of `model` that a circuit's inputs depend on."""
    if example is None:
        rule, step = "be a batch of the model's inputs for frozen_classical", "Give example=images[:1]."
        raise ValueError(checks.message("example", rule, example, step))
    of_circuits = set(map(id, quantum_parameters(model)))
    classical = [w for w in model.parameters() if w.requires_grad and id(w) not in of_circuits]
    calls = look(model, example, QuantumLayer, gradients=True)
    sums = [rows.sum() for _, rows, _ in calls if rows.requires_grad]
    gradients = torch.autograd.grad(sums, classical, allow_unused=True) if sums and classical else ()
    before = [weight for weight, gradient in zip(classical, gradients, strict=False) if gradient is not None]
    if not before:
        rule, step = "have trained weights before its circuit", "Omit the control frozen_classical."
        raise NotImplementedError(checks.message("model", rule, type(model).__name__, step))
    for weight in before:
        weight.requires_grad_(False)
    return model


def _without_quantum(model: nn.Module) -> nn.Module:
    """Replaces, in place, every module of `model` that has `without_quantum` by its result."""
    if callable(getattr(model, "without_quantum", None)):
        return model.without_quantum().train(model.training)  # pyright: ignore[reportCallIssue]
    for name, child in model._modules.items():
        if child is not None:
            model._modules[name] = _without_quantum(child)
    return model


def _single(stand_in: nn.Module, inputs: Any, outputs: Tensor) -> Tensor:
    """A forward hook that returns a single value, as the replaced circuit did."""
    return outputs.squeeze(-1)


def _exchange(model: nn.Module, make: Callable[[QuantumLayer, int], nn.Module]) -> nn.Module:
    """Replaces each QuantumLayer of `model`, in place, by `make(layer, index)`."""
    holder = nn.ModuleList([model])
    replaced: dict[QuantumLayer, Any] = {}  # a layer used in two places stays one layer
    owners: dict[tuple[Any, ...], nn.Module] = {}  # of shared weights
    for parent in list(holder.modules()):
        for name, child in list(parent._modules.items()):  # named_children() skips a child's second name
            if isinstance(child, QuantumLayer):
                if child not in replaced:
                    place = next(child.parameters(), torch.zeros(()))
                    replaced[child] = make(child, len(replaced)).to(place).train(child.training)
                    replaced[child].replaces_circuit = not isinstance(replaced[child], QuantumLayer)
                    if child.n_outputs == 0 and replaced[child].replaces_circuit:
                        replaced[child].register_forward_hook(_single)
                    owner = owners.setdefault((*child.parameters(),) or (child,), replaced[child])
                    for key, weight in owner.named_parameters(recurse=False):  # which the circuits share
                        setattr(replaced[child], key, weight)
                setattr(parent, name, replaced[child])
    return holder[0]
