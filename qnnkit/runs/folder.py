"""A run's folder: what was asked for, on what it ran, what came out. The only channel between notebooks."""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnkit import checks, recipes, stats, workspace
from qnnkit.recipes import Recipe
from qnnkit.runs import sums
from qnnkit.runs.lock import alone, bring, keep_mirrored
from qnnkit.runs.origin import origin
from qnnkit.runs.reading import trainings
from qnnkit.runs.usable import (
    check_criteria,
    check_placement,
    checked,
    in_workspace,
    require_last_batch,
    require_usable,
)
from qnnkit.settings import (
    CRITERIA,
    MAIN_NETS,
    PLACEMENT,
    SPLITTING,
    FlatValue,
    Recorded,
    Settings,
    digest_of,
)

if TYPE_CHECKING:
    import pandas as pd

    from qnnkit.data import Splits


OF_NETS = ("seed", "n_seeds", "controls")
"""Which nets there are; each is made alike, whatever these say."""
TRAINING = (
    *(name for name in Settings.model_fields if name not in (*SPLITTING, *OF_NETS)),
    *("label_smoothing", "augmentation"),  # of kinds of data
)
"""Settings of the training and of the machine: any other makes other nets, or other data."""


@dataclass(frozen=True)
class Run:
    """One execution of a recipe, and the folder it owns."""

    folder: Path
    config: Settings
    """As config.json has them, but for a size of batch that was "auto": that is the number that was found."""

    @property
    def recipe(self) -> Recipe:
        """What the run computes.

        Raises:
            ValueError: It is a user's, and nobody has named it in this process.
        """
        return recipes.of(self.config)

    def notebook(self, name: str) -> Path:
        """Where the executed copy of a notebook stands once it has finished."""
        return self.folder / "notebooks" / f"{name}.ipynb"

    def checkpoints(self, net: str, seed: int) -> Path:
        """Folder of one net's checkpoints."""
        return self.folder / "checkpoints" / f"{net}-seed{seed}"

    def identity(self, net: str, seed: int) -> dict[str, Any]:
        """What tells one net's checkpoints from others: what it is made of and sees."""
        made_of = self.provenance.get("made_of") or self.made_of()
        return {"net": net, "seed": seed, "made of": made_of}

    def made_of(self) -> str:
        """Hash of the recipe and of the settings that make nets and data."""
        own = self.asked.chosen(without=(*TRAINING, *OF_NETS))
        return digest_of({"recipe": self.recipe.digest, "settings": own})[:16]

    @property
    def asked(self) -> Settings:
        """The settings with paths as config.json has them, which hold wherever the workspace lies."""
        begun = workspace.read_json(self.folder / "config.json")
        if not isinstance(begun, dict):
            return self.config.with_paths(workspace.portable)
        return self.config.override(**{name: begun.get(name) for name in self.config.places()})

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

    @cached_property
    def nets(self) -> tuple[str, ...]:
        """The net of the run ("hybrid", or "reference" without a circuit) and the controls beside it."""
        known = self.provenance.get("nets")
        return tuple(known) if known else self.find_nets()

    def find_nets(self) -> tuple[str, ...]:
        """As `nets`, found by building the run's own net."""
        from qnnkit import layers
        from qnnkit.models.causal_lm import bare as without_weights
        from qnnkit.recipes import made

        config, seed = self.config, self.config.seed
        main = MAIN_NETS[0 if layers.has_circuit(made(config, self.splits, "", seed, bare="shapes")) else 1]
        if config.controls != "all":
            return (main, *config.controls)
        with without_weights(asked="shapes"):
            return (main, *self.recipe.control_names(config, self.splits, seed))

    @cached_property
    def splits(self) -> Splits:
        """The data, as the recipe loads them.

        Raises:
            ValueError: They cannot be used, or are not those that the run was trained on.
        """
        splits = self.load_data()
        trained_on = self.provenance.get("data")
        if trained_on is not None and splits.fingerprint() != trained_on:
            place = getattr(self.config, "data_dir", None) or splits.name
            raise ValueError(
                f"Run folder `{self.folder}` was trained on other data: "
                f"`{place}` has changed since. Put the files back as they were, or begin another run_dir."
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

        with contextlib.nullcontext() if cached else data.uncached():
            return self.recipe.load(self.config)

    @cached_property
    def task(self) -> Any:
        """What its nets are trained for."""
        return self.recipe.task(self.config)

    @property
    def score(self) -> stats.Score:
        """The number that its nets are compared by."""
        kept = self.provenance.get("score")
        return stats.Score(**kept) if isinstance(kept, dict) else self.task.score

    @property
    def provenance(self) -> dict[str, Any]:
        """On what the run began and computed."""
        return workspace.read_json(self.folder / "provenance.json") or {}

    @property
    def placement(self) -> dict[str, Any]:
        """What was last decided on where the run is trained, and why; see `runs.placed`."""
        found = self.provenance.get("placement")
        return found if isinstance(found, dict) else {}

    def predict(self, inputs: Any) -> list[dict[str, Any]]:
        """What the run's own net, first seed, says of new inputs; see `runs.predict`."""
        from qnnkit.runs.using import predict

        return list(predict(self.folder, inputs, recipe=self.recipe))

    def log(self, kind: str, row: dict[str, Any]) -> None:
        """Adds a row to `<kind>.jsonl`."""
        workspace.append_line(self.folder / f"{kind}.jsonl", row)
        keep_mirrored(self.folder)

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """The rows of `<kind>.jsonl`, oldest first."""
        return workspace.read_lines(self.folder / f"{kind}.jsonl")

    def epochs(self, event: str = "epoch") -> pd.DataFrame:
        """One row per net, seed and epoch, or "validation" within one; of many runs, see `runs.frame`."""
        import pandas as pd

        return pd.DataFrame(trainings(self.rows("metrics"), event, self.config.epochs))

    def validations(self) -> pd.DataFrame:
        """One row per net, seed and validation; of one within an epoch, `epoch` is a fraction."""
        import pandas as pd

        between = self.epochs("validation")
        if len(between):
            between["epoch"] += between["step"] / between["steps"] - 1
        rows = pd.concat([self.epochs(), between])
        if not len(rows):
            return rows
        # Resumed on more processes, a place in an epoch may have been validated by another step.
        rows = rows.drop_duplicates(["net", "seed", "epoch"], keep="last")
        return rows.sort_values(["seed", "epoch"], kind="stable", ignore_index=True)

    def tested(self) -> dict[tuple[str, int], dict[str, Any]]:
        """(net, seed) -> the row of its test, for those that have been trained for as long as is asked."""
        rows = trainings(self.rows("metrics"), "test", self.config.epochs)
        return {(row["net"], row["seed"]): row for row in rows}

    def finals(self) -> pd.DataFrame:
        """One row per net and seed that has finished: test numbers, parameter counts, seconds per epoch."""
        import pandas as pd

        return pd.DataFrame(list(self.tested().values()))

    def save_figure(self, figure: Any, name: str, title: str = "", description: str = "") -> None:
        """Saves a figure of matplotlib as figures/<name>.png; the file has its title and how to read it."""
        metadata = {"Title": title, "Description": description}
        if hasattr(figure, "png"):  # the kit's own keep what they have drawn: they are shown next
            content = figure.png(**metadata)
        else:
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=110, metadata={"Software": "qnnkit"} | metadata)
            content = buffer.getvalue()
        workspace.write_bytes(workspace.make_folder(self.folder / "figures") / f"{name}.png", content)
        keep_mirrored(self.folder)

    def note_provenance(self, **facts: Any) -> None:
        """Adds facts to provenance.json; those that are there already are replaced."""
        workspace.write_json(self.folder / "provenance.json", self.provenance | facts)
        keep_mirrored(self.folder)


def open_run(run_dir: str | Path, recipe: Any = None, **settings: FlatValue) -> Run:
    """The run in `run_dir`, begun there if the folder is new.

    Args:
        run_dir: Its folder; a relative one is meant from the workspace.
        recipe: A shipped name, the path of a recipe's file, a module, or an object: see `recipes.find`. None
            takes the folder's own where it is shipped, or has been named in this process.
        **settings: Exchanged in the recipe; None leaves a setting as it is. In a folder that has begun they
            must agree with what it began with, except for those of `settings.PLACEMENT` and more `epochs`.

    Raises:
        ValueError: A name or value is wrong, or the folder holds another experiment (it is told which).
        OSError: The folder cannot be made or written.
    """
    from qnnkit.runs.placing import settle_batch_size

    folder = workspace.run_folder(run_dir)
    bring(folder)
    named = None if recipe is None else recipes.find(recipe)
    given = {name: value for name, value in settings.items() if value is not None}
    begun = read_config(folder / "config.json", named)
    if begun is None:
        if named is None:
            rule, step = "hold a run", "Name a recipe to begin one there."
            raise FileNotFoundError(checks.message("run_dir", rule, str(folder), step))
        if folder in (Path(folder.anchor), Path.home(), workspace.home().absolute()):
            rule, step = "be a folder of its own", "Use a new one, such as runs/mine."
            raise ValueError(checks.message("run_dir", rule, str(folder), step))
        run = Run(folder, checked(named, given))
        require_usable(run)
        workspace.make_folder(folder)
        with alone(folder, "begin", wait=BEGIN):
            if read_config(folder / "config.json", named) is None:
                facts = {"data": run.splits.fingerprint(), "nets": run.nets, "given": sorted(given)}
                run.note_provenance(**origin(), **facts, **_compared(run))
                begun_now = settle_batch_size(run, begins=True)
                require_last_batch(begun_now)
                write_config(run)  # as asked for; last: now it is a run
                return begun_now
        return open_run(run_dir, recipe, **settings)  # another process has just begun it
    told = _told_by_chain(folder)
    places = begun.places()
    placement = {name: value for name, value in told.items() if name in PLACEMENT}
    begun = begun.override(**{name: told[name] for name in places if told.get(name)})
    begun = begun.with_paths(workspace.located)
    if named is not None and begun.source is None:
        _refuse_other_recipe(folder, named, begun, given)
    for name in given:
        checks.choice("setting", name, type(begun).model_fields)
    given = in_workspace(type(begun), given)
    check_criteria(begun, given)
    given, begun = _moved(folder, begun, given)
    placement |= {name: value for name, value in given.items() if name in PLACEMENT}
    asked = begun.override(**{name: value for name, value in given.items() if name not in PLACEMENT})
    difference = begun.difference(asked)
    if set(difference) == {"epochs"} and asked.epochs > begun.epochs:
        extend(Run(folder, begun), asked.epochs)
        begun = asked
    elif difference:
        raise _other_experiment(folder, _told(difference))
    bounds = {name: value for name, value in given.items() if name in CRITERIA}
    config = begun.override(**(bounds | placement))
    if placement:  # without one, a run of another machine may still be looked at here
        check_placement(config)
    if any(getattr(begun, name) != getattr(config, name) for name in bounds):
        _write_bounds(folder, {name: getattr(config, name) for name in bounds})
        keep_mirrored(folder)
    workspace.make_folder(folder)
    return settle_batch_size(Run(folder, config))


def write_config(run: Run) -> None:
    """Writes config.json, which makes a folder a run, and the recipe's source beside it."""
    recipe = run.recipe
    workspace.write_bytes(run.folder / "recipe.py", recipe.source.encode())
    if recipe.neighbours:
        run.note_provenance(recipe_imports=dict(recipe.neighbours))
    workspace.write_json(run.folder / "config.json", kept_settings(run))


def kept_settings(run: Run) -> dict[str, Any]:
    """Settings as config.json and `model/` have them; `settings_of` reads them."""
    place = {"recipe": workspace.portable(run.recipe.reference)}
    return {"recipe_digest": run.recipe.digest, **run.asked.flat(), **place}


def _compared(run: Run) -> dict[str, Any]:
    """What a reader of the folder must know who has not the recipe."""
    return {"score": asdict(run.score), "made_of": run.made_of()}


def _other_experiment(folder: Path, told: str) -> ValueError:
    return ValueError(
        f"Run folder `{folder}` holds another experiment ({told}). Choose another run_dir, "
        "or the settings it began with; --fork NEW_DIR goes on from it with other training settings."
    )


def _refuse_other_recipe(
    folder: Path, named: Recipe, begun: Settings, given: Mapping[str, FlatValue]
) -> None:
    """Raises ValueError: the folder was begun with another recipe, or with another state of this one."""
    recorded = getattr(begun, "recorded", "")
    if workspace.located(recorded) == named.reference or Path(recorded).name == Path(named.reference).name:
        with contextlib.suppress(OSError):
            changed = recipes.difference((folder / "recipe.py").read_text(), named.source)
            raise _other_experiment(folder, f"the recipe has changed: {changed or 'in what it imports'}")
    raise _other_experiment(folder, f"recipe: {recorded!r} there, {named.reference!r} now")


BEGIN = 120.0
"""Seconds that a newcomer waits while another process begins the run: it may be measuring."""
CHAIN = "QNNKIT_PLACEMENT"
"""Environment variable by which a chain tells its kernels what was asked for when it was started again."""


def placement_for_kernels(run: Run) -> dict[str, str]:
    """The variable that makes a kernel compute where, and save as often as, the chain was told."""
    flat = run.config.flat()
    known = [name for name in (*PLACEMENT, *run.config.places()) if name in flat]
    told = {"folder": str(run.folder), "settings": {name: flat[name] for name in known}}
    return {CHAIN: json.dumps(told)}


def _moved(
    folder: Path, begun: Settings, given: Mapping[str, FlatValue]
) -> tuple[dict[str, FlatValue], Settings]:
    """What was given, and the settings, where the run's data may lie elsewhere now than when it began.

    Its place in a workspace that has moved stands for that in this one; data that are the same are taken.
    """
    given = dict(given)
    places = {name: given[name] for name in begun.places() if given.get(name) is not None}
    places = {name: now for name, now in places.items() if str(getattr(begun, name)) != str(now)}
    for name, now in list(places.items()):
        own = getattr(begun, name)
        inside = "" if own is None else workspace.portable(str(own)).removeprefix(".")
        if own is None or inside == str(own) or not str(now).endswith(inside):
            continue  # "/my_images", where it lies in the workspace
        if not Path(now).exists() and Path(own).exists():
            warnings.warn(f"`{now}` is no longer there; the run's data in `{own}` are taken.", stacklevel=3)
            del given[name], places[name]
    if not places:
        return given, begun
    moved, trained_on = begun.override(**places), Run(folder, begun).provenance.get("data")
    same = False
    with contextlib.suppress(ValueError, OSError):  # what cannot be read is not the same
        same = trained_on is not None and Run(folder, moved).load_data().fingerprint() == trained_on
    rest = {name: value for name, value in given.items() if name not in places}
    return (rest, moved) if same else (given, begun)


def _told_by_chain(folder: Path) -> dict[str, FlatValue]:
    told = json.loads(os.environ.get(CHAIN) or "{}")
    return dict(told["settings"]) if told.get("folder") == str(folder) else {}


def settled(folder: Path, config: Settings) -> Settings:
    """The settings with the number that was found when the run began for a size of batch that is "auto"."""
    if config.batch_size != "auto":
        return config
    found = (workspace.read_json(folder / "provenance.json") or {}).get("batch_size")
    return config.override(batch_size=found) if is_count(found) else config


def _write_bounds(folder: Path, bounds: Mapping[str, FlatValue]) -> None:
    """Exchanges bounds of success in config.json; the hash that SHA256SUMS has of it goes with it."""
    path = folder / "config.json"
    workspace.write_json(path, workspace.read_json(path) | dict(bounds))
    kept = sums.read(folder)
    if kept is not None and path.name in kept:
        sums.write(folder, kept | {path.name: sums.of(path)})


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def extend(run: Run, epochs: int) -> None:
    """Lets a run train longer: what was concluded after fewer epochs is kept under names that say so.

    The step sizes follow a schedule over all epochs, so a run that is extended is not the one that would have
    been asked for more from the beginning; provenance.json tells.

    Raises:
        BlockingIOError: Another process works on the run.
    """
    fewer = run.config.epochs
    with alone(run.folder, "chain"):
        for name in ("03_train", "04_analyze"):
            if run.notebook(name).exists():
                run.notebook(name).replace(run.notebook(f"{name}.epochs-{fewer}"))
        if (run.folder / "result.json").exists():
            (run.folder / "result.json").replace(run.folder / f"result.epochs-{fewer}.json")
        told = {"from": fewer, "to": epochs, "at": now()}
        run.note_provenance(extended=[*run.provenance.get("extended", []), told])
        write_config(Run(run.folder, run.config.override(epochs=epochs)))


def _told(difference: dict[str, tuple[Any, Any]]) -> str:
    return ", ".join(f"{name}: {here!r} there, {now!r} now" for name, (here, now) in difference.items())


def read_config(path: Path, recipe: Recipe | None = None) -> Settings | None:
    """The settings that a run began with; None where none has begun.

    Args:
        path: Of config.json.
        recipe: The one that is named; without it, the run's own where it is shipped or known here. Settings
            whose recipe is not at hand, or is not the one that is named, can be read alone.

    Raises:
        ValueError: The file is damaged, or of a version that had no recipes.
    """
    try:
        text = path.read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        sentence = f"Cannot read `{path}` ({error.strerror}). Choose a run_dir that you may read."
        raise type(error)(error.errno, sentence) from None
    try:
        return settings_of(json.loads(text), recipe)
    except ValueError as error:
        raise ValueError(f"Settings file `{path}` cannot be used: {error}") from None


def settings_of(values: Any, recipe: Recipe | None = None) -> Settings:
    """Settings as config.json has them; see `read_config`."""
    if not isinstance(values, dict) or not {"recipe_digest", "recipe"} <= set(values):
        step = "Read its report and rows as they are, and begin another run_dir to train."
        raise ValueError(f"it was begun by an earlier version of qnnkit, or is damaged. {step}")
    values = dict(values)
    digest, name = values.pop("recipe_digest"), str(values.pop("recipe"))
    found = recipe or recipes.known(digest) or (recipes.find(name) if name in recipes.names() else None)
    if found is not None and found.digest == digest:
        return found.Settings.of(values)
    kind = type("Recorded", (Recorded,), {"recorded": name, "__module__": __name__})
    return kind.of(values)


def now() -> str:
    """The time, as provenance tells it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
