"""Prints the results of runs and batches, and ends commands cleanly on signals."""

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
    """Makes the page of a batch, and prints its conclusions and its path.

    Args:
        folder: The batch's folder.
        again: Whether to make the page even if it is up to date. If False, a failure to make it prints one
            sentence instead of raising an error.
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
    if conclusions.exists():  # as soon as a run has finished
        typer.echo(f"\n{conclusions.read_text(encoding='utf-8')}\nStudy: {conclusions.parent}")
    typer.echo(f"Report: {page}")


def print_result(begun: Any, result: dict[str, Any]) -> None:
    """Prints a run's table, verdicts and criteria, and the path of its report."""
    from qnnkit import report

    typer.echo(f"\n{report.table(result['nets'], begun.score).to_string()}\n")
    headline = result.get("verdict") or ""  # ends with the sentence about the strongest control
    for sentence in filter(None, [headline, *(text for text in result["verdicts"] if text not in headline)]):
        typer.echo(sentence)
    for row in report.judge(begun):
        typer.echo(f"{row['criterion']}: {row['sentence']}")
    place = workspace.remote_of(begun.folder) or begun.folder  # on Drive, if runs are worked on elsewhere
    page = str(place / begun.report.name)
    typer.echo(f"\nReport: {workspace.portable(page) if workspace.home() == Path.cwd() else page}")


@contextlib.contextmanager
def ending_cleanly() -> Iterator[None]:
    """Turns Ctrl-C, SIGTERM and SIGHUP into KeyboardInterrupt, and ends the command with one sentence.

    The exit status is 130, 143 or 129. If `warm.PARENT` is set, this process ends with its parent.
    """
    received = [signal.SIGINT]

    def end(number: int, frame: Any) -> None:
        for ending in ENDING:
            signal.signal(ending, signal.SIG_IGN)  # a second signal must not interrupt the cleanup
        received.append(signal.Signals(number))
        raise KeyboardInterrupt

    with contextlib.ExitStack() as handlers:
        for ending in ENDING:
            if signal.getsignal(ending) is not signal.SIG_IGN:  # as under nohup
                handlers.callback(signal.signal, ending, signal.signal(ending, end))
        if parent := os.environ.pop(warm.PARENT, None):
            warm.at_end_of(int(parent), lambda: os.kill(os.getpid(), signal.SIGTERM))  # handled above
        try:
            yield
        except KeyboardInterrupt as stopped:
            if os.environ.get("RANK", "0") == "0":
                with contextlib.suppress(OSError):  # the terminal may be gone
                    typer.echo(str(stopped) or "Stopped. Run this again to continue from here.")
            raise typer.Exit(128 + received[-1]) from None
        if received[1:]:  # caught by `watch`, which then returns
            raise typer.Exit(128 + received[-1])
