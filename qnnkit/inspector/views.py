"""What is chosen, and the pictures of it: what widgets and the static form both show."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from qnnkit import checks, gradients, layers
from qnnkit.inspector.source import Source
from qnnkit.inspector.what_if import Moved, WhatIf

MOST_MAPS, LIKELIEST = 8, 3
LAYER = {"net", "seed", "layer", "weight"}
DEPENDS = {
    "circuit": LAYER | {"epoch"},
    "what_if": LAYER | {"image", "shift"},
    "image": {"net", "seed", "image"},
    "gradients": LAYER | {"epoch"},
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
    return replace(choice, weight=int(np.nan_to_num(sizes(recorded)).argmax()))


def sentences(source: Source, choice: Choice) -> list[str]:
    """Whose weights are shown, what is missing, what training warned of, which weights cannot learn."""
    training, said = source.training(choice.net, choice.seed), source.notes(choice.net, choice.seed)
    if choice.layer not in training.layers:
        said.append(f"Layer {choice.layer} is not trained: it has no gradient.")
    said += [warning for epoch, warning in training.warnings if epoch == choice.epoch]
    return [*said, *map(str, gradients.of_dead(source.net(choice.net, choice.seed).dead(choice.layer)))]


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


class Views:
    """The pictures of a choice; what the next choice has in common with it is not drawn again.

    Args:
        source: What is shown, as of now: after its `refresh`, make another.
    """

    def __init__(self, source: Source):
        self.source = source
        self.kept: dict[str, tuple[Any, Any]] = {}

    def redraw(self, choice: Choice, parts: Collection[str] = tuple(DEPENDS)) -> dict[str, bytes | None]:
        """A PNG of each part; None for what the chosen layer has not.

        Raises:
            ValueError: What was recorded does not belong to the net.
        """
        return {part: getattr(self, f"_{part}")(choice) for part in parts}

    def move(self, choice: Choice) -> tuple[WhatIf, Moved]:
        """The chosen weight of a circuit, ready to be moved, and what the net gives with it moved."""
        net, image = self.source.net(choice.net, choice.seed), self.source.choosable[0][choice.image]
        make = partial(WhatIf, self.source.run, net, choice.layer, choice.weight, image)
        moves = self._once("moves", make, choice, "weight", "image")
        return moves, self._once("there", partial(moves.at, choice.shift), choice, "weight", "image", "shift")

    def _once(self, name: str, make: Callable[[], Any], choice: Choice, *fields: str) -> Any:
        """What was made last under this name, if that was for a choice with the same layer and fields."""
        key = [getattr(choice, field) for field in ("net", "seed", "layer", *fields)]
        if self.kept.get(name, (None, None))[0] != key:
            self.kept[name] = key, make()
        return self.kept[name][1]

    def _circuit(self, choice: Choice) -> bytes | None:
        """The circuit, each gate coloured by its gradient, the chosen weight's outlined; None without one."""
        from qnnkit import plots

        net = self.source.net(choice.net, choice.seed)
        circuit = net.circuit(choice.layer)
        if circuit is None:
            return None
        gates = self._once("gates", partial(gradients.gates, circuit), choice)

        def draw() -> plots.Redrawn:
            recorded, n_weights = gradients_of(self.source, choice), len(net.weight_names(choice.layer))
            values = np.full(n_weights, np.nan) if recorded is None else sizes(recorded)
            n_wires = 1 + max((wire for gate in gates for wire in gate.wires), default=0)
            dead, label = {one.index for one in net.dead(choice.layer)}, "mean |gradient| (loss per radian)"
            return plots.Redrawn(plots.coloured_circuit(gates, n_wires, values, label, dead=dead))

        drawn = self._once("circuit", draw, choice, "epoch")
        return drawn.over(plots.outlines(drawn.figure, choice.weight))

    def _gradients(self, choice: Choice) -> bytes | None:
        """Histogram, norm and signal to noise of the layer; None where it is not trained."""
        from qnnkit import plots

        training = self.source.training(choice.net, choice.seed)
        steps = training.steps(choice.epoch)
        if choice.layer not in training.layers or not steps:
            return None
        recorded = gradients_of(self.source, choice)
        data = training.frame(choice.layer), (steps[0], steps[-1]), recorded, choice.epoch
        drawn = self._once("gradients", lambda: plots.Redrawn(plots.layer_gradients(*data)), choice, "epoch")
        mean = np.nan if recorded is None else recorded[:, choice.weight].mean()
        line = {"color": plots.COLOURS[1], "lw": 2}
        return drawn.over([drawn.figure.axes[0].axvline(mean, **line)] if np.isfinite(mean) else [])

    def says(self, choice: Choice) -> str:
        """The classes that the net holds likeliest for the chosen image, and the true one."""
        images, labels = self.source.choosable
        model, classes = self.source.net(choice.net, choice.seed).model, self.source.classes
        with layers.evaluating(model):
            likeliest = (
                model(images[choice.image, None]).double().softmax(-1)[0].sort(descending=True, stable=True)
            )
        found = zip(likeliest.values[:LIKELIEST].tolist(), likeliest.indices.tolist(), strict=False)
        told = ", ".join(f"{classes[place]} ({100 * share:.0f} %)" for share, place in found)
        return f"The net says {told}; it is {classes[int(labels[choice.image])]}."

    def _image(self, choice: Choice) -> bytes:
        """The image, and its quanvolved channels if there are any."""
        from qnnkit import plots

        image = self.source.choosable[0][choice.image, None]
        maps = layers.feature_maps_of(self.source.net(choice.net, choice.seed).model, image)
        seen = image[0].numpy(), None if maps is None else maps[0, :MOST_MAPS].double().numpy()
        return self._once("image", partial(plots.ImageSeen, *seen), choice).seen(*seen)

    def _what_if(self, choice: Choice) -> bytes | None:
        """The chosen weight moved; None without a circuit."""
        from qnnkit import plots

        if not self.source.net(choice.net, choice.seed).weight_names(choice.layer):
            return None
        (moves, there), label = self.move(choice), int(self.source.choosable[1][choice.image])
        before = moves.before
        names = self.source.classes[: len(before.class_probs)]
        make = partial(plots.WhatIfFigure, len(before.values), names, moves.n_images)
        drawn = self._once("what_if", make, choice)
        title = f"Measured by circuit {moves.shown + 1}\nof the image's {moves.n_circuits}"
        begin = partial(drawn.begin, title, before.values, before.class_probs, label, moves.curve)
        self._once("begun", begin, choice, "weight", "image")
        return drawn.moved(choice.shift, there.values, there.class_probs, there.loss)
