"""A call that breaks the graph of `torch.compile` and runs as it does without the compiler."""

from typing import Any

import torch

apart: Any = torch.compiler.disable(lambda forward, inputs: forward(inputs))
"""Calls `forward(inputs)`; faster than an opaque operation in the graph, which torch wraps in both passes."""
