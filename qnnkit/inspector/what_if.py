"""A circuit with one weight moved: the values that it measures, and the loss of the net."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from qnnkit import layers
from qnnkit.models import features
from qnnkit.runs import Run

MOST_IMAGES, FEWEST_IMAGES = 32, 8
MOST_AMPLITUDES = 2**17
"""Most amplitudes of all states in one pass. With more, a move would take over a tenth of a second."""
POINTS = 13
"""Points of the loss curve along a weight, from -pi to pi."""


class Moved(NamedTuple):
    """Outputs of a net with one weight moved."""

    values: np.ndarray
    """Expectation values of one circuit for the chosen image, of shape (n_outputs,)."""
    class_probs: np.ndarray
    """Class probabilities of the chosen image, of shape (n_classes,)."""
    loss: float
    """Mean cross-entropy over the sample of validation images, whatever the loss in training."""


class WhatIf:
    """A net with one weight of a circuit moved. The net itself does not change.

    Of the circuits that run for the chosen image, the one with the largest inputs is shown, because the image
    is not empty there. The sample is the first 8 to 32 validation images; larger circuits get fewer.

    Args:
        run: Run with the validation images.
        seed: Seed of the net, if each seed has its own split.
        model: Model in evaluation mode, on the CPU.
        circuit: A `QuantumLayer` of the model, with weights.
        weight: Index of the weight among the layer's parameters.
        image: The chosen image, uint8, of shape (channels, height, width).
    """

    def __init__(self, run: Run, seed: int, model: nn.Module, circuit: Any, weight: int, image: Tensor):
        self.model, self.circuit, validation = model, circuit, run.splits_of(seed).validation
        inputs = layers.circuit_inputs(model, image[None])[circuit]  # (circuits, n_features)
        self.n_circuits, self.shown = len(inputs), int(inputs.abs().sum(-1).argmax())
        self.inputs = inputs[self.shown, None]
        states = self.n_circuits * 2 ** len(circuit.qnode.device.wires or (0,))
        most = max(FEWEST_IMAGES, min(MOST_IMAGES, MOST_AMPLITUDES // states))
        images = torch.cat([image[None], validation.images[:most]])
        self.images, self.labels = images, validation.labels[:most]
        self.n_images = len(self.labels)
        steady = getattr(model, "steady_part", nn.Module)()
        if circuit not in steady.modules():  # features of a frozen part are computed once
            self.images, _ = features.training_batch(model, (images, self.labels), run.config, len(images))
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        entries = [(*named, i) for named in circuit.named_parameters() for i in range(named[1].numel())]
        name, parameter, self.place = entries[weight]
        self.weight, self.names = parameter.detach(), (name, names[id(parameter)])

    def at(self, shift: float) -> Moved:
        """Outputs of the net with the weight moved by `shift`, in radians."""
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
        """Outputs of the net before the weight is moved."""
        return self.at(0.0)

    @cached_property
    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Shifts from -pi to pi, in radians, and the loss at each."""
        shifts = np.linspace(-np.pi, np.pi, POINTS)
        return shifts, np.array([self.at(float(shift)).loss for shift in shifts])
