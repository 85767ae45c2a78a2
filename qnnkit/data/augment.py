"""Random augmentation of images, on the device and batch by batch."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

DEGREES, SHIFT, SCALE, SHEAR = 12.0, 0.08, 0.12, 8.0
"""Largest rotation (degrees), shift (share of a side), change of scale (share) and shear (degrees)."""


def affine(images: Tensor) -> Tensor:
    """Rotates, shifts, scales and shears each image by its own random amounts, repeating the border.

    Amounts are drawn from torch's global CPU generator, which training seeds, so they are the same on every
    device.

    Args:
        images: uint8, of shape (batch, channels, height, width).

    Returns:
        Images of the same shape and dtype, bilinearly interpolated.
    """
    n, device = len(images), images.device
    turn, shear, across, down, width, height = (2 * torch.rand(6, n) - 1).to(device)
    turn, shear = math.radians(DEGREES) * turn, torch.tan(math.radians(SHEAR) * shear)
    cos, sin = torch.cos(turn), torch.sin(turn)
    x, y = 1 + SCALE * width, 1 + SCALE * height
    first = [x * cos, x * (shear * cos - sin), 2 * SHIFT * across]  # coordinates span -1..1
    second = [y * sin, y * (shear * sin + cos), 2 * SHIFT * down]
    matrices = torch.stack([*first, *second], 1).reshape(n, 2, 3)
    grid = affine_grid(matrices, list(images.shape), align_corners=False)
    moved = grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    return moved.round().to(torch.uint8)
