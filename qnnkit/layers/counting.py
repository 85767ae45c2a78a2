"""Circuits per image and feature maps of a quanvolution, measured by hooks in any model."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit.layers.quantum import QuantumLayer
from qnnkit.layers.quanvolution import Quanv2d

functorch: Any = vars(torch._C)["_functorch"]
Given = Tensor | Mapping[str, Tensor]
"""Inputs of a model: a tensor, or several by name."""


def called(model: nn.Module, given: Given) -> Any:
    """The output of a model, on its own device, for a tensor or for several by name."""
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), None)
    if isinstance(given, Mapping):
        return model(**{name: tensor.to(device) for name, tensor in given.items()})
    return model(given.to(device))


def circuits_per_image(model: nn.Module, image: Given) -> int:
    """Number of circuits that one forward pass of one image runs in all `QuantumLayer`s together.

    Args:
        model: Any module, which is not changed and runs on its own device.
        image: A batch of one or more, as the model takes it, of shape (batch, ...), or a mapping for a model
            that takes several tensors by name. For precomputed features, the circuit that computed them does
            not count, because it does not run.

    Example:
        >>> circuits_per_image(Quanv2d(1, "data_reuploading", filters=2), torch.zeros(1, 1, 8, 8))
        32
    """
    n_images = len(next(iter(image.values())) if isinstance(image, Mapping) else image)
    return sum(map(len, circuit_inputs(model, image).values())) // n_images


def circuit_inputs(model: nn.Module, images: Given) -> dict[QuantumLayer, Tensor]:
    """For each layer, all rows of features that its circuit receives; layers that do not run are omitted.

    Args:
        model: As in `circuits_per_image`.
        images: Images as the model takes them, of shape (batch, ...).

    Returns:
        For each layer a tensor of shape (n_circuits, n_features), on the model's device.
    """
    inputs_of: dict[QuantumLayer, list[Tensor]] = {}
    for layer, rows, _ in look(model, images, QuantumLayer):
        inputs_of.setdefault(layer, []).append(rows.detach())
    return {layer: torch.cat(rows) for layer, rows in inputs_of.items()}


def rows_of(inputs: Tensor) -> Tensor:
    """The features that a layer receives, of shape (n, n_features); under torch.vmap, of all samples."""
    while (axis := functorch.maybe_get_bdim(inputs)) >= 0:
        inputs = functorch.get_unwrapped(inputs).movedim(axis, 0)
    return inputs.reshape(-1, inputs.shape[-1])


def feature_maps_of(model: nn.Module, images: Tensor) -> Tensor | None:
    """The feature maps that a model's first quanvolution computes, or None for a model without one.

    Args:
        model: Any module, which is not changed and runs on its own device.
        images: Images as the model takes them, of shape (batch, channels, height, width).

    Returns:
        Expectation values of shape (batch, out_channels, rows, columns), on the CPU.

    Example:
        >>> net = nn.Sequential(Quanv2d(1, "data_reuploading"), nn.ReLU())
        >>> feature_maps_of(net, torch.zeros(2, 1, 4, 4)).shape
        torch.Size([2, 4, 2, 2])
    """
    calls = look(model, images, Quanv2d)
    return calls[0][2].detach().cpu() if calls else None


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A context in evaluation mode without gradients; afterwards each module returns to its mode."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in before.items():
            module.training = training


def look(model: nn.Module, images: Given, kind: Any, gradients: bool = False) -> list[tuple[Any, ...]]:
    """All calls of modules of a kind in one forward pass in evaluation mode: (module, `rows_of`, outputs)."""
    calls: list[tuple[Any, ...]] = []
    if modules := [module for module in model.modules() if isinstance(module, kind)]:
        with contextlib.ExitStack() as stack, evaluating(model), torch.set_grad_enabled(gradients):
            for module in modules:
                note = lambda m, x, named, y: calls.append((m, rows_of(*x, *named.values()), y))  # noqa: E731
                stack.enter_context(module.register_forward_hook(note, with_kwargs=True))
            called(model, images)
    return calls
