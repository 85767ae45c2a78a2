"""What hardware would make of a run's trained net, on a sample of its test images."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from qnnkit import layers, noise
from qnnkit.data import ImageSplits
from qnnkit.runs import Run

MOST_CIRCUITS, FEWEST_IMAGES = 4096, 8
"""What hardware would make of a net is asked of so many circuits, but of no fewer images."""


def robustness(run: Run, model: nn.Module, n_images: int, device: str | None = None) -> list[dict[str, Any]]:
    """The rows of `noise.robustness` for a sample of the test images, as plain values.

    A net with many circuits per image classifies fewer images, down to FEWEST_IMAGES: as many as need about
    MOST_CIRCUITS circuits. How many is printed.

    None, with a printed sentence, where no image is asked for, the net has no circuit, or its circuits
    cannot be asked (see there).

    Args:
        run: Gives the test images and the seed that draws some of them.
        model: A trained net of the run.
        n_images: How many, at most.
        device: Of qiskit-ibm-runtime, see there; by default a fake one of five qubits, where the extra
            `hardware` is installed and circuits are not wider.
    """
    if not isinstance(run.splits, ImageSplits):
        print("The run has no labelled images: what hardware would make of the net is left out.")
        return []
    test = run.splits.test
    if n_images < 1:
        print("hardware_images is 0: what hardware would make of the net is left out.")
        return []
    circuits = layers.circuits_per_image(model, test.images[:1])
    if not circuits:
        print("This net has no circuit: hardware would change nothing.")
        return []
    generator = torch.Generator().manual_seed(run.config.seed)
    chosen = torch.randperm(len(test), generator=generator)[
        : min(n_images, max(FEWEST_IMAGES, MOST_CIRCUITS // circuits))
    ]
    try:
        device = device or noise.fake_device(model)
        about: dict[str, Any] = {"device": device, "seed": run.config.seed}
        rows = noise.robustness(model, test.images[chosen], test.labels[chosen], **about)
    except ValueError as error:
        print(error)
        return []
    share = f"{len(chosen)} of the {len(test):,} test images"
    print(f"Classified are {share}; each takes {circuits:,} circuit{'s' * (circuits > 1)}.")
    return [row.as_dict() for row in rows]
