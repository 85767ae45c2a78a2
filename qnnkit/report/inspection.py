"""What training did with the gradients, and which gates they reach: figures for the report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qnnkit.inspector import Inspector
from qnnkit.runs import Run

if TYPE_CHECKING:
    from qnnkit.plots import Picture


def keep_inspection(run: Run) -> list[Picture]:
    """Draws and keeps the gradients of the run's own net, first seed: sizes, signal to noise, by gate.

    What the run has not (recorded gradients, a circuit) is left out, and a printed sentence says so.
    """
    from qnnkit import plots
    from qnnkit.inspector import views

    inspector = Inspector(run)
    choice, kept = inspector.choice, []
    for sentence in inspector.source.missing(choice.net, choice.seed):
        print(sentence)
    whose = f"Net {choice.net}, seed {choice.seed}"
    if inspector.source.has_kept(choice.net, choice.seed):
        training = inspector.source.training(choice.net, choice.seed)
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
    figure = views.of_circuit(inspector.source, choice)
    if figure is not None:
        told = f"{whose}, {choice.layer}, epoch {choice.epoch}: colour is the size of the gate's gradient."
        kept.append(run.keep(figure, "12_gates", "Gradients, gate by gate", told))
    return kept
