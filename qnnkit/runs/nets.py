"""The nets of a run, untrained and trained, and what they are given."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qnnkit import checks, layers, recipes
from qnnkit.checkpoint import Store
from qnnkit.data import ImageSplits, Splits
from qnnkit.models import features
from qnnkit.runs.folder import Run


def build(run: Run, net: str, seed: int, *, bare: bool = False) -> nn.Module:
    """An untrained net of the run: its own, or one of the controls, which starts from the same weights.

    Args:
        run: The run.
        net: Its name.
        seed: Fixes its first weights.
        bare: Whether a language model's weights are left on the meta device, where they take no memory: it
            can be counted, and what is refused is refused alike, but nothing can be computed.

    Raises:
        ValueError: The run has no such net.
    """
    checks.choice("net", net, run.nets)
    return recipes.made(run.config, run.splits, net, seed, bare=bare)


def count_parameters(run: Run) -> dict[str, dict[str, int]]:
    """Net -> its weights by kind, see `layers.count_parameters`; never are two of them in memory."""
    return {net: layers.count_parameters(build(run, net, run.config.seed, bare=True)) for net in run.nets}


def first_batch(
    run: Run, place: torch.device | str = "cpu", *, split: str = "train", n: int | None = None
) -> Any:
    """The first `n` samples of a split, by default a batch, as the task takes them, on a device."""
    from accelerate.utils import send_to_device

    batches = run.splits.batches(split, n or run.config.batch_size, shuffle=False)
    return send_to_device(next(iter(batches)), place)


def seen_by(run: Run, model: nn.Module, place: torch.device | str = "cpu") -> Splits:
    """What a net of the run is given: the data, or what its frozen part made of the images once."""
    if not isinstance(run.splits, ImageSplits):
        return run.splits
    changes = run.config.of_kit("augmentation", "none") != "none" or run.config.shots
    if changes or run.config.noise:  # other images or other shots, other features
        return run.splits
    return features.of(model, run.splits, place)


def trained(run: Run, net: str | None = None, seed: int | None = None) -> nn.Module:
    """A net of the run at its best epoch; the run's own, of its first seed, by default.

    Raises:
        FileNotFoundError: It has not been trained yet.
    """
    return best(run, net or run.nets[0], run.config.seed if seed is None else seed)[0]


def best(run: Run, net: str, seed: int) -> tuple[nn.Module, int]:
    """A net as `trained` gives it, and which epoch that is: 0 within the first one, before it ended."""
    model, store = build(run, net, seed), Store(run.checkpoints(net, seed), run.identity(net, seed))
    if store.restore() is None:
        raise FileNotFoundError(
            f"Net {net} of seed {seed} must be trained first: run 03_train on {run.folder}."
        )
    progress = store.load_best(model)["progress"]
    return model.eval(), progress["epoch"]
