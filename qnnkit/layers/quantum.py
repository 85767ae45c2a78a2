"""`QuantumLayer`: PennyLane's TorchLayer, with the whole batch run as one fused torch program."""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import pennylane as qp
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from qnnkit import checks, circuits, words
from qnnkit.layers import refusals
from qnnkit.simulator import Fused, Programs, autocasts, autograd_must, rounds

BACKENDS = ("auto", "batched", "default.qubit", "lightning.qubit", "lightning.gpu")
EXACT_DEVICES = ("default.qubit", "lightning.qubit", "lightning.gpu", "lightning.kokkos")
"""PennyLane devices whose exact results the batched program gives as well."""


class QuantumLayer(qp.qnn.TorchLayer):
    """A `pennylane.qnn.TorchLayer` that runs the whole batch as one fused torch program.

    Same constructor, same `state_dict`, same outputs and gradients, at every call: what the QNode's Python
    reads beside its arguments is watched. What has no fused form (shots, noise, measurements in the middle,
    Python that looks at values or that cannot be watched) runs on the QNode's own device, and `explain` says
    why. The circuit is computed in float32 (float64 where the weights or the inputs are), whatever autocast
    and torch's precision of matrix products say around it, and the result returns in the surrounding dtype.

    Args:
        qnode: QNode with an argument `inputs` and one argument per entry of `weight_shapes`.
        weight_shapes: Shape of each weight by name; weights are angles in radians.
        init_method: As in TorchLayer: a function such as `torch.nn.init.normal_`, or one (or a tensor) per
            name; uniform in [0, 2 pi) by default.
        backend: "auto" runs the fused program where there is one, up to 24 wires, else the QNode's own
            device; "batched" insists on the program; a device's name moves the QNode there
            (differentiated by backprop on `default.qubit`, by the adjoint method on `lightning.*`).

    Raises:
        ValueError: `backend` is unknown or not installed, or a tensor in `init_method` has another shape.

    Example:
        >>> circuit = circuits.build("data_reuploading", n_qubits=4, n_layers=2)
        >>> layer = QuantumLayer(*circuit, backend="batched")
        >>> layer(torch.zeros(8, 4)).shape
        torch.Size([8, 4])
        >>> layer.backend
        'batched'
    """

    gradient_checkpointing = False
    """Whether states are computed again on the way back, not kept; the name that transformers gives it."""
    n_features: int | None = None
    """Length of the inputs' last axis, as last seen by `forward`."""
    n_outputs: int | None = None
    """Length of the outputs' last axis, as last seen by `forward`; None for a single value or a state."""
    input_dtype: torch.dtype | None = None
    """Of the inputs, as last seen by `forward`, before the circuit rounds them up to float32 at least."""
    _too_large: str | None = None
    """Why the circuit cannot run on this machine at all, once it was tried."""
    _sized: qp.QNode | None = None
    """The QNode of which it is known that its state fits into memory."""

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
        self._programs: Programs | None = None

    def _init_weights(self, weight_shapes: dict[str, tuple[int, ...]], init_method: Any) -> None:
        for name, start in init_method.items() if isinstance(init_method, dict) else ():
            shape = weight_shapes.get(name)
            if isinstance(start, Tensor) and shape is not None and tuple(start.shape) != shape:
                rule = f"give {name} its shape in weight_shapes, {shape}"
                raise ValueError(
                    checks.message("init_method", rule, tuple(start.shape), "Change one of the two.")
                )
        super()._init_weights(weight_shapes, init_method)

    # --- where it runs ----------------------------------------------------------------------------

    @property
    def backend(self) -> str:
        """ "batched", or the PennyLane device's name; before the first call, where the circuit may run."""
        return self.qnode.device.name if self._obstacle() else "batched"

    def explain(self) -> str:
        """Why the layer runs where it runs, in one sentence; before the first call, where it will try to."""
        if self._too_large:
            return f"Cannot run here, because {self._too_large}."
        obstacle = self._obstacle()
        if obstacle is None:
            last = None if self._programs is None else self._programs.last
            size = f" of {len(last.plan.blocks)} matrix products" if isinstance(last, Fused) else ""
            return f"Runs as one fused program{size} over the whole batch: every gate is unitary, no shots."
        how = "all samples at once" if self.backend == "default.qubit" else "one sample after the other"
        return (
            f"Runs on PennyLane's {self.backend}, {how}, differentiated by {self.qnode.diff_method}, because "
            f"{obstacle}."
        )

    def _obstacle(self) -> str | None:
        """Why the circuit does not run as a fused program; None if it does, as far as is known."""
        last = None if self._programs is None else self._programs.last
        return self._elsewhere() or (last if isinstance(last, str) else None)

    def _elsewhere(self) -> str | None:
        """Why no program is looked for; None if one is."""
        if self.wanted_backend not in ("auto", "batched"):
            return "that device was asked for"
        return None if self.qnode.device.name in EXACT_DEVICES else "only that device knows what it computes"

    def _program(self, rows: Tensor, shape: torch.Size) -> Fused | None:
        """The fused program for rows of inputs of this shape; None without one."""
        found = self._elsewhere()
        if found is None:
            if self._programs is None or self._programs.qnode is not self.qnode:
                shapes = {name: tuple(weight.shape) for name, weight in self._weights().items()}
                self._programs = Programs(self.qnode, shapes, self.input_arg)
            found = self._programs.find(rows)
        if isinstance(found, Fused):
            return found
        if self.wanted_backend == "batched":
            try:
                self._tapes(rows)
            except Exception as error:
                refusals.wrong_number_of_features(self._tapes, rows, shape, error)
                raise
            step = f"It has none, because {found}; use auto."
            raise NotImplementedError(checks.message("backend", "have a fused form", "batched", step))
        return None

    def count_outputs(self, n_features: int) -> int:
        """How many values one sample gives.

        Args:
            n_features: Of a sample.
        """
        dtype = next((weight.dtype for weight in self._weights().values()), torch.float32)
        with torch.no_grad():
            return math.prod(self(torch.zeros(0, n_features, dtype=dtype)).shape[1:])

    # --- the way forward --------------------------------------------------------------------------

    def forward(self, inputs: Tensor) -> Tensor:
        """Measured values for `inputs`.

        Args:
            inputs: Features of shape (..., n_features).

        Returns:
            Of shape (..., n_outputs), in the dtype that autocast or else `inputs` has (float32 for integers);
            a state is complex, of shape (..., 2**n_wires).

        Raises:
            TypeError: `inputs` is no tensor.
            ValueError: The circuit takes another number of features, or its state exceeds the memory.
        """
        if not isinstance(inputs, Tensor) or not inputs.ndim or not inputs.shape[-1]:
            raise refusals.no_features(inputs)
        if not inputs.numel():
            return self._of_no_samples(inputs)
        kind, weights = inputs.device.type, list(self._weights().values())
        dtype = weights[0].dtype if weights else torch.float32
        if not dtype == inputs.dtype == torch.float32:
            dtype = torch.promote_types(torch.promote_types(inputs.dtype, dtype), torch.float32)
        surrounding = inputs.dtype if inputs.is_floating_point() else dtype
        if autocasts(kind):
            with torch.autocast(kind, enabled=False):
                outputs = self._measured(inputs, weights, dtype)
            if inputs.dtype != torch.float64:  # which autocast passes by
                surrounding = torch.get_autocast_dtype(kind)
        else:
            outputs = self._measured(inputs, weights, dtype)
        is_complex = outputs.is_complex()
        n_outputs = outputs.shape[-1] if outputs.ndim == inputs.ndim and not is_complex else None
        if (self.n_features, self.n_outputs, self.input_dtype) != (inputs.shape[-1], n_outputs, inputs.dtype):
            self.n_features, self.n_outputs, self.input_dtype = inputs.shape[-1], n_outputs, inputs.dtype
        return outputs.to(inputs.device, outputs.dtype if is_complex else surrounding)

    def _measured(self, inputs: Tensor, weights: list[Tensor], dtype: torch.dtype) -> Tensor:
        """The outputs, computed in `dtype` by the program or else by the QNode's own device."""
        find: Any = self._output
        if compiles := torch.compiler.is_compiling():  # what looks at the Python is no part of the graph
            find = torch.compiler.disable(find)
        rows, program = find(inputs, dtype, compiles)
        if program is None:
            return self._on_own_device(inputs.to(dtype))
        given = [weight.to(rows) for weight in weights]
        outputs = program(rows, given, keep=not self.gradient_checkpointing)
        if inputs.ndim > 2:
            outputs = outputs.reshape((*inputs.shape[:-1], *outputs.shape[1:]))
        return outputs

    def _output(self, inputs: Tensor, dtype: torch.dtype, compiles: bool) -> tuple[Tensor, Fused | None]:
        """The inputs as rows of the dtype to compute in, and their program."""
        if dtype == torch.float32 and (compiles or autograd_must()) and rounds(inputs.device.type):
            dtype = torch.float64  # torch itself goes back, and would round there
        rows = inputs.to(dtype)
        rows = rows if rows.ndim < 3 else rows.reshape(-1, rows.shape[-1])
        return rows, self._program(rows, inputs.shape)

    def _on_own_device(self, inputs: Tensor) -> Tensor:
        """The outputs as TorchLayer computes them."""
        device, run = self.qnode.device, super().forward
        # MPS has no float64, and lightning reads host memory: both are fed from the CPU.
        here = device.name == "default.qubit" and inputs.device.type != "mps"
        fed = inputs if here else inputs.cpu()
        # PennyLane keeps states for its way back; shots would fall otherwise there.
        again = self.gradient_checkpointing and device.name not in EXACT_DEVICES[1:] and not self.qnode.shots
        rows = fed if fed.ndim < 3 else fed.reshape(-1, fed.shape[-1])
        if self._sized is not self.qnode:
            self._require_memory(rows)
        try:
            return checkpoint(run, fed, use_reentrant=False) if again else run(fed)
        except Exception as error:
            refusals.wrong_number_of_features(self._tapes, rows, inputs.shape, error)
            raise

    def _require_memory(self, rows: Tensor) -> None:
        """Asks, before its device does, whether the circuit fits into memory.

        Raises:
            ValueError: It does not.
        """
        wires, programs = self.qnode.device.wires, self._programs
        watched = programs if programs is not None and programs.settled is None else None
        if watched if wires is None else refusals.too_large(self.qnode.device, ()):
            self._too_large = refusals.too_large(self.qnode.device, self._tapes(rows))
            if watched:
                watched.changed()
        if self._too_large:
            rule, step = "fit into memory", f"Use fewer wires: {self._too_large}."
            raise ValueError(checks.message("qnode", rule, self.qnode.func.__name__, step))
        self._sized = self.qnode

    def _tapes(self, rows: Tensor) -> Any:
        with torch.no_grad():
            return qp.workflow.construct_batch(self.qnode, level="user")(**self._arguments(rows))[0]

    def _of_no_samples(self, inputs: Tensor) -> Tensor:
        """What an empty batch gives: one sample's outputs, without that sample."""
        sample = inputs.new_zeros(1, inputs.shape[-1])
        sample[:, 0] = 1  # bits, angles, and amplitudes of norm 1
        outputs = self.forward(torch.cat([inputs.reshape(0, inputs.shape[-1]), sample]))
        axis = int(self.qnode.shots.has_partitioned_shots)  # TorchLayer puts several numbers of shots first
        outputs = outputs.narrow(axis, 0, 0)
        return outputs.reshape((*outputs.shape[:axis], *inputs.shape[:-1], *outputs.shape[axis + 1 :]))

    def _evaluate_qnode(self, x: Tensor) -> Any:
        """As TorchLayer's; tuples are treated as lists, states stay complex, replicas have their weights."""
        found = self.qnode(**self._arguments(x))
        if self.qnode.shots.has_partitioned_shots:
            return tuple(_columns([part] if isinstance(part, Tensor) else part, x) for part in found)
        return _columns(found, x)

    # --- its weights ------------------------------------------------------------------------------

    def _weights(self) -> dict[str, Tensor]:
        """The weights by name, where torch put them last.

        `functional_call` and `load_state_dict` exchange what stands in `_parameters`; in DataParallel's
        replicas, and under a parametrization, they are attributes instead.
        """
        held = self._parameters
        return {name: held[name] if name in held else getattr(self, name) for name in self.qnode_weights}

    def _arguments(self, inputs: Tensor) -> dict[str, Tensor]:
        """What the QNode is called with."""
        weights = {name: weight.to(inputs) for name, weight in self._weights().items()}
        return {self.input_arg: inputs, **weights}

    @property
    def func(self) -> Callable[..., Any]:
        """The QNode's function of the inputs alone, which qp.draw and qp.specs call."""

        # For TorchLayer, PennyLane itself adds the weights; its subclasses it takes for QNodes.
        @functools.wraps(self.qnode.func)
        def circuit(inputs: Tensor, **weights: Tensor) -> Any:
            return self.qnode.func(**{**self._arguments(inputs), **weights})

        return circuit

    # --- copies -----------------------------------------------------------------------------------

    def with_qnode(self, qnode: qp.QNode, backend: str | None = None) -> QuantumLayer:
        """The same layer, own copies of the weights, around another QNode of the same weights."""
        weights = self._weights()
        shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
        start = {name: weight.detach().clone() for name, weight in weights.items()}
        layer = QuantumLayer(qnode, shapes, start, backend=backend or self.wanted_backend)
        layer._programs = self._programs  # which another QNode leaves aside
        for name, weight in weights.items():
            layer.qnode_weights[name].requires_grad_(weight.requires_grad)
        layer.n_features, layer.n_outputs = self.n_features, self.n_outputs
        return layer.train(self.training)

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantumLayer:
        # A QNode holds no state of the layer, so the copy may share it; copying its device may fail.
        for shared in (self.qnode, self._programs):
            memo[id(shared)] = shared
        memo[id(self)] = layer = type(self).__new__(type(self))
        layer.__dict__.update(copy.deepcopy(torch.nn.Module.__getstate__(self), memo))
        return layer

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: the QNode by value, as its function may have no name to be imported by; no programs."""
        # For processes and files of the user's own: the kit itself writes safetensors and reads no pickle.
        import cloudpickle

        qnode = cloudpickle.dumps(self.qnode)
        return {**super().__getstate__(), "qnode": qnode, "_programs": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        import cloudpickle

        super().__setstate__({**state, "qnode": cloudpickle.loads(state["qnode"])})


def _columns(values: Any, x: Tensor) -> Tensor:
    """What a QNode returns for inputs `x`, in their precision; of several measurements, a column a number."""
    if not isinstance(values, Tensor):
        values = torch.hstack([value.reshape(len(x), -1) for value in values] if x.ndim > 1 else list(values))
    return values.to(x.dtype.to_complex() if values.is_complex() else x.dtype)


def _device(name: str, wires: Any) -> qp.devices.Device:
    """A PennyLane device, or one sentence on why it cannot be had."""
    try:
        return circuits.make_device(name, wires)
    except Exception as error:
        reason = words.first_line(error)
        step = f"PennyLane says: {reason}. `qnnkit doctor` tells what to install."
        raise ValueError(checks.message("backend", "be a device that works here", name, step)) from None
