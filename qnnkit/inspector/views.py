"""A choice, and its pictures, which the widgets and the static form both show."""

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
"""Most test images that can be chosen."""
ON_BATCH = 64
"""Training images for dead weights, and for a gradient if none was recorded."""
MOST_MAPS = 8
last = functools.lru_cache(maxsize=1)
"""Caches the last result, so that what two choices share is computed once."""
image_figure, what_if_figure = last(plots.ImageSeen), last(plots.WhatIfFigure)


@dataclass(frozen=True)
class Choice:
    """A choice of what is shown.

    Args:
        net: Name of the net.
        seed: Seed of its training.
        layer: Name of the layer.
        weight: Index among the layer's weights, as in `gradients.weight_names`.
        epoch: Number of the epoch whose gradients are shown, counted from 1.
        image: Index among the test images that can be chosen.
        shift: Radians by which the weight is moved.
    """

    net: str
    seed: int
    layer: str
    weight: int = 0
    epoch: int = 0
    image: int = 0
    shift: float = 0.0


class Views:
    """Pictures of a layer of a net at its best epoch so far, or with initial weights before its first epoch.

    Args:
        run: A run in any state. Its folder is only read, when this object is made.
        net: Name of the net.
        seed: One of the run's seeds.
        layer: Name of the layer; default: the first circuit.

    Raises:
        ValueError: The net has no such layer.
        OSError: Its data or its checkpoints cannot be used.
    """

    def __init__(self, run: runs.Run, net: str, seed: int, layer: str | None = None):
        # Fused programs give the same numbers as the backend that trained, and moves are quick with them.
        self.run = replace(run, config=run.config.override(backend="auto"))
        splits: Any = self.run.splits_of(seed)  # splits of images
        sample = splits.train.images[:ON_BATCH]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a checkpoint that is being written needs no warning
                self.model, epoch = runs.best(self.run, net, seed)
            weights = f"at its best epoch ({epoch})" if epoch else "at a checkpoint of its first epoch"
        except FileNotFoundError:
            self.model = runs.build(self.run, net, seed).eval()
            weights = "with initial weights: it has no checkpoint yet (run 03_train, then this cell again)"
        self.notes = [f"Net {net}, seed {seed}, {weights}."]
        try:
            self.training = gradients.read(run.folder)[net, seed]
        except (FileNotFoundError, ValueError):
            batch = sample, splits.train.labels[:ON_BATCH]
            self.training = gradients.on_batch(self.model, self.run.task, batch)
            self.notes.append(f"No gradients were recorded; those of {ON_BATCH} training images are shown.")
        with torch.no_grad():  # circuits are traced when they first run
            self.model(sample[:1])
        named = gradients.circuits_of(self.model).items()
        circuits = {name: layer for name, layer in named if layer.n_features and layer.qnode_weights}
        if not circuits:
            self.notes.append(f"Net {net} has no circuit; the gradients of its classical layers are shown.")
        trained = self.training.frame().query("layer != 'all'")["layer"]
        self.layers = list(dict.fromkeys([*circuits, *trained]))
        """Names of circuits, then of the other trained layers."""
        if not self.layers:
            raise ValueError(checks.message("net", "have weights", net, "Choose another net."))
        self.layer = checks.choice("layer", layer or self.layers[0], self.layers)
        self.rows = self.training.frame(self.layer)
        if self.rows.empty:
            self.notes.append(f"Layer {self.layer} is not trained, so it has no gradient.")
        self.circuit = circuits.get(self.layer)
        self.names = gradients.weight_names(self.circuit) if self.circuit else []
        self.gates = gradients.gates(self.circuit) if self.circuit else []
        self.dead = [fault for fault in gradients.dead(self.model, sample) if fault.layer == self.layer]
        _, first = np.unique(splits.test.labels.numpy(), return_index=True)
        first = first[:MOST_CHOICES]
        self.images, self.labels = splits.test.images[first], splits.test.labels[first]
        """The first test image of each of the first classes, and their labels."""
        self.classes = tuple(map(str, splits.classes))
        epoch = self.training.epochs[-1]
        largest = self.recorded(epoch).abs().mean().fillna(0)
        self.first = Choice(net, seed, self.layer, int(largest.argmax()) if len(largest) else 0, epoch)
        """The first choice: the last epoch, and the weight with the largest gradient there."""

    def sentences(self, epoch: int) -> list[str]:
        """Sentences: which net is shown, what is missing, warnings of training, weights that cannot learn."""
        warned = [text for row in self.training.rows if row["epoch"] == epoch for text in row["warnings"]]
        return [*self.notes, *warned, *map(str, self.dead)]

    def redraw(self, choice: Choice) -> tuple[dict[str, bytes], str]:
        """PNGs of the parts that the layer has, and sentences on the net with the weight moved.

        Raises:
            ValueError: The recorded gradients do not belong to the net.
        """
        parts, text = {"image": self._image(choice.image)}, ""
        if not self.rows.empty:
            parts["gradients"] = self._gradients(choice.epoch)
        if self.circuit:
            parts["circuit"] = self._outlined(choice.epoch, choice.weight)
            moves, drawn = self._begun(choice.weight, choice.image)
            there = moves.at(choice.shift)
            parts["what_if"] = drawn.moved(choice.shift, there.values, there.loss)
            mean = self.recorded(choice.epoch).iloc[:, choice.weight].mean()
            gradient = f"mean gradient {mean:+.2g} per radian in this epoch. " if np.isfinite(mean) else ""
            before, after = (
                html.escape(
                    f"{self.classes[moved.class_probs.argmax()]} ({100 * moved.class_probs.max():.0f} %)"
                )
                for moved in (moves.before, there)
            )
            text = (
                f"{html.escape(self.names[choice.weight])}: {gradient}Cross-entropy of {moves.n_images} "
                f"validation images: {moves.before.loss:.4f}, and <b>{there.loss:.4f}</b> with the weight "
                f"moved by {choice.shift:+.2f} rad. Predicted class: {before}, and then {after}."
            )
        return parts, text

    @last
    def recorded(self, epoch: int) -> pd.DataFrame:
        """Gradients of the layer's weights in an epoch, one row per update; none for a classical layer.

        Frozen weights are NaN, and so are weights of a large circuit that training does not record.
        """
        import pandas as pd

        if self.layer not in self.training.quantum_layers:
            return pd.DataFrame(np.full((1, len(self.names)), np.nan), columns=self.names)
        return self.training.gradient(self.layer, epoch, self.names)

    @last
    def _coloured(self, epoch: int) -> plots.Redrawn:
        """The circuit, with each gate coloured by its gradient."""
        sizes, label = self.recorded(epoch).abs().mean().to_numpy(float), "mean |gradient| (loss per radian)"
        dead = {i for fault in self.dead for i in fault.weights}
        return plots.Redrawn(plots.coloured_circuit(self.gates, sizes, label, dead=dead))

    @last
    def _outlined(self, epoch: int, weight: int) -> bytes:
        """The coloured circuit, with outlines of the gates that the chosen weight turns."""
        drawn = self._coloured(epoch)
        return drawn.png(plots.outlines(drawn.figure, weight))

    @last
    def _gradients(self, epoch: int) -> bytes:
        """Histogram, norm and signal to noise of the layer's gradients."""
        steps, values = self.training.steps(epoch) or [0], self.recorded(epoch).to_numpy(float)
        return plots.as_png(plots.layer_gradients(self.rows, (steps[0], steps[-1]), values, epoch))

    @last
    def _image(self, image: int) -> bytes:
        """The image, and the feature maps of its quanvolution if there is one."""
        maps = layers.feature_maps_of(self.model, self.images[image, None])
        images = [self.images[image].numpy(), *([] if maps is None else maps[0, :MOST_MAPS].double().numpy())]
        return image_figure(tuple(part.shape for part in images)).seen(images)

    @last
    def _begun(self, weight: int, image: int) -> tuple[WhatIf, plots.WhatIfFigure]:
        """A weight that can be moved, and its figure before it is."""
        assert self.circuit is not None  # only weights of a circuit are moved
        moves = WhatIf(self.run, self.first.seed, self.model, self.circuit, weight, self.images[image])
        title = f"Measured by circuit {moves.shown + 1} of {moves.n_circuits} for this image"
        drawn = what_if_figure(len(moves.before.values), moves.n_images)
        return moves, drawn.begin(title, moves.before.values, moves.curve)
