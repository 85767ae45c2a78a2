"""What was measured, remembered: in the process, and in a workspace that is in use."""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from typing import Any

import torch

from qnnkit import workspace
from qnnkit.measure import busy

_FOUND: dict[str, dict[str, float]] = {}


def machine(device: torch.device) -> dict[str, Any]:
    """What a time depends on beside the program: processor, device, threads, versions."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        "processor": f"{platform.system()} {platform.machine()} {platform.processor()}",
        "device": name,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def once(question: Mapping[str, Any], answer: Callable[[], dict[str, float]]) -> dict[str, float]:
    """The seconds that `answer` measures: asked once per question, then remembered.

    In this process always; in the workspace where there is one (`QNNKIT_HOME`, or a folder with runs), as
    `measured/<hash>.json`, so that a run which is resumed decides as it did, beside how busy the machine was
    (`busy`, cores that other programs used). What cannot be read is measured anew.

    Args:
        question: Everything that the times depend on, in plain values.
        answer: Gives seconds by name.
    """
    key = hashlib.sha256(json.dumps(question, sort_keys=True, default=str).encode()).hexdigest()[:16]
    if key in _FOUND:
        return _FOUND[key]
    folder = workspace.shelf("measured")
    path = None if folder is None else folder / f"{key}.json"
    if path is not None:
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            kept = json.loads(path.read_text())["seconds"]
            _FOUND[key] = {str(name): float(value) for name, value in kept.items()}
            return _FOUND[key]
    others = None if path is None else busy.load(0.1)  # before: what `answer` starts would count as others
    _FOUND[key] = answer()
    if path is not None:
        with contextlib.suppress(OSError):  # a full or read-only workspace is no reason to stop
            workspace.make_folder(path.parent)
            workspace.write_json(path, {"question": dict(question), "seconds": _FOUND[key], "busy": others})
    return _FOUND[key]
