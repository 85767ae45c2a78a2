"""One weight of one circuit, moved: what the circuit measures then, and what becomes of the loss."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from qnnkit import layers
from qnnkit.inspector.source import Net
from qnnkit.models import features
from qnnkit.runs import Run

MOST_IMAGES, FEWEST_IMAGES = 32, 8
MOST_AMPLITUDES = 2**17
"""Of all states of one pass: with more images a move would take more than a tenth of a second."""
POINTS, FEW_POINTS = 13, 5
"""Of the loss curve along a weight, from -pi to pi: of a fused program, and of a device."""


@dataclass(frozen=True)
class Moved:
    """What a net gives with one weight moved."""

    values: np.ndarray
    """Expectation values of one circuit of the chosen image, of shape (n_outputs,)."""
    class_probs: np.ndarray
    """Of the chosen image, of shape (n_classes,)."""
    loss: float
    """Mean over the sample of validation images, without label smoothing."""


class WhatIf:
    """A net with one weight of a circuit moved; the net itself is left as it is.

    Of the circuits that the chosen image takes, the one with the largest inputs is shown: there the image is
    not empty. The sample is the first validation images, from 8 to 32, the fewer the larger the circuits.

    Args:
        run: Gives the validation images.
        net: Whose weight is moved.
        layer: Name of a circuit of the net.
        weight: Place of the weight among the layer's, as in `gradients.weight_names`.
        image: The chosen one, uint8, of shape (channels, height, width).
    """

    def __init__(self, run: Run, net: Net, layer: str, weight: int, image: Tensor):
        circuit = net.circuit(layer)
        assert circuit is not None  # the caller shows this part for circuits only
        self.model, self.circuit = net.model, circuit
        inputs = layers.circuit_inputs(net.model, image[None])[circuit]  # (circuits, n_features)
        self.n_circuits, self.shown = len(inputs), int(inputs.abs().sum(-1).argmax())
        self.inputs = inputs[self.shown, None]
        self.points, most = FEW_POINTS, FEWEST_IMAGES
        if circuit.backend == "batched":
            n_wires = len(circuit.qnode.device.wires or (0,))
            states = layers.circuits_per_image(net.model, image[None]) * 2**n_wires
            self.points, most = POINTS, max(FEWEST_IMAGES, min(MOST_IMAGES, MOST_AMPLITUDES // states))
        validation = run.splits.validation
        self.n_images = min(most, len(validation))
        self.images = torch.cat([image[None], validation.images[: self.n_images]])
        self.labels = validation.labels[: self.n_images]
        steady = net.model.steady_part() if hasattr(net.model, "steady_part") else None  # pyright: ignore
        if steady is None or circuit not in steady.modules():
            given = self.images, self.labels  # what a frozen part makes of them is computed once
            self.images, _ = features.training_batch(net.model, given, run.config, len(self.images))
        names = {id(parameter): name for name, parameter in net.model.named_parameters()}
        every = [(*named, i) for named in circuit.named_parameters() for i in range(named[1].numel())]
        name, parameter, self.place = every[weight]
        self.weight, self.names = parameter.detach(), (name, names[id(parameter)])

    def at(self, shift: float) -> Moved:
        """What the net gives with the weight moved by `shift`, in radians."""
        moved = self.weight.clone()
        moved.view(-1)[self.place] += shift
        in_circuit, in_model = self.names
        with torch.no_grad():
            values = functional_call(self.circuit, {in_circuit: moved}, self.inputs)[0]
            logits = functional_call(self.model, {in_model: moved}, self.images).double()
        loss = nn.functional.cross_entropy(logits[1:], self.labels)
        return Moved(values.double().numpy(), logits[0].softmax(0).numpy(), float(loss))

    @cached_property
    def before(self) -> Moved:
        """What it gives with the weight as it is."""
        return self.at(0.0)

    @cached_property
    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Shifts from -pi to pi, in radians, and the loss at each."""
        shifts = np.linspace(-np.pi, np.pi, self.points)
        return shifts, np.array([self.at(float(shift)).loss for shift in shifts])
