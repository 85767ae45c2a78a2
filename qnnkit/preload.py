"""What a forked process begins with: imported once, in the fork server of `qnnkit.warm`."""

import gc
import importlib

gc.disable()  # takes a third of the time of imports, and finds next to nothing
for name in (
    *("qnnkit.report", "torch._dynamo", "accelerate", "pandas", "tqdm", "papermill", "threadpoolctl"),
    *("matplotlib.figure", "matplotlib.backends.backend_agg", "ipykernel.kernelapp", "nbconvert"),
):
    importlib.import_module(name)
gc.freeze()
gc.enable()
