"""What an adapter is worth beside its base on held-out text, and how fast it writes, merged and not."""

from __future__ import annotations

from typing import Any

from qnnkit import device
from qnnkit.runs import Run, trained


def beside_base(run: Run) -> dict[str, Any] | None:
    """The run's own adapter, first seed, as its task sets it beside the base, with a `sentence`.

    Computed where the run was trained, if that can compute here.

    Returns:
        See `tasks.Language.beside_base`; None for a run without an adapter.
    """
    final = run.tested().get((run.nets[0], run.config.seed))
    compare = getattr(run.task, "beside_base", None)
    if not getattr(run.config, "adapter", None) or compare is None or final is None:
        return None
    try:
        place = device.choose(str(run.provenance.get("device", "cpu")))
    except ValueError:  # trained on another machine
        place = device.choose("cpu")
    found = compare(trained(run).to(place), run.splits, final["test_loss"])
    loss, perplexity, speeds = found["loss"], found["perplexity"], found["tokens_per_second"]
    before, after = (
        f"{loss[when]:.3f} nats per token (perplexity {perplexity[when]:.1f})" for when in ("before", "after")
    )
    also = f"{speeds['merged']:,.0f} once merged" if speeds["merged"] else "cannot be merged"
    return found | {
        "sentence": f"On the test split the base alone has a loss of {before}, with the {run.nets[0]} "
        f"adapter, first seed, {after}. It writes {speeds['adapted']:,.0f} tokens/s with the adapter beside, "
        f"{also} ({place}, one text at a time)."
    }
