"""How many circuits an image costs, and what a quanvolution made of it: seen by hooks, for any model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit.layers.quantum import QuantumLayer
from qnnkit.layers.quanvolution import Quanv2d

functorch: Any = vars(torch._C)["_functorch"]
Given = Tensor | Mapping[str, Tensor]
"""What a model takes: a tensor, or several by name."""


def called(model: nn.Module, given: Given) -> Any:
    """What a model gives, on its own device, for a tensor or for several by name."""
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), None)
    if isinstance(given, Mapping):
        return model(**{name: tensor.to(device) for name, tensor in given.items()})
    return model(given.to(device))


def circuits_per_image(model: nn.Module, image: Given) -> int:
    """How many circuits one forward pass of one image runs, all `QuantumLayer`s together.

    Args:
        model: Any module; it is left as it was. On its own device.
        image: A batch of one or more, as the model takes it, of shape (batch, ...); of a model that takes
            several tensors by name, these. Features that a frozen circuit has made before count as what they
            are: no circuit runs for them.

    Example:
        >>> circuits_per_image(Quanv2d(1, "data_reuploading", filters=2), torch.zeros(1, 1, 8, 8))
        32
    """
    n_images = len(next(iter(image.values())) if isinstance(image, Mapping) else image)
    return sum(map(len, circuit_inputs(model, image).values())) // n_images


def circuit_inputs(model: nn.Module, images: Given) -> dict[QuantumLayer, Tensor]:
    """Layer -> every row of features that its circuit meets; layers that run for no image are left out.

    Args:
        model: As for `circuits_per_image`.
        images: As the model takes them, of shape (batch, ...).

    Returns:
        For each layer a tensor of shape (n_circuits, n_features), on the model's device.
    """
    inputs_of: dict[QuantumLayer, list[Tensor]] = {}

    def keep(layer: Any, inputs: tuple[Tensor, ...], outputs: Any) -> None:
        inputs_of.setdefault(layer, []).append(rows_of(inputs[0].detach()))

    look(model, images, QuantumLayer, keep)
    return {layer: torch.cat(rows) for layer, rows in inputs_of.items()}


def rows_of(inputs: Tensor) -> Tensor:
    """Features that a layer meets, of shape (n, n_features): under torch.vmap those of all samples."""
    while (axis := functorch.maybe_get_bdim(inputs)) >= 0:
        inputs = functorch.get_unwrapped(inputs).movedim(axis, 0)
    return inputs.reshape(-1, inputs.shape[-1])


def feature_maps_of(model: nn.Module, images: Tensor) -> Tensor | None:
    """What the first quanvolution of a model makes of images, or None for a model without one.

    Args:
        model: Any module; it is left as it was. On its own device.
        images: As the model takes them, of shape (batch, channels, height, width).

    Returns:
        Expectation values of shape (batch, out_channels, rows, columns), on the CPU.

    Example:
        >>> net = nn.Sequential(Quanv2d(1, "data_reuploading"), nn.ReLU())
        >>> feature_maps_of(net, torch.zeros(2, 1, 4, 4)).shape
        torch.Size([2, 4, 2, 2])
    """
    maps: list[Tensor] = []
    look(model, images, Quanv2d, lambda layer, inputs, outputs: maps.append(outputs.detach().cpu()))
    return maps[0] if maps else None


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no graph; afterwards every module is in the mode it was in."""
    before = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in before.items():
            module.training = training


def look(model: nn.Module, images: Given, kind: Any, hook: Callable[..., None], gradients=False) -> None:
    """One forward pass in evaluation mode, with the hook on the modules of a kind; none without them."""
    if modules := [module for module in model.modules() if isinstance(module, kind)]:
        with contextlib.ExitStack() as stack, evaluating(model), torch.set_grad_enabled(gradients):
            for module in modules:
                stack.enter_context(module.register_forward_hook(hook))
            called(model, images)
