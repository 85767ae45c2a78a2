"""Reports on this machine: what computes here, what is missing and how to install it.

`choose` picks a torch device, `report` tests everything that can compute here, `table` prints it.

Nothing here sets a seed, a thread count, a default device or an environment variable. torch, PennyLane and
psutil are imported when first used, so launch code can call `launch_environment` before that.
"""

from qnnkit.device.accelerators import choose, usable_devices
from qnnkit.device.doctor import Report, report, table
from qnnkit.device.machine import launch_environment, on_colab
from qnnkit.device.simulators import probe

__all__ = ["Report", "report", "table", "choose", "usable_devices", "launch_environment", "on_colab", "probe"]
