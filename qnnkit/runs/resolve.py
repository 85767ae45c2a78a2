"""Which settings hold: a recipe's own, what somebody gives, and what a run began with, merged here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from qnnkit import checks, recipes, stats, workspace
from qnnkit.recipes import Recipe
from qnnkit.settings import PLACEMENT, SETTINGS, Settings


def resolve(recipe: Recipe | None, given: Mapping[str, Any], begun: Settings | None = None) -> Settings:
    """The settings that hold, whether words, YAML, papermill, a batch's row or a cell gave them.

    Args:
        recipe: Whose settings they are; None for those of `begun`.
        given: By name. A text for a list is split at commas; a relative path is meant from the workspace.
        begun: What the run began with, its paths as they are here; None for a new run.

    Raises:
        ValueError: A name is unknown, a value breaks its rule, or some do not go together. Its argument is a
            `checks.Message`, which has the parts: `name`, `rule`, `value`, `next_step`.
    """
    kind: Any = recipe.Settings if begun is None and recipe is not None else type(begun)
    for name in given:
        checks.choice("setting", name, kind.model_fields, SETTINGS)
    own = {name: kind.model_fields[name].default for name in kind.places()} if begun is None else {}
    asked = in_workspace(kind, {name: value for name, value in own.items() if isinstance(value, str | Path)})
    asked |= in_workspace(kind, given)
    if begun is None and recipe is not None:
        config = recipe.settings(**asked)
        recipe.check(config)
    else:
        config = begun.override(**asked)  # pyright: ignore[reportOptionalMemberAccess]
    _check_criteria(config, given)
    if begun is None or not given.keys().isdisjoint(PLACEMENT):  # a run of elsewhere may be looked at
        _check_placement(config)
    return config


def in_workspace(kind: type[Settings], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with relative paths as they are meant: from the workspace."""
    given = dict(settings)
    for name in kind.places():
        if isinstance(given.get(name), str | Path):
            found = workspace.data_place(str(given[name]))
            on_hub = name in ("pretrained", "tokenizer") and not Path(found).is_dir()
            given[name] = str(given[name]) if on_hub else found
    return given


def _check_criteria(config: Settings, given: Mapping[str, Any]) -> None:
    """Refuses a bound, among the settings that somebody has given, on a score that the nets do not have."""
    bounds = [other for other in stats.SCORES.values() if given.get(other.criterion) is not None]
    score = recipes.of(config).task(config).score if bounds else None
    for other in bounds:
        if score is not None and other.name != score.name:
            rule = f"be left out where nets are compared by {score.word}"
            step = f"Use {score.criterion}." if score.criterion else "It has no bound."
            raise ValueError(checks.message(other.criterion, rule, given[other.criterion], step))


def _check_placement(config: Settings) -> None:
    """Refuses unknown backends and trackers, and devices that this machine has not."""
    from qnnkit import device, layers
    from qnnkit.runs.trackers import require_known

    checks.choice("backend", config.backend, layers.BACKENDS)
    device.choose(config.device)
    require_known(config.trackers)
