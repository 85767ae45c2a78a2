"""A run's folder: what was asked for, on what it ran, what came out. The only channel between notebooks."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnkit import checks, recipes, stats, workspace
from qnnkit.config import (
    PATHS,
    PLACEMENT,
    CriteriaConfig,
    DataConfig,
    FlatValue,
    RunConfig,
    validate,
)
from qnnkit.runs.allowed import check_base, check_names
from qnnkit.runs.lock import alone, bring
from qnnkit.runs.origin import origin

if TYPE_CHECKING:
    import pandas as pd

    from qnnkit.data import Splits
    from qnnkit.plots import Picture


PLACED = "placement.json"
"""Where and in which batches a run is trained, as it was found on the machine that trains it."""
CRITERIA = "criteria.json"
"""Bounds of success that were given after the run had begun; config.json has those that it began with."""


@dataclass(frozen=True)
class Run:
    """One execution of a recipe, and the folder it owns."""

    folder: Path
    config: RunConfig
    """As config.json has them, but for a size of batch that was "auto": that is the number that was found."""

    def notebook(self, name: str) -> Path:
        """Where the executed copy of a notebook stands once it has finished."""
        return self.folder / "notebooks" / f"{name}.ipynb"

    def checkpoints(self, net: str, seed: int) -> Path:
        """Folder of one net's checkpoints."""
        return self.folder / "checkpoints" / f"{net}-seed{seed}"

    def identity(self, net: str, seed: int) -> dict[str, Any]:
        """What tells one net's checkpoints from others: what it is made of and sees."""
        # Without defaults: a setting that a later version adds makes no other net of an older one.
        made_of = self.asked.model_dump(mode="json", include={"data", "model"}, exclude_defaults=True)
        digest = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
        return {"net": net, "seed": seed, "data and model": digest[:16]}

    @property
    def asked(self) -> RunConfig:
        """The settings with paths as config.json has them, which hold wherever the workspace lies."""
        begun = read_config(self.folder / "config.json")
        if begun is None:
            return self.config.with_paths(workspace.portable)
        flat = begun.flat()
        return self.config.override(**{name: flat[name] for name in PATHS})

    @property
    def report(self) -> Path:
        return self.folder / "report.html"

    @property
    def result(self) -> dict[str, Any] | None:
        """What 04_analyze found; None while the run is unfinished."""
        return workspace.read_json(self.folder / "result.json")

    @property
    def seeds(self) -> range:
        return range(self.config.seed, self.config.seed + self.config.n_seeds)

    @property
    def nets(self) -> tuple[str, ...]:
        """The net of the run ("hybrid", or "reference" without a circuit) and the controls beside it."""
        from qnnkit.models import has_circuit

        main = "hybrid" if has_circuit(self.config.model) else "reference"
        return (main, *self.config.controls)

    @cached_property
    def splits(self) -> Splits:
        """The data, as the configuration asks for them.

        Raises:
            ValueError: They cannot be used, or are not those that the run was trained on.
        """
        splits, chosen = self.load_data(), self.config.data
        trained_on = self.provenance.get("data")
        if trained_on is not None and splits.fingerprint() != trained_on:
            raise ValueError(
                f"Run folder `{self.folder}` was trained on other data: "
                f"`{chosen.data_dir or chosen.dataset}` has changed since. Put the files back as they were, "
                "or begin another run_dir."
            )
        return splits

    def load_data(self, *, cached: bool = True) -> Splits:
        """The data, whatever the run was trained on.

        Args:
            cached: Whether images kept from before may stand for files of the same names, sizes and times.

        Raises:
            ValueError, OSError: They cannot be used.
        """
        from qnnkit import data

        chosen = self.config.data.model_dump(exclude={"dataset"})
        options = {"root": chosen.pop("data_dir"), **chosen}
        words = {"`root`": "`data_dir`", "root=": "data_dir=", "download=True": "--set download=true"}
        if options["tokenizer"] is None and data.takes(self.config.data.dataset, "tokenizer"):
            options["tokenizer"] = self.config.model.pretrained  # whose tokens its model knows
            words |= {"`tokenizer`": "`pretrained`"}
        usual = DataConfig()
        for name in [*options]:
            unasked = options[name] == getattr(usual, name, None)
            if options[name] is None or (unasked and not data.takes(self.config.data.dataset, name)):
                del options[name]  # the dataset has its own
        if not cached and data.takes(self.config.data.dataset, "cached"):
            options["cached"] = False
        # The library's arguments have other names in notebooks and on the command line.
        with checks.in_words(words):
            return data.load(self.config.data.dataset, **options)

    @property
    def score(self) -> stats.Score:
        """The number that its nets are compared by."""
        from qnnkit import data, tasks

        return tasks.SCORES[data.kind(self.config.data.dataset)]

    @property
    def provenance(self) -> dict[str, Any]:
        """On what the run began and computed."""
        return workspace.read_json(self.folder / "provenance.json") or {}

    @property
    def placement(self) -> dict[str, Any]:
        """What was last decided on where the run is trained, and why; see `runs.placed`."""
        found = workspace.read_json(self.folder / PLACED)
        return found if isinstance(found, dict) else {}

    def log(self, kind: str, row: dict[str, Any]) -> None:
        """Adds a row to `<kind>.jsonl`."""
        workspace.append_line(self.folder / f"{kind}.jsonl", row)

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """The rows of `<kind>.jsonl`, oldest first."""
        return workspace.read_lines(self.folder / f"{kind}.jsonl")

    def epochs(self) -> pd.DataFrame:
        """One row per net, seed and epoch, from metrics.jsonl.

        An epoch that was computed twice, because a kill fell between its row and its checkpoint, counts once.
        """
        import pandas as pd

        rows = [row for row in self.rows("metrics") if row["event"] == "epoch"]
        frame = pd.DataFrame(rows)
        return frame.drop_duplicates(["net", "seed", "epoch"], keep="last") if rows else frame

    def tested(self) -> dict[tuple[str, int], dict[str, Any]]:
        """(net, seed) -> the row of its test, for those that have been trained for as long as is asked."""
        epochs = self.config.training.epochs
        rows = [row for row in self.rows("metrics") if row["event"] == "test"]
        return {(row["net"], row["seed"]): row for row in rows if row.get("epochs", epochs) == epochs}

    def finals(self) -> pd.DataFrame:
        """One row per net and seed that has finished: test numbers, parameter counts, seconds per epoch."""
        import pandas as pd

        return pd.DataFrame(list(self.tested().values()))

    def keep(self, figure: Picture, name: str, title: str, description: str) -> Picture:
        """Writes a figure to figures/<name>.png, with its title and how to read it, for the report."""
        content = figure.png(Title=title, Description=description)
        workspace.write_bytes(workspace.make_folder(self.folder / "figures") / f"{name}.png", content)
        return figure

    def note_provenance(self, **facts: Any) -> None:
        """Adds facts to provenance.json; those that are there already are replaced."""
        workspace.write_json(self.folder / "provenance.json", self.provenance | facts)


def open_run(run_dir: str | Path, recipe: str | None = None, **settings: FlatValue) -> Run:
    """The run in `run_dir`, begun there if the folder is new.

    Args:
        run_dir: Its folder; a relative one is meant from the workspace.
        recipe: Entry of RECIPES; None takes the folder's own.
        **settings: Exchanged in the recipe; None leaves a setting as it is. In a folder that has begun they
            must agree with what it began with, except for those of `config.PLACEMENT` and more `epochs`.

    Raises:
        ValueError: A name or value is wrong, or the folder holds another experiment (it is told which).
        OSError: The folder cannot be made or written.
    """
    from qnnkit.runs.placing import settle_batch_size

    folder = workspace.run_folder(run_dir)
    bring(folder)
    given = in_workspace({name: value for name, value in settings.items() if value is not None})
    path = folder / "config.json"
    begun = read_config(path)
    if begun is None:
        if recipe is None:
            rule, step = "hold a run", "Name a recipe to begin one there."
            raise FileNotFoundError(checks.message("run_dir", rule, str(folder), step))
        config = recipes.recipe(recipe).override(**given)
        check_names(config)
        check_base(config)
        check_criteria(config, given)
        _check_placement(config)
        run = Run(folder, config)
        require_usable(run)
        workspace.make_folder(folder)
        with alone(folder, "begin", wait=BEGIN):
            if read_config(path) is None:
                run.note_provenance(**origin(), data=run.splits.fingerprint())
                run = settle_batch_size(run, begins=True)
                require_last_batch(run)
                kept = config.with_paths(workspace.portable)
                workspace.write_json(path, kept.model_dump(mode="json"))  # last: now it is a run
                return run
        return open_run(run_dir, recipe, **settings)  # another process has just begun it
    told = _told_by_chain(folder)
    placement = {name: value for name, value in told.items() if name in PLACEMENT}
    begun = begun.override(**{name: told[name] for name in PATHS if told.get(name)})
    begun = begun.with_paths(workspace.located)
    check_criteria(begun, given)
    given, begun = _moved(folder, begun, given)
    placement |= {name: value for name, value in given.items() if name in PLACEMENT}
    asked = begun.override(**{name: value for name, value in given.items() if name not in PLACEMENT})
    if recipe is not None and recipe != begun.recipe:
        asked = recipes.recipe(recipe).override(**given)
    difference = begun.difference(asked)
    if set(difference) == {"epochs"} and asked.training.epochs > begun.training.epochs:
        extend(Run(folder, begun), asked.training.epochs)
        begun = asked
    elif difference:
        raise ValueError(
            f"Run folder `{folder}` holds another experiment ({_told(difference)}). Choose another run_dir, "
            "or the settings it began with; --fork NEW_DIR goes on from it with other training settings."
        )
    bounds = {name: value for name, value in given.items() if name in CriteriaConfig.model_fields}
    kept = kept_criteria(folder)
    config = begun.override(**(kept | placement))
    if bounds and bounds != {name: kept.get(name) for name in bounds}:
        workspace.write_json(folder / CRITERIA, kept | bounds)
    if placement:  # without one, a run of another machine may still be looked at here
        _check_placement(config)
    workspace.make_folder(folder)
    return settle_batch_size(Run(folder, config))


def in_workspace(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with relative paths as they are meant: from the workspace."""
    given = dict(settings)
    if isinstance(given.get("data_dir"), str):
        given["data_dir"] = workspace.data_place(given["data_dir"])
    for name in ("pretrained", "tokenizer"):
        if isinstance(given.get(name), str) and (found := workspace.place(given[name])).is_dir():
            given[name] = str(found)  # else a name on the Hub
    return given


BEGIN = 120.0
"""Seconds that a newcomer waits while another process begins the run: it may be measuring."""
CHAIN = "QNNKIT_PLACEMENT"
"""Environment variable by which a chain tells its kernels what was asked for when it was started again."""


def placement_for_kernels(run: Run) -> dict[str, str]:
    """The variable that makes a kernel compute where, and save as often as, the chain was told."""
    flat = run.config.flat()
    told = {"folder": str(run.folder), "settings": {name: flat[name] for name in (*PLACEMENT, *PATHS)}}
    return {CHAIN: json.dumps(told)}


def _moved(
    folder: Path, begun: RunConfig, given: Mapping[str, FlatValue]
) -> tuple[dict[str, FlatValue], RunConfig]:
    """What was given, and the settings, where the run's data may lie elsewhere now than when it began.

    Its place in a workspace that has moved stands for that in this one; data that are the same are taken.
    """
    own, now = begun.data.data_dir, given.get("data_dir")
    if own is None or not isinstance(now, str) or now == own:
        return dict(given), begun
    rest = {name: value for name, value in given.items() if name != "data_dir"}
    inside = workspace.portable(own).removeprefix(".")  # "/my_images", where it lies in the workspace
    if inside != own and now.endswith(inside) and not Path(now).exists() and Path(own).exists():
        warnings.warn(f"`{now}` is no longer there; the run's data in `{own}` are taken.", stacklevel=3)
        return rest, begun
    moved, trained_on = begun.override(data_dir=now), Run(folder, begun).provenance.get("data")
    same = False
    with contextlib.suppress(ValueError, OSError):  # what cannot be read is not the same
        same = trained_on is not None and Run(folder, moved).load_data().fingerprint() == trained_on
    return (rest, moved) if same else (dict(given), begun)


def _told_by_chain(folder: Path) -> dict[str, FlatValue]:
    told = json.loads(os.environ.get(CHAIN) or "{}")
    return dict(told["settings"]) if told.get("folder") == str(folder) else {}


def settled(folder: Path, config: RunConfig) -> RunConfig:
    """The settings with the number that was found when the run began for a size of batch that is "auto"."""
    if config.training.batch_size != "auto":
        return config
    # Runs of an earlier version have it in placement.json alone.
    for name in ("provenance.json", PLACED):
        note = workspace.read_json(folder / name)
        found = note.get("batch_size") if isinstance(note, dict) else None
        if is_count(found):
            return config.override(batch_size=found)
    return config


def kept_criteria(folder: Path) -> dict[str, FlatValue]:
    """The bounds that a run was given after it had begun."""
    found = workspace.read_json(folder / CRITERIA)
    found = found if isinstance(found, dict) else {}
    return {name: value for name, value in found.items() if name in CriteriaConfig.model_fields}


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def extend(run: Run, epochs: int) -> None:
    """Lets a run train longer: what was concluded after fewer epochs is kept under names that say so.

    The step sizes follow a schedule over all epochs, so a run that is extended is not the one that would have
    been asked for more from the beginning; provenance.json tells.

    Raises:
        BlockingIOError: Another process works on the run.
    """
    fewer = run.config.training.epochs
    with alone(run.folder, "chain"):
        for name in ("03_train", "04_analyze"):
            if run.notebook(name).exists():
                run.notebook(name).replace(run.notebook(f"{name}.epochs-{fewer}"))
        if (run.folder / "result.json").exists():
            (run.folder / "result.json").replace(run.folder / f"result.epochs-{fewer}.json")
        told = {"from": fewer, "to": epochs, "at": now()}
        run.note_provenance(extended=[*run.provenance.get("extended", []), told])
        config = run.asked.override(epochs=epochs)
        workspace.write_json(run.folder / "config.json", config.model_dump(mode="json"))


def _told(difference: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name}: {here!r} there, {now!r} now" for name, (here, now) in difference.items())


def check_criteria(config: RunConfig, given: Mapping[str, FlatValue]) -> None:
    """Refuses a bound, among the settings that somebody has given, on a score that the nets do not have."""
    score = Run(Path(), config).score
    for other in stats.SCORES.values():
        if other.criterion in given and other != score:
            rule = f"be left out where nets are compared by {score.word}"
            step = f"Use {score.criterion}."
            raise ValueError(checks.message(other.criterion, rule, given[other.criterion], step))


def _check_placement(config: RunConfig) -> None:
    """Refuses unknown backends, and devices that this machine has not."""
    from qnnkit import device, layers

    checks.choice("backend", config.backend, layers.BACKENDS)
    device.choose(config.device)


def require_usable(run: Run) -> None:
    """A run begins only with data that load and a net that takes them: the folder cannot be mended later."""
    import torch

    from qnnkit import layers, models, placement
    from qnnkit.runs.nets import build

    model = build(run, run.nets[0], run.config.seed, bare=True)
    if "classical_trained" in run.config.controls:
        build(run, "classical_trained", run.config.seed)  # refused for a circuit that is trained
    if models.kind(run.config.model.model) != "tokens":  # such a net is refused, if at all, when it is built
        with torch.no_grad():
            layers.called(model.eval(), run.splits.example())
    require_last_batch(run)
    placement.devices(run.config.device, run.config.training.precision)  # refused where none has it


def require_last_batch(run: Run) -> None:
    """Refuses a last batch of one image for a net that normalises over batches; language models do not."""
    import torch

    from qnnkit import layers, models
    from qnnkit.runs.nets import build

    n, batch_size = len(run.splits.train), run.config.training.batch_size
    if batch_size == "auto" or n % batch_size != 1 or models.kind(run.config.model.model) == "tokens":
        return
    try:
        with torch.no_grad():
            layers.called(build(run, run.nets[0], run.config.seed).train(), run.splits.example())
    except ValueError:
        step = f"The last of {n:,} images would stand alone, and this net normalises over batches."
        rule = "leave more than one image for the last batch"
        told = checks.message("batch_size", rule, batch_size, step + " Change it by one.")
        raise ValueError(told) from None


def read_config(path: Path) -> RunConfig | None:
    """The settings that a run began with; None where none has begun."""
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        sentence = f"Cannot read `{path}` ({error.strerror}). Choose a run_dir that you may read."
        raise type(error)(error.errno, sentence) from None
    try:
        return validate(json.loads(text))
    except ValueError as error:
        raise ValueError(f"Settings file `{path}` cannot be used: {error}") from None


def now() -> str:
    """The time, as provenance tells it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
