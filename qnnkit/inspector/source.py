"""What the inspector looks at: the rows of gradients.jsonl, the nets as they are, and some images."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qnnkit import gradients, runs
from qnnkit.gradients import History, Training
from qnnkit.layers import QuantumLayer

MOST_BUTTONS = 12
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
            name or "model": module
            for name, module in self.model.named_modules()
            if isinstance(module, QuantumLayer) or _trained_weights(module)
        }
        return dict(sorted(found.items(), key=lambda entry: not isinstance(entry[1], QuantumLayer)))

    def circuit(self, layer: str) -> QuantumLayer | None:
        """The layer of that name, if it is a circuit with weights and an image reaches it."""
        found = self.layers.get(layer)
        if not isinstance(found, QuantumLayer) or found.n_features is None:
            return None
        return found if list(found.parameters()) else None

    def weight_names(self, layer: str) -> list[str]:
        """Names of a circuit's weights, in the order of its gradient; [] for a layer without a circuit."""
        circuit = self.circuit(layer)
        return [] if circuit is None else gradients.weight_names(circuit)

    @cached_property
    def gates(self) -> dict[str, list[gradients.Gate]]:
        """Those of each circuit."""
        return {name: gradients.gates(each) for name in self.layers if (each := self.circuit(name))}

    @cached_property
    def dead(self) -> list[gradients.Dead]:
        """Weights of the whole net that cannot learn, as far as a batch of training images shows."""
        return gradients.dead(self.model, self.images)

    @property
    def told(self) -> str:
        """Completes "the net": whose weights these are."""
        if self.epoch is None:
            return "as it starts"
        if self.epoch == 0:
            return "with the weights of a checkpoint in its first epoch"
        return f"with the weights of the best epoch ({self.epoch})"


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
        with contextlib.suppress(FileNotFoundError, ValueError):  # nothing kept: `missing` tells
            self.history = gradients.read(self.run.folder)

    # --- nets -------------------------------------------------------------------------------------

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

    # --- gradients --------------------------------------------------------------------------------

    def has_kept(self, net: str, seed: int) -> bool:
        """Whether training has kept gradients of the net."""
        return self.history is not None and (net, seed) in self.history.trainings

    def training(self, net: str, seed: int) -> Training:
        """The gradients that training kept; those of "epoch" 0, of one batch now, where it has kept none."""
        if self.history is not None and self.has_kept(net, seed):
            return self.history[net, seed]
        if (net, seed) not in self._on_batch:
            row = self._gradient_on_a_batch(self.net(net, seed))
            self._on_batch[net, seed] = Training(net, seed, [row])
        return self._on_batch[net, seed]

    def _gradient_on_a_batch(self, net: Net) -> dict[str, Any]:
        """A row of one update in the form that training writes, of the net as it is, without dropout."""
        train, task = self.run.splits.train, self.run.task
        batch = train.images[:ON_BATCH], train.labels[:ON_BATCH]
        found, rows = gradients.of_batch(net.model, task, batch), []
        by_weight = {id(w): found[name] for name, w in net.model.named_parameters() if name in found}
        for name, module in net.layers.items():
            if not (weights := _trained_weights(module)):
                continue
            vector = torch.cat([by_weight[id(weight)].flatten() for weight in weights])
            row = {"layer": name, "group": "", "n_weights": len(vector), "share": [None], "ratio": [None]}
            row |= {"norm": [float(vector.norm())], "mean": [float(vector.abs().mean())]}
            circuit = net.circuit(name)
            if circuit is not None:
                row["gradient"], row["places"] = [vector.tolist()], _trained_places(circuit)
            rows.append(row)
        return {"epoch": 0, "updates": 1, "steps": [0], "layers": rows, "groups": [], "warnings": []}

    # --- images -----------------------------------------------------------------------------------

    @cached_property
    def choosable(self) -> tuple[Tensor, Tensor]:
        """The first test image of each of some classes, evenly spread, and their labels."""
        test = self.run.splits.test
        _, first = np.unique(test.labels.numpy(), return_index=True)
        places = np.linspace(0, len(first) - 1, min(len(first), MOST_BUTTONS)).round().astype(int)
        return test.images[first[places]], test.labels[first[places]]

    def class_name(self, label: int) -> str:
        splits: Any = self.run.splits  # of images
        return str(splits.classes[label])

    # --- words ------------------------------------------------------------------------------------

    def missing(self, net: str, seed: int) -> list[str]:
        """One sentence for each thing that the run has not to show, and how to get it."""
        found, told = self.net(net, seed), []
        kept = self.has_kept(net, seed)
        if found.epoch is None:
            told.append(
                f"Net {net} of seed {seed} is not trained yet: shown are the weights that it starts from, "
                f"and the gradient on one batch of {ON_BATCH} training images. Run 03_train, then Refresh."
                if not kept
                else f"Net {net} of seed {seed} has no checkpoint yet: images and what-if show the weights "
                "that it starts from. Press Refresh after an epoch."
            )
        elif not kept:
            told.append(
                f"No gradients of net {net}, seed {seed}, were kept while it trained: shown is the gradient "
                f"on one batch of {ON_BATCH} training images, {found.told}."
            )
        if not any(isinstance(layer, QuantumLayer) for layer in found.layers.values()):
            told.append(f"Net {net} has no circuit: shown are the gradients of its classical layers.")
        if self.history is not None and (n := self.history.damaged):
            lines = "1 line is" if n == 1 else f"{n} lines are"
            told.append(f"In gradients.jsonl {lines} half written or damaged, and left out.")
        return told


def _trained_places(circuit: QuantumLayer) -> list[int]:
    """Places in `gradients.weight_names` of the weights that are trained."""
    trained = torch.cat([torch.full((w.numel(),), w.requires_grad) for w in circuit.parameters()])
    return trained.nonzero().flatten().tolist()


def _trained_weights(module: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in module.parameters(recurse=False) if weight.requires_grad]


def done_before(model: nn.Module, layer: nn.Module, images: Tensor) -> dict[nn.Module, Any]:
    """What a pass has computed before it first reaches a layer: module -> its output, outermost only.

    A module that is called twice is left out, so that each has one output.
    """
    outputs: dict[nn.Module, Any] = {}
    calls: Counter[nn.Module] = Counter()
    reached = []

    def keep(module: nn.Module, given: Any, output: Any) -> None:
        calls[module] += 1
        if not reached:
            outputs[module] = output

    handles = [layer.register_forward_pre_hook(lambda *given: reached.append(True))]
    handles += [module.register_forward_hook(keep) for module in model.modules() if module is not layer]
    try:
        with torch.no_grad():
            model(images)
    finally:
        for handle in handles:
            handle.remove()
    once = {module: output for module, output in outputs.items() if calls[module] == 1}
    inner = {child for module in once for child in module.modules() if child is not module}
    return {module: output for module, output in once.items() if module not in inner}
