"""Where a run is trained, and in which batches: decided once for a machine, and kept in the run folder."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from qnnkit.runs.folder import Run, settled
from qnnkit.runs.lock import alone

if TYPE_CHECKING:
    from qnnkit.measure import Placement


SHARE = 0.5
"""Of the free memory: the most that a net and a copy of it may take to be tried."""


def placed(run: Run, *, locked: bool = False) -> Placement:
    """Where the nets of a run are trained, as its provenance.json has it for this machine.

    Decided by the run's own net, for its controls too. A run that goes on decides as it did where it was
    asked the same on the same machine before; on another one, or asked for another placement, it measures
    anew. Only the size of batch is kept wherever it goes. What has finished, and a run of several processes,
    measures nothing.

    Args:
        run: The run.
        locked: Whether the caller holds the folder for training. What has to be decided is decided under that
            lock, so that nobody changes it under a training that goes on.

    Raises:
        BlockingIOError: It has to be decided, and another process is training this run.
    """
    found = _known(run)
    if found is not None:
        return found
    with contextlib.nullcontext() if locked else alone(run.folder, "train"):
        return _known(run) or _again(run) or _decide(run)


def _known(run: Run) -> Placement | None:
    """What needs no decision."""
    from qnnkit.train.processes import n_processes

    if n_processes() > 1:
        return _unmeasured(run, f"{n_processes()} processes take equal shares, so nothing was measured.")
    tested = len(run.tested())
    finished = tested > 0 and tested == len(run.nets) * len(run.seeds)
    kept = _read(run, run.placement)
    if kept and (finished or _asked(run).items() <= run.placement.items()):
        return kept
    return _unmeasured(run, "it was trained before, so nothing was measured.") if finished else None


def _again(run: Run) -> Placement | None:
    """What the run decided when it was asked the same before, though it was asked something else since."""
    asked = _asked(run).items()
    for note in run.placement.get("others") or ():
        found = _read(run, note)
        if found and asked <= note.items():
            _write(run, note)
            return found
    return None


def _unmeasured(run: Run, why: str) -> Placement:
    """Where a run is trained as it was asked, or by what is usual."""
    from qnnkit import device
    from qnnkit.measure import Placement

    config, place = run.config, str(device.choose(run.config.device))
    threads = config.threads if isinstance(config.threads, int) else None
    size = 1 if config.batch_size == "auto" else config.batch_size
    return Placement(place, config.backend, threads, size, f"{place}: {why}")


def settle_batch_size(run: Run, *, begins: bool = False) -> Run:
    """The run with a number where its size of batch is "auto": measured, once, and kept in its folder.

    Args:
        run: The run.
        begins: Whether it is only now beginning: then nothing that lies in its folder counts.

    Raises:
        ValueError: The run has been trained, but the number is lost: another one would make another run.
    """
    if run.config.batch_size != "auto":
        return run
    config = run.config if begins else settled(run.folder, run.config)
    if config.batch_size == "auto":
        if not begins and (run.rows("metrics") or (run.folder / "checkpoints").exists()):
            raise ValueError(
                f"Run folder `{run.folder}` must hold the size of batch it was trained with, but "
                "provenance.json has none. Restore that file, or begin another run_dir."
            )
        found = _decide(run).batch_size
        run.note_provenance(batch_size=found)
        config = run.config.override(batch_size=found)
    return Run(run.folder, config)


def _decide(run: Run) -> Placement:
    """Measures, and writes the decision to the run folder."""
    from qnnkit import device
    from qnnkit.measure import placement
    from qnnkit.measure.workload import of_recipe
    from qnnkit.models.causal_lm import in_four_bits

    config = run.config
    if told := _too_large(run):
        return _noted(run, _unmeasured(run, told))
    where = config.device
    if config.of_kit("four_bit", False):
        chosen = device.choose(where)
        if in_four_bits(str(config.of_kit("pretrained")), chosen)[0] is not None:
            where = str(chosen)  # such weights are where they were read to, and stay there
    found = placement.place(
        of_recipe(config, run.splits),
        device=where,
        threads=config.threads,
        trainings=len(run.nets) * len(run.seeds),
    )
    return _noted(run, found)


def _too_large(run: Run) -> str | None:
    """Why a language model is not tried before it is trained; None where it may be, and for any other net.

    What is tried is a copy: of some billion weights it would crowd out what it is copied from.
    """
    from qnnkit import recipes
    from qnnkit.device import machine

    bare = recipes.made(run.config, run.splits, "", run.config.seed, bare=True)
    if not any(weight.is_meta for weight in bare.parameters()):
        return None
    twice, free = 2 * sum(weight.nbytes for weight in bare.parameters()), machine.memory()[1]
    if twice <= SHARE * free:
        return None
    sizes = f"{twice / 1e9:.1f} GB of weights, of {free / 1e9:.1f} GB of free memory"
    return f"a trial would hold {sizes}, so nothing was measured."


def _noted(run: Run, found: Placement) -> Placement:
    """A decision as the run folder then has it."""
    config, told = run.config, found.sentence
    if config.batch_size == "auto":
        own = type(config).model_fields["batch_size"].default
        if own not in ("auto", found.batch_size):
            told += f" The recipe's learning rates were chosen for batch {own}."
    elif "batch_size" in run.provenance:
        told += " Its size of batch was found when the run began."
    found = replace(found, backend=config.backend, sentence=told)
    _write(run, asdict(found) | _asked(run))
    return found


def _asked(run: Run) -> dict[str, Any]:
    """What a decision answers."""
    from qnnkit.measure import placement

    asked = {name: getattr(run.config, name) for name in ("device", "backend", "threads")}
    return {"asked": asked, "machine": placement.machine_facts()}


def _write(run: Run, note: dict[str, Any]) -> None:
    """Makes a decision the run's own; those that answered other questions stay beside it."""
    asked = _asked(run).items()
    newest = {name: value for name, value in run.placement.items() if name != "others"}
    others = [each for each in (newest, *(run.placement.get("others") or ())) if _read(run, each)]
    others = [each for each in others if not asked <= each.items()]
    run.note_provenance(placement=note | {"others": others})


def _read(run: Run, note: Any) -> Placement | None:
    """A decision as the run folder has it; None for what a person or a cut has made of one."""
    from qnnkit.measure import Placement

    try:
        found = TypeAdapter(Placement).validate_python(note)
    except ValidationError:
        return None
    size = run.config.batch_size  # the run's own, whatever the note has
    return found if size == "auto" else replace(found, batch_size=size)
