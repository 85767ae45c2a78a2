"""`Quanv2d`: a circuit that slides over an image."""

from __future__ import annotations

from functools import partial
from typing import Any

import pennylane as qp
import torch
from torch import Tensor, nn

from qnnkit import checks, circuits
from qnnkit.layers.quantum import QuantumLayer


class Quanv2d(nn.Module):
    """A quanvolution: a circuit that slides over every channel of an image like a convolution's kernel.

    Each patch of `kernel_size` x `kernel_size` pixels of one channel is embedded into the wires. Each
    measured value (<Z> of each wire, for a named circuit) is one output channel. All channels share the
    weights (depthwise); each filter has its own.

    Args:
        in_channels: Channels of the input.
        circuit: Name of an ansatz in `CIRCUITS`, or a pair (qnode, weight_shapes) as from `circuits.build`.
        kernel_size: Side of a patch, in pixels.
        stride: Step between patches, in pixels.
        filters: Number of circuits, each with its own weights (and its own structure, if `random`).
        trainable: Whether the weights receive gradients.
        seed: Fixes the initial weights and the structure of `random`; no global generator is used.
        backend: As in `QuantumLayer`.
        n_layers: Depth of a named circuit.
        embedding: Embedding of a named circuit that does not embed its data itself.
        initialisation: Name of an entry of `circuits.INITIALISATIONS`, which draws the weights. For
            `identity_block`, a pair (qnode, weight_shapes) must have been built `mirrored`.

    Raises:
        ValueError: A name is unknown, a number is below 1, or `n_layers` is odd for `identity_block`.

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
        initialisation: str = "uniform",
    ):
        super().__init__()
        for name in ("in_channels", "kernel_size", "stride", "filters", "n_layers"):
            checks.positive(name, locals()[name])
        self.in_channels, self.kernel_size, self.stride = in_channels, kernel_size, stride
        checks.choice("initialisation", initialisation, circuits.INITIALISATIONS)
        draw = circuits.INITIALISATIONS[initialisation]
        n_features = kernel_size**2
        self.filters, self.out_channels = nn.ModuleList(), 0
        for i in range(filters):
            generator = torch.Generator().manual_seed(seed * 1000 + i)
            if isinstance(circuit, str):
                n_qubits = circuits.embedding_of(circuit, embedding).n_qubits(n_features)
                options: Any = {"n_layers": n_layers, "embedding": embedding, "seed": seed * 1000 + i}
                options["mirrored"] = initialisation in circuits.MIRRORED
                qnode, shapes = circuits.build(circuit, n_qubits=n_qubits, **options)
            else:
                qnode, shapes = circuit
            layer = QuantumLayer(qnode, shapes, partial(draw, generator=generator), backend=backend)
            self.filters.append(layer.requires_grad_(trainable))
            outputs = layer(torch.zeros(0, n_features))  # (0, n_outputs), or (0,) for a single output
            self.out_channels += in_channels * outputs.unsqueeze(-1).flatten(1).shape[1]

    def forward(self, images: Tensor) -> Tensor:
        """The feature maps of `images`.

        Args:
            images: Angles in radians, of shape (batch, in_channels, height, width).

        Returns:
            Measured values, for a named circuit expectation values in [-1, 1], of shape (batch, out_channels,
            height', width'), with height' = (height - kernel_size) // stride + 1. Channels are ordered by
            input channel, filter and wire; wires vary fastest.

        Raises:
            ValueError: The shape does not fit, or the image is smaller than a patch.
        """
        k, s, shape = self.kernel_size, self.stride, images.shape
        if len(shape) != 4 or shape[1] != self.in_channels or min(shape[2:]) < k:
            rule = f"have shape (batch, {self.in_channels}, height, width) and at least {k} x {k} pixels"
            step = "Add the missing axis, or set in_channels or kernel_size to fit."
            raise ValueError(checks.message("images", rule, tuple(images.shape), step))
        patches = images.unfold(2, k, s).unfold(3, k, s)  # (batch, channels, rows, columns, k, k), a view
        rows, columns = patches.shape[2:4]
        patches = patches.permute(4, 5, 0, 1, 2, 3).reshape(k * k, -1)  # one copy, in the program's order
        maps = [layer(patches.t()).unsqueeze(-1).flatten(1) for layer in self.filters]
        values = maps[0] if len(maps) == 1 else torch.cat(maps, dim=1)
        # (batch * channels * rows * columns, all outputs) -> (batch, out_channels, rows, columns)
        values = values.reshape(*shape[:2], rows, columns, values.shape[-1]).movedim(-1, 2)
        return values.reshape(len(images), self.out_channels, rows, columns)

    def extra_repr(self) -> str:
        sizes = f"kernel_size={self.kernel_size}, stride={self.stride}"
        return f"{self.in_channels}, {self.out_channels}, {sizes}"
