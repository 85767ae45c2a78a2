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
from qnnkit.train import Group

MOST_CHOICES = 12
"""Test images that can be chosen."""
ON_BATCH = 64
"""Images of the batch on which a gradient is computed where training has kept none."""


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
        found = {
            name or ("layer" if isinstance(module, QuantumLayer) else "model"): module
            for name, module in self.model.named_modules()
            if isinstance(module, QuantumLayer) or _trained_weights(module)
        }
        return dict(sorted(found.items(), key=lambda entry: not isinstance(entry[1], QuantumLayer)))

    def circuit(self, layer: str) -> QuantumLayer | None:
        """The layer of that name, if it is a circuit with weights and an image reaches it."""
        found = self.layers.get(layer)
        if isinstance(found, QuantumLayer) and found.n_features is not None and found.qnode_weights:
            return found
        return None

    def weight_names(self, layer: str) -> list[str]:
        """Names of a circuit's weights, in the order of its gradient; [] for a layer without a circuit."""
        circuit = self.circuit(layer)
        return [] if circuit is None else gradients.weight_names(circuit)

    @cached_property
    def _dead(self) -> list[gradients.Dead]:
        return gradients.dead(self.model, self.images)

    def dead(self, layer: str) -> list[gradients.Dead]:
        """A layer's weights that cannot learn, as far as a batch of training images shows."""
        return [one for one in self._dead if one.layer == layer]


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
        """Reads gradients.jsonl and the newest checkpoints anew."""
        self._nets: dict[tuple[str, int], Net] = {}
        self._on_batch: dict[tuple[str, int], Training] = {}
        self.history: History | None = None
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
                    found = Net(*runs.best(self.run, net, seed), images)
            except FileNotFoundError:
                found = Net(runs.build(self.run, net, seed).eval(), None, images)
            with torch.no_grad():  # a circuit is known once it has run
                found.model(images[:1])
            self._nets = {(net, seed): found}  # one at a time: a large net is not held for each seed
        return self._nets[net, seed]

    def has_recorded(self, net: str, seed: int) -> bool:
        """Whether training has recorded gradients of the net."""
        return self.history is not None and (net, seed) in self.history.trainings

    def training(self, net: str, seed: int) -> Training:
        """The recorded gradients; where there are none, those of one batch now, as "epoch" 0."""
        if self.history is not None and self.has_recorded(net, seed):
            return self.history[net, seed]
        if (net, seed) not in self._on_batch:
            self._on_batch[net, seed] = Training(net, seed, [self._row_of_a_batch(self.net(net, seed))])
        return self._on_batch[net, seed]

    def _row_of_a_batch(self, net: Net) -> dict[str, Any]:
        """The row that training would write of one batch, of the net as it is, without dropout."""
        train, model = self.run.splits.train, net.model
        found = gradients.of_batch(model, self.run.task, (train.images[:ON_BATCH], train.labels[:ON_BATCH]))
        watch = gradients.Watch(model, [Group("", list(model.parameters()), 0.0)])
        for name, gradient in found.items():
            weight = model.get_parameter(name)
            weight.grad = gradient.to(weight)
        watch.before()
        watch.after(0)
        model.zero_grad()
        return watch.end(0, 1) | {"warnings": []}

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
        epoch, recorded = self.net(net, seed).epoch, self.has_recorded(net, seed)
        if epoch is None:
            weights = "as it starts: it has no checkpoint yet (run 03_train, then Refresh)"
        else:
            weights = f"at its best epoch ({epoch})" if epoch else "at a checkpoint of its first epoch"
        said = [f"Net {net}, seed {seed}, {weights}."]
        if not recorded:
            said.append(f"No gradients were recorded: shown are those of {ON_BATCH} training images.")
        if not any(isinstance(layer, QuantumLayer) for layer in self.net(net, seed).layers.values()):
            said.append(f"Net {net} has no circuit: shown are the gradients of its classical layers.")
        if self.history is not None and self.history.damaged:
            said.append(f"Damaged lines of gradients.jsonl that were left out: {self.history.damaged}.")
        return said


def _trained_weights(module: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in module.parameters(recurse=False) if weight.requires_grad]
