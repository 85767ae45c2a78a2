"""What an adapter is worth beside its base on held-out text, and how fast it writes, merged and not."""

from __future__ import annotations

from typing import Any

from qnnkit import device, language
from qnnkit.data.tokens import TokenSplits
from qnnkit.runs import Run, trained
from qnnkit.tasks import perplexity

READ = 16
"""Tokens of a test block that are gone on with."""


def beside_base(run: Run) -> dict[str, Any] | None:
    """The run's own adapter, first seed: loss on the test split before and after, and speed of writing.

    Computed where the run was trained, if that can compute here; no second copy of the model is made.

    Returns:
        `loss` and `perplexity`, `before` and `after`; tokens per second, `adapted` and `merged` (None of an
        adapter that cannot be merged); and a `sentence`. None for a run without an adapter.
    """
    splits, final = run.splits, run.tested().get((run.nets[0], run.config.seed))
    if not getattr(run.config, "adapter", None) or not isinstance(splits, TokenSplits) or final is None:
        return None
    try:
        place = device.choose(str(run.provenance.get("device", "cpu")))
    except ValueError:  # trained on another machine
        place = device.choose("cpu")
    model: Any = trained(run).to(place)
    with language.without_adapter(model):
        before = language.evaluate(model, splits, "test")["loss"]
    after, ids = final["test_loss"], splits.test.input_ids[:1, :READ]
    speeds = {"adapted": language.speed(model, ids), "merged": None}
    try:
        speeds["merged"] = language.speed(language.merge(model, in_place=True), ids)
        also = f"{speeds['merged']:,.0f} once merged"
    except NotImplementedError:
        also = "cannot be merged"
    base, both = (
        f"{each:.3f} nats per token (perplexity {perplexity(each):.1f})" for each in (before, after)
    )
    return {
        "loss": {"before": before, "after": after},
        "perplexity": {"before": perplexity(before), "after": perplexity(after)},
        "tokens_per_second": speeds,
        "sentence": f"On the test split the base alone has a loss of {base}, with the {run.nets[0]} adapter, "
        f"first seed, {both}. It writes {speeds['adapted']:,.0f} tokens/s with the adapter beside, {also} "
        f"({place}, one text at a time).",
    }
