"""The workloads: circuits, sizes and seeded data, the same for every peer. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

CHECKED = 4
"""Number of samples whose values are checked for every peer: the first of the batch."""


@dataclass(frozen=True)
class Workload:
    """A circuit over a batch: its values and, if `gradients`, the gradient of a mixture by all angles."""

    key: str
    ansatz: str
    n_qubits: int
    n_layers: int
    batch: int
    gradients: bool = True

    @property
    def total(self) -> int:
        """Samples of the whole workload."""
        return self.batch

    @property
    def size(self) -> str:
        passes = "forward and backward" if self.gradients else "forward"
        return f"{self.n_qubits} wires, {self.n_layers} layers, batch {self.batch:,}, {passes}"

    def circuit(self) -> tuple[Any, dict[str, tuple[int, ...]]]:
        """The QNode and the shapes of its weights; RY embedding unless the ansatz embeds itself."""
        from qnnkit import circuits

        return circuits.build(self.ansatz, n_qubits=self.n_qubits, n_layers=self.n_layers)

    def data(self) -> tuple[np.ndarray, ...]:
        """Angles of the batch and of the ansatz in radians, and the mixture of the loss, in float32.

        Inputs and mixture have shape (batch, n_qubits); the loss is (values * mixture).sum().
        """
        generator, each = np.random.default_rng(0), (self.batch, self.n_qubits)
        weights = generator.uniform(0, 2 * np.pi, self.circuit()[1]["weights"])
        inputs, mixture = generator.uniform(0, np.pi, each), generator.standard_normal(each)
        return tuple(array.astype(np.float32) for array in (inputs, weights, mixture))

    def small(self) -> Workload:
        return replace(self, batch=max(CHECKED, self.batch // 16) if self.batch <= 256 else 64)


@dataclass(frozen=True)
class Epoch(Workload):
    """One training epoch of the kit's net of 88,000 weights on noise, for the time only."""

    images: int = 3085
    n_classes: int = 44
    optimizer: str = "Adam"

    @property
    def total(self) -> int:
        return self.images

    @property
    def size(self) -> str:
        return f"{self.images:,} images of 32x32, 64 circuits each, batch {self.batch}, {self.optimizer}"

    def data(self) -> tuple[np.ndarray, ...]:
        """uint8 images of shape (images, 1, 32, 32), and their labels of shape (images,)."""
        generator = np.random.default_rng(0)
        images = generator.integers(0, 256, (self.images, 1, 32, 32), dtype=np.uint8)
        return images, generator.integers(0, self.n_classes, self.images)

    def small(self) -> Epoch:
        return replace(self, images=20, batch=8)


@dataclass(frozen=True)
class Step(Epoch):
    """One training step of a net of `quanvolutions`, on images of noise."""

    images: int = 4
    n_classes: int = 10
    optimizer: str = "SGD"
    side: int = 32

    @property
    def size(self) -> str:
        return f"{self.images} images of 32x32, 256 circuits each, one step of {self.optimizer}"

    def circuit(self) -> tuple[Any, dict[str, tuple[int, ...]]]:
        import pennylane as qp

        from benchmarks import quanvolutions
        from qnnkit import circuits

        function, shape, _ = quanvolutions.NETS[self.ansatz]
        return qp.QNode(function, circuits.make_device("default.qubit", self.n_qubits)), {"weights": shape}

    def data(self) -> tuple[np.ndarray, ...]:
        """Images of shape (images, 1, side, side) in [0, 1], and their labels of shape (images,)."""
        images, labels = super().data()
        return images[..., : self.side, : self.side] / np.float32(255), labels

    def small(self) -> Step:
        return replace(self, side=8)


WIDTHS = (4, 8, 10, 12, 14, 16)
WORKLOADS = {
    workload.key: workload
    for workload in (
        Workload("W1", "data_reuploading", 4, 2, 8192),  # a trainable quanvolution
        Workload("W2", "random", 4, 2, 200_704, gradients=False),  # a frozen one
        *(Workload(f"W3-{n}", "strongly_entangling", 4, 3, n) for n in (64, 256)),  # a hybrid head
        *(Workload(f"W4-{n}", "strongly_entangling", n, 3, 64) for n in WIDTHS),
        Epoch("W5", "data_reuploading", 4, 2, 128),
        *(Step(f"W6-{name}", name, 4, 2, 4) for name in ("basic", "strong", "gates")),  # in `quanvolutions`
    )
}
GROUPS = list(dict.fromkeys(key.split("-")[0] for key in WORKLOADS))


def find(key: str, *, quick: bool) -> Workload:
    """The workload with this key, at test size if `quick`."""
    return WORKLOADS[key].small() if quick else WORKLOADS[key]


def keys(groups: list[str], *, quick: bool) -> list[str]:
    """The keys of the workloads in `groups` such as "W3"; a quick run uses only narrow circuits."""
    chosen = [key for key in WORKLOADS if key.split("-")[0] in groups]
    return [key for key in chosen if not (quick and WORKLOADS[key].n_qubits > 8)]
