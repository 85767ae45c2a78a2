"""Published weights of a transformers model, from a folder or the Hub: safetensors, and every one of them."""

from __future__ import annotations

from typing import Any

from qnnkit import checks
from qnnkit.data import hub


def load(kind: Any, name: str, *, what: str, model_type: str) -> Any:
    """The model called `name`, a class of transformers' `kind`; nothing but safetensors is read.

    Args:
        kind: The class, with `from_pretrained`.
        name: Local folder, or name on the Hugging Face Hub.
        what: What it is to be, in words.
        model_type: What its config.json calls it.

    Raises:
        ValueError: It cannot be reached, is something else, or lacks a weight.
    """
    step = "Give a local folder with config.json and model.safetensors, or None to start from scratch."

    def refuse(rule: str, value: str, reason: str) -> ValueError:
        return ValueError(checks.message("pretrained", rule, value, f"{reason} {step}"))

    try:
        net, told = hub.read(kind, name, use_safetensors=True, output_loading_info=True)
    except ValueError as error:
        raise refuse(f"be a {what} that can be read here", name, f"It was not read: {error}.") from None
    if net.config.model_type != model_type:
        raise refuse(f"be a {what}", net.config.model_type, "Other nets have other layers.")
    if lacking := [*told["missing_keys"], *(key for key, *_ in told["mismatched_keys"])]:
        some = f"{len(lacking)} weights, {sorted(lacking)[0]} first, would be left as they are drawn."
        raise refuse(f"hold every weight of its {what}", name, f"It does not: {some}")
    return net
