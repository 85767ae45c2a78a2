"""What a run's task shows of the data and of a trained net, saved for the report."""

from __future__ import annotations

from typing import Any

from qnnkit import tasks
from qnnkit.runs import Run, seen_by, trained


def preview(run: Run) -> list[Any]:
    """What the task's `preview` shows of the data, with figures saved; nothing if it has no `preview`."""
    return _figures(run, "preview", "01_preview", "Samples of the data", run.splits)


def mistakes(run: Run, n: int) -> list[Any]:
    """What the task's `mistakes` shows of the run's main net (first seed), with figures saved.

    Args:
        run: A run whose main net is trained.
        n: Number of mistakes to show.
    """
    net = trained(run)
    offered = {"n": n, "seed": run.config.seed, "folder": run.folder, "seen": seen_by(run, net)}
    return _figures(run, "mistakes", "05_mistakes", "Mistakes", net, run.splits, **offered)


def _figures(run: Run, part: str, name: str, title: str, *arguments: Any, **offered: Any) -> list[Any]:
    """What a function of the task shows, as a list. Figures are saved under their own names or these."""
    function = getattr(run.task, part, None)
    if function is None:
        return []
    with run.recipe.located_errors():
        result = tasks.asked(function, *arguments, **offered)
    contents = []
    for number, shown in enumerate(result if isinstance(result, list | tuple) else [result]):
        if not isinstance(shown, tasks.Shown):
            caption = f"Drawn by `{part}` of the recipe's task."
            shown = tasks.Shown(shown, f"{name}_{number + 1}" if number else name, title, caption)
        if hasattr(shown.content, "savefig"):
            run.save_figure(shown.content, shown.name, shown.title, shown.description)
        contents.append(shown.content)
    return contents
