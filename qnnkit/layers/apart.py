"""What breaks the graph of `torch.compile`, and runs as it does without the compiler."""

from typing import Any

import torch

apart: Any = torch.compiler.disable(lambda forward, inputs: forward(inputs))
"""`forward(inputs)`: faster than one opaque operation of the graph, which torch wraps on both ways."""
