"""Records the results of a run with the control `fourier`, and prints how the circuit compares with it.

python -m benchmarks.fourier runs/fourier25 docs/results/ahcd/fourier.csv
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks import record
from qnnkit import report, runs, stats

COLUMNS = ["run", "net", "seed", "best_epoch", "quantum", "classical", "frozen", "seconds_per_epoch"]


def main(folder: str, path: str) -> None:
    run = runs.open_run(folder)
    frame, score = report.frame_of(run), run.score
    scores = [each.name for each in report.metrics(score) if frame[each.name].notna().any()]
    table = frame[[*COLUMNS[:4], f"validation_{score.on_validation}", *scores, *COLUMNS[4:]]]
    record.write(table.rename(columns={name: f"test_{name}" for name in scores}), Path(path))
    for row in report.means(frame, score).to_dict("records"):
        ends = (row[f"{score.name}{end}"] for end in ("", "_low", "_high"))
        print(f"{row['net']}: {score.with_interval(*ends)}, {row['classical']:,.0f} other weights")
    for row in report.comparisons(frame, score)[0].to_dict("records"):
        print(stats.sentence(row, score))


if __name__ == "__main__":
    main(*sys.argv[1:])
