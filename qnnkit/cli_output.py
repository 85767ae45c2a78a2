"""What the command prints of runs and batches, and how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from qnnkit import warm, workspace

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


def show_batch(folder: Path, *, again: bool = True) -> None:
    """Makes the page of a batch, and prints its conclusions and where it is.

    Args:
        folder: The batch's.
        again: Whether to make the page even if it is up to date. If not, a page that cannot be made is one
            sentence in place of an error.
    """
    from qnnkit import report

    try:
        page = report.analyze_batch(folder, again=again)
    except Exception as error:  # whatever it is, the runs are done
        if again:
            raise
        typer.echo(f"The page of the batch could not be made: {error} Make it with: qnnkit report {folder}")
        return
    conclusions = folder / "study" / "conclusions.txt"
    if conclusions.exists():  # a run has finished
        typer.echo(f"\n{conclusions.read_text(encoding='utf-8')}\nStudy: {conclusions.parent}")
    typer.echo(f"Report: {page}")


def print_result(begun: Any, result: dict[str, Any]) -> None:
    """Prints a run's table, verdicts and criteria, and where its report is."""
    from qnnkit import report

    typer.echo(f"\n{report.table(result['nets'], begun.score).to_string()}\n")
    headline = result.get("verdict") or ""  # it ends in the sentence on the strongest control
    for sentence in filter(None, [headline, *(each for each in result["verdicts"] if each not in headline)]):
        typer.echo(sentence)
    for row in report.judge(begun):
        typer.echo(f"{row['criterion']}: {row['sentence']}")
    place = workspace.remote_of(begun.folder) or begun.folder  # on Drive, if runs are worked on elsewhere
    page = str(place / begun.report.name)
    typer.echo(f"\nReport: {workspace.portable(page) if workspace.home() == Path.cwd() else page}")


@contextlib.contextmanager
def ending_cleanly() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt inside, and end the command with one sentence.

    The exit status is 130, 143 or 129. If `warm.PARENT` is set, this process ends with its parent.
    """
    came = [signal.SIGINT]

    def end(number: int, frame: Any) -> None:
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)  # once: what is cleaned up now must not be cut short
        came.append(signal.Signals(number))
        raise KeyboardInterrupt

    with contextlib.ExitStack() as handlers:
        for each in ENDING:
            if signal.getsignal(each) is not signal.SIG_IGN:  # as nohup asks for
                handlers.callback(signal.signal, each, signal.signal(each, end))
        if parent := os.environ.pop(warm.PARENT, None):
            warm.at_end_of(int(parent), lambda: os.kill(os.getpid(), signal.SIGTERM))  # which is clean
        try:
            yield
        except KeyboardInterrupt as stopped:
            if os.environ.get("RANK", "0") == "0":
                with contextlib.suppress(OSError):  # a terminal that is gone
                    typer.echo(str(stopped) or "Stopped. Run this again to go on from here.")
            raise typer.Exit(128 + came[-1]) from None
        if came[1:]:  # heard by `watch`, which only stops watching
            raise typer.Exit(128 + came[-1])
