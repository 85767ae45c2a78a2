"""What a trained language model is for others: plain files of transformers and PEFT in the run folder."""

from __future__ import annotations

from pathlib import Path

from qnnkit.data.tokens import TokenSplits
from qnnkit.runs.folder import Run
from qnnkit.runs.nets import trained


def export(run: Run) -> Path | None:
    """Writes the run's own net, first seed, to `adapter/` or `model/` of the run folder, with its tokenizer.

    What lies there loads with plain transformers and PEFT; adapters of qnnkit want `import qnnkit` beside
    them. None, and nothing is written, for nets of other data.
    """
    from qnnkit import language

    if not isinstance(run.splits, TokenSplits):
        return None
    model, tokenizer, training = trained(run), run.splits.tokenizer, run.config.training
    if run.config.model.adapter:
        return language.save_adapter(model, tokenizer, run.folder / "adapter", training)
    return language.save_model(model, tokenizer, run.folder / "model", training)
