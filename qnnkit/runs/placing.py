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

    Decided by the run's own net, for its controls too. A run that resumes is trained where it was; on another
    machine, or asked for another placement, it is measured again. Only the size of batch is kept wherever it
    goes. What has finished, and a run of several processes, measures nothing.

    Args:
        run: The run.
        locked: Whether the caller holds the folder for training. What has to be decided is decided under that
            lock, so that nobody changes it under a training that is running.

    Raises:
        BlockingIOError: It has to be decided, and another process is training this run.
    """
    known = _known(run)
    if known is not None:
        return known
    with contextlib.nullcontext() if locked else alone(run.folder, "train"):
        return _known(run) or _decide(run)


def _known(run: Run) -> Placement | None:
    """What needs no decision: that of several processes, one that is kept, and that of a finished run."""
    from qnnkit.measure import Placement
    from qnnkit.train.processes import n_processes

    if n_processes() > 1:
        return _unmeasured(run, f"{n_processes()} processes take equal shares, so nothing was measured.")
    note, tested, kept = run.placement, len(run.tested()), None
    finished = tested > 0 and tested == len(run.nets) * len(run.seeds)
    if finished or _asked(run).items() <= note.items():
        with contextlib.suppress(ValidationError):  # what a person or a cut has made of it
            kept = TypeAdapter(Placement).validate_python(note)
    if kept is not None:  # the run's own size of batch, whatever the note has
        auto = run.config.batch_size == "auto"
        return kept if auto else replace(kept, batch_size=run.config.batch_size)
    return _unmeasured(run, "it was trained before, so nothing was measured.") if finished else None


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
        config = config.override(batch_size=_decide(run).batch_size)
        run.note_provenance(batch_size=config.batch_size)
    return Run(run.folder, config)


def _decide(run: Run) -> Placement:
    """Measures, and writes the decision to the run folder."""
    from qnnkit import device
    from qnnkit.measure import placement
    from qnnkit.measure.workload import of_recipe
    from qnnkit.models.causal_lm import in_four_bits

    config, where = run.config, run.config.device
    if told := _too_large(run):
        found = _unmeasured(run, told)
    else:
        if config.of_kit("four_bit", False):
            chosen = device.choose(where)
            if in_four_bits(str(config.of_kit("pretrained")), chosen)[0] is not None:
                where = str(chosen)  # such weights are where they were read to, and stay there
        nets = len(run.nets) * len(run.seeds)
        workload = of_recipe(config, run.splits)
        found = placement.place(workload, device=where, threads=config.threads, trainings=nets)
    told, own = found.sentence, type(config).model_fields["batch_size"].default
    if config.batch_size == "auto" and own not in ("auto", found.batch_size):
        told += f" The recipe's learning rates were chosen for batch {own}."
    elif "batch_size" in run.provenance:
        told += " Its size of batch was found when the run began."
    found = replace(found, backend=config.backend, sentence=told)
    run.note_provenance(placement=asdict(found) | _asked(run))
    return found


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


def _asked(run: Run) -> dict[str, Any]:
    """What a decision answers."""
    from qnnkit.measure import placement

    asked = {name: getattr(run.config, name) for name in ("device", "backend", "threads")}
    return {"asked": asked, "machine": placement.machine_facts()}
