"""Whether the circuits of a net can learn: gates, plateaus, what they express, the loss around them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from qnnkit import circuits, expressivity, gradients, layers
from qnnkit.gradients import plateau
from qnnkit.inspector.source import Source
from qnnkit.layers import QuantumLayer
from qnnkit.report.circuits import NONE, labelled
from qnnkit.runs import Run
from qnnkit.simulator import NotFusable

if TYPE_CHECKING:
    import pandas as pd

    from qnnkit.plots import Picture

MOST_WIRES = 8
"""Of the random states that are compared with Haar's; of a wider circuit, one with so many wires."""
PAIRS = 2000
"""Of random states: enough to tell circuits apart within a second or two."""
MOST_SIZES = 24
"""Bars of a figure that can still be read."""
MOST_CIRCUITS, FEWEST_IMAGES, MOST_IMAGES = 4096, 8, 64
"""The loss around a net is that of as many images as take so many circuits."""


def keep_gates(run: Run, model: nn.Module, batch: Any) -> Picture | None:
    """Draws and keeps the first circuit, its gates coloured by the gradient of the loss on a batch.

    Args:
        run: The run that keeps it.
        model: A net of the run; left as it was.
        batch: Images and labels, on the model's device.
    """
    from qnnkit import plots

    found = layers.first_circuit(model, run.splits.example())
    if found is None or not list(found[0].parameters()):
        print(NONE, "there are no gates to colour.")
        return None
    layer = found[0]
    name = next(name for name, module in model.named_modules() if module is layer)
    gates = gradients.gates(layer)
    cannot = [one.index for one in gradients.dead(model, _given(batch)) if one.layer == name]
    sizes = gradients.of_weights(layer, model, run.task, batch).abs().numpy()
    n_wires = len(layer.qnode.device.wires)
    label = "|gradient| on one batch (loss per radian)"
    figure = plots.coloured_circuit(gates, n_wires, sizes, label, dead=cannot)
    told = f"{name}, before training: colour is the size of the gate's gradient; hatched gates cannot learn."
    return run.keep(figure, "02_gates", "Which gates can learn", told)


def _given(batch: Any) -> Any:
    """What a net takes of a batch."""
    if isinstance(batch, Mapping):
        return {name: tensor for name, tensor in batch.items() if name != "labels"}
    return batch[0]


def keep_sizes(run: Run, sizes: Sequence[gradients.Size]) -> Picture:
    """Draws and keeps the mean size of the gradient of each weight; of very many, of the smallest.

    Args:
        run: The run that keeps it.
        sizes: As `gradients.sizes` gives them.
    """
    from qnnkit import plots

    told = "Mean absolute value, on one batch before training."
    if len(sizes) > MOST_SIZES:
        told += f" The {MOST_SIZES} smallest of {len(sizes)}."
        smallest = sorted(sizes, key=lambda size: size.mean)[:MOST_SIZES]
        sizes = [size for size in sizes if size in smallest]
    figure = plots.gradient_sizes(
        [size.parameter.removeprefix("base_model.model.model.") for size in sizes],
        [size.kind for size in sizes],
        [size.mean for size in sizes],
    )
    return run.keep(figure, "02_sizes", "Gradient sizes", told)


def keep_plateau(run: Run, most_qubits: int, n_starts: int) -> Picture | None:
    """Scans, draws and keeps how the gradient of the run's kind of circuit falls with qubits and depth.

    Depths are the run's own and four times as many layers, even numbers, as identity blocks need them. What
    the fits say is printed.

    Args:
        run: Gives circuit, embedding, depth and seed.
        most_qubits: The widest circuit; below 4 the scan is left out.
        n_starts: Random initialisations of each size.
    """
    from qnnkit import plots

    settings: Any = run.config
    if getattr(settings, "circuit", None) not in circuits.ANSAETZE:
        print("The scan is of circuits in CIRCUITS, in many widths. This net has another: it is left out.")
        return None
    if most_qubits < 4:
        print("plateau_qubits is below 4: the scan is left out.")
        return None
    depth = 2 * math.ceil(settings.n_layers / 2)
    try:
        found = plateau.scan(
            settings.circuit,
            qubits=range(2, most_qubits + 1, 2),
            depths=(depth, 4 * depth),
            initialisations=tuple(circuits.INITIALISATIONS),
            n=n_starts,
            embedding=settings.embedding,
            seed=run.config.seed,
        )
    except NotFusable as reason:
        print(f"The scan is left out, because {reason}.")
        return None
    for fit in plateau.fit(found):
        if fit.initialisation == settings.initialisation:
            print("-", fit.sentence)
    random = {
        observable: {row.n_qubits: plateau.random_circuit(row.n_qubits, observable) for row in found.rows}
        for observable in plateau.OBSERVABLES
    }
    figure = plots.gradient_variances([row.as_dict() for row in found.rows], random)
    told = (
        f"{settings.circuit}, {n_starts} random starts each; bars are 95 % bootstrap intervals. Local: Z on "
        "one wire; global: the projector on |0...0>. A line as steep as the dashed one is a barren plateau."
    )
    return run.keep(figure, "02_plateau", "Gradient variance against qubits", told)


def keep_expressivity(run: Run, model: nn.Module) -> tuple[list[dict[str, Any]], list[Picture]]:
    """What the net's circuit can express, beside every other circuit in the same size.

    Args:
        run: The run that keeps the figures.
        model: A net of the run that has run once.

    Returns:
        Rows of `expressivity.table`; the kept figures: fidelities beside Haar's, and the Fourier spectrum.
        Both empty, with a printed sentence, for a net without a circuit.
    """
    from qnnkit import plots

    layer = next((part for part in model.modules() if isinstance(part, QuantumLayer)), None)
    if layer is None or layer.n_features is None:
        print(NONE, "nothing is to be said of what it can express.")
        return [], []
    settings, seed = run.config, run.config.seed
    name = getattr(settings, "circuit", None)
    if name not in circuits.ANSAETZE:
        return [], _keep_spectrum(run, layer)
    n_qubits, depth = min(len(layer.qnode.device.wires), MOST_WIRES), getattr(settings, "n_layers", 1)
    drawn = expressivity.states(name, 2 * PAIRS, n_qubits=n_qubits, n_layers=depth, seed=seed)
    own = expressivity.expressibility(drawn, seed=seed)
    figure = plots.fidelity_histograms({name: own.fidelities}, own.haar, own.edges)
    told = f"Random states of the circuit ({n_qubits} wires, {depth} layers) beside Haar's."
    kept = run.keep(figure, "02_fidelities", "How much of the state space the circuit reaches", told)
    rows = expressivity.table(n_qubits=n_qubits, n_layers=depth, pairs=PAIRS, seed=seed)
    return rows, [kept, *_keep_spectrum(run, layer)]


def _keep_spectrum(run: Run, layer: QuantumLayer) -> list[Picture]:
    from qnnkit import plots

    shapes = {name: tuple(weight.shape) for name, weight in layer.named_parameters()}
    assert layer.n_features is not None  # the caller has asked
    try:
        found = expressivity.spectrum(layer.qnode, shapes, layer.n_features, seed=run.config.seed)
    except NotFusable as reason:
        print(f"No Fourier spectrum, because {reason}.")
        return []
    for why in dict.fromkeys(one.why_not for one in found if one.why_not):
        print(f"Fourier spectrum: {why}.")
    known = {f"feature {one.feature}": (one.frequencies, one.power) for one in found if one.power}
    if not known:
        return []
    told = "Mean |c|² over random weights, of the frequencies that the circuit can express in each feature."
    return [run.keep(plots.spectra(known), "02_spectrum", "Fourier spectrum of the circuit", told)]


def gradient_table(run: Run) -> pd.DataFrame:
    """What the last recorded epoch of the run's own net, first seed, says of each group and layer.

    Medians over the observed updates; a ratio of signal to noise with its 95 % interval. Empty, with a
    printed sentence, where no gradients were recorded.
    """
    import pandas as pd

    try:
        training = gradients.read(run.folder)[run.nets[0], run.config.seed]
    except (FileNotFoundError, ValueError) as reason:
        print(reason)
        return pd.DataFrame()
    last = training.rows[-1]

    def told(each: Mapping[str, Any]) -> dict[str, Any]:
        middle = {name: _median(each[name]) for name in ("norm", "mean", "share", "ratio")}
        interval = [each["snr"], each["snr_low"], each["snr_high"]]
        known = None not in interval
        return {
            "group": each["group"],
            "layer": each.get("layer", "all"),
            "weights": each["n_weights"],
            "norm": middle["norm"],
            "mean": middle["mean"],
            "share (%)": None if middle["share"] is None else round(100 * middle["share"], 1),
            "update / weights": middle["ratio"],
            "signal / noise": "{:.2f} ({:.2f} to {:.2f})".format(*interval) if known else "",
            "clipped (%)": None if each.get("clipped") is None else 100 * each["clipped"],
        }

    return pd.DataFrame([told(each) for each in (*last["groups"], *last["layers"])]).set_index(
        ["group", "layer"]
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def keep_landscape(run: Run) -> list[Picture]:
    """Draws and keeps the loss around the run's trained net, first seed; prints what it says of the circuit.

    The loss is that of the first validation images: as many as take 4,096 circuits, from 8 to 64.
    """
    from qnnkit import plots

    splits = labelled(run, "the loss around the weights is left out")
    if splits is None:
        return []
    source = Source(run)
    net = source.net(run.nets[0], run.config.seed)
    validation = splits.validation
    n_circuits = layers.circuits_per_image(net.model, validation.images[:1])
    n = max(FEWEST_IMAGES, min(MOST_IMAGES, MOST_CIRCUITS // max(1, n_circuits)))
    batch = validation.images[:n], validation.labels[:n]
    task = run.task
    lines = gradients.lines(net.model, task, batch, n_points=41, seed=run.config.seed)
    if lines is None:
        print(NONE, "there are no angles to move.")
        return []
    print(lines.sentence)
    images = f"first {len(batch[0])} validation images"
    figure = plots.landscape_lines(lines.offsets, lines.losses, lines.names)
    told = f"Along lines through the weights of {', '.join(lines.layers)}; {images}."
    kept = [run.keep(figure, "13_lines", "The loss around the trained angles", told)]
    plane = gradients.plane(net.model, task, batch, n_points=21, seed=run.config.seed)
    if plane is not None:
        figure = plots.landscape_plane(plane.offsets, plane.losses, plane.names)
        told = f"On a plane through the same weights, which are the cross; {images}."
        kept.append(run.keep(figure, "14_plane", "The loss on a plane", told))
    return kept
