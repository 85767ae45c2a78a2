"""What the fork server of `qnnkit.warm` imports: all that a run and its notebooks need."""

import importlib
import os
import sys
from multiprocessing import forkserver

from qnnkit import warm

MODULES = (
    *("qnnkit.report", "torch._dynamo", "accelerate", "pandas", "tqdm", "papermill", "threadpoolctl"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "ipykernel.kernelapp", "nbconvert"),
)
"""torch's optimizers import torch._dynamo."""

if "multiprocessing.forkserver" in " ".join(sys.orig_argv):  # imported elsewhere, it does nothing
    os.setsid()  # Ctrl-C is for who began it
    forkserver.set_forkserver_preload([__name__])  # should one that it forks have to begin another
    with warm.importing():
        for name in MODULES:
            importlib.import_module(name)
