"""`QuantumLayer`, `Quanv2d` and the classical layers that stand in for them as controls."""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import pennylane as qp
import torch
from torch import Tensor, nn

from qnnkit import checks, circuits
from qnnkit.simulator import Fused, NotFusable, fuse

BACKENDS = ("auto", "batched", "default.qubit", "lightning.qubit", "lightning.gpu")
EXACT_DEVICES = ("default.qubit", "lightning.qubit", "lightning.gpu", "lightning.kokkos")
"""PennyLane devices whose exact results the batched program gives as well."""


class QuantumLayer(qp.qnn.TorchLayer):
    """A `pennylane.qnn.TorchLayer` that runs the whole batch as one fused torch program.

    Same constructor, same `state_dict`, same outputs; what has no fused form (shots, noise, measurements in
    the middle, Python that looks at values) runs on the QNode's own device, and `explain` says why. The
    circuit is computed in float32 (float64 where the weights or the inputs are), whatever autocast says
    around it, and the result returns in the surrounding dtype: half precision has too few digits for angles.

    Args:
        qnode: QNode with an argument `inputs` and one argument per entry of `weight_shapes`.
        weight_shapes: Shape of each weight by name; weights are angles in radians.
        init_method: As in TorchLayer: a function such as `torch.nn.init.normal_`, or one (or a tensor) per
            name; uniform in [0, 2 pi) by default.
        backend: "auto" runs the fused program where the QNode has one, else its own PennyLane device;
            "batched" insists on the program; a device's name moves the QNode there (differentiated by
            backprop on `default.qubit`, by the adjoint method on `lightning.*`).

    Raises:
        ValueError: `backend` is unknown.

    Example:
        >>> layer = QuantumLayer(*circuits.build("data_reuploading", n_qubits=4, n_layers=2))
        >>> layer(torch.zeros(8, 4)).shape
        torch.Size([8, 4])
        >>> layer.backend
        'batched'
    """

    def __init__(
        self,
        qnode: qp.QNode,
        weight_shapes: Mapping[str, Any],
        init_method: Callable[..., Any] | dict[str, Any] | None = None,
        *,
        backend: str = "auto",
    ):
        checks.choice("backend", backend, BACKENDS)
        if backend not in ("auto", "batched", qnode.device.name):
            method = "backprop" if backend == "default.qubit" else "adjoint"
            qnode = qnode.update(device=_device(backend, qnode.device.wires), diff_method=method)
        super().__init__(qnode, dict(weight_shapes), init_method)  # pyright: ignore[reportArgumentType]
        self.wanted_backend = backend
        self._programs: dict[Any, Fused | str] = {}  # form of the inputs -> program, or why there is none
        self.n_features: int | None = None
        """Length of the inputs' last axis, as last seen by `forward`."""
        self.n_outputs: int | None = None
        """Length of the outputs' last axis, as last seen by `forward`; None if the QNode returns no list."""

    @property
    def backend(self) -> str:
        """ "batched", or the name of the PennyLane device that runs the circuit."""
        return self.qnode.device.name if self._obstacle() else "batched"

    def explain(self) -> str:
        """Why the layer runs where it runs, in one sentence; before the first call, where it will try to."""
        obstacle = self._obstacle()
        if obstacle is None:
            programs = [program for program in self._programs.values() if isinstance(program, Fused)]
            size = f" of {len(programs[-1].plan.blocks)} matrix products" if programs else ""
            return f"Runs as one fused program{size} over the whole batch: every gate is unitary, no shots."
        how = "all samples at once" if self.backend == "default.qubit" else "one sample after the other"
        return (
            f"Runs on PennyLane's {self.backend}, {how}, differentiated by {self.qnode.diff_method}, because "
            f"{obstacle}."
        )

    def _obstacle(self) -> str | None:
        """Why the circuit does not run as a fused program; None if it does, as far as is known."""
        if self.wanted_backend not in ("auto", "batched"):
            return "that device was asked for"
        if self.qnode.device.name not in EXACT_DEVICES:
            return "only that device knows what it computes"
        return next((reason for reason in self._programs.values() if isinstance(reason, str)), None)

    def _program(self, inputs: Tensor) -> Fused | None:
        """The fused program for inputs of this form, traced when they are first met; None without one."""
        obstacle = self._obstacle()
        key = (inputs.ndim, inputs.shape[-1], inputs.dtype)
        if obstacle is None and key not in self._programs:
            shapes = {name: tuple(weight.shape) for name, weight in self.qnode_weights.items()}
            try:
                self._programs[key] = fuse(
                    self.qnode, tuple(inputs.shape), shapes, inputs.dtype, self.input_arg
                )
            except NotFusable as reason:
                self._programs[key] = obstacle = str(reason)
        if obstacle is None:
            program = self._programs[key]
            assert isinstance(program, Fused)  # any obstacle would have been found
            return program
        if self.wanted_backend == "batched":
            raise NotImplementedError(
                checks.message(
                    "backend", "have a fused form", "batched", f"It has none, because {obstacle}; use auto."
                )
            )
        return None

    def forward(self, inputs: Tensor) -> Tensor:
        """Measured values for `inputs`.

        Args:
            inputs: Features of shape (..., n_features).

        Returns:
            Of shape (..., n_outputs), in the dtype that autocast or else `inputs` has (float32 for integers).
        """
        kind = inputs.device.type
        weight = next(iter(self.qnode_weights.values()), inputs)
        compute = torch.promote_types(torch.promote_types(inputs.dtype, weight.dtype), torch.float32)
        if torch.is_autocast_enabled(kind) and inputs.dtype != torch.float64:  # which autocast passes by
            surrounding = torch.get_autocast_dtype(kind)
        else:
            surrounding = inputs.dtype if inputs.is_floating_point() else compute
        rows = inputs.reshape(-1, inputs.shape[-1]) if inputs.ndim > 1 else inputs
        with torch.autocast(kind, enabled=False):
            program = self._program(rows.to(compute)) if rows.ndim else None
            if program is not None:
                weights = [self._parameters[name].to(rows.device, compute) for name in self.qnode_weights]
                outputs = program(rows.to(compute), weights)
                outputs = outputs.reshape((*inputs.shape[:-1], *outputs.shape[rows.ndim - 1 :]))
            else:
                # MPS has no float64, and lightning reads host memory: both are fed from the CPU.
                here = self.backend == "default.qubit" and kind != "mps"
                outputs = super().forward(inputs.to(inputs.device if here else "cpu", compute))
        if outputs.is_complex():
            return outputs
        self.n_features = inputs.shape[-1]
        self.n_outputs = outputs.shape[-1] if outputs.ndim == inputs.ndim else None
        return outputs.to(inputs.device, surrounding)

    def with_qnode(self, qnode: qp.QNode, backend: str | None = None) -> QuantumLayer:
        """The same layer, own copies of the weights, around another QNode of the same weights."""
        weights = {name: weight.detach().clone() for name, weight in self.qnode_weights.items()}
        shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
        layer = QuantumLayer(qnode, shapes, weights, backend=backend or self.wanted_backend)
        if qnode is self.qnode and backend is None:
            layer._programs = self._programs
        for name, weight in self.qnode_weights.items():
            layer.qnode_weights[name].requires_grad_(weight.requires_grad)
        layer.n_features, layer.n_outputs = self.n_features, self.n_outputs
        return layer.train(self.training)

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantumLayer:
        # A QNode holds no state of the layer, so the copy may share it; copying its device may fail.
        memo[id(self)] = layer = self.with_qnode(self.qnode)
        return layer


class Quanv2d(nn.Module):
    """A quanvolution: a circuit slid over every channel of an image, as a convolution's kernel is.

    Each patch of `kernel_size` x `kernel_size` pixels of one channel is embedded into the wires; each
    wire's <Z> is one output channel. All channels share the weights (depthwise); a filter has its own.

    Args:
        in_channels: Channels of the input.
        circuit: Name of an ansatz in `CIRCUITS`, or a pair (qnode, weight_shapes) as `circuits.build` makes.
        kernel_size: Side of a patch, in pixels.
        stride: Step between patches, in pixels.
        filters: Number of circuits, each with its own weights (and its own structure, if `random`).
        trainable: Whether the weights receive gradients.
        seed: Fixes the weights' start and the structure of `random`; no global generator is touched.
        backend: As in `QuantumLayer`.
        n_layers: Depth of a named circuit.
        embedding: Embedding of a named circuit that does not embed its data itself.

    Reference: Henderson et al. (2020), arXiv:1904.04767.

    Example:
        >>> Quanv2d(1, "data_reuploading", filters=2)(torch.rand(3, 1, 8, 8)).shape
        torch.Size([3, 8, 4, 4])
    """

    def __init__(
        self,
        in_channels: int,
        circuit: str | tuple[qp.QNode, dict[str, tuple[int, ...]]],
        *,
        kernel_size: int = 2,
        stride: int = 2,
        filters: int = 1,
        trainable: bool = True,
        seed: int = 0,
        backend: str = "auto",
        n_layers: int = 2,
        embedding: str = "angle",
    ):
        super().__init__()
        for name in ("in_channels", "kernel_size", "stride", "filters", "n_layers"):
            checks.positive(name, locals()[name])
        self.in_channels, self.kernel_size, self.stride = in_channels, kernel_size, stride
        n_features = kernel_size**2
        self.filters = nn.ModuleList()
        for i in range(filters):
            generator = torch.Generator().manual_seed(seed * 1000 + i)
            if isinstance(circuit, str):
                n_qubits = circuits.embedding_of(circuit, embedding).n_qubits(n_features)
                qnode, shapes = circuits.build(
                    circuit, n_qubits=n_qubits, n_layers=n_layers, embedding=embedding, seed=seed * 1000 + i
                )
            else:
                qnode, shapes = circuit
            layer = QuantumLayer(qnode, shapes, _uniform_angles(generator), backend=backend)
            self.filters.append(layer.requires_grad_(trainable))
        with torch.no_grad():  # how many values one patch gives, found by asking
            self.out_channels = in_channels * sum(
                int(f(torch.zeros(n_features)).numel()) for f in self.filters
            )

    def forward(self, images: Tensor) -> Tensor:
        """The feature maps of `images`.

        Args:
            images: Angles in radians, of shape (batch, in_channels, height, width).

        Returns:
            Expectation values in [-1, 1], of shape (batch, out_channels, height', width'); the channels
            run over input channel, filter and wire, wires fastest.

        Raises:
            ValueError: The shape does not fit, or the image is smaller than a patch.
        """
        checks.axes("images", images, "batch, in_channels, height, width", "Add the missing axis.")
        batch, channels, height, width = images.shape
        if channels != self.in_channels or min(height, width) < self.kernel_size:
            rule = f"have {self.in_channels} channels and sides of at least {self.kernel_size} pixels"
            raise ValueError(
                checks.message("images", rule, tuple(images.shape), "Set in_channels or kernel_size to fit.")
            )
        k, s = self.kernel_size, self.stride
        patches = images.unfold(2, k, s).unfold(3, k, s)  # (batch, channels, rows, columns, k, k)
        rows, columns = patches.shape[2:4]
        patches = patches.reshape(-1, k * k)  # (batch * channels * rows * columns, n_features)
        values = torch.stack([layer(patches) for layer in self.filters], dim=1)  # (..., filters, n_outputs)
        values = values.reshape(batch, channels, rows, columns, -1).movedim(-1, 2)
        return values.reshape(batch, self.out_channels, rows, columns)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        )


class ClassicalLayer(nn.Module):
    """The classical stand-in of a circuit: as many weights to the last one, outputs in (-1, 1).

    Every output is tanh of a polynomial in the features (divided by pi, so that angles are of order 1).
    Weights are dealt out in turn: a constant to every output, then each feature, then products of two, of
    three ... until `n_weights` are spent. With n_weights = n_outputs * (n_features + 1) it is the ordinary
    linear layer or convolution with a tanh; no weight is left over as padding, whatever the count.

    Args:
        n_features: Length of the inputs' last axis.
        n_outputs: Length of the outputs' last axis.
        n_weights: Number of trainable weights.
        seed: Fixes the weights' start.

    Example:
        >>> layer = ClassicalLayer(4, 4, 24)
        >>> sum(weight.numel() for weight in layer.parameters()), layer(torch.zeros(8, 4)).shape
        (24, torch.Size([8, 4]))
    """

    powers: Tensor
    slots: Tensor

    def __init__(self, n_features: int, n_outputs: int, n_weights: int, *, seed: int = 0):
        super().__init__()
        for name in ("n_features", "n_outputs", "n_weights"):
            checks.positive(name, locals()[name])
        self.n_features, self.n_outputs = n_features, n_outputs
        n_terms = math.ceil(n_weights / n_outputs)
        exponents = [
            [term.count(feature) for feature in range(n_features)]
            for term in itertools.islice(_terms(n_features), n_terms)
        ]
        self.register_buffer("powers", torch.tensor(exponents), persistent=False)  # (n_terms, n_features)
        self.register_buffer("slots", torch.arange(n_weights), persistent=False)
        generator = torch.Generator().manual_seed(seed)
        bound = 1 / math.sqrt(n_features)  # torch.nn.Linear's
        self.weights = nn.Parameter((2 * torch.rand(n_weights, generator=generator) - 1) * bound)

    def forward(self, inputs: Tensor) -> Tensor:
        """Of shape (..., n_outputs) for features of shape (..., n_features), in radians."""
        checks.last_axis("inputs", inputs, self.n_features, "Give as many features as the layer has.")
        scaled = inputs / math.pi
        terms = (scaled.unsqueeze(-2) ** self.powers).prod(-1)  # (..., n_terms)
        matrix = self.weights.new_zeros(self.powers.shape[0] * self.n_outputs)
        matrix = matrix.index_put((self.slots,), self.weights).reshape(-1, self.n_outputs)
        return torch.tanh(terms.to(matrix.dtype) @ matrix)

    def extra_repr(self) -> str:
        return f"{self.n_features}, {self.n_outputs}, n_weights={self.weights.numel()}"


def controls(model: nn.Module, *, seed: int = 0) -> dict[str, nn.Module]:
    """The same network with only the quantum part exchanged, once for each question one may ask of it.

    - `no_entanglement`: the circuit without its entangling gates. Does entanglement help?
    - `frozen_random`: the circuit at random weights that never train. Does training the circuit help?
    - `classical`: a bounded polynomial map of equal parameter count, trained where the circuit is. Does the
      circuit help at all?

    Everything classical starts from the same weights as in `model`, which is left as it was.

    Args:
        model: Any module that holds at least one `QuantumLayer` and has run once (so that shapes are known).
        seed: Fixes the weights of the exchanged parts.

    Raises:
        ValueError: The model holds no `QuantumLayer`, or has not run yet.
        NotImplementedError: A layer's QNode returns no list, but a single value or a tuple.
    """
    if not any(isinstance(module, QuantumLayer) for module in model.modules()):
        rule = "hold at least one QuantumLayer"
        raise ValueError(checks.message("model", rule, type(model).__name__, "There is nothing to exchange."))
    makers = {
        "no_entanglement": lambda layer, i: layer.with_qnode(circuits.drop_entanglement(layer.qnode)),
        "frozen_random": lambda layer, i: _frozen_random(layer, seed * 1000 + i),
        "classical": lambda layer, i: _classical(layer, seed * 1000 + i),
    }
    return {name: _exchange(copy.deepcopy(model), make) for name, make in makers.items()}


def count_parameters(model: nn.Module) -> dict[str, int]:
    """Numbers of parameters by kind: `quantum` and `classical` (trained), `frozen` (of either kind).

    Example:
        >>> count_parameters(Quanv2d(1, "data_reuploading"))
        {'quantum': 24, 'classical': 0, 'frozen': 0}
    """
    quantum = quantum_parameters(model)
    counts = {"quantum": 0, "classical": 0, "frozen": 0}
    for parameter in model.parameters():
        kind = "quantum" if any(parameter is weight for weight in quantum) else "classical"
        counts[kind if parameter.requires_grad else "frozen"] += parameter.numel()
    return counts


def quantum_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The weights of every circuit in `model`."""
    layers = [module for module in model.modules() if isinstance(module, QuantumLayer)]
    return [weight for layer in layers for weight in layer.parameters()]


def _device(name: str, wires: Any) -> qp.devices.Device:
    """A PennyLane device, or one sentence on why it cannot be had."""
    try:
        return circuits.make_device(name, wires)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        step = f"PennyLane says: {reason} `qnnkit doctor` tells what to install."
        raise ValueError(checks.message("backend", "be a device that works here", name, step)) from None


def _uniform_angles(generator: torch.Generator) -> Callable[[Tensor], Tensor]:
    return lambda weight: weight.uniform_(0, 2 * math.pi, generator=generator)


def _terms(n_features: int):
    """The monomials of the features by degree: (), (0,), (1,), ..., (0, 0), (0, 1), ..."""
    for degree in itertools.count():
        yield from itertools.combinations_with_replacement(range(n_features), degree)


def _frozen_random(layer: QuantumLayer, seed: int) -> QuantumLayer:
    frozen = layer.with_qnode(layer.qnode).requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for weight in frozen.parameters():
        weight.copy_(2 * math.pi * torch.rand(weight.shape, generator=generator))
    return frozen


def _classical(layer: QuantumLayer, seed: int) -> ClassicalLayer:
    if layer.n_features is None:
        raise ValueError(
            checks.message(
                "model", "have run once", "a model that has not", "Call it on one batch, then ask again."
            )
        )
    if layer.n_outputs is None:
        rule, step = "return a list", "Write `return [qp.expval(...)]` in the QNode."
        raise NotImplementedError(checks.message("qnode", rule, "a QNode that returns something else", step))
    weights = list(layer.parameters())
    n_weights = sum(weight.numel() for weight in weights)
    twin = ClassicalLayer(layer.n_features, layer.n_outputs, n_weights, seed=seed).to(weights[0])
    return twin.requires_grad_(any(weight.requires_grad for weight in weights)).train(layer.training)


def _exchange(model: nn.Module, make: Callable[[QuantumLayer, int], nn.Module]) -> nn.Module:
    """`model`, changed in place: each QuantumLayer replaced by what `make(layer, index)` gives."""
    if isinstance(model, QuantumLayer):
        return make(model, 0)
    places = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent._modules.items()  # named_children() gives a child of two names once
        if isinstance(child, QuantumLayer)
    ]
    made: dict[QuantumLayer, nn.Module] = {}  # a layer used in two places stays one layer
    for parent, name, child in places:
        if child not in made:
            made[child] = make(child, len(made))
        setattr(parent, name, made[child])
    return model
