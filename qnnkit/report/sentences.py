"""What is to be known of a run besides its scores: adapter, plan, gradients, machine, each in a sentence."""

from __future__ import annotations

from typing import Any

from qnnkit import device, gradients, measure, words
from qnnkit.runs import Run, build, trained
from qnnkit.runs.rows import facts


def of_run(run: Run, result: dict[str, Any]) -> list[str]:
    """Everything that the page of a run lists under "How it went"."""
    said = [result[name]["sentence"] for name in ("adapter", "planned") if result[name]]
    if single := run.config.net_settings:
        said.append(f"Single nets were trained with settings of their own: {', '.join(single)}.")
    modules = build(run, run.nets[0], run.config.seed, bare=True).modules()
    said += of_gradients(run)
    said += [f"The net stands on: {module.origin}." for module in modules if hasattr(module, "origin")]
    said += run.provenance.get("notes") or run.splits.notes
    if placed := run.provenance.get("trained", {}).get("sentence"):
        said.append(f"Trained on {placed}")
    return (
        said
        + surveyed(run)
        + [
            f"{row['net']}, seed {row['seed']}: {row['sentence']}"
            for row in run.rows("metrics")
            if row["event"] == "warning" and row["of"] == "machine"
        ]
    )


def compare_with_plan(run: Run) -> dict[str, Any] | None:
    """Time and memory of the run's own net, first seed, as planned in 00_setup and as they came out.

    Returns:
        Seconds per epoch and bytes at the peak, `planned` and `measured`, and a `sentence`; None where there
        is no plan, or it was made for another device than the net was trained on.
    """
    planned, final = run.provenance.get("plan"), run.tested().get((run.nets[0], run.config.seed))
    trained_on = run.provenance.get("device")
    if not planned or not final or str(trained_on).split(":")[0] != planned["device"].split(":")[0]:
        return None
    pairs = {
        "seconds_per_epoch": (planned["seconds_per_epoch"], final.get("seconds_per_epoch")),
        "peak_bytes": (planned["peak_bytes"], final.get("peak_memory")),
    }
    known = {name: pair for name, pair in pairs.items() if None not in pair}
    if not known:
        return None
    tell = {"seconds_per_epoch": lambda it: f"{words.duration(it)} per epoch", "peak_bytes": words.size}
    before, after = (
        " and ".join(tell[name](pair[which]) for name, pair in known.items()) for which in (0, 1)
    )
    return {
        "planned": {name: pair[0] for name, pair in known.items()},
        "measured": {name: pair[1] for name, pair in known.items()},
        "sentence": f"Planned for the {run.nets[0]} net: {before}; it took {after}.",
    }


def compare_with_base(run: Run) -> dict[str, Any] | None:
    """The run's own adapter, first seed, as its task compares it with the base, and a `sentence`.

    Computed where the run was trained, if that can compute here.

    Returns:
        See `tasks.Language.beside_base`; None for a run without an adapter.
    """
    final = run.tested().get((run.nets[0], run.config.seed))
    compare = getattr(run.task, "beside_base", None)
    if not run.config.of_kit("adapter") or compare is None or final is None:
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


def surveyed(run: Run) -> list[str]:
    """An epoch's time and memory by device and precision, where 05_benchmark has measured them."""
    found = facts(run.folder, "machine.json")
    try:
        told = measure.survey.fastest(found)
        return [f"Measured on {found['machine']['name']}: {told}"] if told else []
    except (KeyError, TypeError, AttributeError):  # a damaged file
        return []


def of_gradients(run: Run) -> list[str]:
    """What the gradients of the training said against its circuits."""
    if not run.config.gradient_samples:
        return ["No gradients were recorded: gradient_samples was 0."]
    try:
        found = gradients.read(run.folder)
    except (FileNotFoundError, ValueError):
        return ["No gradients were recorded: this run was trained by an earlier version."]
    if not any(training.quantum_layers for training in found.trainings.values()):
        if run.config.of_kit("adapter"):
            return ["An adapter's gradients were recorded by group; 04_analyze has the table."]
        return ["No net of this run has a circuit that trains."]
    damaged = [f"{found.damaged} damaged lines of gradients.jsonl were left out."] if found.damaged else []
    trainings = found.trainings.values()
    frames = [each.frame(layer) for each in trainings for layer in each.quantum_layers]
    last = [frame[frame["epoch"] == frame["epoch"].max()]["snr_low"] for frame in frames]
    noisy = [bool((lows == 0).all()) for lows in last if lows.notna().any()]
    calm = "No circuit's gradient vanished or exploded. "
    if not noisy:
        calm += "Its noise was not measured: that wants more updates in an epoch (a smaller batch_size)."
    elif any(noisy):
        calm += (
            f"In the last epoch, {sum(noisy)} of {len(noisy)} had a signal-to-noise ratio that cannot be "
            "distinguished from 0 in a single update, as at a minimum."
        )
    else:
        calm += "In the last epoch, the signal-to-noise ratio of each was above 0 in a single update."
    return [*(found.warnings or [calm]), *damaged]
