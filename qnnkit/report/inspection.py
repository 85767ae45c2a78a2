"""What the inspector shows of a run as it stands, as figures for the report."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from qnnkit.inspector import Inspector
from qnnkit.report.circuits import labelled
from qnnkit.runs import Run

if TYPE_CHECKING:
    from qnnkit.plots import Picture


MOST_CIRCUITS = 4
"""Of one net, whose gates are drawn."""
QUARTER_TURN = math.pi / 2


def look_inside(run: Run) -> Inspector | None:
    """The inspector of a run of labelled images; of others a printed sentence."""
    return Inspector(run) if labelled(run, "the inspector presses images, and is left out") else None


def keep_inspection(run: Run) -> list[Picture]:
    """Draws and keeps what an inspector of the run's own net, first seed, begins with.

    The gradients' sizes and signal to noise while it trained; its circuits, up to `MOST_CIRCUITS`, gate by
    gate; single gradients of the first, an image through the net, and the loss along one weight. What the
    run has not (recorded gradients, a circuit) is left out, and a printed sentence says so.
    """
    from qnnkit import plots
    from qnnkit.inspector import views

    if not labelled(run):
        return []
    inspector = Inspector(run)
    source, choice, kept = inspector.source, inspector.choice, []
    own = choice.net, choice.seed
    for sentence in source.missing(*own):
        print(sentence)
    whose = f"Net {choice.net}, seed {choice.seed}"
    if source.has_kept(*own):
        training = source.training(*own)
        groups = {name: training.group(name) for name in training.groups}
        one = next(iter(groups.values()))
        figure = plots.gradient_history(
            one.steps.tolist(),
            {name: group.norm.tolist() for name, group in groups.items()},
            {name: group.clip_norm for name, group in groups.items()},
        )
        told = f"{whose}: a group that is orders of magnitude below the other hardly trains."
        kept.append(run.keep(figure, "10_gradients", "Gradients in training", told))
        ratios = {
            name: (group.snr.tolist(), group.snr_low.tolist(), group.snr_high.tolist())
            for name, group in groups.items()
        }
        figure = plots.gradient_snr(one.epochs.tolist(), ratios, training.updates)
        told = (
            f"{whose}. A band that reaches 0 is not told from noise; where the whole band lies below the "
            "dotted line, the mean over an epoch's steps is mostly noise too."
        )
        kept.append(run.keep(figure, "11_snr", "Signal to noise of the gradient", told))
    net = source.net(*own)
    when = f"epoch {choice.epoch}" if choice.epoch else f"one batch, the net {net.told}"
    names = [name for name in net.layers if net.circuit(name) is not None]
    for number, name in enumerate(names[:MOST_CIRCUITS], 1):
        of_circuit = choice if name == choice.layer else views.first_choice(source, *own, name)
        figure = views.of_circuit(source, of_circuit)
        assert figure is not None  # it has a circuit
        told = f"{whose}, {name}, {when}: colour is the size of the gate's gradient."
        if len(names) > MOST_CIRCUITS:
            told += f" Drawn are the first {MOST_CIRCUITS} of {len(names)} circuits."
        place = f"12_gates_{number}" if number > 1 else "12_gates"
        kept.append(run.keep(figure, place, "Gradients, gate by gate", told))
    figure = views.of_layer(source, choice)
    if figure is not None:
        told = f"{whose}, {choice.layer}, {when}. Gradients on both sides of zero cancel over the updates."
        kept.append(run.keep(figure, "15_layer", "Gradients of one layer", told))
    told = f"{whose}, {net.told}: what its circuits make of a test image, and what it says of it."
    kept.append(run.keep(views.of_image(source, choice), "16_image", "One image through the net", told))
    found = views.what_if(source, choice)
    if found is not None:
        moves, moving = found
        there = moves.at(QUARTER_TURN)
        moving.move(QUARTER_TURN, there.values, there.class_probs, there.loss)
        told = (
            f"{whose}, {net.told}: the same image, and the loss, if one weight of {choice.layer} were "
            "a quarter turn further. Of its weights this one has the largest gradient."
        )
        kept.append(run.keep(moving.figure, "17_what_if", "What if one weight were another?", told))
    return kept
