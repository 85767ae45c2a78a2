"""Reads a batch file safely, checks all of it, and turns it into the settings of every run."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError, model_validator

from qnnkit import checks, recipes, workspace
from qnnkit.settings import PLACEMENT, Base, Settings, first_fault


def _plain(value: object) -> object:
    """Returns `value`, if it could be given on a command line."""
    items = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, bool | int | float | str) for item in items):
        raise ValueError("be a number, a text, true, false, or a list of them")
    return list(items) if isinstance(value, list | tuple) else value


Value = Annotated[Any, BeforeValidator(_plain)]
Choices = Annotated[list[Value], Field(min_length=1)]


class Range(Base):
    """Numbers from low to high, both included."""

    low: float
    """Smallest value."""
    high: float
    """Largest value."""
    log: bool = False
    """Whether numbers are drawn on a logarithmic scale, as suits learning rates."""
    whole: bool = Field(default=False, alias="int")
    """Whether only integers are drawn."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        whole = self.low.is_integer() and self.high.is_integer()
        if not self.low < self.high or (self.log and self.low <= 0) or (self.whole and not whole):
            raise ValueError("have low below high, above 0 if log is true, and integers if int is true")
        return self

    @property
    def ends(self) -> list[float] | list[int]:
        """Smallest and largest value, as integers if those are drawn."""
        return [int(self.low), int(self.high)] if self.whole else [self.low, self.high]

    @property
    def tried(self) -> list[float] | list[int]:
        """Values that are checked before the first run: both ends and, if floats are drawn, one between."""
        return self.ends if self.whole else [*self.ends, self.low + (self.high - self.low) / math.e]


Space = Annotated[
    Annotated[Choices, Tag("choices")] | Annotated[Range, Tag("range")],
    Discriminator(lambda value: "range" if isinstance(value, Mapping | Range) else "choices"),
]


class OptunaConfig(Base):
    n_trials: int = Field(ge=1)
    """How many runs the sampler may ask for, pruned ones included."""
    sampler: Literal["tpe", "random"] = "tpe"
    """How settings are proposed: tpe learns from the runs that have finished."""
    seed: int = Field(default=0, ge=0)
    """Seed of the proposals, which also depend on the results so far."""
    pruner: Literal["none", "median", "halving"] = "median"
    """Which runs stop early: those worse than the median at the same epoch, or by successive halving."""
    startup_trials: int = Field(default=4, ge=0)
    """Runs that finish before the median pruner stops any."""
    warmup_epochs: int = Field(default=1, ge=0)
    """First epochs of a run, in which the median pruner never stops it."""
    space: dict[str, Space] = Field(min_length=1)
    """Setting -> a list of choices, or {low, high, log, int}."""


class BatchConfig(Base):
    """The content of a batch file; written to batch.yaml in the batch's folder.

    `docs/batch.yaml` shows every key, and `BatchConfig.model_fields[KEY].description` is its meaning.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Name of the batch's folder: letters, digits, `.`, `_` and `-`."""
    recipe: str | Annotated[list[str], Field(min_length=1)]
    """Recipe of every run, a name or a file; each recipe of a list is combined with all other keys."""
    settings: dict[str, Value] = Field(default_factory=dict)
    """Settings that all runs share."""
    grid: dict[str, Choices] = Field(default_factory=dict)
    """Setting -> values; every combination is a run."""
    runs: list[dict[str, Value]] = Field(default_factory=list)
    """Settings of single runs; with a grid, each of them is run with every combination."""
    seeds: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(default_factory=list)
    """First seeds: every combination is run once with each. n_seeds sets how many seeds a run trains."""
    optuna: OptunaConfig | None = None
    """Sampler that proposes runs from the results so far."""
    notebooks: list[str] = Field(default_factory=lambda: ["03_train", "04_analyze"])
    """Notebooks of each run; without 04_analyze, its report has tables and the plot of differences alone."""
    workers: int | None = Field(default=None, ge=1)
    """Runs at a time; None: as many as the cores (or GPUs) and the free memory allow."""
    gpus_per_run: int = Field(default=0, ge=0)
    """GPUs reserved for each run."""
    retries: int = Field(default=0, ge=0)
    """How often one command retries a failed run."""

    @property
    def recipes(self) -> list[str]:
        """The recipes as a list."""
        return [self.recipe] if isinstance(self.recipe, str) else self.recipe


@dataclass(frozen=True)
class Planned:
    """One run of a batch."""

    config: Settings
    varied: dict[str, Any]  # the settings that vary within its batch
    words: tuple[str, ...]  # the arguments of `--set`

    @cached_property
    def id(self) -> str:
        """Start of the digest: the same for the same experiment, wherever workspace and data are stored."""
        return self.config.with_paths(_last_name).digest()[:12]

    @cached_property
    def folder(self) -> Path:
        """The run's folder; all batches that request the same experiment share it."""
        return workspace.home().absolute() / "runs" / f"{recipes.of(self.config).name}-{self.id}"


def _last_name(path: str) -> str:
    """Returns a path inside the workspace relative to it; of a path outside, only the last name."""
    path = workspace.portable(path)
    return Path(path).name if Path(path).is_absolute() else path


# --- reading a file -----------------------------------------------------------------------------------------


def read_config(source: str | Path | Mapping[str, Any]) -> BatchConfig:
    """Reads a batch from a YAML file, or from a dictionary with the same keys; never executes its content.

    The settings of its runs are checked by `run_batch`, before the first one begins.

    Raises:
        ValueError: The file is not plain YAML, or a key or value breaks its rule.
        OSError: The file cannot be read.
    """
    values = source if isinstance(source, Mapping) else checks.read_yaml(Path(source), "batch file")
    if not isinstance(values, Mapping):
        keys = ", ".join(BatchConfig.model_fields)
        raise ValueError(f"A batch must hold keys and values, but `{source}` does not. Its keys are {keys}.")
    for key in values:
        checks.choice("key of the batch", key, BatchConfig.model_fields)
    try:
        config = BatchConfig.model_validate(values)
    except ValidationError as error:
        raise ValueError(_sentence(error)) from None
    _check(config)
    return config


def _sentence(error: ValidationError) -> str:
    """Returns one sentence about the first error."""
    loc, rule, value = first_fault(error)
    path = [str(part) for part in loc if part not in ("range", "choices", "str")]
    return checks.message(".".join(path) or "batch", rule, value, "docs/batch.yaml has every key.")


def _check(config: BatchConfig) -> None:
    """Checks what pydantic cannot: keys that exclude each other, and the names of notebooks."""
    from qnnkit.runs import NOTEBOOKS

    lists = [key for key in ("grid", "runs", "seeds") if getattr(config, key)]
    lists += [] if isinstance(config.recipe, str) else ["recipe"]
    if config.optuna and lists:
        rule, step = f"not be combined with `{lists[0]}`", "A sampler chooses every run: drop one of them."
        raise ValueError(checks.message("optuna", rule, config.optuna.n_trials, step))
    for name in config.notebooks:
        checks.choice("notebook", name, NOTEBOOKS)
    if "03_train" not in config.notebooks:
        raise ValueError(checks.message("notebooks", "include 03_train", config.notebooks, "Add it."))


# --- its runs -----------------------------------------------------------------------------------------------


def combinations(config: BatchConfig) -> Iterator[dict[str, Any]]:
    """Yields what varies in each run: recipe, grid, runs, seeds; with a sampler, the corners of its space."""
    if config.optuna is not None:
        spaces = config.optuna.space.items()
        corners = {name: space.tried if isinstance(space, Range) else space for name, space in spaces}
        first = {name: values[0] for name, values in corners.items()}
        yield from ({**first, name: value} for name, values in corners.items() for value in values)
        return
    several = [] if isinstance(config.recipe, str) else [{"recipe": name} for name in config.recipe]
    grid = (dict(zip(config.grid, row, strict=True)) for row in itertools.product(*config.grid.values()))
    seeds = [{"seed": seed} for seed in config.seeds]
    for parts in itertools.product(several or [{}], grid, config.runs or [{}], seeds or [{}]):
        yield _joined(*parts)


def _joined(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Merges settings of several sections of the file; each setting may be in only one section."""
    for name, n in Counter(name for part in parts for name in part).items():
        if n > 1:
            values = [part[name] for part in parts if name in part]
            raise ValueError(checks.message(name, "be in only one section", values, "Drop one of them."))
    return {name: value for part in parts for name, value in part.items()}


def count(config: BatchConfig) -> int:
    """Returns how many runs a batch requests; identical runs count separately."""
    lists = [config.recipes, *config.grid.values(), config.runs or [{}], config.seeds or [0]]
    return config.optuna.n_trials if config.optuna else math.prod(map(len, lists))


def planned(config: BatchConfig, varied: Mapping[str, Any]) -> Planned:
    """Returns one run, with its settings checked as by `qnnkit run`.

    Raises:
        ValueError: A value breaks its rule, or its folder holds a run on other data of the same name.
        OSError: Its data_dir is not a folder.
    """
    from qnnkit.runs import folder, rows

    values = _joined(
        {"recipe": config.recipe} if isinstance(config.recipe, str) else {}, config.settings, varied
    )
    recipe = recipes.find(values.pop("recipe"))
    for name in varied.keys() & {*PLACEMENT}:
        rule = "be the same in all runs, as it does not change the experiment"
        raise ValueError(checks.message(name, rule, varied[name], "Move it to `settings`."))
    run = folder.resolve(recipe, values)
    if run.batch_size == "auto":  # runs of one batch could choose different numbers
        step = "Give a number; qnnkit run --set batch_size=auto finds one."
        raise ValueError(checks.message("batch_size", "be a number in a batch", "auto", step))
    flat = run.flat()  # YAML reads 1e-3 as text; here it is a number
    words = tuple(f"{name}={json.dumps(flat[name])}" for name in values)
    plan = Planned(run, {name: recipe.name if name == "recipe" else flat[name] for name in varied}, words)
    of_folder, recorded = folder.Run(plan.folder, run), rows.facts(plan.folder, "config.json")
    places = of_folder.asked.flat()
    if any(recorded.get(name) not in (None, places[name]) for name in run.places()):
        _ = of_folder.splits  # raises an error if other data only have the same name
    return plan


def plan(config: BatchConfig) -> list[Planned]:
    """Returns every run of a batch once; with a sampler, the runs in the corners of its space.

    Raises:
        ValueError: A run breaks a rule of a setting, or has no data folder; the message says which run.
    """
    rows, by_id = list(combinations(config)), {}
    for index, varied in enumerate(rows, start=1):
        try:
            run = planned(config, varied)
        except (ValueError, OSError) as error:
            raise ValueError(f"Run {index} of {len(rows)}, {varied}, cannot be planned: {error}") from None
        for name in run.config.difference(by_id.setdefault(run.id, run).config):
            rule = "end in another name for other data, as this name identifies runs"
            raise ValueError(checks.message(name, rule, varied, "Rename one of the folders."))
    return list(by_id.values())
