"""What the command prints of runs and batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from qnnkit import workspace


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
        typer.echo(reports.verdict(reports.comparisons(study.frame, study.score)[0]))
        for note in study.notes:
            typer.echo(f"Note: {note}")
        typer.echo(f"\nStudy: {folder / 'study'}")
    typer.echo(f"Report: {page}")


def judged_anew(begun: Any, result: dict[str, Any]) -> dict[str, Any]:
    """The result, written again where the run has since been given other bounds."""
    from qnnkit import report as reports

    def bounds(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {row["criterion"]: row["bound"] for row in rows}

    same = bounds(reports.judge(begun)) == bounds(result.get("criteria", []))
    return result if same else reports.finish(begun)


def print_result(begun: Any, result: dict[str, Any], tell: Any = typer.echo) -> None:
    from qnnkit import report as reports

    tell(f"\n{reports.table(result['nets'], begun.score).to_string()}\n")
    for sentence in result["verdicts"]:
        tell(sentence)
    for row in reports.judge(begun):
        tell(f"{row['criterion']}: {row['sentence']}")
    kept = workspace.remote_of(begun.folder) or begun.folder  # on Drive, where runs are worked on elsewhere
    tell(f"\nReport: {kept / begun.report.name}")
