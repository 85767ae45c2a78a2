"""How long a plateau scan takes, and what it finds: `python -m benchmarks.plateau`, on a quiet machine.

Data re-uploading at 2 to 12 qubits, as many layers as qubits, 200 initialisations, both observables.
"""

from __future__ import annotations

import argparse
import time

import torch

from qnnkit import circuits
from qnnkit.device import machine
from qnnkit.gradients import plateau


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--circuit", default="data_reuploading", choices=circuits.ANSAETZE)
    parser.add_argument("--qubits", type=int, nargs="+", default=list(range(2, 13)))
    parser.add_argument(
        "--depths", nargs="+", default=["1n"], help='such as 4, or "10n" for ten for every qubit'
    )
    parser.add_argument("--initialisations", nargs="+", default=["uniform"], choices=circuits.INITIALISATIONS)
    parser.add_argument("-n", type=int, default=200, help="number of initialisations")
    given = parser.parse_args()
    print(f"{machine.processor()}, torch on {torch.get_num_threads()} threads")
    print("qubits layers observable initialisation  variance [95 % interval]       random circuit  seconds")

    def told(row: plateau.Row) -> None:
        interval = f"{row.variance:.3e} [{row.low:.3e}, {row.high:.3e}]"
        reference = plateau.random_circuit(row.n_qubits, row.observable)
        print(
            f"{row.n_qubits:6} {row.n_layers:6} {row.observable:10} {row.initialisation:15} {interval} "
            f"{reference:15.3e} {row.seconds:8.2f}",
            flush=True,
        )

    start = time.perf_counter()
    found = plateau.scan(
        given.circuit,
        qubits=given.qubits,
        depths=given.depths,
        initialisations=given.initialisations,
        n=given.n,
        progress=told,
    )
    print(f"\n{time.perf_counter() - start:.1f} s in all, with tracing; decay per qubit, in factors of 2:")
    for fit in plateau.fit(found):
        print(
            f"{fit.depth:>6} {fit.observable:10} {fit.initialisation:15} {fit.rate:.3f} "
            f"[{fit.low:.3f}, {fit.high:.3f}], random circuits {fit.reference:.3f}"
        )


if __name__ == "__main__":
    main()
