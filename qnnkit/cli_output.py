"""What the command prints of runs and batches, and how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from qnnkit import workspace

ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
STOPPED = "Stopped. Run this again to go on from here."


def tell_data(begun: Any, tell: Any) -> None:
    """What the run's data were found to be."""
    for note in begun.splits.notes:
        tell(f"Note: {note}")
    if "batch_size" in begun.provenance:
        tell(f"Batch size: {begun.config.batch_size}, measured when the run began.")


def show_batch(folder: Path, *, again: bool = True) -> None:
    """Makes the page of a batch, and prints what the batch shows and where.

    Args:
        folder: The batch's.
        again: Also where the page already shows what the runs have come to; then an error is raised, else it
            is one sentence.
    """
    from qnnkit import report as reports

    try:
        page = reports.analyze_batch(folder, again=again)
        study = reports.read_study(folder)
    except Exception as error:  # whatever it is, the runs are done
        if again:
            raise
        typer.echo(f"The page of the batch could not be made: {error} Make it anew: qnnkit report {folder}")
        return
    if len(study.frame):
        typer.echo(f"\nStudy of {study.finished} of {study.planned} runs:")
        compared, _ = reports.comparisons(study.frame, study.score, study.min_difference)
        typer.echo(reports.verdict(compared))
        for note in study.notes:
            typer.echo(f"Note: {note}")
        typer.echo(f"\nStudy: {folder / 'study'}")
    typer.echo(f"Report: {page}")


def judged_anew(begun: Any, result: dict[str, Any]) -> dict[str, Any]:
    """The result, written again where the run has since been given other bounds or another min_difference."""
    from qnnkit import report as reports

    def bounds(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {row["criterion"]: row["bound"] for row in rows}

    same = bounds(reports.judge(begun)) == bounds(result.get("criteria", []))
    same &= begun.config.min_difference == result.get("min_difference")
    return result if same else reports.finish(begun)


def print_result(begun: Any, result: dict[str, Any], tell: Any = typer.echo) -> None:
    from qnnkit import report as reports

    tell(f"\n{reports.table(result['nets'], begun.score).to_string()}\n")
    headline = result.get("verdict") or ""  # it ends in the sentence on the strongest control
    for sentence in [headline, *(each for each in result["verdicts"] if each not in headline)]:
        if sentence:
            tell(sentence)
    for row in reports.judge(begun):
        tell(f"{row['criterion']}: {row['sentence']}")
    kept = workspace.remote_of(begun.folder) or begun.folder  # on Drive, where runs are worked on elsewhere
    tell(f"\nReport: {kept / begun.report.name}")


@contextlib.contextmanager
def ending_cleanly(error: type[BaseException] = SystemExit) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP end the command with one sentence, and no kernel or run is left behind.

    The exit status is 130, 143 or 129.

    `QNNKIT_STOP_WITH_PARENT` holds the process that started this one and cannot stop it once it is killed:
    when it is gone, this one ends too.
    """

    came: list[int] = []

    def end(signal_number: int, frame: Any) -> None:
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)  # once: what is cleaned up now must not be cut short
        came.append(signal_number)
        raise error(*([128 + signal_number] if error is SystemExit else []))

    parent, heard = os.environ.pop("QNNKIT_STOP_WITH_PARENT", None), contextlib.ExitStack()
    if threading.current_thread() is threading.main_thread():
        for each in ENDING:
            if signal.getsignal(each) is not signal.SIG_IGN:  # as nohup asks for
                heard.callback(signal.signal, each, signal.signal(each, end))
        if parent:
            threading.Thread(target=_follow, args=(int(parent),), daemon=True).start()
    try:
        with heard:
            yield
    except SystemExit as ended:
        if came and os.environ.get("RANK", "0") == "0":
            _say(next(iter(getattr(ended, "__notes__", ())), STOPPED))
        raise
    except KeyboardInterrupt as stopped:
        _say(str(stopped) or STOPPED)
        raise typer.Exit(128 + next(iter(came), signal.SIGINT)) from None


def _say(sentence: str) -> None:
    with contextlib.suppress(OSError):  # a terminal that is gone
        typer.echo(sentence)


def _follow(parent: int, patience: float = 60.0) -> None:
    """Ends this process soon after its parent has gone, cleanly or, should that hang, at once."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(patience)
    os._exit(128 + signal.SIGTERM)  # its kernel follows by itself
