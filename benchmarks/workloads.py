"""What is measured: circuits, sizes and seeded data, the same for every peer. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

CHECKED = 4
"""Samples whose numbers every peer has to give right: the first of the batch."""


@dataclass(frozen=True)
class Data:
    """What a circuit is evaluated on, in float32."""

    inputs: np.ndarray
    """Angles in radians, of shape (batch, n_qubits)."""
    weights: np.ndarray
    """Angles in radians, in the ansatz's own shape."""
    mixture: np.ndarray
    """The loss is (values * mixture).sum(); of shape (batch, n_qubits)."""


@dataclass(frozen=True)
class Workload:
    """A circuit on samples that are made up: `total` of them make the whole workload."""

    key: str
    ansatz: str
    n_qubits: int
    n_layers: int
    batch: int
    gradients: bool = True

    @property
    def total(self) -> int:
        return self.batch

    def circuit(self, device: str = "default.qubit") -> tuple[Any, dict[str, tuple[int, ...]]]:
        """The QNode and its weights' shapes; RY embedding unless the ansatz embeds by itself."""
        from qnnkit import circuits

        return circuits.build(self.ansatz, n_qubits=self.n_qubits, n_layers=self.n_layers, device=device)


@dataclass(frozen=True)
class Evaluation(Workload):
    """A circuit over a batch: its values and, if `gradients`, how their mixture depends on all angles."""

    @property
    def size(self) -> str:
        passes = "forward and backward" if self.gradients else "forward"
        return f"{self.n_qubits} wires, {self.n_layers} layers, batch {self.batch:,}, {passes}"

    def data(self) -> Data:
        from qnnkit.circuits import CIRCUITS

        shape_of = CIRCUITS[self.ansatz].weights_shape
        assert shape_of is not None  # an ansatz has one
        generator = np.random.default_rng(0)
        weights = generator.uniform(0, 2 * np.pi, shape_of(self.n_layers, self.n_qubits))
        inputs = generator.uniform(0, np.pi, (self.batch, self.n_qubits))
        mixture = generator.standard_normal((self.batch, self.n_qubits))
        return Data(*(array.astype(np.float32) for array in (inputs, weights, mixture)))

    def small(self) -> Evaluation:
        return replace(self, batch=max(CHECKED, self.batch // 16) if self.batch <= 256 else 64)


@dataclass(frozen=True)
class Epoch(Workload):
    """One training epoch of `net.hybrid_net` on images that are noise: only the time matters."""

    images: int = 3085
    n_classes: int = 44

    @property
    def size(self) -> str:
        return f"{self.images:,} images of 32x32, 64 circuits each, batch {self.batch}, Adam"

    @property
    def total(self) -> int:
        return self.images

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        """uint8 images of shape (images, 1, 32, 32), and their labels of shape (images,)."""
        generator = np.random.default_rng(0)
        images = generator.integers(0, 256, (self.images, 1, 32, 32), dtype=np.uint8)
        return images, generator.integers(0, self.n_classes, self.images)

    def small(self) -> Epoch:
        return replace(self, images=20, batch=8)


WIDTHS = (4, 8, 10, 12, 14, 16)
WORKLOADS: dict[str, Any] = {
    workload.key: workload
    for workload in (
        Evaluation("W1", "data_reuploading", 4, 2, 8192),  # a trainable quanvolution
        Evaluation("W2", "random", 4, 2, 200_704, gradients=False),  # a frozen one
        *(Evaluation(f"W3-{n}", "strongly_entangling", 4, 3, n) for n in (64, 256)),  # a hybrid head
        *(Evaluation(f"W4-{n}", "strongly_entangling", n, 3, 64) for n in WIDTHS),
        Epoch("W5", "data_reuploading", 4, 2, 128),
    )
}


def find(key: str, *, quick: bool) -> Any:
    """The workload of that key, at a test's size if `quick`."""
    return WORKLOADS[key].small() if quick else WORKLOADS[key]


def keys(groups: list[str], *, quick: bool) -> list[str]:
    """The keys of the workloads in `groups` such as "W3"; a quick run keeps to narrow circuits.

    Raises:
        ValueError: A group is unknown.
    """
    known = list(dict.fromkeys(key.split("-")[0] for key in WORKLOADS))
    for group in groups:
        if group not in known:
            raise ValueError(f"Argument `only` must name workloads of {', '.join(known)}, but has {group}.")
    chosen = [key for key in WORKLOADS if not groups or key.split("-")[0] in groups]
    return [key for key in chosen if not (quick and WORKLOADS[key].n_qubits > 8)]
