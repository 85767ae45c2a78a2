"""Run folders, the nets trained in them, and the strict launch of notebooks.

`open_run` begins or opens a run, `train_all` trains its nets, `run_notebooks` does so by its notebooks
(`NOTEBOOKS`) and writes the report. `frame` is the table of many runs; `predict`, `evaluate` and `load_model`
use a trained net.
"""

from qnnkit.runs import chain
from qnnkit.runs.chain import ANALYZE, INSIDE, NOTEBOOKS, NotebookError, epoch_line, launch, run_notebooks
from qnnkit.runs.folder import Run
from qnnkit.runs.nets import best, build, first_batch, placed, seen_by, to_plan, trained
from qnnkit.runs.opening import open_run
from qnnkit.runs.rows import frame
from qnnkit.runs.state import State, watch
from qnnkit.runs.trainings import Stopped, Training, train_all, training
from qnnkit.runs.using import evaluate, export, load_model, merge, predict

__all__ = [
    "ANALYZE", "INSIDE", "NOTEBOOKS", "NotebookError", "Run", "State", "Stopped", "Training", "best", "build",
    "chain", "epoch_line", "evaluate", "export", "first_batch", "frame", "launch",
    "load_model", "merge", "open_run", "placed", "predict", "run_notebooks", "seen_by", "to_plan",
    "train_all", "trained", "training", "watch",
]  # fmt: skip
