"""Who is measured. One class per kind of peer, all with the same four things:

`Peer(name, workload, device)` builds it, `first()` evaluates for the first time, `run()` evaluates again and
returns when the numbers are there, `answer()` gives the numbers to check. `samples` of the workload's `total`
are evaluated each time; a peer that would take too long or too much memory on all of them has fewer.
"""

from __future__ import annotations

import copy
import itertools
import time
from importlib import import_module
from typing import Any

import numpy as np

from benchmarks.workloads import CHECKED, Epoch, Evaluation, Workload

LABELS = {
    "batched": "qnnkit, eager",
    "compiled": "qnnkit, compiled",
    "default.qubit": "default.qubit (backprop)",
    "lightning.qubit": "lightning.qubit (adjoint)",
    "lightning.gpu": "lightning.gpu (adjoint)",
    "jax": "JAX jit(vmap)",
    "classical": "classical control",
}
STEPS = 8
"""Of an epoch whose circuits run one by one; the time of the whole is scaled up from them."""


class Absent(Exception):
    """A peer that this machine has not; the text says why, to follow its name."""


def takes_part(name: str, workload: Workload) -> bool:
    """Only a whole net has a classical control, and JAX does not train one that is a torch module."""
    return name != ("jax" if isinstance(workload, Epoch) else "classical")


def libraries(name: str) -> None:
    """Imports what a peer needs, before the clock starts.

    Raises:
        Absent: It is not installed.
    """
    for library in ("pennylane", *(("jax", "jax.numpy") if name == "jax" else ("torch", "qnnkit.layers"))):
        try:
            import_module(library)
        except ImportError as error:
            step = ": install the extra `bench`" if name == "jax" else ""
            raise Absent(f"is left out: {error}{step}") from None


def make(name: str, workload: Workload, device: str) -> Any:
    """The peer of that name, ready for its first evaluation.

    Raises:
        Absent: It cannot run here.
    """
    kind = EpochPeer if isinstance(workload, Epoch) else JaxPeer if name == "jax" else TorchPeer
    return kind(name, workload, device)


def deviation(answer: dict[str, Any], reference: dict[str, Any]) -> float:
    """The largest difference to `reference`, relative to an array's largest number where that is above 1.

    NaN, or an array of another shape, counts as infinitely far.

    Raises:
        ValueError: The two do not name the same arrays.
    """
    if answer.keys() != reference.keys():
        raise ValueError(
            f"Argument `answer` must hold {sorted(reference)}, but holds {sorted(answer)}. Ask for the same."
        )
    largest = 0.0
    for name, wanted in reference.items():
        given, wanted = np.asarray(answer[name], dtype=float), np.asarray(wanted, dtype=float)
        if given.shape != wanted.shape or not np.isfinite(given).all():
            return float("inf")
        error = np.abs(given - wanted).max() / max(1.0, np.abs(wanted).max())
        largest = max(largest, float(error))
    return largest


def reference(workload: Workload, *, control: bool) -> dict[str, np.ndarray]:
    """The first samples' numbers in float64: by default.qubit, above 8 wires by lightning.qubit.

    Args:
        workload: What is evaluated.
        control: Whether for the classical control, which is another function than the circuit.
    """
    if isinstance(workload, Epoch):
        name = "classical" if control else "default.qubit"
        return EpochPeer(name, workload, "cpu", double=True).answer()
    name = "default.qubit" if workload.n_qubits <= 8 else "lightning.qubit"
    return TorchPeer(name, workload, "cpu", double=True).answer()


class Peer:
    """What all kinds share, where they have no other way of their own."""

    torch: Any
    device: Any
    dtype = "unknown"
    """Of the numbers; known after `answer`."""

    def first(self) -> None:
        self.run()

    def run(self) -> None:
        raise NotImplementedError

    def place(self) -> str:
        """Where it computes."""
        is_cuda = self.device.type == "cuda"
        return self.torch.cuda.get_device_name(self.device) if is_cuda else str(self.device)

    def wait(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize(self.device)


class TorchPeer(Peer):
    """A circuit as torch sees it: qnnkit's layer, or PennyLane's QNode on one of its devices."""

    def __init__(self, name: str, workload: Evaluation, device: str, *, double: bool = False):
        import torch

        self.torch, self.workload, self.total = torch, workload, workload.total
        self.samples = CHECKED if double else _samples(name, workload)
        self.device = torch.device(device if on_device(name) else "cpu")
        data, dtype = workload.data(), torch.float64 if double else torch.float32
        inputs, weights, mixture = (
            torch.from_numpy(array).to(self.device, dtype)
            for array in (data.inputs[: self.samples], data.weights, data.mixture[: self.samples])
        )
        self.inputs, self.mixture = inputs.requires_grad_(workload.gradients), mixture
        if name in ("batched", "compiled"):
            from qnnkit import QuantumLayer

            layer = QuantumLayer(*workload.circuit(), {"weights": weights}, backend="batched")
            layer.to(self.device).requires_grad_(workload.gradients)
            if name == "compiled":
                layer.compile(dynamic=False)
            [self.weights], self.function = layer.parameters(), layer
        else:
            qnode = _qnode(name, workload, double=double)
            self.weights = weights.requires_grad_(workload.gradients)
            self.function = lambda inputs: torch.stack(list(qnode(inputs, self.weights)), dim=-1)

    def run(self) -> None:
        self._evaluate(self.mixture)
        self.wait()

    def _evaluate(self, mixture: Any) -> tuple[Any, ...]:
        if not self.workload.gradients:
            with self.torch.no_grad():
                values = self.function(self.inputs)
            return (values,)
        values = self.function(self.inputs)
        return values, *self.torch.autograd.grad((values * mixture).sum(), (self.inputs, self.weights))

    def answer(self) -> dict[str, np.ndarray]:
        """Values and gradients of the checked samples alone, from an evaluation of the whole batch."""
        mixture = self.mixture.clone()
        mixture[CHECKED:] = 0
        values, *gradients = (part.detach().cpu() for part in self._evaluate(mixture))
        self.dtype = str(values.dtype).removeprefix("torch.")
        return _named(values.numpy(), *(gradient.numpy() for gradient in gradients))


class JaxPeer(Peer):
    """The same QNode under JAX: mapped over the batch, differentiated and compiled."""

    def __init__(self, name: str, workload: Evaluation, device: str):
        import jax
        import jax.numpy as jnp

        self.jax, self.workload, self.total = jax, workload, workload.total
        self.samples = _samples(name, workload)
        qnode, _ = workload.circuit()
        qnode = qnode.update(interface="jax", diff_method="backprop")
        batched = jax.vmap(lambda inputs, weights: jnp.stack(qnode(inputs, weights)), in_axes=(0, None))

        def loss(inputs, weights, mixture):
            values = batched(inputs, weights)
            return (values * mixture).sum(), values

        data = workload.data()
        self.inputs, self.weights, self.mixture = (
            jnp.asarray(array)
            for array in (data.inputs[: self.samples], data.weights, data.mixture[: self.samples])
        )
        if workload.gradients:
            self.function = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
        else:
            self.function = jax.jit(lambda inputs, weights, mixture: batched(inputs, weights))

    def place(self) -> str:
        return self.jax.default_backend()

    def run(self) -> None:
        self.jax.block_until_ready(self.function(self.inputs, self.weights, self.mixture))

    def answer(self) -> dict[str, np.ndarray]:
        """Values and gradients of the checked samples alone, from an evaluation of the whole batch."""
        mixture = self.mixture.at[CHECKED:].set(0)
        found = self.function(self.inputs, self.weights, mixture)
        values, gradients = (found[0][1], found[1]) if self.workload.gradients else (found, ())
        self.dtype = str(values.dtype)
        return _named(np.asarray(values), *map(np.asarray, gradients))


class EpochPeer(Peer):
    """A training epoch of the hybrid net: images from memory, shuffled, batches, Adam."""

    def __init__(self, name: str, workload: Epoch, device: str, *, double: bool = False):
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        from benchmarks.net import hybrid_net
        from qnnkit import QuantumLayer, Quanv2d, controls

        self.torch, self.workload, self.total = torch, workload, workload.total
        self.device = torch.device(device if on_device(name) else "cpu")
        fused = name in ("batched", "compiled")
        device_name = "default.qubit" if fused or name == "classical" else name
        circuit = (_qnode(device_name, workload, double=double), workload.circuit()[1])
        quanv = Quanv2d(4, circuit, backend="batched" if fused else device_name)
        net = hybrid_net(quanv, n_classes=workload.n_classes)
        images, labels = (torch.from_numpy(array) for array in workload.data())
        self.checked = images[:CHECKED].to(self.device)
        if name == "classical":
            with torch.no_grad():  # the control takes the sizes that the circuit has seen
                net.eval()(images[:1])
            net = controls(net)["classical"].train()
        self.net = net.to(self.device, torch.float64 if double else torch.float32)
        if name == "compiled":
            for layer in self.net.modules():
                if isinstance(layer, QuantumLayer):
                    layer.compile(dynamic=False)
        self.start = copy.deepcopy(self.net.state_dict())
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-3)
        one_by_one = name.startswith("lightning")  # which gets few steps of few images
        self.batch = 2 if one_by_one else workload.batch
        order = torch.Generator().manual_seed(0)
        self.loader = DataLoader(TensorDataset(images, labels), self.batch, shuffle=True, generator=order)
        self.steps = STEPS if one_by_one else len(self.loader)
        self.samples, self.share = min(self.total, self.steps * self.batch), 0.0

    def first(self) -> None:
        """One step of training."""
        self._step(*next(iter(self.loader)))
        self.wait()

    def plan(self) -> None:
        """An untimed step of the last batch, which may be smaller."""
        images, labels = next(iter(self.loader))
        last = self.total % self.batch or self.batch
        self._step(images[:last], labels[:last])

    def run(self) -> None:
        start, before = time.perf_counter(), self.net.middle.quanv.seconds
        for images, labels in itertools.islice(self.loader, self.steps):
            self._step(images, labels)
        self.wait()
        self.share = (self.net.middle.quanv.seconds - before) / (time.perf_counter() - start)

    def _step(self, images: Any, labels: Any) -> None:
        logits = self.net(images.to(self.device))
        loss = self.torch.nn.functional.cross_entropy(logits, labels.to(self.device))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def answer(self) -> dict[str, np.ndarray]:
        """The net at its start: logits of the checked images, and gradients of a mixture of them."""
        self.net.load_state_dict(self.start)
        self.net.eval().zero_grad()
        logits = self.net(self.checked)
        mixture = np.random.default_rng(1).standard_normal(logits.shape)
        (logits * self.torch.from_numpy(mixture).to(logits)).sum().backward()
        self.net.train()
        inside = set(self.net.middle.quanv.parameters())
        found = {"gradient of the circuit": [], "gradient of the rest": []}
        for weight in self.net.parameters():
            part = found[f"gradient of the {'circuit' if weight in inside else 'rest'}"]
            part.append(weight.grad.detach().cpu().flatten())
        self.dtype = str(logits.dtype).removeprefix("torch.")
        gradients = {name: self.torch.cat(parts).numpy() for name, parts in found.items()}
        return {"values": logits.detach().cpu().numpy(), **gradients}


def on_device(name: str) -> bool:
    """Whether the peer computes where `--device` says; the others have one place of their own."""
    return name in ("batched", "compiled", "default.qubit", "classical")


def _named(values: np.ndarray, inputs: Any = None, weights: Any = None) -> dict[str, np.ndarray]:
    found = {"values": values[:CHECKED]}
    if inputs is not None:
        found |= {"gradient of inputs": inputs[:CHECKED], "gradient of weights": weights}
    return found


def _qnode(name: str, workload: Workload, *, double: bool) -> Any:
    """The workload's QNode on a PennyLane device, in single precision where the device lets one choose."""
    import pennylane as qp

    qnode, _ = workload.circuit()
    if name == "default.qubit":
        return qnode.update(diff_method="backprop")
    settings: dict[str, Any] = {"c_dtype": np.complex128 if double else np.complex64}
    if name == "lightning.qubit":
        settings["seed"] = None  # else it draws one from NumPy's global generator
    try:
        device = qp.device(name, wires=workload.n_qubits, **settings)
    except Exception as error:  # each device fails to be made in its own way
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise Absent(f"is left out: {reason}") from None
    return qnode.update(device=device, diff_method="adjoint")


def _samples(name: str, workload: Evaluation) -> int:
    """How many samples one evaluation takes: few where they run one by one, fewer where memory is short."""
    if name.startswith("lightning"):
        return min(workload.batch, max(CHECKED, 256 >> max(0, workload.n_qubits - 8)))
    samples = workload.batch
    if name in ("default.qubit", "jax") and workload.gradients:
        from qnnkit.device import machine

        gates = workload.n_qubits * (1 + 2 * workload.n_layers)
        state = 2**workload.n_qubits * (16 if name == "default.qubit" else 8)
        while samples > CHECKED and 2 * gates * state * samples > machine.memory()[1] / 2:
            samples //= 2
    return samples
