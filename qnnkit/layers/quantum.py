"""`QuantumLayer`: PennyLane's TorchLayer, with the whole batch run as one fused torch program."""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal

import pennylane as qp
import torch
from torch import Tensor

from qnnkit import checks, circuits
from qnnkit.simulator import Call, Programs, Sampled, autocasts, autograd_must, own_device, rounds

BACKENDS = ("auto", "batched", "default.qubit", "lightning.qubit", "lightning.gpu")
SHOTS_AS_COLUMNS = tuple(map(int, qp.__version__.split(".")[:2])) >= (0, 46)
"""Whether TorchLayer returns a single measurement, taken with several numbers of shots, as columns."""


class QuantumLayer(qp.qnn.TorchLayer):
    """A `pennylane.qnn.TorchLayer` that runs the whole batch as one fused torch program.

    The layer has TorchLayer's constructor, `state_dict`, outputs and gradients. The QNode's Python runs at
    every call, unless it reads only its arguments and constants. A circuit without a fused form (noise,
    mid-circuit measurements, gates that are not unitary) runs on the QNode's own device, and `explain` says
    why. The circuit is computed in float32 (float64 if the weights or the inputs are), whatever autocast and
    torch's precision of matrix products are set to. The result has the surrounding dtype.

    Args:
        qnode: QNode with an argument `inputs` and one argument per entry of `weight_shapes`.
        weight_shapes: Shape of each weight by name; weights are angles in radians.
        init_method: As in TorchLayer: a function such as `torch.nn.init.normal_`, or one (or a tensor) per
            name; uniform in [0, 2 pi) by default.
        backend: "auto" runs the fused program if there is one, up to 24 wires, else the QNode's own device;
            "batched" requires the program; a device's name moves the QNode there (differentiated by
            backprop on `default.qubit`, by the adjoint method on `lightning.*`).

    Attributes:
        generator: Generator for a QNode with a finite number of shots, or of the seed of a device that draws
            them; "torch" is torch's own, which checkpoints restore. If None, the layer draws shots only if
            PennyLane has no gradient (for batches of inputs that require one), with torch's own.
        gradient_checkpointing: Whether the backward pass computes states again; default: False.
        n_features: Length of the inputs' last axis in the last call; None before the first.
        n_outputs: Length of the outputs' last axis in the last call; 0: a single value, None: a state.
        input_dtype: dtype of the inputs in the last call, before the promotion to float32 at least.
        takes_batches: Whether the inputs of the last call had a batch axis.

    Raises:
        ValueError: `backend` is unknown, the QNode's interface is not torch's, a shape is missing, or a
            tensor in `init_method` has the wrong shape.
        TypeError: The QNode has no argument `inputs`, or takes any number of arguments.
        Exception: What PennyLane raises for a device that is not installed or does not work here.

    Example:
        >>> circuit = circuits.build("data_reuploading", n_qubits=4, n_layers=2)
        >>> layer = QuantumLayer(*circuit, backend="batched")
        >>> layer(torch.zeros(8, 4)).shape
        torch.Size([8, 4])
        >>> layer.backend
        'batched'
    """

    generator: torch.Generator | Literal["torch"] | None = None
    gradient_checkpointing = False  # the name that transformers uses
    n_features: int | None = None
    n_outputs: int | None = None
    input_dtype: torch.dtype | None = None
    takes_batches = True

    def __init__(
        self,
        qnode: qp.QNode,
        weight_shapes: Mapping[str, Any],
        init_method: Callable[..., Any] | dict[str, Any] | None = None,
        *,
        backend: str = "auto",
    ):
        checks.choice("backend", backend, BACKENDS)
        super().__init__(_moved(qnode, backend), dict(weight_shapes), init_method)  # pyright: ignore[reportArgumentType]
        self.wanted_backend = backend
        self._programs: Programs | None = None
        self._own_weights = dict(self.qnode_weights)

    # --- where it runs ----------------------------------------------------------------------------

    @property
    def backend(self) -> str:
        """ "batched" or the PennyLane device's name; before the first call, the backend to be tried."""
        return self.qnode.device.name if self._obstacle() else "batched"

    def explain(self) -> str:
        """One sentence: what runs the circuit and why; before the first call, what will be tried."""
        if obstacle := self._obstacle():
            how = (
                "all samples at once" if self.backend.startswith("default") else "one sample after the other"
            )
            return (
                f"Runs on PennyLane's {self.backend}, {how}, differentiated by {self.qnode.diff_method}, "
                f"because {obstacle}."
            )
        if self._programs is None or self._programs.last is None:
            return "Has not run yet; it will try one fused program over the whole batch."
        if isinstance(last := self._programs.last, Sampled):
            return (
                f"Draws {last.shots} shots from the exact distribution of every circuit of the batch, "
                "differentiated by the parameter-shift rule, with separate shots for each shifted circuit."
            )
        how = self._programs.how
        return f"Runs as one fused program over the whole batch: every gate is unitary, no shots; {how}."

    def _obstacle(self) -> str | None:
        """Why the circuit does not run as a fused program; None if it does or has not run yet."""
        if self.wanted_backend not in ("auto", "batched"):
            return f"backend={self.wanted_backend!r} was set"
        last = own_device(self.qnode) or (self._programs and self._programs.last)
        return last if isinstance(last, str) else None

    def _call(self, rows: Tensor, weights: dict[str, Tensor]) -> Call | qp.QNode:
        """The programs for this call, or the QNode to call instead."""
        if self.wanted_backend not in ("auto", "batched"):
            return self.qnode
        call = self.programs().program_for(rows, weights)
        if self.wanted_backend == "batched" and not isinstance(call, Call):
            call(**{self.input_arg: rows, **weights})  # may raise PennyLane's own error
            step = f"It has none, because {self.programs().last}. Use auto."
            raise NotImplementedError(checks.message("backend", "have a fused form", "batched", step))
        return call

    def programs(self) -> Programs:
        """The programs of the layer's QNode, whatever backend runs it."""
        made_for = self._programs and (self._programs.qnode, self._programs.input_name)
        if self._programs is None or made_for != (self.qnode, self.input_arg):
            self._programs = Programs(self.qnode, self.input_arg)
        self._programs.generator = self.generator
        return self._programs

    # --- forward ----------------------------------------------------------------------------------

    def forward(self, inputs: Tensor) -> Tensor:
        """Measured values for `inputs`.

        Args:
            inputs: Features of shape (..., n_features).

        Returns:
            Values of shape (..., n_outputs), or (...) for a single value, in the dtype of autocast or else
            of `inputs` (for integers float32, or that of the weights). A state is complex, of shape
            (..., 2**n_wires).

        Raises:
            ValueError: `inputs` is not a tensor, or has no features.
            NotImplementedError: `backend` is "batched", but the circuit has no fused form.
            Exception: Whatever the QNode raises, with a note if an earlier call had a different number of
                features.
        """
        if torch.compiler.is_dynamo_compiling():
            from qnnkit.layers.apart import apart  # imports torch's compiler, which takes a second

            return apart(self.forward, inputs)
        if not isinstance(inputs, Tensor) or not inputs.ndim or not inputs.shape[-1]:
            rule = "be a tensor of shape (..., n_features), with n_features above 0"
            shape = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
            raise ValueError(checks.message("inputs", rule, shape, "Call torch.as_tensor, or add an axis."))
        n_features, kind, weights = inputs.shape[-1], inputs.device.type, self._weights()
        dtype, casts = next(iter(weights.values()), inputs).dtype, autocasts(kind)
        if not dtype == inputs.dtype == torch.float32:
            dtype = torch.promote_types(torch.promote_types(inputs.dtype, dtype), torch.float32)
        surrounding = inputs.dtype if inputs.is_floating_point() else dtype
        if casts and inputs.dtype != torch.float64:  # autocast ignores float64
            surrounding = torch.get_autocast_dtype(kind)
        try:
            with torch.autocast(kind, enabled=False) if casts else contextlib.nullcontext():
                outputs = self._measured(inputs, weights, dtype)
        except Exception as error:
            if self.n_features not in (None, n_features):
                last = f"the last successful call had {self.n_features}"
                error.add_note(f"The inputs have {n_features} features; {last}.")
            raise
        is_complex = outputs.is_complex()
        n_outputs = outputs.shape[-1] if outputs.ndim == inputs.ndim else 0
        n_outputs = None if is_complex or outputs.ndim > inputs.ndim else n_outputs
        seen = {"n_features": n_features, "n_outputs": n_outputs, "input_dtype": inputs.dtype}
        vars(self).update(seen, takes_batches=inputs.ndim > 1)
        return outputs.to(inputs.device, outputs.dtype if is_complex else surrounding)

    def _measured(self, inputs: Tensor, weights: dict[str, Tensor], dtype: torch.dtype) -> Tensor:
        """The outputs, computed in `dtype` by the program or by the QNode's own device."""
        if dtype == torch.float32 and autograd_must() and rounds(inputs.device.type):
            dtype = torch.float64  # torch's own backward pass would round
        rows = inputs if inputs.dtype == dtype else inputs.to(dtype)
        rows = rows if rows.ndim < 3 else rows.reshape(-1, rows.shape[-1])
        is_empty = not rows.numel()
        if is_empty:  # valid as bits, angles or amplitudes of norm 1; two samples share a batch's program
            one = torch.eye(1, rows.shape[-1], dtype=rows.dtype, device=rows.device)
            rows = torch.cat([rows, one, one])
        call = self._call(rows, {name: weight.to(rows) for name, weight in weights.items()})
        outputs = self._of_call(call, rows) if isinstance(call, Call) else self._on_own_device(call, rows)
        axis = 0
        if self.qnode.shots and self.qnode.shots.has_partitioned_shots:
            axis = outputs.ndim - rows.ndim  # they come first, or are columns
        if is_empty:
            outputs = torch.atleast_1d(outputs).narrow(axis, 0, 0)
        samples = inputs.shape[:-1]
        if inputs.ndim > 2 or outputs.shape[axis:][: len(samples)] != samples:  # as TorchLayer
            outputs = outputs.reshape((*outputs.shape[:axis], *samples, *outputs.shape[axis + 1 :]))
        return outputs

    def _of_call(self, call: Call, rows: Tensor) -> Tensor:
        """The outputs of the programs of a call."""
        keep, batch = not self.gradient_checkpointing, rows.shape[0] if rows.ndim == 2 else None
        if call.finish is None and call.parts[0][2] == batch:
            [(program, arguments, _)] = call.parts
            values = program.shaped(program(*arguments, keep=keep), as_list=call.as_list)
            return values[0] if batch is None else values
        results = []
        for program, arguments, size in call.parts:
            values = program.shaped(program(*arguments, keep=keep), as_list=True)
            results.append(program.measured(values if size is not None else values[0]))
        result = call.finish(tuple(results)) if call.finish is not None else results[0]
        result = [result] if call.as_list and isinstance(result, Tensor) else result
        return _columns(result, rows)

    def _on_own_device(self, qnode: qp.QNode, rows: Tensor) -> Tensor:
        """The outputs as TorchLayer computes them."""
        device = self.qnode.device
        if self.qnode.shots and self.generator is not None and hasattr(device, "_rng"):
            drawn = None if self.generator == "torch" else self.generator
            seed, bits = torch.randint(2**31, (), generator=drawn).item(), device._rng.bit_generator
            bits.state = type(bits)(seed).state
        # MPS has no float64, and lightning reads host memory: both take inputs from the CPU.
        fed = rows if device.name == "default.qubit" and rows.device.type != "mps" else rows.cpu()
        results = qnode(**self._arguments(fed))
        if not self.qnode.shots.has_partitioned_shots:
            return _columns(results, fed)
        if SHOTS_AS_COLUMNS and all(isinstance(part, Tensor) for part in results):
            return _columns(results, fed)
        return torch.stack([_columns([part] if isinstance(part, Tensor) else part, fed) for part in results])

    def by_row(self, rows: Tensor) -> Tensor:
        """Outputs for rows of features, one row after the other if the last call had no batch axis."""
        return self(rows) if self.takes_batches else torch.stack([self(row) for row in rows])

    # --- weights ----------------------------------------------------------------------------------

    def _weights(self) -> dict[str, Tensor]:
        """The current weights by name, wherever torch or the user has put them.

        `functional_call` and `load_state_dict` replace entries of `_parameters`. In DataParallel's replicas
        and under a parametrization, weights are attributes instead. A tensor that the user assigned in
        `qnode_weights` takes precedence.
        """
        held, own, weights = self._parameters, self._own_weights, dict(self.qnode_weights)
        for name, weight in weights.items():
            if weight is own.get(name):
                weights[name] = held[name] if name in held else getattr(self, name)
        return weights

    def _arguments(self, inputs: Tensor) -> dict[str, Tensor]:
        """The arguments of a QNode call."""
        weights = {name: weight.to(inputs) for name, weight in self._weights().items()}
        return {self.input_arg: inputs, **weights}

    def __repr__(self) -> str:
        function = self.qnode.func  # a partial function has no name
        return f"<Quantum Torch Layer: func={getattr(function, '__name__', type(function).__name__)}>"

    @property
    def func(self) -> Callable[..., Any]:
        """The QNode's function of the inputs alone, which `pennylane.draw` and `pennylane.specs` call."""

        # PennyLane adds the weights for TorchLayer itself, but treats its subclasses as QNodes.
        @functools.wraps(self.qnode.func)
        def circuit(inputs: Tensor, **weights: Tensor) -> Any:
            return self.qnode.func(**{**self._arguments(inputs), **weights})

        return circuit

    # --- copies -----------------------------------------------------------------------------------

    def with_qnode(self, qnode: qp.QNode, backend: str | None = None) -> QuantumLayer:
        """A copy of the layer, with copied weights, around another QNode of the same weights.

        Args:
            qnode: QNode of `inputs` and the same weights, by name.
            backend: As in the constructor; None keeps that of the layer.
        """
        weights = self._weights()
        shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
        start = {name: weight.detach().clone() for name, weight in weights.items()}
        layer = QuantumLayer(qnode, shapes, start, backend=backend or self.wanted_backend)
        for name, weight in weights.items():
            layer.qnode_weights[name].requires_grad_(weight.requires_grad)
        for name in ("n_features", "n_outputs", "takes_batches", "generator", "gradient_checkpointing"):
            setattr(layer, name, getattr(self, name))
        return layer.train(self.training)

    def __copy__(self) -> QuantumLayer:
        return copy.deepcopy(self, {id(each): each for each in vars(self).values()})

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantumLayer:
        # A QNode holds no state of the layer, so both can share it; copying its device may fail.
        memo |= {id(self.qnode): self.qnode, id(self._programs): copy.copy(self._programs)}
        memo[id(self)] = layer = type(self).__new__(type(self))
        layer.__dict__.update(copy.deepcopy(torch.nn.Module.__getstate__(self), memo))
        return layer

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickle: the QNode by value, since its function may not be importable; no programs."""
        # For the user's own processes and files: the kit itself writes safetensors and reads no pickle.
        import cloudpickle

        twin = copy.copy(self.qnode)
        twin._tape = None  # may hold tensors of a finished transform
        qnode = cloudpickle.dumps(twin)
        return {**super().__getstate__(), "qnode": qnode, "_programs": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        import cloudpickle

        super().__setstate__({**state, "qnode": cloudpickle.loads(state["qnode"])})


def _columns(values: Any, x: Tensor) -> Tensor:
    """A QNode's results for inputs `x`, in their precision; several measurements become columns."""
    if not isinstance(values, Tensor):
        parts = [torch.reshape(value, (len(x), -1)) for value in values] if x.ndim > 1 else values
        values = torch.hstack(parts)
    return values.to(x.dtype.to_complex() if values.is_complex() else x.dtype)


def _moved(qnode: qp.QNode, backend: str) -> qp.QNode:
    """The QNode on another device, if `backend` names one."""
    if backend in ("auto", "batched", qnode.device.name):
        return qnode
    try:
        device = circuits.make_device(backend, qnode.device.wires)
    except Exception as error:
        error.add_note(f"Run `qnnkit doctor` to see what backend={backend!r} needs.")
        raise
    return qnode.update(device=device, diff_method="backprop" if backend == "default.qubit" else "adjoint")
