"""Where a run is trained, and in which batches: decided once for a machine, and kept in the run folder."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from torch import Tensor

from qnnkit import workspace
from qnnkit.runs.folder import PLACED, Run, settled

if TYPE_CHECKING:
    from qnnkit.placement import Placement


def placed(run: Run) -> Placement:
    """Where the nets of a run are trained, as `placement.json` of its folder has it for this machine.

    Decided by the run's own net, for its controls too. A run that goes on on the same machine decides as it
    did; on another one, or asked for another placement, it measures anew. Only the size of batch is kept
    wherever it goes. What has finished, and a run of several processes, measures nothing.
    """
    from qnnkit import device, placement
    from qnnkit.train.processes import n_processes

    config, kept = run.config, run.placement
    asked = {name: getattr(config, name) for name in ("device", "backend", "threads")}

    def unmeasured(why: str) -> Placement:
        place, threads = str(device.choose(config.device)), config.threads
        number = threads if isinstance(threads, int) else None
        told = f"{place}: {why}, so nothing was measured."
        return placement.Placement(place, config.backend, number, config.training.batch_size, told)

    if n_processes() > 1:
        return unmeasured(f"{n_processes()} processes take equal shares")
    finished = len(run.tested()) == len(run.nets) * len(run.seeds)
    if kept and (finished or (kept.get("asked") == asked and kept.get("machine") == placement.here())):
        return _of(kept)
    if finished:
        return unmeasured("it was trained before")
    return _decide(run)


def settle_batch_size(run: Run) -> Run:
    """The run with a number where its size of batch is "auto": measured, once, and kept in its folder."""
    if run.config.training.batch_size != "auto":
        return run
    config = settled(run.folder, run.config)
    if config.training.batch_size == "auto":
        _decide(run)
        config = settled(run.folder, run.config)
    return Run(run.folder, config)


def _decide(run: Run) -> Placement:
    """Measures, and writes what was found to the run folder."""
    from qnnkit import placement, recipes
    from qnnkit.models import features
    from qnnkit.runs import nets

    config, splits = run.config, run.splits
    model, training = nets.build(run, run.nets[0], config.seed), config.training
    unknown = training.batch_size == "auto"

    def samples() -> tuple[Tensor, Tensor]:
        n = placement.LARGEST if unknown else training.batch_size
        changing = training.augmentation != "none"
        images = splits.train.images[:n]
        n_images = len(splits.train) + len(splits.validation) + len(splits.test)
        return images if changing else features.made(model, images, n_images), splits.train.labels[:n]

    about = config.model_dump(mode="json", include={"model", "backend"}, exclude_defaults=True)
    found = placement.place(
        model,
        nets.task_of(training),
        samples,
        training,
        device=config.device,
        threads=config.threads,
        groups=lambda net: nets.parameter_groups(net, training),
        n_samples=len(splits.train),
        about={
            **about,
            "channels": splits.channels,
            "image_size": splits.image_size,
            "classes": splits.n_classes,
        },
    )
    note: dict[str, Any] = {
        **asdict(found),
        "backend": config.backend,
        "asked": {name: getattr(config, name) for name in ("device", "backend", "threads")},
        "machine": placement.here(),
    }
    if unknown:
        own = recipes.RECIPES[config.recipe].training.batch_size if config.recipe in recipes.RECIPES else None
        note |= {"batch_size_found": True}
        if own not in (None, found.batch_size):
            note["sentence"] += f" The recipe's learning rates were chosen for batch {own}."
    elif run.placement.get("batch_size_found"):
        note |= {"batch_size_found": True}
        note["sentence"] += " Its size of batch was found when the run began."
    workspace.write_json(run.folder / PLACED, note)
    return _of(note)


def _of(note: dict[str, Any]) -> Placement:
    from qnnkit.placement import Placement

    return Placement(**{each.name: note[each.name] for each in fields(Placement)})
