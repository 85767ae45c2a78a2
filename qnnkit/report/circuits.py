"""What only a net with circuits has to show; for one without, a printed sentence says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from qnnkit import layers, noise
from qnnkit.data import ImageSplits
from qnnkit.gradients import Comparison
from qnnkit.runs import Run

if TYPE_CHECKING:
    from qnnkit.plots import Picture

NONE = "This net has no circuit:"
MOST_MAPS = 8
MOST_CIRCUITS, FEWEST_IMAGES = 4096, 8
"""What hardware would make of a net is asked of so many circuits, but of no fewer images."""


def labelled(run: Run, without: str = "") -> ImageSplits | None:
    """The run's labelled images; of other data None, and a printed sentence on what goes `without` them."""
    if isinstance(run.splits, ImageSplits):
        return run.splits
    if without:
        print(f"The run has no labelled images: {without}.")
    return None


def keep_circuit(
    run: Run, model: nn.Module, name: str, title: str, description: str, *, zeros: bool = False
) -> Picture | None:
    """Draws the first circuit that the first training image meets, and keeps the figure.

    Args:
        run: The run that keeps it.
        model: A net of the run.
        name: Of the figure's file.
        title: Of the figure.
        description: How to read it.
        zeros: Whether its inputs are drawn as zeros, not as those that it meets.
    """
    from qnnkit import plots

    found = layers.first_circuit(model, run.splits.example())
    if found is None:
        print(NONE, "there is none to draw.")
        return None
    layer, inputs = found
    figure = plots.circuit(layer, torch.zeros_like(inputs) if zeros else inputs)
    return run.keep(figure, name, title, description)


def keep_errors(run: Run, comparisons: Sequence[Comparison]) -> Picture | None:
    """Draws and keeps how far the circuits' gradients are from each independent method's."""
    from qnnkit import plots

    comparisons = [comparison for comparison in comparisons if not comparison.unavailable]
    if not comparisons:
        print("No circuit of this net has weights: there is no gradient to check.")
        return None
    figure = plots.gradient_errors(
        [f"{comparison.layer}: {comparison.method}" for comparison in comparisons],
        [comparison.error for comparison in comparisons],
        max(comparison.tolerance for comparison in comparisons),
    )
    told = "Autograd against others; left of the line is right."
    return run.keep(figure, "02_errors", "Gradient errors", told)


def keep_maps(run: Run, model: nn.Module, n_images: int) -> Picture | None:
    """Draws and keeps what the first quanvolution makes of the first test images, of its first maps."""
    from qnnkit import plots

    maps = None
    if splits := labelled(run):
        images = splits.test.images[:n_images]
        maps = layers.feature_maps_of(model, images)
    if maps is None:
        print("This net has no quanvolution: there are no feature maps to show.")
        return None
    maps = maps[:, :MOST_MAPS]
    figure = plots.feature_maps(images.numpy(), maps.numpy(), [f"map {i}" for i in range(maps.shape[1])])
    return run.keep(
        figure, "07_maps", "Quanvolved feature maps", "What the trained circuit measures, -1 to 1."
    )


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
    splits = labelled(run, "what hardware would make of the net is left out")
    if splits is None:
        return []
    test = splits.test
    if n_images < 1:
        print("hardware_images is 0: what hardware would make of the net is left out.")
        return []
    circuits = layers.circuits_per_image(model, test.images[:1])
    if not circuits:
        print(NONE, "hardware would change nothing.")
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


def keep_robustness(run: Run, rows: Sequence[dict[str, Any]]) -> Picture | None:
    """Draws and keeps the accuracy under shots and noise; nothing without rows."""
    from qnnkit import plots

    if not rows:
        return None
    exact, *others = rows
    points: dict[str, list[Any]] = {}
    for row in others:
        point = row["strength"], row["accuracy"], row["low"], row["high"]
        points.setdefault(row["condition"], []).append(point)
    figure = plots.robustness((exact["accuracy"], exact["low"], exact["high"]), points)
    told = f"Accuracy on {exact['images']} test images; bars are 95 % intervals over them."
    return run.keep(figure, "09_hardware", "What hardware would make of it", told)
