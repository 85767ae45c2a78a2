"""What a run's task shows of the data and of a trained net, kept for the report."""

from __future__ import annotations

from typing import Any

from qnnkit import tasks
from qnnkit.runs import Run, seen_by, trained


def preview(run: Run) -> list[Any]:
    """What the task's `preview` shows of the data, figures kept; nothing where it has none."""
    return _figures(run, "preview", "01_preview", "Some of the data", run.splits)


def mistakes(run: Run, n: int) -> list[Any]:
    """What the task's `mistakes` shows of the run's own net, first seed, figures kept.

    Args:
        run: Whose net is trained.
        n: How many mistakes to show.
    """
    net = trained(run)
    offered = {"n": n, "seed": run.config.seed, "folder": run.folder, "seen": seen_by(run, net)}
    return _figures(run, "mistakes", "05_mistakes", "Where it errs", net, run.splits, **offered)


def _figures(run: Run, part: str, name: str, title: str, *given: Any, **offered: Any) -> list[Any]:
    """What a part of the task shows, as a list; its figures are kept under their own names or these."""
    function = getattr(run.task, part, None)
    if function is None:
        return []
    with run.recipe.located_errors():
        found = tasks.asked(function, *given, **offered)
    kept = []
    for number, each in enumerate(found if isinstance(found, list | tuple) else [found]):
        if not isinstance(each, tasks.Shown):
            caption = f"As `{part}` of the recipe's task draws it."
            each = tasks.Shown(each, f"{name}_{number + 1}" if number else name, title, caption)
        if hasattr(each.content, "savefig"):
            run.save_figure(each.content, each.name, each.title, each.description)
        kept.append(each.content)
    return kept
