"""What is chosen, and the figures of it: functions that widgets and the static form both call."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from qnnkit import checks, gradients, layers
from qnnkit.inspector.source import Source
from qnnkit.inspector.what_if import WhatIf

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
    recorded = gradients_of(source, choice)
    return (
        choice if recorded is None else replace(choice, weight=int(np.nan_to_num(sizes(recorded)).argmax()))
    )


def sentences(source: Source, choice: Choice) -> list[str]:
    """Whose weights are shown, what is missing, what training warned of, which weights cannot learn."""
    training, said = source.training(choice.net, choice.seed), source.notes(choice.net, choice.seed)
    if choice.layer not in training.layers:
        said.append(f"Layer {choice.layer} is not trained: it has no gradient.")
    said += [warning for epoch, warning in training.warnings if epoch == choice.epoch]
    return [*said, *map(str, gradients.of_dead(_dead(source, choice)))]


def _dead(source: Source, choice: Choice) -> list[gradients.Dead]:
    """The chosen layer's weights that cannot learn."""
    return [one for one in source.net(choice.net, choice.seed).dead if one.layer == choice.layer]


def gradients_of(source: Source, choice: Choice) -> np.ndarray | None:
    """Of the layer's weights in the chosen epoch, of shape (n_steps, n_weights); None without.

    Weights that are frozen, and of a large circuit those that training does not record, are NaN.
    """
    training = source.training(choice.net, choice.seed)
    names = source.net(choice.net, choice.seed).weight_names(choice.layer)
    if not names or choice.layer not in training.quantum_layers:
        return None
    found = training.gradient(choice.layer, choice.epoch, len(names))
    return found if len(found) else None


def sizes(recorded: np.ndarray) -> np.ndarray:
    """Mean absolute gradient of each weight, of shape (n_weights,); NaN where none is known."""
    known = np.isfinite(recorded)
    total = np.where(known, np.abs(recorded), 0).sum(axis=0)
    return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)


def of_layer(source: Source, choice: Choice) -> Picture | None:
    """Histogram, norm and signal to noise of the chosen layer; None where it is not trained."""
    from qnnkit import plots

    training = source.training(choice.net, choice.seed)
    steps = training.steps(choice.epoch)
    if choice.layer not in training.layers or not steps:
        return None
    rows = training.frame(choice.layer)
    by_epoch = rows.drop_duplicates("epoch")
    names = source.net(choice.net, choice.seed).weight_names(choice.layer)
    return plots.layer_gradients(
        rows["step"].to_numpy(),
        rows["norm"].to_numpy(),
        (steps[0], steps[-1]),
        gradients_of(source, choice),
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
    recorded, gates = gradients_of(source, choice), net.gates[choice.layer]
    values = np.full(len(net.weight_names(choice.layer)), np.nan) if recorded is None else sizes(recorded)
    n_wires = 1 + max((wire for gate in gates for wire in gate.wires), default=0)
    dead, label = [one.index for one in _dead(source, choice)], "mean |gradient| (loss per radian)"
    return plots.coloured_circuit(gates, n_wires, values, label, dead=dead, chosen=choice.weight)


def of_image(source: Source, choice: Choice) -> Picture:
    """The chosen image, its quanvolved channels if there are any, and what the net says of it."""
    from qnnkit import plots

    images, labels = source.choosable
    image, model = images[choice.image : choice.image + 1], source.net(choice.net, choice.seed).model
    maps = layers.feature_maps_of(model, image)
    with layers.evaluating(model):
        probs = model(image).double().softmax(-1)[0].numpy()
    shown = None if maps is None else maps[0, :MOST_MAPS].double().numpy()
    classes = [source.class_name(i) for i in range(len(probs))]
    return plots.image_seen(image[0].numpy(), shown, classes, probs, int(labels[choice.image]))


def what_if(source: Source, choice: Choice) -> tuple[WhatIf, WhatIfFigure] | None:
    """The chosen weight, ready to be moved, and the figure that shows it; None without a circuit."""
    from qnnkit import plots

    net = source.net(choice.net, choice.seed)
    if net.circuit(choice.layer) is None:
        return None
    images, labels = source.choosable
    moves = WhatIf(source.run, net, choice.layer, choice.weight, images[choice.image])
    figure = plots.WhatIfFigure(
        net.weight_names(choice.layer)[choice.weight],
        f"Measured by circuit {moves.shown + 1} of the image's {moves.n_circuits}",
        moves.before.values,
        [source.class_name(i) for i in range(len(moves.before.class_probs))],
        moves.before.class_probs,
        int(labels[choice.image]),
        moves.curve(),
        moves.n_images,
    )
    return moves, figure
