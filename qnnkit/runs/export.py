"""What a trained language model is for others: plain files of transformers and PEFT in the run folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from qnnkit import adapters, checks, tasks
from qnnkit.models.causal_lm import causal_lm
from qnnkit.runs.folder import Run
from qnnkit.runs.nets import trained
from qnnkit.runs.using import write_model


def merge(run: Run, folder: str | Path) -> Path:
    """Writes the run's own net, first seed, its adapter worked into its base, for plain transformers.

    A base that trained in 4 bits is read in float32: the adapter is that of the run's `adapter/`.

    Args:
        run: A trained one, with an adapter; of 4 bits, a finished one.
        folder: Where to; an earlier save there is replaced.

    Raises:
        ValueError: The run has no adapter.
        NotImplementedError: Its adapter cannot be merged.
        OSError: It is not trained yet, or the folder cannot be written.
    """
    config: Any = run.config
    splits: Any = run.splits
    if not getattr(config, "adapter", None):
        step = "A language model without one is whole already: model/ of its folder."
        raise ValueError(checks.message("run_dir", "hold a run with an adapter", str(run.folder), step))
    if config.four_bit:
        model = adapters.load(causal_lm(str(config.pretrained)), run.folder / "adapter")
    else:
        model = trained(run)
    return tasks.save(tasks.merge(model, in_place=True), splits.tokenizer, folder, run.config)


def export(run: Run) -> Path:
    """Writes the run's own net, first seed, to `model/` or `adapter/` of the run folder.

    Language models go with their tokenizer: what lies there loads with plain transformers and PEFT. Beside an
    adapter lie the circuits that gave its weights. Other nets are read by `runs.load_model`.
    """
    net: Any = trained(run)
    splits: Any = run.splits
    if not (hasattr(splits, "tokenizer") and hasattr(net, "save_pretrained")):
        return write_model(run, net)
    name = "adapter" if getattr(run.config, "adapter", None) else "model"
    return tasks.save(net, splits.tokenizer, run.folder / name, run.config)
