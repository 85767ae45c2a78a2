"""float32 matrix products with all their digits, whatever the code around has asked torch for."""

from __future__ import annotations

from typing import Any

import torch


def autocasts(kind: str) -> bool:
    """Whether autocast is on for a kind of device, if that has any."""
    return kind != "meta" and torch.is_autocast_enabled(kind)


def rounds(kind: str) -> bool:
    """Whether the user lets torch round float32 matrix products on a kind of device."""
    return full_precision(kind).setting() not in ("none", "ieee")


class full_precision:
    """Inside, float32 matrix products have all their digits, whatever the user has set for the rest.

    Args:
        kind: Of device: "cpu", "cuda"; others have no such setting.
    """

    def __init__(self, kind: str):
        self.of = {"cpu": ("mkldnn", "matmul"), "cuda": ("cuda", "matmul")}.get(kind)

    def setting(self) -> str:
        return "none" if self.of is None else torch._C._get_fp32_precision_getter(*self.of)

    def __enter__(self) -> None:
        self.before = self.setting()
        if self.before not in ("none", "ieee"):
            torch._C._set_fp32_precision_setter(*self.of, "ieee")

    def __exit__(self, *error: Any) -> None:
        if self.before not in ("none", "ieee"):
            torch._C._set_fp32_precision_setter(*self.of, "none")
            if self.setting() != self.before:  # it was set itself, not inherited
                torch._C._set_fp32_precision_setter(*self.of, self.before)
