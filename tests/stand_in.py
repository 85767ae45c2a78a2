"""Makes processes of `qnnkit run` do what tests/acted.py does, if QNNKIT_STAND_IN is set."""

import os
import runpy
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn


def stand_in(words: Sequence[str]) -> NoReturn:
    import typer

    from qnnkit import cli_output
    from tests.acted import act

    try:
        with cli_output.ending_cleanly():
            os._exit(act(words, os.environ, lambda text: print(text, flush=True), threading.Event()))
    except typer.Exit as error:
        os._exit(error.exit_code)


def asked(words: list[str]) -> bool:
    return words[:2] == ["qnnkit", "run"] and "QNNKIT_STAND_IN" in os.environ


# In the process that tests fork from; a spawned process gets it from `sitecustomize`.
_usual = runpy.run_module
runpy.run_module = lambda name, **options: (
    stand_in(sys.argv[2:]) if asked(sys.argv) else _usual(name, **options)
)
if sys.orig_argv[1:2] == ["-m"] and asked(sys.orig_argv[2:]):
    stand_in(sys.orig_argv[4:])
if engine := sys.modules.get("qnnkit.batch.engine"):  # a forked process waits in short steps
    engine.LOOK, engine.workers.LOOK = 0.1, 0.05
if os.environ.get("QNNKIT_STAND_IN") == "by itself":
    from qnnkit import warm

    warm.begin = lambda: None
