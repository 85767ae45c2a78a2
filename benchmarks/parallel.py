"""Small runs of 03_train and 04_analyze, one at a time and two at a time: python -m benchmarks.parallel.

Both take turns in blocks (one, two, two, one, ...), so that a slow minute of the machine hits both alike.
Before and after stand bare `qnnkit run`s, against which a batch's own cost is told. Printed, and written to
parallel.json of the results' folder.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from qnnkit import warm
from qnnkit.device import machine

RECIPE = "folder_quanv"
SMALL = {
    "image_size": 6,
    "n_layers": 1,
    "hidden": 2,
    "batch_size": 4,
    "epochs": 2,
    "n_seeds": 1,
    "controls": ["classical"],
}
AT_A_TIME = (1, 2)


@contextlib.contextmanager
def workspace() -> Iterator[Path]:
    """A workspace of its own, so that nothing has been run before."""
    with tempfile.TemporaryDirectory(prefix="qnnkit-parallel-") as folder:
        before = os.environ.get("QNNKIT_HOME")
        os.environ["QNNKIT_HOME"] = folder
        try:
            yield Path(folder)
        finally:
            os.environ.pop("QNNKIT_HOME")
            if before is not None:
                os.environ["QNNKIT_HOME"] = before


def pictures(root: Path) -> Path:
    """Twelve 6x6 images in each of two class folders: bright above, or bright below."""
    generator = np.random.default_rng(0)
    for name, rows in (("above", slice(0, 3)), ("below", slice(3, 6))):
        (root / name).mkdir(parents=True)
        for i in range(12):
            pixels = generator.integers(0, 100, (6, 6), dtype=np.uint8)
            pixels[rows] += 120
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


def bare(folder: Path, seed: int, settings: dict[str, Any]) -> float:
    """Seconds of one `qnnkit run`, as a person types it."""
    command = [sys.executable, "-m", "qnnkit", "run", "--recipe", RECIPE, "--run-dir", folder / f"bare{seed}"]
    command += ["--notebooks", "03_train,04_analyze"]
    for name, value in {**settings, "seed": seed}.items():
        command += ["--set", f"{name}={json.dumps(value)}"]
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return time.perf_counter() - start


def block(workers: int, seeds: list[int], settings: dict[str, Any]) -> dict[str, Any]:
    """Runs a batch, and tells how long it took from the call to the last run."""
    from qnnkit import batch

    content = {"name": f"at-a-time-{workers}-{seeds[0]}", "recipe": RECIPE, "settings": settings}
    start, load = time.perf_counter(), os.getloadavg()[0]
    outcomes = batch.run_batch(
        {**content, "seeds": seeds, "workers": workers, "threads": 1}, echo=lambda line: None
    )
    failed = [each.error for each in outcomes if each.state != "finished"]
    return {
        "workers": workers,
        "runs": len(seeds),
        "seconds": time.perf_counter() - start,
        "load_before": load,
        "failed": failed,
    }


def compare(runs: int, per_block: int, settings: dict[str, Any], bares: int) -> dict[str, Any]:
    """All blocks, and what follows from them."""
    order = [AT_A_TIME[(i + 1) // 2 % 2] for i in range(2 * (runs // per_block))]  # 1 2 2 1 1 2 2 1 ...
    done = dict.fromkeys(AT_A_TIME, 0)
    with workspace() as home:
        settings = {**settings, "data_dir": str(pictures(home / "pictures"))}
        bare(home, 9_000, settings)  # fills what is measured once for each machine
        alone = [bare(home, 9_001 + i, settings) for i in range(bares)]
        blocks = []
        for workers in order:
            first = 1_000 * workers + done[workers]
            blocks.append(block(workers, list(range(first, first + per_block)), settings))
            done[workers] += per_block
            print(json.dumps(blocks[-1]), flush=True)
        alone += [bare(home, 9_101 + i, settings) for i in range(bares)]
    return summary(blocks, alone) | {
        "recipe": RECIPE,
        "settings": {name: value for name, value in settings.items() if name != "data_dir"},
        "cores": machine.cores(),
        "processor": processor(),
        "python": platform.python_version(),
        "machine_load_at_start": blocks[0]["load_before"],
    }


def summary(blocks: list[dict[str, Any]], alone: list[float]) -> dict[str, Any]:
    """Throughput of each, their ratio, and what a run pays for being one of a batch.

    Example:
        >>> one = {"workers": 1, "runs": 2, "seconds": 20.0, "failed": []}
        >>> two = {"workers": 2, "runs": 2, "seconds": 11.0, "failed": []}
        >>> found = summary([one, two], [9.0])
        >>> round(found["ratio"], 2), found["batch_overhead_s"], found["parallel_overhead_s"]
        (1.82, 1.0, 1.0)
    """
    per_run = {
        workers: [each["seconds"] / each["runs"] for each in blocks if each["workers"] == workers]
        for workers in AT_A_TIME
    }
    total = {workers: sum(values) / len(values) for workers, values in per_run.items()}
    pairs = [one / two for one, two in zip(per_run[1], per_run[2], strict=True)]
    return {
        "blocks": blocks,
        "runs_each": sum(each["runs"] for each in blocks if each["workers"] == 1),
        "failed": sum(len(each["failed"]) for each in blocks),
        "seconds_per_run": {str(workers): values for workers, values in per_run.items()},
        "ratio": total[1] / total[2],
        "ratio_of_pairs": {
            "median": statistics.median(pairs),
            "min": min(pairs),
            "max": max(pairs),
        },
        "bare_s": alone,
        "batch_overhead_s": total[1] - statistics.median(alone),  # starting workers, looking, handing out
        "parallel_overhead_s": 2 * total[2] - total[1],  # a run beside another, less a run by itself
    }


def processor() -> str:
    """Kind of the machine."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


def table(found: dict[str, Any]) -> str:
    """What was found, in a few lines."""
    one, two = (statistics.median(found["seconds_per_run"][str(workers)]) for workers in AT_A_TIME)
    pairs = found["ratio_of_pairs"]
    return "\n".join(
        [
            f"{found['runs_each']} runs each, {found['cores']} cores, {found['processor']}",
            f"{'':<24}{'seconds a run (median)':>24}{'runs a minute':>16}",
            f"{'bare qnnkit run':<24}{statistics.median(found['bare_s']):>24.1f}",
            f"{'batch, 1 at a time':<24}{one:>24.1f}{60 / one:>16.2f}",
            f"{'batch, 2 at a time':<24}{two:>24.1f}{60 / two:>16.2f}",
            f"throughput: {found['ratio']:.2f} times (blocks: median {pairs['median']:.2f}, "
            f"{pairs['min']:.2f} to {pairs['max']:.2f})",
            f"a run costs {found['batch_overhead_s']:+.1f} s as one of a batch, and "
            f"{found['parallel_overhead_s']:+.1f} s beside another; {found['failed']} failed",
        ]
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=24, help="runs at each setting")
    parser.add_argument("--block", type=int, default=6, help="runs between two changes of setting")
    parser.add_argument("--bare", type=int, default=2, help="bare runs before, and after")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the results")
    options = parser.parse_args()
    if options.runs % options.block:
        parser.error("--runs must be a multiple of --block")
    warm.begin()  # as `qnnkit batch` does
    print(f"{psutil.cpu_percent(interval=1.0):.0f} % of the processor is busy with other work")
    found = compare(options.runs, options.block, SMALL, options.bare)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "parallel.json").write_text(json.dumps(found, indent=2) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
