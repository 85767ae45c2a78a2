"""A batch file: read safely, refused as a whole or turned into the settings of every run."""

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
    """`value`, if a command line could give it."""
    inside = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(each, bool | int | float | str) for each in inside):
        raise ValueError("be a number, a text, true, false, or a list of them")
    return list(inside) if isinstance(value, list | tuple) else value


Value = Annotated[Any, BeforeValidator(_plain)]
Choices = Annotated[list[Value], Field(min_length=1)]


class Range(Base):
    """Numbers from low to high, both included."""

    low: float
    """Smallest value."""
    high: float
    """Largest value."""
    log: bool = False
    """Whether each factor of ten gets an equal share; for learning rates and the like."""
    whole: bool = Field(default=False, alias="int")
    """Whether only whole numbers are drawn."""

    @model_validator(mode="after")
    def _usable(self) -> Self:
        whole = self.low.is_integer() and self.high.is_integer()
        if not self.low < self.high or (self.log and self.low <= 0) or (self.whole and not whole):
            raise ValueError("have low below high, above 0 where log is true, whole where int is true")
        return self

    @property
    def ends(self) -> list[float] | list[int]:
        """Smallest and largest value, as numbers of the kind that is drawn."""
        return [int(self.low), int(self.high)] if self.whole else [self.low, self.high]

    @property
    def tried(self) -> list[float] | list[int]:
        """What is judged before the first run: the ends, and between them a number that is no whole one."""
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
    """Fixes what is proposed, given the results so far."""
    pruner: Literal["none", "median", "halving"] = "median"
    """Which runs stop early: those worse than the median at the same epoch, or by successive halving."""
    startup_trials: int = Field(default=4, ge=0)
    """Runs that finish before the median pruner stops any."""
    warmup_epochs: int = Field(default=1, ge=0)
    """Epochs of a run that the median pruner never judges."""
    space: dict[str, Space] = Field(min_length=1)
    """Setting -> a list of choices, or {low, high, log, int}."""


class BatchConfig(Base):
    """Everything a batch is made from; written to batch.yaml in its folder."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Name of the batch's folder: letters, digits, `.`, `_` and `-`."""
    recipe: str | Annotated[list[str], Field(min_length=1)]
    """What every run starts from, a name or a file; of a list, each is run with all the rest."""
    settings: dict[str, Value] = Field(default_factory=dict)
    """Settings that every run has in common."""
    grid: dict[str, Choices] = Field(default_factory=dict)
    """Setting -> values; every combination is a run."""
    runs: list[dict[str, Value]] = Field(default_factory=list)
    """The settings of each run by itself; with a grid, every one of them in every combination."""
    seeds: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(default_factory=list)
    """First seeds: every combination is a run of its own with each. How many a run trains is n_seeds."""
    optuna: OptunaConfig | None = None
    """Runs that a sampler proposes from the results so far."""
    notebooks: list[str] = Field(default_factory=lambda: ["03_train", "04_analyze"])
    """The notebooks of each run; without 04_analyze its report has tables and no figures."""
    workers: int | None = Field(default=None, ge=1)
    """Runs at a time; None takes as many as the cores (or GPUs) and the free memory allow."""
    gpus_per_run: int = Field(default=0, ge=0)
    """GPUs that each run has to itself."""
    retries: int = Field(default=0, ge=0)
    """How many more times a failed run is tried by one command."""

    @property
    def recipes(self) -> list[str]:
        """The names, be they one or several."""
        return [self.recipe] if isinstance(self.recipe, str) else self.recipe


@dataclass(frozen=True)
class Planned:
    """One run of a batch."""

    config: Settings
    varied: dict[str, Any]  # what sets it apart in its batch
    words: tuple[str, ...]  # what `--set` is given

    @cached_property
    def id(self) -> str:
        """Start of the digest: the same for the same experiment, wherever workspace and data lie."""
        return self.config.with_paths(_last_name).digest()[:12]

    @cached_property
    def folder(self) -> Path:
        """Where it runs; shared by all batches that ask for the same experiment."""
        return workspace.home().absolute() / "runs" / f"{recipes.of(self.config).name}-{self.id}"


def _last_name(path: str) -> str:
    """Of a path outside the workspace; inside, the path as seen from there."""
    path = workspace.portable(path)
    return Path(path).name if Path(path).is_absolute() else path


# --- reading a file -----------------------------------------------------------------------------------------


def read_config(source: str | Path | Mapping[str, Any]) -> BatchConfig:
    """The batch in a YAML file, or in a dictionary of the same keys.

    Raises:
        ValueError: It is no plain YAML, or a key or value breaks its rule; nothing in it is ever executed.
        OSError: The file cannot be read.
    """
    values = source if isinstance(source, Mapping) else checks.read_yaml(Path(source), "batch file")
    if not isinstance(values, Mapping):
        known = ", ".join(BatchConfig.model_fields)
        raise ValueError(f"A batch must hold keys and values, but `{source}` does not. Keys are {known}.")
    for key in values:
        checks.choice("key of the batch", key, BatchConfig.model_fields)
    try:
        config = BatchConfig.model_validate(values)
    except ValidationError as error:
        raise ValueError(_sentence(error)) from None
    _check(config)
    return config


def _sentence(error: ValidationError) -> str:
    """One sentence on the first thing that is wrong."""
    loc, rule, value = first_fault(error)
    path = [str(part) for part in loc if part not in ("range", "choices", "str")]
    return checks.message(".".join(path) or "batch", rule, value, "docs/batch.yaml has every key.")


def _check(config: BatchConfig) -> None:
    """Refuses what pydantic cannot see: keys that exclude each other, and unknown notebooks."""
    from qnnkit.runs import NOTEBOOKS

    others = [key for key in ("grid", "runs", "seeds") if getattr(config, key)]
    others += [] if isinstance(config.recipe, str) else ["recipe"]
    if config.optuna and others:
        rule, step = f"be left out with `{others[0]}`", "A sampler chooses every run: drop one of them."
        raise ValueError(checks.message("optuna", rule, config.optuna.n_trials, step))
    for name in config.notebooks:
        checks.choice("notebook", name, NOTEBOOKS)
    if "03_train" not in config.notebooks:
        raise ValueError(checks.message("notebooks", "have 03_train", config.notebooks, "Add it."))


# --- its runs -----------------------------------------------------------------------------------------------


def combinations(config: BatchConfig) -> Iterator[dict[str, Any]]:
    """What varies in each run: recipe, grid, runs, seeds; of a sampler, in the corners of its space."""
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
    """Settings of several sections of the file, each of which may be in one alone."""
    for name, n in Counter(name for part in parts for name in part).items():
        if n > 1:
            values = [part[name] for part in parts if name in part]
            raise ValueError(checks.message(name, "be given in one section", values, "Drop one of them."))
    return {name: value for part in parts for name, value in part.items()}


def count(config: BatchConfig) -> int:
    """How many runs a batch asks for; identical ones counted each."""
    lists = [config.recipes, *config.grid.values(), config.runs or [{}], config.seeds or [0]]
    return config.optuna.n_trials if config.optuna else math.prod(map(len, lists))


def planned(config: BatchConfig, varied: Mapping[str, Any]) -> Planned:
    """One run, with its settings judged as `qnnkit run` would.

    Raises:
        ValueError: A value breaks its rule.
        OSError: Its data_dir is no folder.
    """
    from qnnkit.runs.folder import resolve

    given = _joined(
        {"recipe": config.recipe} if isinstance(config.recipe, str) else {}, config.settings, varied
    )
    recipe = recipes.find(given.pop("recipe"))
    for name in varied.keys() & {*PLACEMENT}:
        rule = "be the same in all runs, as it makes no other experiment"
        raise ValueError(checks.message(name, rule, varied[name], "Move it to `settings`."))
    run = resolve(recipe, given)
    if run.batch_size == "auto":  # runs of one study could settle on different numbers
        step = "Name a number; qnnkit run --set batch_size=auto finds one."
        raise ValueError(checks.message("batch_size", "be a number in a batch", "auto", step))
    flat = run.flat()  # YAML reads 1e-3 as a text; here it is a number
    words = tuple(f"{name}={json.dumps(flat[name])}" for name in given)
    return Planned(run, {name: recipe.name if name == "recipe" else flat[name] for name in varied}, words)


def plan(config: BatchConfig) -> list[Planned]:
    """Every run of a batch, each once, or none at all; of a sampler, those in the corners of its space.

    Raises:
        ValueError: A run's settings break a rule; the message says which run.
        OSError: A data_dir is no folder.
    """
    asked, by_id = list(combinations(config)), {}
    for index, varied in enumerate(asked, start=1):
        try:
            run = planned(config, varied)
        except (ValueError, OSError) as error:
            raise ValueError(f"Run {index} of {len(asked)} cannot be planned {varied}: {error}") from None
        if run.config.difference(by_id.setdefault(run.id, run).config):
            rule = "end in another name for other data, as runs are called by it"
            raise ValueError(checks.message("data_dir", rule, varied, "Rename one of the folders."))
    return list(by_id.values())
