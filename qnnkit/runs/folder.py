"""A run's folder: its settings, provenance, rows and results. The only channel between its notebooks."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnkit import checks, device, layers, plots, recipes, stats, workspace
from qnnkit.checkpoint.mirror import visible
from qnnkit.recipes import Recipe
from qnnkit.runs import rows
from qnnkit.runs.lock import keep_mirrored
from qnnkit.runs.rows import content, trainings
from qnnkit.settings import MAIN_NETS, PLACEMENT, Recorded, Settings, digest_of

if TYPE_CHECKING:
    from qnnkit.data import Splits


MODELS = ("pretrained", "tokenizer")
"""Settings that name a folder or a model of the Hub."""


@dataclass(frozen=True)
class Run:
    """One execution of a recipe, and the folder it owns.

    Attributes:
        folder: Path of the run's folder.
        config: The settings in config.json, with paths as on this machine.
    """

    folder: Path
    config: Settings

    @property
    def recipe(self) -> Recipe:
        """The recipe that the run executes.

        Raises:
            ValueError: It is a user's recipe that was not named in this process.
        """
        return recipes.of(self.config)

    def notebook(self, name: str) -> Path:
        """Path of the executed copy of a notebook; it exists once the notebook has finished."""
        return self.folder / "notebooks" / f"{name}.ipynb"

    def checkpoints(self, net: str, seed: int) -> Path:
        """Folder of one net's checkpoints."""
        return self.folder / "checkpoints" / f"{net}-seed{seed}"

    def identity(self, net: str, seed: int) -> dict[str, Any]:
        """Identity of the checkpoints of one net: its name, its seed, and `made_of` of the run."""
        made_of = self.provenance.get("made_of") or self.made_of()
        return {"net": net, "seed": seed, "made of": made_of}

    def made_of(self) -> str:
        """Hash of the recipe and of the settings with which a run begins, without `epochs`."""
        settings = self.asked.chosen(without=("epochs",))
        return digest_of({"recipe": self.recipe.digest, "settings": settings})[:16]

    @property
    def asked(self) -> Settings:
        """The settings with paths as in config.json: those inside the workspace are relative to it."""
        return self.config.with_paths(workspace.portable)

    @property
    def report(self) -> Path:
        """Path of report.html, which exists once 04_analyze has written it."""
        return self.folder / "report.html"

    @property
    def result(self) -> dict[str, Any] | None:
        """The result that 04_analyze wrote; None while the run is unfinished."""
        return rows.read_facts(self.folder / "result.json")

    @property
    def seeds(self) -> range:
        """The seeds that each net is trained with."""
        return range(self.config.seed, self.config.seed + self.config.n_seeds)

    @cached_property
    def nets(self) -> tuple[str, ...]:
        """The net of the run ("hybrid", or "reference" without a circuit) and its controls."""
        if recorded := self.provenance.get("nets"):
            return tuple(recorded)
        config, seed = self.config, self.config.seed
        net = recipes.made(config, self.splits, "", seed, bare=True)
        main = MAIN_NETS[0 if layers.has_circuit(net) else 1]
        if config.controls != "all":
            return (main, *config.controls)
        return (main, *self.recipe.control_names(recipes.without_weights(config), self.splits, seed))

    def split_seed(self, seed: int) -> int:
        """Seed of the data split for the nets of a seed: the same for all, unless `vary_split` is set."""
        return self.config.split_seed + seed * self.config.vary_split

    def splits_of(self, seed: int) -> Splits:
        """The data as the nets of a seed see them."""
        if not self.config.vary_split or seed == self.config.seed:
            return self.splits
        if seed not in (loaded := self.__dict__.setdefault("_varied", {})):
            loaded.clear()  # seeds are trained one after the other
            loaded[seed] = self.recipe.load(self.config_of(seed))
        return loaded[seed]

    def config_of(self, seed: int) -> Settings:
        """The settings with the split seed of the nets of a seed."""
        config, number = self.config, self.split_seed(seed)
        return config.override(split_seed=number) if config.vary_split else config

    @cached_property
    def splits(self) -> Splits:
        """The data (with the split of the first seed), checked against those the run was trained on.

        Raises:
            ValueError, OSError: The data cannot be used, or they or the files of `MODELS` have changed.
        """
        splits, trained_on = self.recipe.load(self.config_of(self.config.seed)), self.provenance.get("data")
        others = [] if trained_on in (None, splits.fingerprint()) else ["data_dir"]
        others += [name for name in MODELS if self.has_model(name) is False]
        if others:
            place = getattr(self.config, others[0], None) or splits.name
            raise ValueError(
                f"Run folder `{self.folder}` was trained on other data than `{place}` holds now: its files "
                "or split have changed. Restore them, or use another run_dir; in a batch, rename the folder."
            )
        return splits

    def models(self) -> dict[str, str | None]:
        """Digests of the folders in `pretrained` and `tokenizer`, by setting; None for another name."""
        names = [name for name in MODELS if name in self.config.places()]
        return {name: _hash_of(Path(str(getattr(self.config, name)))) for name in names}

    def has_model(self, name: str) -> bool | None:
        """Whether a setting leads to the files with which the run began; None if that is unknown."""
        before, now = (digests.get(name) for digests in (self.provenance.get("models", {}), self.models()))
        return None if None in (before, now) else before == now

    @cached_property
    def task(self) -> Any:
        """The task that its nets are trained for."""
        return self.recipe.task(self.config)

    @property
    def score(self) -> stats.Score:
        """The score by which its nets are compared."""
        recorded = self.provenance.get("score")
        return stats.Score(**recorded) if recorded else self.task.score

    @property
    def provenance(self) -> dict[str, Any]:
        """The facts in provenance.json: code, machine, data and placement."""
        return dict(content(self.folder, "provenance.json", rows.read_facts) or {})

    def log(self, kind: str, row: dict[str, Any]) -> None:
        """Adds a row to `<kind>.jsonl`."""
        workspace.append_line(self.folder / f"{kind}.jsonl", row)
        keep_mirrored(self.folder)

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """The rows of `<kind>.jsonl`, oldest first."""
        return rows.read(self.folder, kind)

    def tested(self) -> dict[tuple[str, int], dict[str, Any]]:
        """(net, seed) -> the row of its test, for nets that are trained for all epochs of the settings."""
        rows = trainings(self.rows("metrics"), "test", self.config.epochs)
        return {(row["net"], row["seed"]): row for row in rows}

    def save_figure(self, figure: Any, name: str, title: str = "", description: str = "") -> None:
        """Saves a Matplotlib figure as figures/<name>.png, with title and description as metadata."""
        content = plots.as_png(figure, Title=title, Description=description)
        workspace.write_bytes(workspace.make_folder(self.folder / "figures") / f"{name}.png", content)
        keep_mirrored(self.folder)

    def note_provenance(self, **facts: Any) -> None:
        """Adds facts to provenance.json, replacing those of the same name."""
        text = without_places(json.dumps(self.provenance | facts, indent=2, allow_nan=False))
        workspace.write_bytes(self.folder / "provenance.json", f"{text}\n".encode())
        keep_mirrored(self.folder)


def _hash_of(folder: Path, block: int = 2**16) -> str | None:
    """Returns a SHA-256 (hex) of the files in a folder; None if there are none.

    It covers their names and sizes, and 64 evenly spaced blocks of each: reading all weights takes long.
    """
    names, digest = sorted(visible(folder)), hashlib.sha256()
    for name in names:
        size = (folder / name).stat().st_size
        digest.update(f"{name} {size}\n".encode())
        with (folder / name).open("rb") as file:
            for start in range(0, size, max(size // 64, block)):
                file.seek(start)
                digest.update(file.read(block))
    return digest.hexdigest() if names else None


def write_config(run: Run) -> None:
    """Writes config.json, which makes a folder a run, and the recipe's source."""
    recipe = run.recipe
    workspace.write_bytes(run.folder / "recipe.py", recipe.source.encode())
    if recipe.neighbours:
        run.note_provenance(recipe_imports=dict(recipe.neighbours))
    workspace.write_json(run.folder / "config.json", kept_settings(run))


def kept_settings(run: Run) -> dict[str, Any]:
    """Returns the settings as they are written to config.json and `model/`; `settings_of` reads them."""
    place = {"recipe": workspace.portable(run.recipe.reference)}
    return {"recipe_digest": run.recipe.digest, **run.asked.flat(), **place}


def read_config(folder: Path, recipe: Recipe | None = None) -> Settings | None:
    """Returns the settings of the run in a folder; None if no run has begun there.

    Args:
        folder: The run's folder.
        recipe: The run's recipe. None takes the recorded one, if it is shipped or was named in this process;
            otherwise the settings can only be read.

    Raises:
        ValueError: config.json is damaged, comes from a version without recipes, or has another recipe.
    """
    path = folder / "config.json"
    try:
        values = workspace.read_json(path)
        return None if values is None and not path.exists() else settings_of(values, recipe, folder)
    except ValueError as error:
        raise ValueError(f"Settings file `{path}` cannot be used: {error}") from None


def settings_of(values: Any, recipe: Recipe | None = None, folder: Path | None = None) -> Settings:
    """Returns settings from the content of config.json; `folder` has their recipe.py. See `read_config`."""
    if not isinstance(values, dict) or not {"recipe_digest", "recipe"} <= set(values):
        step = "Its report and rows can be read as they are; use another run_dir to train."
        raise ValueError(f"it was begun by an earlier version of qnnkit, or is damaged. {step}")
    digest, name = values["recipe_digest"], str(values["recipe"])
    for candidate in [recipe] if recipe else [recipes.RECIPES.get(name), recipes.known(digest)]:
        if candidate is not None and candidate.digest == digest:
            fields = candidate.Settings.model_fields  # earlier versions had others
            return candidate.Settings.of({name: value for name, value in values.items() if name in fields})
    if recipe is not None:
        difference = f"recipe: {name!r} in the folder, {recipe.reference!r} now"
        if Path(name).name == Path(recipe.reference).name:
            before = rows.content(folder or Path(), "recipe.py") or b""
            changed = recipes.difference(before.decode(), recipe.source) or "in what it imports"
            difference = f"the recipe has changed: {changed}"
        raise ValueError(
            f"it holds another experiment ({difference}). Name its own recipe, or a new run_dir."
        )
    settings = {name: value for name, value in values.items() if name not in ("recipe_digest", "recipe")}
    return type("Recorded", (Recorded,), {"recorded": name, "__module__": __name__}).of(settings)


def resolve(recipe: Recipe | None, given: Mapping[str, Any], begun: Settings | None = None) -> Settings:
    """Returns the settings of a run from values of the command line, YAML, papermill, a batch or a cell.

    Args:
        recipe: The recipe that has these settings; None for those of `begun`.
        given: Values by name. Text for a list is split at commas; paths are relative to the workspace.
        begun: The settings with which the run began, with paths as on this machine; None for a new run.

    Raises:
        ValueError: A name is unknown, a value breaks its rule, or values do not go together. The error's
            argument is a `checks.Message` with its parts: `name`, `rule`, `value`, `next_step`.
    """
    kind: Any = recipe.Settings if begun is None and recipe is not None else type(begun)
    values = dict(given)
    for name in kind.places():
        path = values.get(name, kind.model_fields[name].default if begun is None else None)
        if isinstance(path, str | Path):
            place = workspace.data_place(str(path))
            on_hub = name in MODELS and not Path(place).is_dir()
            values[name] = str(path) if on_hub else place
    if begun is None and recipe is not None:
        config = recipe.settings(**values)
        recipe.check(config)
    else:
        config = begun.override(**values)  # pyright: ignore[reportOptionalMemberAccess]
    if begun is None or not given.keys().isdisjoint(PLACEMENT):  # a run of another machine can be read here
        checks.choice("backend", config.backend, layers.BACKENDS)
        device.choose(config.device)
        for name in config.trackers:
            from accelerate.tracking import LOGGER_TYPE_TO_CLASS

            checks.choice("tracker", name, LOGGER_TYPE_TO_CLASS)
    return config


def without_places(text: str) -> str:
    """Returns a text that may be shared: the workspace becomes ".", the user's home folder "~".

    Example:
        >>> without_places(f"in {workspace.home() / 'runs' / 'mine'}")
        'in ./runs/mine'
    """
    places = [(workspace.home().absolute(), "."), (workspace.local_home(), ".")]
    places.append((workspace.expanded("~"), "~"))
    for place, mark in places:
        if place is not None and len(place.parts) > 2:  # a path such as "/content" identifies nobody
            text = re.sub(rf"{re.escape(str(place))}(?![\w.-])", mark, text)
    return text


def now() -> str:
    """Returns the current time in UTC, as in provenance.json."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
