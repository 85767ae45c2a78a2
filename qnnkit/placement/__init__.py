"""On which device, on how many threads and in which batches a net trains fastest here: by measurement."""

from qnnkit.placement.candidates import LARGEST, Candidate, devices, here, sizes, thread_counts
from qnnkit.placement.decision import Placement, place

__all__ = ["LARGEST", "Candidate", "Placement", "devices", "here", "place", "sizes", "thread_counts"]
