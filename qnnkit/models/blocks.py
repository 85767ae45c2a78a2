"""Parts that several families of nets share: classical parts, seeds, and loading of published weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from qnnkit import checks
from qnnkit.data import hub


def precise(make: Callable[[Tensor], Tensor], values: Tensor) -> Tensor:
    """`make(values)`, computed in float32 under autocast; for values that become angles.

    bfloat16 resolves an angle near pi only to 0.016 radians.
    """
    kind = values.device.type
    if not torch.is_autocast_enabled(kind):
        return make(values)
    with torch.autocast(kind, enabled=False):
        return make(values.to(torch.promote_types(values.dtype, torch.float32)))


def pixels(images: Tensor, like: nn.Module) -> Tensor:
    """uint8 images as numbers from 0 to 1, in the dtype of a module's weights.

    Channels come last in memory, which makes convolutions on a CPU twice as fast.
    """
    scaled = images.to(next(like.parameters()).dtype) / 255
    return scaled.contiguous(memory_format=torch.channels_last)


def not_bytes(images: Tensor, otherwise: str = "", argument: str = "images") -> ValueError:
    """The error for images that are neither uint8 nor `otherwise`."""
    value = f"{images.dtype} of shape {tuple(images.shape)}"
    return ValueError(checks.message(argument, f"be uint8{otherwise}", value, "Give pixels of 0 to 255."))


def normalised(images: Tensor, channels: int, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Images normalised by colour as for published weights; grey ones as red, green and blue."""
    images = images.expand(-1, channels, -1, -1)
    means, stds = (images.new_tensor(each).reshape(1, -1, 1, 1) for each in (mean, std))
    if channels == 1:
        means, stds = means.mean(), stds.mean()
    return (images - means) / stds


def require_sides(image_size: tuple[int, int], least: int, setting: str = "") -> None:
    """Raises a ValueError for images with too few pixels per side; names the setting behind it, if any."""
    if min(image_size) < least:
        rule, step = (
            f"be at least {least} pixels a side",
            f"Use larger images{f' or a smaller {setting}' if setting else ''}.",
        )
        raise ValueError(checks.message("image_size", rule, tuple(image_size), step))


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A context in which torch draws initial weights from a seed; the caller's generators do not change."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed the GPU's too
        yield


def published(
    kind: Any,
    name: str,
    *,
    what: str,
    model_type: str | None = None,
    argument: str = "pretrained",
    otherwise: str = "None to start from scratch",
    **options: Any,
) -> Any:
    """A pretrained model of a class of transformers; reads weights from safetensors only.

    Args:
        kind: The class, with `from_pretrained`.
        name: Local folder, or name on the Hugging Face Hub.
        what: Description of the expected model, for messages.
        model_type: Required `model_type` in its config.json; None accepts any.
        argument: Name of the argument in messages.
        otherwise: Other possible values of that argument, for messages.
        options: Further options of `from_pretrained`; weights are float32 by default, whatever the file has.

    Raises:
        ValueError: The model cannot be reached, is of another type, or lacks a weight.
    """
    step = f"Give a local folder with config.json and model.safetensors, or {otherwise}."

    def refuse(rule: str, value: str, reason: str) -> ValueError:
        return ValueError(checks.message(argument, rule, value, f"{reason} {step}"))

    folder, rule = Path(name).expanduser(), f"be a {what} that can be read here"
    if folder.is_dir() and not (folder / "config.json").exists():
        alone = "It holds only an adapter: load its base, then apply the adapter with adapters.load."
        is_adapter = (folder / "adapter_config.json").exists()
        raise refuse(rule, name, alone if is_adapter else "It has no config.json.")
    options = {"use_safetensors": True, "output_loading_info": True, "dtype": "float32"} | options
    try:
        with seeded(0):  # missing weights would be drawn at random
            net, loading = hub.read(kind, name, **options)
    except ValueError as error:
        raise refuse(rule, name, f"It was not read: {error}.") from None
    if model_type not in (None, net.config.model_type):
        raise refuse(f"be a {what}", net.config.model_type, "Other models have other layers.")
    if lacking := [*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])]:
        some = f"{len(lacking)} weights, {sorted(lacking)[0]} first, cannot be loaded and would stay random."
        raise refuse(f"hold every weight of its {what}", name, some)
    return net
