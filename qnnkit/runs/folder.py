"""A run's folder: what was asked for, on what it ran, what came out. The only channel between notebooks."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnkit import recipes, stats, workspace
from qnnkit.recipes import Recipe
from qnnkit.runs.lock import keep_mirrored
from qnnkit.runs.rows import trainings, whole
from qnnkit.settings import GONE, MAIN_NETS, SPLITTING, Recorded, Settings, digest_of

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
        if known := self.provenance.get("nets"):
            return tuple(known)
        from qnnkit import layers

        config, seed = self.config, self.config.seed
        net = recipes.made(config, self.splits, "", seed, bare=True)
        main = MAIN_NETS[0 if layers.has_circuit(net) else 1]
        if config.controls != "all":
            return (main, *config.controls)
        return (main, *self.recipe.control_names(recipes.without_weights(config), self.splits, seed))

    @cached_property
    def splits(self) -> Splits:
        """The data, as the recipe loads them; see `own_data`."""
        return self.own_data()

    def own_data(self, *, cached: bool = True) -> Splits:
        """The data, if they are those that the run was trained on.

        Args:
            cached: As of `load_data`.

        Raises:
            ValueError: They cannot be used, or are others.
        """
        from qnnkit.data import places

        splits, trained_on = self.load_data(cached=cached), self.provenance.get("data")
        for form in ("NFD", None):  # as names counted before they had one form
            if trained_on is None or splits.fingerprint() == trained_on:
                return splits
            with places.names_in(form):
                splits = self.load_data(cached=cached)
        if splits.fingerprint() == trained_on:
            return splits
        place = getattr(self.config, "data_dir", None) or splits.name
        raise ValueError(
            f"Run folder `{self.folder}` was trained on other data than `{place}` holds: files have changed, "
            "or their split. Put the files back as they were, or begin another run_dir."
        )

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
        path = self.folder / "provenance.json"
        return dict(_as_it_is(workspace.read_json, path, _stamp(path)) or {})

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
        """The rows of `<kind>.jsonl`, oldest first; what names no event (or, of metrics, no net) is none."""
        path = self.folder / f"{kind}.jsonl"
        found = _as_it_is(workspace.read_lines, path, _stamp(path))
        return whole(found) if kind == "metrics" else [row for row in found if "event" in row]

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
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110, metadata={"Software": "qnnkit"} | metadata)
        content = buffer.getvalue()
        workspace.write_bytes(workspace.make_folder(self.folder / "figures") / f"{name}.png", content)
        keep_mirrored(self.folder)

    def note_provenance(self, **facts: Any) -> None:
        """Adds facts to provenance.json; those that are there already are replaced."""
        text = without_places(json.dumps(self.provenance | facts, indent=2, allow_nan=False))
        workspace.write_bytes(self.folder / "provenance.json", f"{text}\n".encode())
        keep_mirrored(self.folder)


@functools.lru_cache(maxsize=16)
def _as_it_is(read: Callable[[Path], Any], path: Path, stamp: Any) -> Any:
    """What a file holds, read once for each of its states."""
    return read(path)


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes with every change of a file; nothing is told of one that cannot be asked."""
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_ino, found.st_mtime_ns, found.st_size
    return (time.monotonic_ns(),)


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


def settled(folder: Path, config: Settings) -> Settings:
    """The settings with the number that was found when the run began for a size of batch that is "auto"."""
    if config.batch_size != "auto":
        return config
    found = (workspace.read_json(folder / "provenance.json") or {}).get("batch_size")
    with contextlib.suppress(ValueError):  # a file that is damaged
        return config.override(batch_size=found)
    return config


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
    for found in [recipe] if recipe else [recipes.RECIPES.get(name), recipes.known(digest)]:
        if found is not None and found.digest == digest:
            gone = {name for name in values if values[name] is None or name in GONE}
            gone -= {*found.Settings.model_fields}
            return found.Settings.of({name: values[name] for name in values if name not in gone})
    kind = type("Recorded", (Recorded,), {"recorded": name, "__module__": __name__})
    return kind.of(values)


def without_places(text: str) -> str:
    """A text that may be shared: the workspace in it is ".", and the person's folder "~".

    Example:
        >>> without_places(f"in {workspace.home() / 'runs' / 'mine'}")
        'in ./runs/mine'
    """
    places = [(workspace.home().absolute(), "."), (workspace.local_home(), "."), (Path.home(), "~")]
    for place, mark in places:
        if place is not None and len(place.parts) > 2:  # "/content" is everybody's
            text = re.sub(rf"{re.escape(str(place))}(?![\w.-])", mark, text)
    return text


def now() -> str:
    """The time, as provenance tells it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
