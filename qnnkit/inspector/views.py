"""What is chosen, and the figures of it: functions that widgets and the static form both call."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from qnnkit import checks, gradients, layers
from qnnkit.inspector.source import Source
from qnnkit.inspector.what_if import WhatIf
from qnnkit.layers import Quanv2d

if TYPE_CHECKING:
    from qnnkit.plots import Picture, WhatIfFigure

MOST_MAPS = 8


@dataclass(frozen=True)
class Choice:
    """What is looked at."""

    net: str
    seed: int
    layer: str
    weight: int = 0
    """Place among the layer's weights, as in `gradients.weight_names`."""
    epoch: int = 0
    step: int = 0
    """Place among the observed updates of the epoch, from 1; 0 takes all of them."""
    image: int = 0
    """Place among `Source.choosable`."""
    shift: float = 0.0
    """By which the weight is moved, in radians."""


def first_choice(source: Source, net: str, seed: int, layer: str | None = None) -> Choice:
    """The last epoch of a layer, the first circuit by default, and its weight of the largest gradient.

    Raises:
        ValueError: The net has no such layer.
    """
    names = list(source.net(net, seed).layers)
    if not names:
        raise ValueError(checks.message("net", "have weights", net, "There is nothing to look at."))
    layer = checks.choice("layer", layer or names[0], names)
    choice = Choice(net, seed, layer, epoch=source.training(net, seed).epochs[-1])
    kept = kept_gradients(source, choice)
    return choice if kept is None else replace(choice, weight=int(np.nan_to_num(_sizes(kept)).argmax()))


def sentences(source: Source, choice: Choice) -> list[str]:
    """What is missing, what training warned of in the chosen epoch, which weights cannot learn."""
    net, seed, layer = choice.net, choice.seed, choice.layer
    training, found = source.training(net, seed), source.missing(net, seed)
    if layer not in training.layers:
        found.append(f"Layer {layer} is not trained: it has no gradient.")
    found += [told for epoch, told in training.warnings if epoch == choice.epoch]
    return [*found, *gradients.told(_dead(source, choice))]


def _dead(source: Source, choice: Choice) -> list[gradients.Dead]:
    """The chosen layer's weights that cannot learn."""
    net = source.net(choice.net, choice.seed)
    return [one for one in net.dead if one.layer == choice.layer]


# --- gradients --------------------------------------------------------------------------------------


def kept_gradients(source: Source, choice: Choice) -> np.ndarray | None:
    """Of the chosen layer's weights at the chosen updates, of shape (n_steps, n_weights); None without.

    Weights that are frozen, and of a large circuit those that training does not keep, are NaN.
    """
    training = source.training(choice.net, choice.seed)
    circuit = source.net(choice.net, choice.seed).circuit(choice.layer)
    if circuit is None or choice.layer not in training.quantum_layers:
        return None
    n_weights = sum(weight.numel() for weight in circuit.parameters())
    every = training.gradient(choice.layer, choice.epoch, n_weights)
    if not len(every):
        return None
    return every[choice.step - 1 : choice.step] if choice.step else every


def _sizes(kept: np.ndarray) -> np.ndarray:
    """Mean absolute gradient of each weight, of shape (n_weights,); NaN where none is known."""
    known = np.isfinite(kept)
    total = np.where(known, np.abs(kept), 0).sum(axis=0)
    return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)


def of_layer(source: Source, choice: Choice) -> Picture | None:
    """Histogram, norm and signal to noise of the chosen layer; None where training keeps it as it is."""
    from qnnkit import plots

    training = source.training(choice.net, choice.seed)
    here = training.steps(choice.epoch)
    if choice.layer not in training.layers or not here:
        return None
    rows = training.frame(choice.layer)
    by_epoch = rows.drop_duplicates("epoch")
    first, last = (choice.step - 1, choice.step - 1) if choice.step else (0, -1)
    names = source.net(choice.net, choice.seed).weight_names(choice.layer)
    return plots.layer_gradients(
        rows["step"].to_numpy(),
        rows["norm"].to_numpy(),
        (here[first], here[last]),
        kept_gradients(source, choice),
        (names[choice.weight], choice.weight) if names else None,
        by_epoch["epoch"].to_numpy(),
        by_epoch[["snr", "snr_low", "snr_high"]].to_numpy(),
        choice.epoch,
    )


def of_circuit(source: Source, choice: Choice) -> Picture | None:
    """The chosen circuit, each gate coloured by its gradient; None for a layer without one."""
    from qnnkit import plots

    net = source.net(choice.net, choice.seed)
    if net.circuit(choice.layer) is None:
        return None
    names, kept = net.weight_names(choice.layer), kept_gradients(source, choice)
    values = np.full(len(names), np.nan) if kept is None else _sizes(kept)
    found = net.gates[choice.layer]
    n_wires = 1 + max((wire for gate in found for wire in gate.wires), default=0)
    cannot = [one.index for one in _dead(source, choice)]
    label = "mean |gradient| (loss per radian)"
    return plots.coloured_circuit(found, n_wires, values, label, dead=cannot, chosen=choice.weight)


# --- one image --------------------------------------------------------------------------------------


def of_image(source: Source, choice: Choice) -> Picture:
    """The chosen image, its quanvolved channels if there are any, and what the net says of it."""
    from qnnkit import plots

    images, labels = source.choosable
    image = images[choice.image : choice.image + 1]
    model = source.net(choice.net, choice.seed).model
    maps = layers.feature_maps_of(model, image)
    with layers.evaluating(model):
        probs = model(image).double().softmax(-1)[0].numpy()
    shown = None if maps is None else maps[0, :MOST_MAPS].double().numpy()
    names = [] if shown is None else [f"channel {i}" for i in range(len(shown))]
    classes = [source.class_name(i) for i in range(len(probs))]
    return plots.image_seen(image[0].numpy(), shown, names, classes, probs, int(labels[choice.image]))


# --- one weight moved -------------------------------------------------------------------------------


def what_if(source: Source, choice: Choice) -> tuple[WhatIf, WhatIfFigure] | None:
    """The chosen weight, ready to be moved, and the figure that shows it; None without a circuit."""
    from qnnkit import plots

    net = source.net(choice.net, choice.seed)
    circuit = net.circuit(choice.layer)
    if circuit is None:
        return None
    images, labels = source.choosable
    moves = WhatIf(source.run, net, choice.layer, choice.weight, images[choice.image])
    before = moves.before
    figure = plots.WhatIfFigure(
        net.weight_names(choice.layer)[choice.weight],
        _which(net.model, circuit, moves, images[choice.image]),
        [f"output {i}" for i in range(len(before.values))],
        before.values,
        [source.class_name(i) for i in range(len(before.class_probs))],
        before.class_probs,
        int(labels[choice.image]),
        moves.curve(),
        moves.n_images,
    )
    return moves, figure


def _which(model: nn.Module, circuit: nn.Module, moves: WhatIf, image: torch.Tensor) -> str:
    """Where the circuit stands whose values are shown."""
    if moves.n_circuits == 1:
        return "What the circuit measures"
    home = next((m for m in model.modules() if isinstance(m, Quanv2d) and circuit in list(m.filters)), None)
    if home is not None:
        shapes: list[tuple[int, ...]] = []
        handle = home.register_forward_hook(lambda _, given, maps: shapes.append(tuple(maps.shape)))
        try:
            with layers.evaluating(model):
                model(image[None])
        finally:
            handle.remove()
        _, row, column = np.unravel_index(moves.shown, (home.in_channels, *shapes[0][2:]))
        return f"Measured at patch ({row}, {column})"
    return f"Circuit {moves.shown} of the image's {moves.n_circuits}"


def figures(source: Source, choice: Choice) -> dict[str, Picture]:
    """Every figure that this choice has, by name: gradients, circuit, image, what_if."""
    moved = what_if(source, choice)
    found = {
        "gradients": of_layer(source, choice),
        "circuit": of_circuit(source, choice),
        "image": of_image(source, choice),
        "what_if": moved and moved[1].figure,
    }
    return {name: figure for name, figure in found.items() if figure is not None}
