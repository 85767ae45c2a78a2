"""One weight of one circuit, moved: what the circuit measures then, and what becomes of the loss."""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qnnkit import layers
from qnnkit.inspector.source import Net
from qnnkit.runs import Run

MOST_IMAGES, FEWEST_IMAGES = 128, 8
MOST_AMPLITUDES = 2**17
"""Of all states of one pass: with more images a move would take more than a tenth of a second."""
POINTS, FEW_POINTS = 21, 5
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
    """Moves one weight of a circuit and asks the net again; whatever does not depend on it is computed once.

    Of the circuits that the chosen image takes, the one with the largest inputs is shown: there the image is
    not empty. The sample is the first validation images, from 8 to 128, the fewer the larger the circuits.

    Args:
        run: Gives the validation images.
        net: Left as it is: a copy is moved.
        layer: Name of a circuit of the net.
        weight: Place of the weight among the layer's, as in `gradients.weight_names`.
        image: The chosen one, uint8, of shape (channels, height, width).
    """

    def __init__(self, run: Run, net: Net, layer: str, weight: int, image: Tensor):
        circuit = net.circuit(layer)
        assert circuit is not None  # the caller shows this part for circuits only
        inputs = layers.circuit_inputs(net.model, image[None])[circuit]  # (circuits, n_features)
        self.n_circuits, self.shown = len(inputs), int(inputs.abs().sum(-1).argmax())
        self.points = POINTS if circuit.backend == "batched" else FEW_POINTS
        validation, most = run.splits.validation, FEWEST_IMAGES
        if self.points == POINTS:
            wires = len(circuit.qnode.device.wires or (0,))
            states = layers.circuits_per_image(net.model, image[None]) * 2**wires
            most = max(FEWEST_IMAGES, min(MOST_IMAGES, MOST_AMPLITUDES // states))
        self.n_images = min(most, len(validation))
        self.images = torch.cat([image[None], validation.images[: self.n_images]])
        self.labels = validation.labels[: self.n_images]
        ahead = done_before(net.model, circuit, self.images)
        self.model, [self.circuit, *fixed] = copy.deepcopy((net.model, [circuit, *ahead]))
        for module, output in zip(fixed, ahead.values(), strict=True):
            module.forward = lambda *given, _output=output, **named: _output
        self.seen: list[Tensor] = []  # by the circuit, in one pass
        self.circuit.register_forward_hook(lambda layer, given, outputs: self.seen.append(outputs))
        flat = torch.cat([parameter.detach().flatten() for parameter in self.circuit.parameters()])
        self.weight, self.weights = weight, flat
        self.before = self.at(0.0)

    def at(self, shift: float) -> Moved:
        """What the net gives with the weight moved by `shift`, in radians."""
        moved = self.weights.clone()
        moved[self.weight] += shift
        self.seen.clear()
        with torch.no_grad():
            nn.utils.vector_to_parameters(moved, self.circuit.parameters())
            logits = self.model(self.images).double()
        by_image = [outputs.reshape(len(self.images), -1, outputs.shape[-1])[0] for outputs in self.seen]
        values = torch.cat(by_image)[self.shown]  # (circuits, n_outputs) -> (n_outputs,)
        loss = nn.functional.cross_entropy(logits[1:], self.labels)
        return Moved(values.double().numpy(), logits[0].softmax(0).numpy(), float(loss))

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Shifts from -pi to pi, in radians, and the loss at each."""
        shifts = np.linspace(-np.pi, np.pi, self.points)
        return shifts, np.array([self.at(float(shift)).loss for shift in shifts])


def done_before(model: nn.Module, layer: nn.Module, images: Tensor) -> dict[nn.Module, Any]:
    """What a pass has computed before it first reaches a layer: module -> its output, outermost only.

    A module that is called twice is left out, so that each has one output.
    """
    outputs: dict[nn.Module, Any] = {}
    calls: Counter[nn.Module] = Counter()
    reached = []

    def keep(module: nn.Module, given: Any, output: Any) -> None:
        calls[module] += 1
        if not reached:
            outputs[module] = output

    with contextlib.ExitStack() as hooks, torch.no_grad():
        hooks.enter_context(layer.register_forward_pre_hook(lambda *given: reached.append(True)))
        for module in model.modules():
            if module is not layer:
                hooks.enter_context(module.register_forward_hook(keep))
        model(images)
    once = {module: output for module, output in outputs.items() if calls[module] == 1}
    inner = {child for module in once for child in module.modules() if child is not module}
    return {module: output for module, output in once.items() if module not in inner}
