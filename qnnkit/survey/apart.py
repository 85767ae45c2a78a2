"""A measurement in a process of its own: for its memory, which no earlier one blurs, and for its threads.

OpenMP reads `OMP_NUM_THREADS` when a process starts. PennyLane's lightning brings an OpenMP library of its
own. On Linux, where torch is imported before it, it uses torch's all the same, and `torch.set_num_threads`
steers both: seen in its times, and in the threads that a process has. Nobody has looked elsewhere; so a
process is told both ways.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

CODE = "from qnnkit.survey import apart; apart.answer()"
START = 5.0
"""Seconds that a process takes before it measures, on two cores at rest: it imports torch and PennyLane."""
LONGEST = 200
"""Letters of what went wrong that are kept."""
PATIENCE = 60.0
"""Seconds that a process has, whatever is left: on a busy machine imports alone may take half of it."""


def ask(what: str, question: dict[str, Any], *, threads: int | None = None, timeout: float) -> dict[str, Any]:
    """What a measurement finds in a fresh process; `{"why": ...}` where it fails or takes too long.

    Args:
        what: "net" or "circuits".
        question: Plain values, for `net.here` or `circuits.here`.
        threads: For OpenMP and torch, from the start; None leaves them to torch.
        timeout: Seconds after which it is stopped.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory() as folder:
        asked, told = Path(folder) / "question.json", Path(folder) / "answer.json"
        asked.write_text(json.dumps({"what": what, "threads": threads, **question}))
        command = [sys.executable, "-P", "-c", CODE, str(asked), str(told)]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            return {"why": f"It took longer than the {timeout:.0f} s that were left."}
        if told.exists():
            return json.loads(told.read_text())
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return {"why": f"Its process was ended by {name}, as a system does that runs out of memory."}
    last = done.stderr.strip().splitlines()[-1:] or ["nothing"]
    return {"why": f"Its process ended with status {done.returncode} and said: {last[0][:LONGEST]}"}


def answer() -> None:
    """What the fresh process does: reads the question, measures, writes the answer."""
    import torch

    asked, told = map(Path, sys.argv[1:])
    question = json.loads(asked.read_text())
    if question["threads"] is not None:
        torch.set_num_threads(question["threads"])
    from qnnkit.survey import circuits, net

    found = {"net": net.here, "circuits": circuits.here}[question["what"]](question)
    told.write_text(json.dumps(found))
