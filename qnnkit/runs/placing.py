"""Where a run is trained, and in which batches: decided once for a machine, and kept in the run folder."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from qnnkit import device, measure, recipes
from qnnkit.device import machine
from qnnkit.measure import Placement, placement
from qnnkit.models.causal_lm import in_four_bits
from qnnkit.runs.folder import Run
from qnnkit.runs.lock import alone
from qnnkit.train.processes import n_processes

SHARE = 0.5
"""Of the free memory: the most that a net and a copy of it may take to be tried."""


def placed(run: Run, *, locked: bool = False) -> Placement:
    """Where the nets of a run are trained, as its provenance.json has it for this machine.

    Decided by the run's own net, for its controls too. A run that resumes is trained where it was; on another
    machine, or asked for another placement, it is measured again. What has finished, and a run of several
    processes, measures nothing.

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
        return _known(run) or decide(run)


def _known(run: Run) -> Placement | None:
    """The placement of several processes, of a finished run, or as it was decided before; None: decide."""
    if n_processes() > 1:
        return _unmeasured(run, f"{n_processes()} processes take equal shares, so nothing was measured.")
    kept, tested = run.provenance.get("placement"), len(run.tested())
    finished = tested > 0 and tested == len(run.nets) * len(run.seeds)
    if isinstance(kept, dict) and (finished or _asked(run).items() <= kept.items()):
        with contextlib.suppress(ValidationError):  # what a person or a cut has made of it
            return replace(TypeAdapter(Placement).validate_python(kept), batch_size=run.config.batch_size)
    return _unmeasured(run, "it was trained before, so nothing was measured.") if finished else None


def _unmeasured(run: Run, why: str) -> Placement:
    """Where a run is trained as it was asked, or by what is usual."""
    config, place = run.config, str(device.choose(run.config.device))
    threads = config.threads if isinstance(config.threads, int) else None
    size = 1 if config.batch_size == "auto" else config.batch_size
    return Placement(place, config.backend, threads, size, f"{place}: {why}")


def decide(run: Run) -> Placement:
    """Measures where the run is trained, and writes the decision to its provenance.json."""
    config, where = run.config, run.config.device
    if reason := _too_large(run):
        found = _unmeasured(run, reason)
    else:
        if config.of_kit("four_bit", False):
            chosen = device.choose(where)
            if in_four_bits(str(config.of_kit("pretrained")), chosen)[0] is not None:
                where = str(chosen)  # such weights are where they were read to, and stay there
        workload, nets = measure.of_recipe(config, run.splits), len(run.nets) * len(run.seeds)
        found = placement.place(workload, device=where, threads=config.threads, trainings=nets)
    own = type(config).model_fields["batch_size"].default
    if config.batch_size == "auto" and own not in ("auto", found.batch_size):
        sentence = f"{found.sentence} The recipe's learning rates were chosen for batch {own}."
        found = replace(found, sentence=sentence)
    run.note_provenance(placement=asdict(found) | _asked(run))
    return found


def _too_large(run: Run) -> str | None:
    """Why a language model is not tried before it is trained; None where it may be, and for any other net.

    What is tried is a copy: of some billion weights it would crowd out what it is copied from.
    """
    bare = recipes.made(run.config, run.splits, "", run.config.seed, bare=True)
    twice, free = 2 * sum(weight.nbytes for weight in bare.parameters()), machine.memory()[1]
    if twice <= SHARE * free or not any(weight.is_meta for weight in bare.parameters()):
        return None
    sizes = f"{twice / 1e9:.1f} GB of weights, of {free / 1e9:.1f} GB of free memory"
    return f"a trial would hold {sizes}, so nothing was measured."


def _asked(run: Run) -> dict[str, Any]:
    """What a decision answers."""
    asked = {name: getattr(run.config, name) for name in ("device", "backend", "threads")}
    return {"asked": asked, "machine": placement.machine_facts()}
