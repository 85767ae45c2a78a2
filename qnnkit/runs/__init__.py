"""Run folders, the nets trained in them, and the strict launch of notebooks."""

from qnnkit.runs import chain
from qnnkit.runs.chain import ANALYZE, INSIDE, NOTEBOOKS, epoch_line, finished, run_notebooks
from qnnkit.runs.folder import Run
from qnnkit.runs.frame import frame
from qnnkit.runs.launch import NotebookError, check_parameters, declared, find_notebook, launch
from qnnkit.runs.opening import fork, open_run
from qnnkit.runs.placing import placed
from qnnkit.runs.state import State
from qnnkit.runs.surveying import to_plan
from qnnkit.runs.trainings import (
    Stopped,
    Training,
    best,
    build,
    count_parameters,
    first_batch,
    seen_by,
    train_all,
    trained,
    training,
)
from qnnkit.runs.using import evaluate, export, load_model, merge, predict
from qnnkit.runs.watching import watch

__all__ = [
    "ANALYZE", "INSIDE", "NOTEBOOKS",
    "NotebookError", "Run", "State", "Stopped", "Training", "best", "build", "chain",
    "check_parameters", "count_parameters", "declared", "epoch_line", "evaluate", "export", "find_notebook",
    "finished", "first_batch", "fork", "frame", "launch", "load_model", "merge", "open_run", "placed",
    "predict", "run_notebooks", "seen_by", "to_plan", "train_all", "trained", "training", "watch",
]  # fmt: skip
