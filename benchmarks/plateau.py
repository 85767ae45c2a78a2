"""The variance of gradients at random initialisations, of the four circuits: python -m benchmarks.plateau.

2 to 12 qubits, as many layers as qubits (an even number, which identity blocks need), 200 initialisations of
each kind, both observables. Every variance has its 95 % interval and the value of a random circuit; the decay
is a per-qubit factor in powers of two.
"""

from __future__ import annotations

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
def scans() -> pd.DataFrame:
    """The results of the scans of all circuits."""
    options: dict[str, Any] = {"initialisations": list(circuits.INITIALISATIONS), "n": N}
    frames = {
        circuit: plateau.scan(circuit, qubits=list(QUBITS), depths=["1n"], **options)
        for circuit in circuits.ANSAETZE
    }
    return pd.concat(frames, names=["circuit"]).reset_index("circuit")


def variances() -> list[dict[str, Any]]:
    table = scans().drop(columns="resampled")
    random = [
        plateau.random_circuit(*size) for size in zip(table["n_qubits"], table["observable"], strict=True)
    ]
    return table.assign(random_circuit=random).to_dict("records")


def rates() -> list[dict[str, Any]]:
    fits = {circuit: plateau.fit(rows) for circuit, rows in scans().groupby("circuit", sort=False)}
    return pd.concat(fits, names=["circuit"]).reset_index("circuit").to_dict("records")


def table(rates: pd.DataFrame) -> str:
    """Rates with their intervals, by circuit, observable and initialisation, as a table in Markdown."""
    texts = [f"{row.rate:.2f} ({row.low:.2f} to {row.high:.2f})" for row in rates.itertuples()]
    wide = rates.assign(text=texts).pivot_table(
        index=["circuit", "observable"], columns="initialisation", values="text", aggfunc="first", sort=False
    )
    rows = ([*names, *cells] for names, cells in wide.iterrows())
    return record.markdown(["circuit", "observable", *wide.columns], rows)


def plot(path: Path) -> None:
    """The variances over the number of qubits, from the table in the same folder; zeros are not drawn."""
    table = pd.read_csv(path.with_suffix(".csv")).query("variance > 0")
    picture = so.Plot(table, x="n_qubits", y="variance", color="initialisation", marker="initialisation")
    picture = (
        picture.facet("circuit", "observable").add(so.Line()).scale(x=so.Continuous().tick(every=2), y="log")
    )
    picture = picture.label(x="qubits", y="variance (per radian squared)", color="", marker="")
    picture.layout(size=(12, 6)).save(path, bbox_inches="tight", dpi=80)


if __name__ == "__main__":
    folder = record.run(__doc__, plateau=variances, plateau_rates=rates)
    plot(folder / "plateau.png")
    print(table(pd.read_csv(folder / "plateau_rates.csv")))
