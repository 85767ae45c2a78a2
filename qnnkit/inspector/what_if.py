"""One weight of one circuit, moved: what the circuit measures then, and what becomes of the loss."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qnnkit import layers
from qnnkit.inspector.source import Net, done_before
from qnnkit.runs import Run

MOST_IMAGES, FEWEST_IMAGES = 128, 8
MOST_AMPLITUDES = 2**17
"""Of all states of one pass: more images than that would make a move slow."""
MOST_SECONDS = 0.04
"""Of one pass; with the drawing, a move then stays below 0.1 s."""
N_POINTS, MOST_SECONDS_OF_CURVE = 21, 2.0
"""Of the loss curve along a weight, from -pi to pi: fewer points where one takes long, but 5."""


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
    not empty. The sample is the first validation images: as many as one pass takes in 40 ms, from 8 to 128.

    Args:
        run: Gives the validation images.
        net: Left as it was after every call.
        layer: Name of a circuit of the net.
        weight: Place of the weight among the layer's, as in `gradients.weight_names`.
        image: The chosen one, uint8, of shape (channels, height, width).
    """

    def __init__(self, run: Run, net: Net, layer: str, weight: int, image: Tensor):
        self.model, self.told = net.model, net.told
        circuit = net.circuit(layer)
        assert circuit is not None  # the caller shows this part for circuits only
        self.circuit, self.weight = circuit, weight
        inputs = layers.circuit_inputs(self.model, image[None])[circuit]  # (circuits, n_features)
        self.n_circuits, self.shown = len(inputs), int(inputs.abs().sum(-1).argmax())
        validation, self.n_images = run.splits.validation, FEWEST_IMAGES
        most = min(len(validation), self._affordable(image))
        while True:  # upwards: a backend that runs circuits one by one is not asked for many
            self.n_images = min(self.n_images, most)
            self.images = torch.cat([image[None], validation.images[: self.n_images]])
            self.labels = validation.labels[: self.n_images]
            self.ahead = done_before(self.model, circuit, self.images)
            self.before = self.at(0.0)  # the first pass of a size may be slow
            start = time.perf_counter()
            self.at(0.0)
            self.seconds = time.perf_counter() - start
            if 2 * self.seconds > MOST_SECONDS or self.n_images == most:
                break
            self.n_images *= 2

    def _affordable(self, image: Tensor) -> int:
        circuits = layers.circuits_per_image(self.model, image[None])
        wires = len(self.circuit.qnode.device.wires or (0,))
        return max(FEWEST_IMAGES, min(MOST_IMAGES, MOST_AMPLITUDES // (circuits * 2**wires)))

    # --- moves ------------------------------------------------------------------------------------

    def at(self, shift: float) -> Moved:
        """What the net gives with the weight moved by `shift`, in radians."""
        found: list[Tensor] = []
        with self._moved(shift), self._seen(lambda layer, given, outputs: found.append(outputs)):
            logits = self._pass().double()
        by_image = [outputs.reshape(len(self.images), -1, outputs.shape[-1])[0] for outputs in found]
        values = torch.cat(by_image)[self.shown]  # (circuits, n_outputs) -> (n_outputs,)
        loss = nn.functional.cross_entropy(logits[1:], self.labels)
        return Moved(values.double().numpy(), logits[0].softmax(0).numpy(), float(loss))

    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Shifts from -pi to pi, in radians, and the loss at each."""
        n_points = max(5, min(N_POINTS, int(MOST_SECONDS_OF_CURVE / self.seconds)))
        shifts = np.linspace(-np.pi, np.pi, n_points)
        return shifts, np.array([self.at(float(shift)).loss for shift in shifts])

    def _pass(self) -> Tensor:
        with layers.evaluating(self.model), _given(self.ahead):
            return self.model(self.images)

    @contextlib.contextmanager
    def _moved(self, shift: float) -> Iterator[None]:
        place = self.weight
        for parameter in self.circuit.parameters():
            if place < parameter.numel():
                break
            place -= parameter.numel()
        flat = parameter.detach().view(-1)
        before = flat[place].clone()
        flat[place] = before + shift
        try:
            yield
        finally:
            flat[place] = before

    @contextlib.contextmanager
    def _seen(self, hook: Any) -> Iterator[None]:
        handle = self.circuit.register_forward_hook(hook)
        try:
            yield
        finally:
            handle.remove()


@contextlib.contextmanager
def _given(outputs: dict[nn.Module, Any]) -> Iterator[None]:
    """Modules give what they gave before, without computing it."""
    for module, output in outputs.items():
        module.forward = lambda *given, _output=output, **named: _output
    try:
        yield
    finally:
        for module in outputs:
            del module.forward
