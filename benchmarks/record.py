"""Keeps what a script measured: printed, and as a CSV in docs/results, which the pages quote."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from qnnkit.device import machine
from qnnkit.measure import clock

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
CPU = torch.device("cpu")


def keep(name: str, rows: Iterable[dict[str, Any]], folder: Path = RESULTS, **versions: Any) -> pd.DataFrame:
    """Writes `folder`/`name`.csv: the rows, and on each the machine, its threads, versions and the day."""
    kind = f"{machine.processor()}, {machine.cores()} cores"
    about = {"machine": kind, "threads": torch.get_num_threads(), "torch": torch.__version__, **versions}
    table = pd.DataFrame(rows).assign(**about, date=time.strftime("%Y-%m-%d"))
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / f"{name}.csv", index=False, float_format="%.6g", lineterminator="\n")
    print(f"{kind}; {torch.get_num_threads()} threads")
    print(table.drop(columns=[*about, "date"]).to_string(index=False, float_format="%.4g"), flush=True)
    return table


def markdown(head: Sequence[str], lines: Iterable[Iterable[str]]) -> str:
    """A table, as the pages show it."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def say_if_busy() -> None:
    """Prints a sentence where other programs keep the machine busy."""
    if busy := clock.note(clock.load(1.0)):
        print(busy, flush=True)


def run(doc: str | None, **measured: Callable[[], Iterable[dict[str, Any]]]) -> Path:
    """What a script does: measures and keeps a table of each name, and returns the folder of the tables."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="folder of the tables; docs/results if left out"
    )
    asked = parser.parse_args()
    say_if_busy()
    for name, rows in measured.items():
        keep(name, rows(), asked.out)
    return asked.out
