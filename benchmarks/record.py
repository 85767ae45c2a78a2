"""How scripts record measurements: printed, and as a CSV in docs/results that the pages quote."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qnnkit.device import machine

if TYPE_CHECKING:  # a process that measures something else starts without them
    import pandas as pd

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"


def keep(name: str, rows: Iterable[dict[str, Any]], folder: Path = RESULTS, **versions: Any) -> pd.DataFrame:
    """Writes `folder`/`name`.csv: the rows, each with the machine, its threads, versions and the date."""
    import pandas as pd
    import torch

    kind = f"{machine.processor()}, {machine.cores()} cores"
    about = {"machine": kind, "threads": torch.get_num_threads(), "torch": torch.__version__, **versions}
    table = pd.DataFrame(rows).assign(**about, date=time.strftime("%Y-%m-%d"))
    write(table, folder / f"{name}.csv", float_format="%.6g")
    print(f"{kind}; {torch.get_num_threads()} threads")
    print(table.drop(columns=[*about, "date"]).to_string(index=False, float_format="%.4g"), flush=True)
    return table


def write(table: pd.DataFrame, path: str | Path, **options: Any) -> None:
    """Writes a table as a CSV file."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(path, index=False, lineterminator="\n", **options)


def markdown(head: Sequence[str], lines: Iterable[Iterable[str]]) -> str:
    """A table in Markdown, as on the pages."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def parser(doc: str | None) -> argparse.ArgumentParser:
    """An argument parser with the options that all scripts share."""
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, default=RESULTS, help="folder of the tables (docs/results)")
    options.add_argument("--quick", action="store_true", help="sizes of a test, where the script has them")
    return options


def names(parser: argparse.ArgumentParser, option: str, known: Iterable[str]) -> None:
    """Adds an option that takes some of the known names (default: all)."""
    known = list(known)
    parser.add_argument(
        option, nargs="+", choices=known, default=known, metavar="NAME", help=f"of {' '.join(known)}"
    )


def say_if_busy() -> None:
    """Prints a sentence if other programs keep the machine busy."""
    from qnnkit.measure import clock

    if busy := clock.note(clock.load(1.0)):
        print(busy, flush=True)


def finish(problems: Sequence[str]) -> None:
    """Ends with exit status 1 if there are problems."""
    if problems:
        raise SystemExit("\n".join(problems))


def run(doc: str | None, **measured: Callable[[], Iterable[dict[str, Any]]]) -> Path:
    """Runs a script: measures and records a table for each name, and returns the folder of the tables."""
    asked = parser(doc).parse_args()
    say_if_busy()
    for name, rows in measured.items():
        keep(name, rows(), asked.out)
    return asked.out
