"""A batch file: read safely, refused as a whole or turned into the settings of every run."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError

from qnnkit import checks, recipes, workspace
from qnnkit.settings import PLACEMENT, Base, Settings
from qnnkit.stats import Score

MOST_RUNS = 10_000
"""More are a slip: a number with a zero too many, or one list too long."""


def _plain(value: object) -> object:
    """`value`, if a command line could give it."""
    inside = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(each, bool | int | float | str) for each in inside):
        raise ValueError("be a number, a text, true, false, or a list of them")
    if any(isinstance(each, float) and not math.isfinite(each) for each in inside):
        raise ValueError("be finite")
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
    """Whether each factor of ten gets an equal share; for step sizes and the like."""
    whole: bool = Field(default=False, alias="int")
    """Whether only whole numbers are drawn."""

    def draw(self, generator: random.Random) -> float | int:
        """One value."""
        if self.log:
            shift = 0.5 if self.whole else 0.0  # so that the ends are drawn as often as their share says
            drawn = math.exp(generator.uniform(math.log(self.low - shift), math.log(self.high + shift)))
            drawn = round(drawn) if self.whole else drawn
        else:
            drawn = (
                generator.randint(int(self.low), int(self.high))
                if self.whole
                else generator.uniform(self.low, self.high)
            )
        return type(drawn)(min(max(drawn, self.low), self.high))


Space = Annotated[
    Annotated[Choices, Tag("choices")] | Annotated[Range, Tag("range")],
    Discriminator(lambda value: "range" if isinstance(value, Mapping | Range) else "choices"),
]


Recipes = Annotated[
    Annotated[str, Tag("one")] | Annotated[list[str], Field(min_length=1), Tag("several")],
    Discriminator(lambda value: "several" if isinstance(value, list | tuple) else "one"),
]


class RandomConfig(Base):
    n: int = Field(ge=1)
    """How many runs are drawn."""
    seed: int = Field(default=0, ge=0)
    """Fixes what is drawn; a larger n keeps the runs of a smaller one."""
    space: dict[str, Space] = Field(min_length=1)
    """Setting -> a list of choices, or {low, high, log, int}."""


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
    metric: Literal["validation_accuracy", "validation_loss"] | None = None
    """What chooses, of the run's own net as a mean over seeds; None takes what the kind of work has."""


class BatchConfig(Base):
    """Everything a batch is made from; written to batch.yaml in its folder."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Name of the batch's folder: letters, digits, `.`, `_` and `-`."""
    recipe: Recipes
    """What every run starts from, a name or a file; of a list, each is run with all the rest."""
    settings: dict[str, Value] = Field(default_factory=dict)
    """Settings that every run has in common."""
    grid: dict[str, Choices] = Field(default_factory=dict)
    """Setting -> values; every combination is a run."""
    zip: dict[str, Choices] = Field(default_factory=dict)
    """Setting -> values; the first values make a run, the second ones the next."""
    random: RandomConfig | None = None
    """Runs drawn at random."""
    seeds: list[Annotated[int, Field(ge=0, lt=2**31)]] = Field(default_factory=list)
    """First seed of each run; every combination is run with each. How many a run trains is n_seeds."""
    optuna: OptunaConfig | None = None
    """Runs that a sampler proposes from the results so far."""
    workers: int | None = Field(default=None, ge=1)
    """Runs at a time; None takes as many as the cores (or GPUs) and the free memory allow."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of each run, at most; None shares the cores out."""
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

    @property
    def id(self) -> str:
        """Start of the digest: the same for the same experiment, in every batch and workspace."""
        return self.config.with_paths(workspace.portable).digest()[:12]

    @property
    def folder(self) -> Path:
        """Where it runs; shared by all batches that ask for the same experiment."""
        return workspace.home().absolute() / "runs" / f"{recipes.of(self.config).name}-{self.id}"

    @property
    def score(self) -> Score:
        """The number that its nets are compared by."""
        return recipes.of(self.config).task(self.config).score


def read_config(source: str | Path | Mapping[str, Any]) -> BatchConfig:
    """The batch in a YAML file, or in a dictionary of the same keys.

    Raises:
        ValueError: It is no plain YAML, or a key or value breaks its rule; nothing in it is ever executed.
        OSError: The file cannot be read.
    """
    values = dict(source) if isinstance(source, Mapping) else _load(Path(source))
    try:
        config = BatchConfig.model_validate(values)
    except ValidationError as error:
        raise ValueError(_told(error)) from None
    _check_keys(config)
    return config


def _load(path: Path) -> dict[str, Any]:
    values = workspace.read_yaml(path, "batch file")
    if not isinstance(values, dict) or not all(isinstance(key, str) for key in values):
        known = ", ".join(BatchConfig.model_fields)
        raise ValueError(
            f"Batch file `{path}` must hold keys and values, but does not. Its keys are {known}."
        )
    return values


def _told(error: ValidationError) -> str:
    """One sentence on the first thing that is wrong."""
    first = error.errors()[0]
    path = [part for part in first["loc"] if part not in ("range", "choices", "one", "several")]
    name = ".".join(map(str, path)) or "batch"
    if first["type"] == "extra_forbidden":
        inner: type[Base] = BatchConfig
        if len(path) > 1:
            own = RandomConfig if path[0] == "random" else OptunaConfig
            inner = Range if "range" in first["loc"] else own
        known = [field.alias or key for key, field in inner.model_fields.items()]
        try:
            checks.choice(f"key of {'.'.join(map(str, path[:-1])) or 'the batch'}", str(path[-1]), known)
        except ValueError as refusal:
            return str(refusal)
    if first["type"] == "missing":
        return f"A batch must have the key `{name}`, but has not. Add a line `{name}: ...`."
    rule = first["msg"][0].lower() + first["msg"][1:]
    rule = rule.removeprefix("value error, ").removeprefix("input should ")
    rule = {
        "string_pattern_mismatch": "be made of letters, digits, `.`, `_` and `-`",
        "too_short": "hold a value",
        "model_type": "hold keys and values",
        "model_attributes_type": "hold keys and values",
    }.get(first["type"], rule)
    field = BatchConfig.model_fields.get(str(path[0]) if path else "")
    step = f"It means: {field.description}" if field else "See docs/batch.yaml."
    if name == "optuna.metric":
        step = "The test split is looked at once, at the end; it never chooses a run."
    return checks.message(name, rule, first["input"], step)


def _check_keys(config: BatchConfig) -> None:
    """Refuses what pydantic cannot see: keys that exclude each other, and names that are no settings."""
    sampled = config.optuna is not None
    if sampled and (config.grid or config.zip or config.random or config.seeds):
        others = [key for key in ("grid", "zip", "random", "seeds") if getattr(config, key)]
        raise ValueError(
            f"Key `optuna` excludes `{others[0]}`: a sampler chooses every run itself. Drop one of them."
        )
    if sampled and not isinstance(config.recipe, str):
        raise ValueError(
            f"Key `optuna` excludes a list of recipes, here {config.recipe}: a sampler compares settings of "
            "one. Name one recipe, or drop `optuna`."
        )
    if config.random and (config.grid or config.zip):
        other = "grid" if config.grid else "zip"
        raise ValueError(f"Key `random` excludes `{other}`: it draws every run itself. Drop one of them.")
    lengths = {name: len(values) for name, values in config.zip.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(
            checks.message("zip", "hold lists of one length", lengths, "Values stand side by side.")
        )
    sections: dict[str, Mapping[str, Any]] = {
        "settings": config.settings,
        "grid": config.grid,
        "zip": config.zip,
        "random.space": config.random.space if config.random else {},
        "optuna.space": config.optuna.space if config.optuna else {},
        "seeds": {"seed": 0} if config.seeds else {},
    }
    kinds = [recipes.find(name).Settings.model_fields for name in config.recipes]
    known = [name for name in kinds[0] if all(name in fields for fields in kinds)]
    seen: dict[str, str] = {}
    for section, names in sections.items():
        for name, value in names.items():
            checks.choice(f"setting in {section}", name, known)
            if section != "settings" and name in PLACEMENT:
                raise ValueError(
                    f"Key `{section}` must hold what makes another experiment, but holds `{name}`, which "
                    "only says where a run computes. Give it under `settings`."
                )
            if name in seen:
                raise ValueError(
                    f"Setting `{name}` must stand in one place, but stands in `{seen[name]}` and in "
                    f"`{section}`. Drop one of them."
                )
            seen[name] = section
            if isinstance(value, Range):
                _check_range(f"{section}.{name}", value)


def _check_range(name: str, span: Range) -> None:
    shown = span.model_dump(by_alias=True)
    if not span.low < span.high:
        raise ValueError(checks.message(name, "have low below high", shown, "Exchange them."))
    if span.log and not span.low > 0:
        raise ValueError(checks.message(name, "have low above 0 where log is true", shown, "Raise low."))
    if span.whole and not (span.low.is_integer() and span.high.is_integer()):
        raise ValueError(checks.message(name, "have whole ends where int is true", shown, "Round them."))


def combinations(config: BatchConfig) -> Iterator[dict[str, Any]]:
    """What varies in each run of a batch without a sampler: recipe, then grid, zip or random, then seeds."""
    several = [] if isinstance(config.recipe, str) else [[("recipe", name)] for name in config.recipe]
    grid = [[(name, value) for value in values] for name, values in config.grid.items()]
    zipped = [list(zip(config.zip, row, strict=True)) for row in zip(*config.zip.values(), strict=True)]
    seeds = [[("seed", seed)] for seed in config.seeds]
    if config.random:
        generator = random.Random(config.random.seed)
        drawn = [
            [(name, draw(space, generator)) for name, space in config.random.space.items()]
            for _ in range(config.random.n)
        ]
    else:
        drawn = [list(cell) for cell in itertools.product(*grid)]
    for parts in itertools.product(several or [[]], drawn, zipped or [[]], seeds or [[]]):
        yield dict(itertools.chain(*parts))


def draw(space: list[Any] | Range, generator: random.Random) -> Any:
    """One value of a space."""
    return space.draw(generator) if isinstance(space, Range) else generator.choice(space)


def count(config: BatchConfig) -> int:
    """How many runs `combinations` gives; identical ones counted each.

    Raises:
        ValueError: More than anyone means.
    """
    first = config.random.n if config.random else math.prod(len(values) for values in config.grid.values())
    second = len(next(iter(config.zip.values()))) if config.zip else 1
    number = first * second * max(1, len(config.seeds)) * len(config.recipes)
    number = config.optuna.n_trials if config.optuna else number
    if number > MOST_RUNS:
        step = "Split it into several batches."
        raise ValueError(checks.message("batch", f"have {MOST_RUNS:,} runs or fewer", number, step))
    return number


def planned(config: BatchConfig, varied: Mapping[str, Any]) -> Planned:
    """One run, with its settings judged as `qnnkit run` would.

    Raises:
        ValueError: A value breaks its rule.
        OSError: Its data_dir is no folder.
    """
    from qnnkit.runs.usable import checked  # loads torch, for which a worker has no use

    given = {**config.settings, **varied}
    recipe = recipes.find(given.pop("recipe", config.recipes[0]))
    run = checked(recipe, given)
    if run.batch_size == "auto":  # runs of one study could settle on different numbers
        step = "Name a number; qnnkit run --set batch_size=auto finds one."
        raise ValueError(checks.message("batch_size", "be a number in a batch", "auto", step))
    flat = run.flat()  # YAML reads 1e-3 as a text; here it is a number
    words = tuple(f"{name}={json.dumps(flat[name])}" for name in given)
    return Planned(run, {name: recipe.name if name == "recipe" else flat[name] for name in varied}, words)


def plan(config: BatchConfig) -> list[Planned]:
    """Every run of a batch without a sampler, each once, or none at all.

    Raises:
        ValueError: A run's settings break a rule; the message says which run.
        OSError: A data_dir is no folder.
    """
    number, found = count(config), {}
    for index, varied in enumerate(combinations(config), start=1):
        try:
            run = planned(config, varied)
        except (ValueError, OSError) as error:
            told = ", ".join(f"{name}={value!r}" for name, value in varied.items())
            which = f"Run {index} of {number}{f' ({told})' if told else ''}"
            raise ValueError(f"{which} cannot be planned: {error}") from None
        found.setdefault(run.id, run)
    runs = list(found.values())
    first = runs[0]
    for run in runs:
        if run.score != first.score:
            both = (f"{one.score.word} ({recipes.of(one.config).name})" for one in (first, run))
            told = " and ".join(both)
            step = "Make a batch of each: what one table compares is one number."
            raise ValueError(checks.message("batch", "be of runs with one kind of score", told, step))
    return runs


def judge_space(config: BatchConfig) -> Score:
    """Judges the corners of a sampler's space as runs, before anything is written.

    Returns:
        The number that its runs are compared by.

    Raises:
        ValueError: A value that may be drawn breaks its setting's rule, or runs are compared by another
            number than `metric` says.
        OSError: The data_dir is no folder.
    """
    assert config.optuna is not None  # as the engine has seen
    space = config.optuna.space
    first = {
        name: values[0] if isinstance(values, list) else _number(values, values.low)
        for name, values in space.items()
    }
    score = planned(config, first).score
    if config.optuna.metric not in (None, f"validation_{score.on_validation}"):
        rule, step = f"be validation_{score.on_validation} for this recipe", "Or leave it out."
        raise ValueError(checks.message("optuna.metric", rule, config.optuna.metric, step))
    for name, values in space.items():
        ends = (
            values
            if isinstance(values, list)
            else [_number(values, each) for each in (values.low, values.high)]
        )
        for value in ends:
            if planned(config, {**first, name: value}).score != score:
                rule = f"leave the kind of score as it is ({score.word})"
                raise ValueError(checks.message(f"optuna.space.{name}", rule, value, "Drop that value."))
    return score


def _number(span: Range, value: float) -> float | int:
    return int(value) if span.whole else value
