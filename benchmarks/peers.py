"""The measured peers. One class per kind of peer, all with the same methods:

`Peer(name, workload, device)` builds it, `first()` evaluates for the first time, `run()` evaluates again and
returns once the numbers are ready, `answer()` returns the numbers to check. Each call evaluates `samples` of
the workload's `total`; a peer that would take too long or too much memory on all of them has fewer.
"""

from __future__ import annotations

import copy
import itertools
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.workloads import CHECKED, Epoch, Step, Workload

LABELS = {
    "batched": "qnnkit, eager",
    "compiled": "qnnkit, compiled",
    "default.qubit": "default.qubit (backprop)",
    "lightning.qubit": "lightning.qubit (adjoint)",
    "lightning.gpu": "lightning.gpu (adjoint)",
    "jax": "JAX jit(vmap)",
    "classical": "classical control",
}
OWN = ("batched", "compiled")
FEW = 4
"""Steps per epoch, and images per step, if circuits run one by one; the time is scaled up from them."""


class Absent(Exception):
    """A peer that this machine lacks; the text says why, and follows its name."""


def takes_part(name: str, workload: Workload) -> bool:
    """JAX does not train a torch module, and only the net of W5 has a classical control."""
    if name == "jax":
        return not isinstance(workload, Epoch)
    return name != "classical" or _kind(workload) is EpochPeer


def libraries(name: str) -> None:
    """Imports what a peer needs, before the clock starts.

    Raises:
        Absent: It is not installed.
    """
    try:
        for library in ("pennylane", "torch", "qnnkit.layers", *(["jax.numpy"] if name == "jax" else [])):
            import_module(library)
    except ImportError as error:
        step = ": install the extra `bench`" if name == "jax" else ""
        raise Absent(f"is left out: {error}{step}") from None


def make(name: str, workload: Workload, device: str) -> Any:
    """The peer of that name, ready for its first evaluation.

    Raises:
        Absent: It cannot run here.
    """
    kind = _kind(workload) or (JaxPeer if name == "jax" else TorchPeer)
    return kind(name, workload, device)


def deviation(answer: dict[str, Any], reference: dict[str, Any]) -> float:
    """The largest difference to `reference`, relative to an array's largest number where that is above 1.

    NaN, or an array of another shape, counts as infinitely far.
    """
    largest = 0.0
    for name, wanted in reference.items():
        values, wanted = np.asarray(answer[name], dtype=float), np.asarray(wanted, dtype=float)
        if values.shape != wanted.shape or not np.isfinite(values).all():
            return float("inf")
        error = np.abs(values - wanted).max() / max(1.0, np.abs(wanted).max())
        largest = max(largest, float(error))
    return largest


def reference(workload: Workload, *, control: bool) -> dict[str, np.ndarray]:
    """The numbers of the first samples in float64: by default.qubit, above 8 wires by lightning.qubit.

    Args:
        workload: What is evaluated.
        control: Whether to evaluate the classical control, a different function from the circuit.
    """
    name = "classical" if control else "default.qubit" if workload.n_qubits <= 8 else "lightning.qubit"
    return (_kind(workload) or TorchPeer)(name, workload, "cpu", double=True).answer()


class Peer:
    """What all kinds share, unless they override it."""

    dtype = "unknown"
    """The dtype of the numbers; known after `answer`."""

    def __init__(self, name: str, workload: Workload, device: str):
        import torch

        self.torch, self.workload, self.total = torch, workload, workload.total
        follows = name in (*OWN, "default.qubit", "classical")  # the others have a single place
        self.device = torch.device(device if follows else "cpu")

    def first(self) -> None:
        self.run()

    def plan(self) -> None:
        """Preparation before the rounds, which is not timed."""

    def place(self) -> str:
        """The device on which it computes."""
        is_cuda = self.device.type == "cuda"
        return self.torch.cuda.get_device_name(self.device) if is_cuda else str(self.device)

    def named(self, values: Any, *gradients: Any) -> dict[str, np.ndarray]:
        """Values and gradients of the checked samples only."""
        self.dtype = str(values.dtype).removeprefix("torch.")
        values, *gradients = map(np.asarray, (values, *gradients))
        answer = {"values": values[:CHECKED]}
        if gradients:
            answer |= {"gradient of inputs": gradients[0][:CHECKED], "gradient of weights": gradients[1]}
        return answer


class TorchPeer(Peer):
    """A circuit as torch sees it: qnnkit's layer, or PennyLane's QNode on one of its devices."""

    def __init__(self, name: str, workload: Workload, device: str, *, double: bool = False):
        super().__init__(name, workload, device)
        torch, n = self.torch, CHECKED if double else _samples(name, workload)
        inputs, weights, mixture = (
            torch.from_numpy(array).to(self.device, torch.float64 if double else torch.float32)
            for array in workload.data()
        )
        self.samples, self.inputs = n, inputs[:n].requires_grad_(workload.gradients)
        self.mixture = mixture[:n]
        if name in OWN:
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
        from qnnkit import measure

        self._evaluate(self.mixture)
        measure.now(self.device)

    def _evaluate(self, mixture: Any) -> tuple[Any, ...]:
        with self.torch.set_grad_enabled(self.workload.gradients):
            values = self.function(self.inputs)
        if not self.workload.gradients:
            return (values,)
        return values, *self.torch.autograd.grad((values * mixture).sum(), (self.inputs, self.weights))

    def answer(self) -> dict[str, np.ndarray]:
        """From an evaluation of the whole batch, like JAX's."""
        mixture = self.mixture.clone()
        mixture[CHECKED:] = 0
        return self.named(*(part.detach().cpu() for part in self._evaluate(mixture)))


class JaxPeer(Peer):
    """The same QNode under JAX: mapped over the batch, differentiated and compiled."""

    def __init__(self, name: str, workload: Workload, device: str):
        import jax
        import jax.numpy as jnp

        super().__init__(name, workload, device)
        self.jax, self.samples = jax, _samples(name, workload)
        qnode = workload.circuit()[0].update(interface="jax", diff_method="backprop")
        batched = jax.vmap(lambda inputs, weights: jnp.stack(qnode(inputs, weights)), in_axes=(0, None))

        def loss(inputs, weights, mixture):
            values = batched(inputs, weights)
            return (values * mixture).sum(), values

        inputs, weights, mixture = map(jnp.asarray, workload.data())
        self.given, self.mixture = (inputs[: self.samples], weights), mixture[: self.samples]
        if workload.gradients:
            self.function = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
        else:
            self.function = jax.jit(lambda inputs, weights, mixture: ((0, batched(inputs, weights)), ()))

    def place(self) -> str:
        return self.jax.default_backend()

    def run(self) -> None:
        self.jax.block_until_ready(self.function(*self.given, self.mixture))

    def answer(self) -> dict[str, np.ndarray]:
        (_, values), gradients = self.function(*self.given, self.mixture.at[CHECKED:].set(0))
        return self.named(values, *gradients)


class EpochPeer(Peer):
    """Training of a whole net: images from memory, shuffled, in batches."""

    def __init__(self, name: str, workload: Epoch, device: str, *, double: bool = False):
        from torch.utils.data import DataLoader, TensorDataset

        from qnnkit import QuantumLayer

        super().__init__(name, workload, device)
        torch, dtype = self.torch, self.torch.float64 if double else self.torch.float32
        images, labels = (torch.from_numpy(array) for array in workload.data())
        images = images.to(dtype) if images.is_floating_point() else images
        self.checked = images[:CHECKED].to(self.device)
        self.net = net = self._net(name, images[:1], double).to(self.device, dtype)
        for layer in net.modules() if name == "compiled" else ():
            if isinstance(layer, QuantumLayer):
                layer.compile(dynamic=False)
        self.start = copy.deepcopy(net.state_dict())
        self.optimizer = getattr(torch.optim, workload.optimizer)(net.parameters(), lr=1e-3)
        one_by_one = name.startswith("lightning")
        self.batch = min(FEW, workload.batch) if one_by_one else workload.batch
        order = torch.Generator().manual_seed(0)
        pairs = TensorDataset(images, labels)
        self.loader: Any = DataLoader(pairs, self.batch, shuffle=True, generator=order)
        self.steps = min(FEW, len(self.loader)) if one_by_one else len(self.loader)
        if self.steps == 1:  # the timed step excludes its loader
            self.loader = [next(iter(self.loader))]
        self.samples = min(self.total, self.steps * self.batch)

    def _net(self, name: str, image: Any, double: bool) -> Any:
        """The kit's net of 88,000 weights."""
        from qnnkit import Quanv2d, controls, recipes
        from qnnkit.recipes import letters

        device_name = "default.qubit" if name in (*OWN, "classical") else name
        circuit = (_qnode(device_name, self.workload, double=double), self.workload.circuit()[1])
        sizes = {"channels": 1, "image_size": (32, 32), "n_classes": self.workload.n_classes}
        net = letters.build(recipes.settings("letters"), SimpleNamespace(sizes=sizes), seed=0)
        net.middle.quanv = Quanv2d(4, circuit, backend="batched" if name in OWN else device_name)
        if name == "classical":
            with self.torch.no_grad():  # the control takes its sizes from a circuit that has run
                net.eval()(image)
            return controls(net)["classical"].train()
        return net

    def first(self) -> None:
        """One step of training."""
        self._train(1)

    def plan(self) -> None:
        """A step of the last batch, which may be smaller."""
        self._train(1, self.total % self.batch or self.batch)

    def run(self) -> None:
        self._train(self.steps)

    def _train(self, steps: int, size: int | None = None) -> None:
        from qnnkit import measure

        for images, labels in itertools.islice(self.loader, steps):
            logits = self.net(images[:size].to(self.device))
            loss = self.torch.nn.functional.cross_entropy(logits, labels[:size].to(self.device))
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        measure.now(self.device)

    def answer(self) -> dict[str, np.ndarray]:
        """The untrained net: logits of the checked images, and gradients of a mixture of them."""
        self.net.load_state_dict(self.start)
        self.net.eval().zero_grad()
        logits = self.net(self.checked)
        mixture = np.random.default_rng(1).standard_normal(logits.shape)
        (logits * self.torch.from_numpy(mixture).to(logits)).sum().backward()
        self.net.train()
        weights = self.net.named_parameters()
        gradients = {f"gradient of {name}": weight.grad.cpu().numpy() for name, weight in weights}
        return self.named(logits.detach().cpu()) | gradients


class StepPeer(EpochPeer):
    """A training step of a project's net on TorchLayer; with QuantumLayer only the class differs."""

    def _net(self, name: str, image: Any, double: bool) -> Any:
        import pennylane as qp

        from benchmarks.quanvolutions import NETS
        from qnnkit import QuantumLayer
        from qnnkit.models.blocks import seeded

        _, shape, net = NETS[self.workload.ansatz]
        qnode = _qnode("lightning.qubit" if name in OWN else name, self.workload, double=double)
        kind = QuantumLayer if name in OWN else qp.qnn.TorchLayer
        with seeded(0):
            return net(kind(qnode, {"weights": shape}), side=image.shape[-1])


def _kind(workload: Workload) -> type[EpochPeer] | None:
    """The class that trains a whole net; None for a workload without one."""
    return StepPeer if isinstance(workload, Step) else EpochPeer if isinstance(workload, Epoch) else None


def _qnode(name: str, workload: Workload, *, double: bool) -> Any:
    """The workload's QNode on a PennyLane device, in single precision if the device offers it."""
    import pennylane as qp

    qnode, _ = workload.circuit()
    if name == "default.qubit":
        return qnode.update(diff_method="backprop")
    settings: dict[str, Any] = {"c_dtype": np.complex128 if double else np.complex64}
    if name == "lightning.qubit":
        settings["seed"] = None  # otherwise it draws one from NumPy's global generator
    try:
        device = qp.device(name, wires=workload.n_qubits, **settings)
    except Exception as error:  # every device fails with other exceptions
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise Absent(f"is left out: {reason}") from None
    return qnode.update(device=device, diff_method="adjoint")


def _samples(name: str, workload: Workload) -> int:
    """Samples per evaluation: few if they run one by one, fewer if memory is short."""
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
