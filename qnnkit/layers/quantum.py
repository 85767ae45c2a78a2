"""`QuantumLayer`: PennyLane's TorchLayer, with the whole batch run as one fused torch program."""

# PennyLane makes most of its names at run time, where pyright cannot see them.
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pennylane as qp
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qnnkit import checks, circuits
from qnnkit.layers import choice, refusals
from qnnkit.layers.calling import Given, called
from qnnkit.simulator import Fused, NotFusable, fuse, together
from qnnkit.simulator.execute import autograd_must

BACKENDS = ("auto", "batched", "default.qubit", "lightning.qubit", "lightning.gpu")
EXACT_DEVICES = ("default.qubit", "lightning.qubit", "lightning.gpu", "lightning.kokkos")
"""PennyLane devices whose exact results the batched program gives as well."""

COMPILED_SAVES = 0.2
"""Share of a step; a fifth to a third was measured, see the README."""
COMPILING_TAKES = 15.0
"""Seconds."""


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
        backend: "auto" runs what is faster for the circuit, the batch and the machine, the fused program or a
            PennyLane device (measured once, see `choice`), and where there is no program the QNode's own
            device; "batched" insists on the program; a device's name moves the QNode there (differentiated by
            backprop on `default.qubit`, by the adjoint method on `lightning.*`).

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
        self._wants_compiler = False
        self.n_features: int | None = None
        """Length of the inputs' last axis, as last seen by `forward`."""
        self.n_outputs: int | None = None
        """Length of the outputs' last axis, as last seen by `forward`; None for a single value or a state."""
        self.input_dtype: torch.dtype | None = None
        """Of the inputs, as last seen by `forward`, before the circuit rounds them up to float32 at least."""

    def _init_weights(self, weight_shapes: dict[str, tuple[int, ...]], init_method: Any) -> None:
        for name, start in init_method.items() if isinstance(init_method, dict) else ():
            shape = weight_shapes.get(name)
            if isinstance(start, Tensor) and shape is not None and tuple(start.shape) != shape:
                rule = f"give {name} its shape in weight_shapes, {shape}"
                raise ValueError(
                    checks.message("init_method", rule, tuple(start.shape), "Change one of the two.")
                )
        super()._init_weights(weight_shapes, init_method)

    def __setattr__(self, item: str, val: Any) -> None:
        super().__setattr__(item, val)
        if item == "qnode" or (self._initialized and item in self.qnode.__dict__):
            self._programs: dict[tuple[int, int, torch.dtype], Fused | str] = {}
            """Form of the inputs -> its program, or why there is none; another QNode begins anew."""
            self._too_large: str | None = None
            """Why the circuit cannot run on this machine at all, once it was tried."""
            self._times: dict[Any, dict[str, float]] = {}
            """Kind of batch -> seconds by backend, for "auto"."""
            self._moved: dict[str, qp.QNode] = {}
            """The QNode on devices that were found faster."""
            self._chosen = "batched"
            """What ran the last batch that had a program."""

    # --- where it runs ----------------------------------------------------------------------------

    @property
    def backend(self) -> str:
        """ "batched", or the name of the PennyLane device that runs the circuit."""
        return self.qnode.device.name if self._obstacle() else self._chosen

    @property
    def has_program(self) -> bool:
        """Whether the circuit runs, or could, as a fused program; before the first call, whether it may."""
        return self._obstacle() is None

    def explain(self) -> str:
        """Why the layer runs where it runs, in one sentence; before the first call, where it will try to."""
        if self._too_large:
            return f"Cannot run here, because {self._too_large}."
        obstacle = self._obstacle()
        if obstacle is None and self._chosen == "batched":
            programs = [program for program in self._programs.values() if isinstance(program, Fused)]
            size = f" of {len(programs[-1].plan.blocks)} matrix products" if programs else ""
            failures = [program.no_compiler for program in programs if program.no_compiler]
            form = f" It was not compiled, because of {failures[0]}." if failures else ""
            if self._wants_compiler and not failures:
                form = " torch.compile makes it faster for the size of batch that came first."
            told = f"Runs as one fused program{size} over the whole batch: every gate is unitary, no shots."
            return told + form
        if obstacle is None:
            [times] = [times for times in self._times.values() if choice.best(times) == self._chosen][-1:]
            ratio = times["batched"] / times[self._chosen]
            obstacle = f"it was measured {ratio:.1f}x faster here than the fused program"
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

    def _program(self, rows: Tensor, shape: torch.Size) -> Fused | None:
        """The fused program for rows of this form, traced when they are first met; None without one."""
        found = self._programs.get((rows.ndim, rows.shape[-1], rows.dtype))
        if found is None:
            first_look: Any = self._first_look
            if torch.compiler.is_compiling():  # what is done once is no part of the graph
                first_look = torch.compiler.disable(first_look)
            found = first_look(rows, shape)
        if not isinstance(found, str):
            return found
        if self.wanted_backend == "batched":
            step = f"It has none, because {found}; use auto."
            raise NotImplementedError(checks.message("backend", "have a fused form", "batched", step))
        return None

    def _first_look(self, rows: Tensor, shape: torch.Size) -> Fused | str:
        """The program for rows of this form, or why there is none; kept for the calls to come."""
        form = rows.ndim, rows.shape[-1], rows.dtype
        found = self._obstacle()
        if found is None:
            shapes = {name: tuple(weight.shape) for name, weight in self._weights().items()}
            try:
                found = fuse(self.qnode, tuple(rows.shape), shapes, rows.dtype, self.input_arg)
                found.compiled(rows.device, rows.dtype)  # now, where torch.compile does not look on
                found.wants_compiler = self._wants_compiler
            except NotFusable as reason:
                found = str(reason)
        if isinstance(found, str):
            self._require_that_it_runs(self._fed(rows), shape)
            for other in list(self._programs):  # one form's obstacle moves all, so that `backend` is true
                self._programs[other] = found
        self._programs[form] = found
        return found

    def _require_that_it_runs(self, rows: Tensor, shape: torch.Size) -> None:
        """Asks, before its device does, whether the circuit takes such inputs and fits into memory.

        Raises:
            ValueError: It does not.
            Exception: What the QNode's own Python raises.
        """

        def tapes(rows: Tensor) -> Any:
            return qp.workflow.construct_batch(self.qnode, level="user")(**self._arguments(rows))[0]

        try:
            with torch.no_grad():
                found = tapes(rows)
        except Exception as error:
            refusals.wrong_number_of_features(tapes, rows, shape, error)
            raise
        self._too_large = refusals.too_large(self.qnode.device, found)
        if self._too_large:
            rule, step = "fit into memory", f"Use fewer wires: {self._too_large}."
            raise ValueError(checks.message("qnode", rule, self.qnode.func.__name__, step))

    def count_outputs(self, n_features: int) -> int:
        """How many values one sample gives; nothing is run where the fused program tells.

        Args:
            n_features: Of a sample.
        """
        weights = list(self._weights().values())
        sample = torch.zeros(1, n_features, dtype=weights[0].dtype if weights else torch.float32)
        program = self._program(sample, sample.shape)
        if program is None or program.n_values is None:
            with torch.no_grad():
                return int(self(sample[0]).numel())
        self.n_features, self.n_outputs = n_features, program.n_values
        return program.n_values

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
        if torch.is_autocast_enabled(kind):
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
        inputs = inputs.to(dtype)
        rows = inputs if inputs.ndim < 3 else inputs.reshape(-1, inputs.shape[-1])
        program = self._program(rows, inputs.shape)
        if program is None:
            return self._forgetting(super().forward, self._fed(inputs), self.qnode)
        chosen = "batched"
        if self.wanted_backend == "auto" and rows.ndim == 2 and not autograd_must():
            chosen = self._chosen = self._choice(program, rows, weights)
        if chosen == "batched":
            given = [weight.to(inputs) for weight in weights]
            outputs = program(rows, given, keep=not self.gradient_checkpointing)
        else:
            near, moved = rows if chosen == "default.qubit" else rows.cpu(), self._moved[chosen]
            outputs = self._forgetting(lambda near: moved(**self._arguments(near)), near, moved)
            outputs = choice.columns(outputs, near).to(rows.device)
        if inputs.ndim < 3:
            return outputs
        return outputs.reshape((*inputs.shape[:-1], *outputs.shape[1:]))

    def _forgetting(self, run: Callable[[Tensor], Any], rows: Tensor, qnode: qp.QNode) -> Any:
        """`run(rows)`; where states are not to be kept, PennyLane computes them again on the way back."""
        kept = qnode.device.name not in EXACT_DEVICES[1:] and not qnode.shots  # shots would fall otherwise
        if not (self.gradient_checkpointing and kept):
            return run(rows)
        return checkpoint(run, rows, use_reentrant=False)

    @staticmethod
    def together(layers: Sequence[QuantumLayer], inputs: Tensor) -> Tensor | None:
        """Outputs of several layers on the same inputs, in one product; for frozen ones.

        Args:
            layers: That run fused programs.
            inputs: Of shape (batch, n_features).

        Returns:
            Of shape (batch, n_layers, n_outputs), computed in float32 or float64; None where the circuits
            have no such form (see `simulator.together`), it has not been seen yet that they do, or a layer
            has hooks, which only a call of its own would run.
        """
        if any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers):
            return None
        dtype = torch.promote_types(inputs.dtype, torch.float32)
        form = inputs.ndim, inputs.shape[-1], dtype
        programs = [layer._programs.get(form) for layer in layers]
        weights = [list(layer._weights().values()) for layer in layers]
        plain = dtype == inputs.dtype and all(w.dtype == dtype for given in weights for w in given)
        fused = [program for program in programs if isinstance(program, Fused)]
        chosen = all(layer.backend == "batched" for layer in layers)
        if len(fused) < len(layers) or not plain or not chosen or autograd_must() or not len(inputs):
            return None
        return together(fused, inputs, weights)

    def _choice(self, program: Fused, rows: Tensor, weights: list[Tensor]) -> str:
        """The fastest backend for such a batch, measured where nobody has."""
        backward = torch.is_grad_enabled() and any(given.requires_grad for given in (rows, *weights))
        kind = choice.size_class(rows), rows.dtype, rows.device, backward, torch.get_num_threads()
        if kind not in self._times:
            if torch.is_inference_mode_enabled() or torch.is_autocast_enabled(rows.device.type):
                return "batched"  # what they do to a time is not to be remembered
            given = (self._weights(), self.input_arg, backward)
            self._times[kind] = choice.seconds(self.qnode, program, rows, *given)
        best = choice.best(self._times[kind])
        if best != "batched" and best not in self._moved:
            self._moved[best] = choice.on_device(self.qnode, best)
            if not choice.agree(program, self._moved[best], rows, self._weights(), self.input_arg):
                self._times[kind] = {"batched": self._times[kind]["batched"]}  # fast, but not with this batch
                del self._moved[best]
                return "batched"
        return best

    def compile(self) -> None:
        """Has torch.compile make the fused program faster, once, for the size of batch that comes next.

        It takes some seconds and saves a fifth to a third of each step; other sizes of batch run as before.
        Where there is no compiler, all do, and `explain` says so.
        """
        self._wants_compiler = True
        for program in self._programs.values():
            if isinstance(program, Fused):
                program.wants_compiler = True

    def _fed(self, inputs: Tensor) -> Tensor:
        """The inputs where the QNode's device reads them."""
        # MPS has no float64, and lightning reads host memory: both are fed from the CPU.
        here = self.qnode.device.name == "default.qubit" and inputs.device.type != "mps"
        return inputs if here else inputs.cpu()

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
            return tuple(choice.columns([part] if isinstance(part, Tensor) else part, x) for part in found)
        return choice.columns(found, x)

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
        if qnode is self.qnode and backend is None:
            layer._programs = self._programs
        for name, weight in weights.items():
            layer.qnode_weights[name].requires_grad_(weight.requires_grad)
        layer.n_features, layer.n_outputs = self.n_features, self.n_outputs
        return layer.train(self.training)

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantumLayer:
        # A QNode holds no state of the layer, so the copy may share it; copying its device may fail.
        for shared in (self.qnode, self._programs, self._moved):
            memo[id(shared)] = shared
        memo[id(self)] = layer = type(self).__new__(type(self))
        layer.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return layer

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: the QNode by value, as its function may have no name to be imported by; no programs."""
        # For processes and files of the user's own: the kit itself writes safetensors and reads no pickle.
        import cloudpickle

        return {
            **self.__dict__,
            "qnode": cloudpickle.dumps(self.qnode),
            "_programs": {},
            "_moved": {},
            "_too_large": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        import cloudpickle

        super().__setstate__({**state, "qnode": cloudpickle.loads(state["qnode"])})


def worth_compiling(model: nn.Module, example: Given, n_steps: int) -> list[str]:
    """Names of the layers whose compiled form pays for itself in the steps to come.

    A layer's time per step is what `auto` measured; compiling is taken to save `COMPILED_SAVES` of it, and to
    take `COMPILING_TAKES` seconds. Layers of a forced backend are left as they are.

    Args:
        model: Runs once on the example, in evaluation mode.
        example: A batch as in training.
        n_steps: Number of training steps.
    """
    before = {module: module.training for module in model.modules()}
    with torch.enable_grad():
        called(model.eval(), example)
    for module, training in before.items():
        module.training = training
    found = []
    for name, module in model.named_modules():
        if (
            isinstance(module, QuantumLayer)
            and module.wanted_backend == "auto"
            and module.backend == "batched"
        ):
            seconds = max((times["batched"] for times in module._times.values()), default=0.0)
            if n_steps * seconds * COMPILED_SAVES > COMPILING_TAKES:
                found.append(name)
    return found


def _device(name: str, wires: Any) -> qp.devices.Device:
    """A PennyLane device, or one sentence on why it cannot be had."""
    try:
        return circuits.make_device(name, wires)
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        step = f"PennyLane says: {reason} `qnnkit doctor` tells what to install."
        raise ValueError(checks.message("backend", "be a device that works here", name, step)) from None
