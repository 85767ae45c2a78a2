"""What the inspector reads of a run: the rows of gradients.jsonl, the nets as they are, and some images."""

from __future__ import annotations

import contextlib
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qnnkit import gradients, runs
from qnnkit.gradients import History, Training
from qnnkit.layers import QuantumLayer

MOST_CHOICES = 12
"""Test images that can be chosen."""
ON_BATCH = 64
"""Images of the batch on which a gradient is computed where training has recorded none."""
NOT_RECORDED = f"No gradients were recorded: shown are those of {ON_BATCH} training images."


@dataclass
class Net:
    """One net of one seed, on the CPU, in evaluation mode."""

    model: nn.Module
    epoch: int | None
    """The best one so far, whose weights these are; 0 within the first, None before any checkpoint."""
    images: Tensor
    """Some of training, on which weights are asked whether they can learn."""

    @cached_property
    def layers(self) -> dict[str, nn.Module]:
        """Name -> module, of those that own weights that are trained; circuits always, and first."""
        named = {
            name or ("layer" if isinstance(module, QuantumLayer) else "model"): module
            for name, module in self.model.named_modules()
            if isinstance(module, QuantumLayer)
            or any(weight.requires_grad for weight in module.parameters(recurse=False))
        }
        return dict(sorted(named.items(), key=lambda entry: not isinstance(entry[1], QuantumLayer)))

    def circuit(self, layer: str) -> QuantumLayer | None:
        """The layer of that name, if it is a circuit with weights and an image reaches it."""
        module = self.layers.get(layer)
        known = isinstance(module, QuantumLayer) and module.n_features is not None and module.qnode_weights
        return module if known else None  # pyright: ignore[reportReturnType]

    def weight_names(self, layer: str) -> list[str]:
        """Names of a circuit's weights, in the order of its gradient; [] for a layer without a circuit."""
        circuit = self.circuit(layer)
        return [] if circuit is None else gradients.weight_names(circuit)

    @cached_property
    def dead(self) -> list[gradients.Fault]:
        """Weights that cannot learn, as far as a batch of training images shows."""
        return gradients.dead(self.model, self.images)


class Source:
    """What a run has to show, as of the last `refresh`: finished, under way, or only begun.

    Args:
        run: Its folder is only read.
    """

    def __init__(self, run: runs.Run):
        # Whatever trained it: the same numbers come from the fused programs, where moves are quick.
        fast = run.config.backend == "auto"
        self.run = run if fast else replace(run, config=run.config.override(backend="auto"))
        self.refresh()

    def refresh(self) -> None:
        """Reads gradients.jsonl and the newest checkpoints again."""
        self._nets: dict[tuple[str, int], Net] = {}
        self._on_batch: dict[tuple[str, int], Training] = {}
        self.history = History({})
        with contextlib.suppress(FileNotFoundError, ValueError):  # nothing was recorded: `notes` says so
            self.history = gradients.read(self.run.folder)

    def net(self, net: str, seed: int) -> Net:
        """The net at its best epoch so far, or as it starts where it has no checkpoint yet.

        Raises:
            ValueError, OSError: Its data or its checkpoints cannot be used.
        """
        if (net, seed) not in self._nets:
            images = self.run.splits.train.images[:ON_BATCH]
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a checkpoint that is being written is no news here
                    best = Net(*runs.best(self.run, net, seed), images)
            except FileNotFoundError:
                best = Net(runs.build(self.run, net, seed).eval(), None, images)
            with torch.no_grad():  # a circuit is known once it has run
                best.model(images[:1])
            self._nets = {(net, seed): best}  # one at a time: a large net is not held for each seed
        return self._nets[net, seed]

    def training(self, net: str, seed: int) -> Training:
        """The recorded gradients; where there are none, those of one batch now, as "epoch" 0."""
        if (net, seed) in self.history.trainings:
            return self.history[net, seed]
        if (net, seed) not in self._on_batch:
            train, model = self.run.splits.train, self.net(net, seed).model
            batch = train.images[:ON_BATCH], train.labels[:ON_BATCH]
            self._on_batch[net, seed] = gradients.on_batch(model, self.run.task, batch)
        return self._on_batch[net, seed]

    @cached_property
    def choosable(self) -> tuple[Tensor, Tensor]:
        """The first test image of each of some classes, evenly spread, and their labels."""
        test = self.run.splits.test
        _, first = np.unique(test.labels.numpy(), return_index=True)
        places = np.linspace(0, len(first) - 1, min(len(first), MOST_CHOICES)).round().astype(int)
        return test.images[first[places]], test.labels[first[places]]

    @property
    def classes(self) -> list[str]:
        """Names of the dataset's classes."""
        splits: Any = self.run.splits  # of images
        return [str(name) for name in splits.classes]

    def notes(self, net: str, seed: int) -> list[str]:
        """Whose weights and gradients are shown, and what the run lacks."""
        shown = self.net(net, seed)
        weights = (
            f"at its best epoch ({shown.epoch})" if shown.epoch else "at a checkpoint of its first epoch"
        )
        if shown.epoch is None:
            weights = "as it starts: it has no checkpoint yet (run 03_train, then Refresh)"
        circuits = [each for each in shown.layers.values() if isinstance(each, QuantumLayer)]
        damaged = self.history.damaged
        notes = (
            (True, f"Net {net}, seed {seed}, {weights}."),
            ((net, seed) not in self.history.trainings, NOT_RECORDED),
            (not circuits, f"Net {net} has no circuit: shown are the gradients of its classical layers."),
            (damaged, f"Damaged lines of gradients.jsonl that were skipped: {damaged}."),
        )
        return [sentence for holds, sentence in notes if holds]
