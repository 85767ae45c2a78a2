"""The stand-in for `qnnkit run` in tests of batches: it trains nothing and writes the same files.

It runs in a thread of this process (`Acted`) or in another process (tests/stand_in.py). An epoch takes
`warmup_epochs` seconds, metrics.jsonl is the checkpoint, hidden=99 fails, 98 fails once. A language model has
a loss instead of an accuracy, and its hybrid net is a reference. While the workspace has a file `hold`, which
contains a number N, the Nth run to start and all later ones wait after two epochs of their first attempt.
"""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The complete JSON lines of a file; empty if there is no file."""
    from qnnkit import workspace

    return workspace.parse_lines(path.read_bytes())[0] if path.exists() else []


def act(
    words: Sequence[str], variables: Mapping[str, str], say: Callable[[str], object], stop: threading.Event
) -> int:
    """Does what `qnnkit run` does with these words; returns the exit status."""
    from filelock import FileLock

    from qnnkit import cli_settings, workspace
    from qnnkit.runs import lock

    folder = Path(words[words.index("--run-dir") + 1])
    texts = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    settings = {"warmup_epochs": 0.01} | cli_settings.gathered(None, texts)
    place = workspace.run_folder(folder)
    if (place / "result.json").exists():  # not on Drive, or judged by other criteria
        with lock.mirrored(place):
            config = workspace.read_json(place / "config.json") or {}
            workspace.write_json(place / "config.json", config | settings)
            return 0
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"pid": os.getpid(), "threads": variables["OMP_NUM_THREADS"], "settings": settings}
    facts |= {"gpus": variables.get("CUDA_VISIBLE_DEVICES"), "words": words}
    workspace.append_line(folder / "calls.jsonl", facts)
    calls = len(read_lines(folder / "calls.jsonl"))
    with FileLock(folder / ".chain.lock"):
        config = {"epochs": settings["epochs"], "controls": [], "n_seeds": 1}
        workspace.write_json(folder / "config.json", config)
        hidden = settings.get("hidden")
        if hidden == 99 or (hidden == 98 and calls == 1):
            (folder / "notebooks").mkdir(exist_ok=True)
            (folder / "notebooks" / "03_train.failed.ipynb").write_text("{}")
            say("qnnkit: Notebook 03_train.ipynb stopped: It diverged.")
            return 2
        text = "text_llama" in words
        net, column = ("reference", "validation_loss") if text else ("hybrid", "validation_accuracy")
        row, score = {"net": net, "seed": settings.get("seed", 0)}, 0.0
        done = len(read_lines(folder / "metrics.jsonl"))
        for epoch in range(done + 1, settings["epochs"] + 1):
            while epoch > 2 and calls == 1 and held(folder.parent):
                if stop.wait(0.01):
                    return 143
            time.sleep(settings["warmup_epochs"])
            score = (1 - abs(settings.get("learning_rate", 0) - 0.3)) * epoch / settings["epochs"]
            score = 4 - score if text else score
            last = {"event": "epoch", **row, "epoch": epoch, column: score}
            workspace.append_line(folder / "metrics.jsonl", last)
        row |= {"event": "test", "quantum": 6, "classical": 0, "frozen": 0}
        workspace.append_line(folder / "metrics.jsonl", row | {column: score})
        workspace.write_json(folder / "result.json", {"score": score})
    return 0


def held(runs: Path) -> bool:
    try:
        return len(list(runs.iterdir())) >= int((runs.parent / "hold").read_text())
    except (FileNotFoundError, ValueError):
        return False


class Acted(threading.Thread):
    """Like the result of `warm.start`, but the run is a thread instead of a process."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str], log: Path):
        super().__init__(daemon=True)
        self.words, self.variables, self.log = command[4:], variables, log
        self.returncode, self.asked = None, threading.Event()
        self.start()

    def run(self) -> None:
        with self.log.open("a") as log:
            self.returncode = act(self.words, self.variables, log.write, self.asked)

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> None:
        self.join(timeout)
        if self.is_alive():
            raise subprocess.TimeoutExpired(self.words, timeout or 0)

    def terminate(self) -> None:
        self.asked.set()
