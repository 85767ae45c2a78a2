"""A stand-in for `qnnkit run` in tests of batches, where QNNKIT_STAND_IN is set: it trains nothing.

It leaves the same files. An epoch takes `warmup_epochs` seconds, metrics.jsonl is its checkpoint, hidden=99
fails, 98 fails once. A language model has a loss in place of an accuracy, and its own net is a reference.
While the file `hold` is in the workspace, a run in its first attempt waits after two epochs, if it is the Nth
that has begun, or a later one; the file holds N.
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path
from typing import NoReturn


def stand_in(words: list[str]) -> NoReturn:
    import typer
    from filelock import FileLock

    from qnnkit import cli_output, cli_settings, workspace
    from qnnkit.runs import lock

    folder = Path(words[words.index("--run-dir") + 1])
    given = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    settings = {"warmup_epochs": 0.01} | cli_settings.gathered(None, given)
    status = 0
    try:
        with cli_output.ending_cleanly():
            if (workspace.run_folder(folder) / "result.json").exists():  # and not on Drive
                with lock.mirrored(workspace.run_folder(folder)):
                    pass
                os._exit(0)
            folder.mkdir(parents=True, exist_ok=True)
            facts = {"pid": os.getpid(), "threads": os.environ["OMP_NUM_THREADS"], "settings": settings}
            facts |= {"gpus": os.environ.get("CUDA_VISIBLE_DEVICES"), "words": words}
            workspace.append_line(folder / "calls.jsonl", facts)
            calls = len(workspace.read_lines(folder / "calls.jsonl"))
            chain = FileLock(folder / ".chain.lock")
            chain.acquire()
            config = {"epochs": settings["epochs"], "controls": [], "n_seeds": 1}
            workspace.write_json(folder / "config.json", config)
            hidden = settings.get("hidden")
            if hidden == 99 or (hidden == 98 and calls == 1):
                (folder / "notebooks").mkdir(exist_ok=True)
                (folder / "notebooks" / "03_train.failed.ipynb").write_text("{}")
                print("qnnkit: Notebook 03_train.ipynb stopped: It diverged.", flush=True)
                os._exit(2)
            text = "text_llama" in words
            net, column = ("reference", "validation_loss") if text else ("hybrid", "validation_accuracy")
            done = len(workspace.read_lines(folder / "metrics.jsonl"))
            for epoch in range(done + 1, settings["epochs"] + 1):
                while epoch > 2 and calls == 1 and held(folder.parent):
                    time.sleep(0.01)
                time.sleep(settings["warmup_epochs"])
                score = (1 - abs(settings.get("learning_rate", 0) - 0.3)) * epoch / settings["epochs"]
                score = 4 - score if text else score
                row = {"event": "epoch", "net": net, "seed": settings.get("seed", 0), "epoch": epoch}
                workspace.append_line(folder / "metrics.jsonl", row | {column: score})
            row = {"event": "test", "net": net, "seed": settings.get("seed", 0)}
            workspace.append_line(folder / "metrics.jsonl", row | {column: score})
            workspace.write_json(folder / "result.json", {"score": score})
    except typer.Exit as error:
        status = error.exit_code
    os._exit(status)


def held(runs: Path) -> bool:
    try:
        return len(list(runs.iterdir())) >= int((runs.parent / "hold").read_text())
    except (FileNotFoundError, ValueError):
        return False


def asked(words: list[str]) -> bool:
    return words[:2] == ["qnnkit", "run"] and "QNNKIT_STAND_IN" in os.environ


# In the process that the tests' processes are forked from; one of its own has it from `sitecustomize`.
_usual = runpy.run_module
runpy.run_module = lambda name, **options: (
    stand_in(sys.argv[2:]) if asked(sys.argv) else _usual(name, **options)
)
if sys.orig_argv[1:2] == ["-m"] and asked(sys.orig_argv[2:]):
    stand_in(sys.orig_argv[4:])
if engine := sys.modules.get("qnnkit.batch.engine"):  # who is forked waits in short steps
    engine.LOOK, engine.workers.LOOK = 0.1, 0.05
if os.environ.get("QNNKIT_STAND_IN") == "by itself":
    from qnnkit import warm

    warm.begin = lambda: None
