"""What is chosen, and the pictures of it: what widgets and the static form both show."""

from __future__ import annotations

import functools
import html
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from qnnkit import checks, gradients, layers, plots, runs
from qnnkit.inspector.what_if import WhatIf

if TYPE_CHECKING:
    import pandas as pd

MOST_CHOICES = 12
"""Test images that can be chosen."""
ON_BATCH = 64
"""Training images on which a gradient is computed where none was recorded, and weights may be dead."""
MOST_MAPS = 8
last = functools.lru_cache(maxsize=1)
"""What was made last is kept: what the next choice has in common with it is not made again."""
image_figure, what_if_figure = last(plots.ImageSeen), last(plots.WhatIfFigure)


@dataclass(frozen=True)
class Choice:
    """What is shown."""

    net: str
    seed: int
    layer: str
    weight: int = 0
    """Place among the layer's weights, as in `gradients.weight_names`."""
    epoch: int = 0
    image: int = 0
    """Place among `Views.images`."""
    shift: float = 0.0
    """By which the weight is moved, in radians."""


class Views:
    """The pictures of a layer of a net, which is at its best epoch so far, or as it starts without one.

    Args:
        run: Finished, under way or only begun; its folder is only read, now.
        net: Name of the net.
        seed: One of the run's.
        layer: The first circuit by default.

    Raises:
        ValueError: The net has no such layer.
        OSError: Its data or its checkpoints cannot be used.
    """

    def __init__(self, run: runs.Run, net: str, seed: int, layer: str | None = None):
        # Whatever trained it: the same numbers come from the fused programs, where moves are quick.
        self.run = replace(run, config=run.config.override(backend="auto"))
        splits: Any = self.run.splits  # of images
        sample = splits.train.images[:ON_BATCH]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a checkpoint that is being written is no news here
                self.model, epoch = runs.best(self.run, net, seed)
            weights = f"at its best epoch ({epoch})" if epoch else "at a checkpoint of its first epoch"
        except FileNotFoundError:
            self.model = runs.build(self.run, net, seed).eval()
            weights = "as it starts: it has no checkpoint yet (run 03_train, then this cell again)"
        self.notes = [f"Net {net}, seed {seed}, {weights}."]
        try:
            self.training = gradients.read(run.folder)[net, seed]
        except (FileNotFoundError, ValueError):
            batch = sample, splits.train.labels[:ON_BATCH]
            self.training = gradients.on_batch(self.model, self.run.task, batch)
            self.notes.append(f"No gradients were recorded: shown are those of {ON_BATCH} training images.")
        with torch.no_grad():  # a circuit is known once it has run
            self.model(sample[:1])
        every = gradients.circuits_of(self.model).items()
        circuits = {name: each for name, each in every if each.n_features and each.qnode_weights}
        if not circuits:
            self.notes.append(f"Net {net} has no circuit: shown are the gradients of its classical layers.")
        trained = self.training.frame().query("layer != 'all'")["layer"]
        self.layers = list(dict.fromkeys([*circuits, *trained]))
        """Circuits first, then the other layers that are trained."""
        if not self.layers:
            raise ValueError(checks.message("net", "have weights", net, "There is nothing to look at."))
        self.layer = checks.choice("layer", layer or self.layers[0], self.layers)
        self.rows = self.training.frame(self.layer)
        if self.rows.empty:
            self.notes.append(f"Layer {self.layer} is not trained: it has no gradient.")
        self.circuit = circuits.get(self.layer)
        self.names = gradients.weight_names(self.circuit) if self.circuit else []
        self.gates = gradients.gates(self.circuit) if self.circuit else []
        self.dead = [each for each in gradients.dead(self.model, sample) if each.layer == self.layer]
        _, first = np.unique(splits.test.labels.numpy(), return_index=True)
        first = first[:MOST_CHOICES]
        self.images, self.labels = splits.test.images[first], splits.test.labels[first]
        """The first test image of each of the first classes, and their labels."""
        self.classes = tuple(map(str, splits.classes))
        epoch = self.training.epochs[-1]
        largest = self.recorded(epoch).abs().mean().fillna(0)
        self.first = Choice(net, seed, self.layer, int(largest.argmax()) if len(largest) else 0, epoch)
        """Its last epoch, and the weight of its largest gradient there."""

    def sentences(self, epoch: int) -> list[str]:
        """Whose weights are shown, what is missing, what training warned of, which weights cannot learn."""
        warned = [each for row in self.training.rows if row["epoch"] == epoch for each in row["warnings"]]
        return [*self.notes, *warned, *map(str, self.dead)]

    def redraw(self, choice: Choice) -> tuple[dict[str, bytes], str]:
        """A PNG of each part that the layer has, and what becomes of the net with the weight moved.

        Raises:
            ValueError: What was recorded does not belong to the net.
        """
        parts, said = {"image": self._image(choice.image)}, ""
        if not self.rows.empty:
            parts["gradients"] = self._gradients(choice.epoch)
        if self.circuit:
            parts["circuit"] = self._outlined(choice.epoch, choice.weight)
            moves, drawn = self._begun(choice.weight, choice.image)
            there = moves.at(choice.shift)
            parts["what_if"] = drawn.moved(choice.shift, there.values, there.loss)
            mean = self.recorded(choice.epoch).iloc[:, choice.weight].mean()
            known = f"mean gradient {mean:+.2g} per radian in this epoch. " if np.isfinite(mean) else ""
            before, after = (
                html.escape(
                    f"{self.classes[each.class_probs.argmax()]} ({100 * each.class_probs.max():.0f} %)"
                )
                for each in (moves.before, there)
            )
            said = (
                f"{html.escape(self.names[choice.weight])}: {known}Loss on {moves.n_images} validation "
                f"images: {moves.before.loss:.4f}, and <b>{there.loss:.4f}</b> with the weight moved by "
                f"{choice.shift:+.2f} rad. The net says of the image: {before}, and then {after}."
            )
        return parts, said

    @last
    def recorded(self, epoch: int) -> pd.DataFrame:
        """Gradients of the layer's weights in an epoch, a row per update; none of a classical layer.

        Weights that are frozen, and of a large circuit those that training does not record, are NaN.
        """
        import pandas as pd

        if self.layer not in self.training.quantum_layers:
            return pd.DataFrame(np.full((1, len(self.names)), np.nan), columns=self.names)
        return self.training.gradient(self.layer, epoch, self.names)

    @last
    def _coloured(self, epoch: int) -> plots.Redrawn:
        """The circuit, each gate coloured by its gradient."""
        sizes, label = self.recorded(epoch).abs().mean().to_numpy(float), "mean |gradient| (loss per radian)"
        dead = {i for fault in self.dead for i in fault.weights}
        return plots.Redrawn(plots.coloured_circuit(self.gates, sizes, label, dead=dead))

    @last
    def _outlined(self, epoch: int, weight: int) -> bytes:
        """The same, with the gates that the chosen weight turns outlined."""
        drawn = self._coloured(epoch)
        return drawn.png(plots.outlines(drawn.figure, weight))

    @last
    def _gradients(self, epoch: int) -> bytes:
        """Histogram, norm and signal to noise of the layer."""
        steps, each = self.training.steps(epoch) or [0], self.recorded(epoch).to_numpy(float)
        return plots.as_png(plots.layer_gradients(self.rows, (steps[0], steps[-1]), each, epoch))

    @last
    def _image(self, image: int) -> bytes:
        """The image, and its quanvolved channels if there are any."""
        maps = layers.feature_maps_of(self.model, self.images[image, None])
        seen = [self.images[image].numpy(), *([] if maps is None else maps[0, :MOST_MAPS].double().numpy())]
        return image_figure(tuple(each.shape for each in seen)).seen(seen)

    @last
    def _begun(self, weight: int, image: int) -> tuple[WhatIf, plots.WhatIfFigure]:
        """A weight, ready to be moved, and the figure of it as it is."""
        assert self.circuit is not None  # only of a circuit is a weight moved
        moves = WhatIf(self.run, self.model, self.circuit, weight, self.images[image])
        title = f"Measured by circuit {moves.shown + 1} of the image's {moves.n_circuits}"
        drawn = what_if_figure(len(moves.before.values), moves.n_images)
        return moves, drawn.begin(title, moves.before.values, moves.curve)
