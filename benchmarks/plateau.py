"""The variance of gradients at random initialisations, of the four circuits: python -m benchmarks.plateau.

2 to 12 qubits, as many layers as qubits (an even number, which identity blocks need), 200 initialisations of
each kind, both observables; every variance with its 95 % interval beside a random circuit's, and the decay
per qubit in factors of two.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pandas as pd
import seaborn.objects as so

from benchmarks import record
from qnnkit import circuits
from qnnkit.gradients import plateau

QUBITS, N = range(2, 13, 2), 200


@functools.cache
def scans() -> dict[str, list[plateau.Row]]:
    """Circuit -> what its scan measured."""
    options: dict[str, Any] = {"initialisations": list(circuits.INITIALISATIONS), "n": N}
    return {
        circuit: plateau.scan(circuit, qubits=list(QUBITS), depths=["1n"], **options)
        for circuit in circuits.ANSAETZE
    }


def variances() -> list[dict[str, Any]]:
    return [
        {"circuit": circuit, **{name: value for name, value in row.as_dict().items() if name != "seconds"}}
        | {"random_circuit": plateau.random_circuit(row.n_qubits, row.observable)}
        for circuit, rows in scans().items()
        for row in rows
    ]


def rates() -> list[dict[str, Any]]:
    return [
        {"circuit": circuit, **dataclasses.asdict(fit)}
        for circuit, rows in scans().items()
        for fit in plateau.fit(rows)
    ]


def table(rates: pd.DataFrame) -> str:
    """Rates with their intervals, by circuit, observable and initialisation, as a table in Markdown."""
    told = [f"{row.rate:.2f} ({row.low:.2f} to {row.high:.2f})" for row in rates.itertuples()]
    wide = rates.assign(told=told).pivot_table(
        index=["circuit", "observable"], columns="initialisation", values="told", aggfunc="first", sort=False
    )
    rows = ([*names, *cells] for names, cells in wide.iterrows())
    return record.markdown(["circuit", "observable", *wide.columns], rows)


def plot(path: Path) -> None:
    """The variances over the number of qubits, from the table beside it; one of 0 is not drawn."""
    table = pd.read_csv(path.with_suffix(".csv")).query("variance > 0")
    picture = so.Plot(table, x="n_qubits", y="variance", color="initialisation", marker="initialisation")
    picture = (
        picture.facet("circuit", "observable").add(so.Line()).scale(x=so.Continuous().tick(every=2), y="log")
    )
    picture = picture.label(x="qubits", y="variance (per radian squared)", color="", marker="")
    record.draw(picture, path, (12, 6), dpi=80)


if __name__ == "__main__":
    folder = record.run(__doc__, plateau=variances, plateau_rates=rates)
    plot(folder / "plateau.png")
    print(table(pd.read_csv(folder / "plateau_rates.csv")))
