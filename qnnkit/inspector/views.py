"""What is chosen, and the pictures of it: what widgets and the static form both show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnkit import checks, gradients, layers, plots
from qnnkit.inspector.source import Source
from qnnkit.inspector.what_if import WhatIf

if TYPE_CHECKING:
    import pandas as pd

MOST_MAPS, LIKELIEST = 8, 3
NET, LAYER = ("net", "seed"), ("net", "seed", "layer")
DEPENDS = {
    "circuit": (*LAYER, "weight", "epoch"),
    "what_if": (*LAYER, "weight", "image", "shift"),
    "image": (*NET, "image"),
    "gradients": (*LAYER, "weight", "epoch"),
}
"""Picture -> what it shows, from top to bottom."""


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
    if recorded is None:
        return choice
    return replace(choice, weight=int(recorded.abs().mean().fillna(0).argmax()))


def sentences(source: Source, choice: Choice) -> list[str]:
    """Whose weights are shown, what is missing, what training warned of, which weights cannot learn."""
    training, notes = source.training(choice.net, choice.seed), source.notes(choice.net, choice.seed)
    if choice.layer not in training.layers:
        notes.append(f"Layer {choice.layer} is not trained: it has no gradient.")
    warned = [each for row in training.rows if row["epoch"] == choice.epoch for each in row["warnings"]]
    dead = [str(one) for one in source.net(choice.net, choice.seed).dead if one.layer == choice.layer]
    return [*notes, *warned, *dead]


def gradients_of(source: Source, choice: Choice) -> pd.DataFrame | None:
    """Of the layer's weights in the chosen epoch, a row per update; None without.

    Weights that are frozen, and of a large circuit those that training does not record, are NaN.
    """
    training = source.training(choice.net, choice.seed)
    names = source.net(choice.net, choice.seed).weight_names(choice.layer)
    if not names or choice.layer not in training.quantum_layers:
        return None
    recorded = training.gradient(choice.layer, choice.epoch, names)
    return recorded if len(recorded) else None


class Views:
    """The pictures of a choice; what the next choice has in common with it is not drawn again.

    Args:
        source: What is shown, as of now: after its `refresh`, make another.
    """

    def __init__(self, source: Source):
        self.source = source
        self.cached: dict[str, tuple[Any, Any]] = {}

    def redraw(self, choice: Choice) -> dict[str, bytes | None]:
        """A PNG of each part; None for what the chosen layer has not.

        Raises:
            ValueError: What was recorded does not belong to the net.
        """
        draw = {part: getattr(self, f"_{part}") for part in DEPENDS}
        return {
            part: self._once(part, fields, choice, lambda part=part: draw[part](choice))
            for part, fields in DEPENDS.items()
        }

    def _once(self, name: str, fields: tuple[str, ...], choice: Choice, make: Callable[[], Any]) -> Any:
        """What was made last under this name, if that was for a choice with the same fields."""
        key = [getattr(choice, field) for field in fields]
        if self.cached.get(name, (None, None))[0] != key:
            self.cached[name] = key, make()
        return self.cached[name][1]

    def says(self, choice: Choice) -> str:
        """The classes that the net holds likeliest for the chosen image, and the true one."""
        images, labels = self.source.choosable
        model, classes = self.source.net(choice.net, choice.seed).model, self.source.classes
        with layers.evaluating(model):
            probs = model(images[choice.image, None]).double().softmax(-1)[0]
        best = probs.sort(descending=True, stable=True)
        shares = zip(best.values[:LIKELIEST].tolist(), best.indices.tolist(), strict=False)
        shown = ", ".join(f"{classes[place]} ({100 * share:.0f} %)" for share, place in shares)
        return f"The net says {shown}; it is {classes[int(labels[choice.image])]}."

    def moved(self, choice: Choice) -> str:
        """The loss with the chosen weight as it is, and moved."""
        moves, there = self._move(choice)
        return (
            f"Loss on {moves.n_images} validation images: {moves.before.loss:.4f}, and "
            f"<b>{there.loss:.4f}</b> with the weight moved by {choice.shift:+.2f} rad."
        )

    def _circuit(self, choice: Choice) -> bytes | None:
        """The circuit, each gate coloured by its gradient, the chosen weight's outlined; None without one."""
        net = self.source.net(choice.net, choice.seed)
        circuit = net.circuit(choice.layer)
        if circuit is None:
            return None
        gates = self._once("gates", LAYER, choice, lambda: gradients.gates(circuit))

        def draw() -> plots.Redrawn:
            recorded, n_weights = gradients_of(self.source, choice), len(net.weight_names(choice.layer))
            sizes = np.full(n_weights, np.nan) if recorded is None else recorded.abs().mean().to_numpy()
            n_wires = 1 + max((wire for gate in gates for wire in gate.wires), default=0)
            dead = {i for one in net.dead if one.layer == choice.layer for i in one.weights}
            label = "mean |gradient| (loss per radian)"
            return plots.Redrawn(plots.coloured_circuit(gates, n_wires, sizes, label, dead=dead))

        drawn = self._once("gates, coloured", (*LAYER, "epoch"), choice, draw)
        return drawn.over(plots.outlines(drawn.figure, choice.weight))

    def _gradients(self, choice: Choice) -> bytes | None:
        """Histogram, norm and signal to noise of the layer; None where it is not trained."""
        training = self.source.training(choice.net, choice.seed)
        steps = training.steps(choice.epoch)
        if choice.layer not in training.layers or not steps:
            return None
        recorded = gradients_of(self.source, choice)

        def draw() -> plots.Redrawn:
            each = None if recorded is None else recorded.to_numpy()
            shown = training.frame(choice.layer), (steps[0], steps[-1]), each, choice.epoch
            return plots.Redrawn(plots.layer_gradients(*shown))

        drawn = self._once("statistics", (*LAYER, "epoch"), choice, draw)
        mean = np.nan if recorded is None else recorded.iloc[:, choice.weight].mean()
        line = {"color": plots.COLOURS[1], "lw": 2}
        return drawn.over([drawn.figure.axes[0].axvline(mean, **line)] if np.isfinite(mean) else [])

    def _image(self, choice: Choice) -> bytes:
        """The image, and its quanvolved channels if there are any."""
        image = self.source.choosable[0][choice.image, None]
        maps = layers.feature_maps_of(self.source.net(choice.net, choice.seed).model, image)
        seen = image[0].numpy(), None if maps is None else maps[0, :MOST_MAPS].double().numpy()
        return self._once("image, laid out", NET, choice, lambda: plots.ImageSeen(*seen)).seen(*seen)

    def _move(self, choice: Choice) -> tuple[WhatIf, Any]:
        """The chosen weight of a circuit, ready to be moved, and what the net gives with it moved."""
        net, image = self.source.net(choice.net, choice.seed), self.source.choosable[0][choice.image]
        given = self.source.run, net, choice.layer, choice.weight, image
        moves = self._once("moves", (*LAYER, "weight", "image"), choice, lambda: WhatIf(*given))
        return moves, self._once("there", DEPENDS["what_if"], choice, lambda: moves.at(choice.shift))

    def _what_if(self, choice: Choice) -> bytes | None:
        """The chosen weight moved; None without a circuit."""
        if not self.source.net(choice.net, choice.seed).weight_names(choice.layer):
            return None
        (moves, there), label = self._move(choice), int(self.source.choosable[1][choice.image])
        before, shown = (
            moves.before,
            f"Measured by circuit {moves.shown + 1}\nof the image's {moves.n_circuits}",
        )
        names = self.source.classes[: len(before.class_probs)]
        sizes = len(before.values), names, moves.n_images
        drawn = self._once("what_if, laid out", LAYER, choice, lambda: plots.WhatIfFigure(*sizes))
        now = shown, before.values, before.class_probs, label, moves.curve
        self._once("begun", (*LAYER, "weight", "image"), choice, lambda: drawn.begin(*now))
        return drawn.moved(choice.shift, there.values, there.class_probs, there.loss)
