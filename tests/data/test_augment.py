"""qnnkit.data.augment: images a little otherwise, the same for one seed, and only in training."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from qnnkit import data, tasks
from qnnkit.data import augment
from tests import toys

NOISE = torch.randint(256, (6, 3, 9, 12), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def moved(images, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return augment.affine(images)


def test_every_image_changes_by_the_seed_alone_and_an_even_one_stays_even(monkeypatch):
    """What comes in from outside repeats the border: no black corners on white paper."""
    images = moved(NOISE)
    assert images.shape == NOISE.shape and images.dtype == torch.uint8
    assert torch.equal(images, moved(NOISE)) and not torch.equal(images, moved(NOISE, seed=1))
    assert all(not torch.equal(new, old) for new, old in zip(images, NOISE, strict=True))
    assert (moved(torch.full((20, 1, 8, 8), 200, dtype=torch.uint8)) == 200).all()
    for name in ("DEGREES", "SHIFT", "SCALE", "SHEAR"):
        monkeypatch.setattr(augment, name, 0.0)
    assert torch.equal(moved(NOISE), NOISE)


def centre(image):
    weights = image.double() / image.double().sum()
    rows, columns = torch.meshgrid(*(torch.arange(side) for side in image.shape), indexing="ij")
    return float((weights * columns).sum()), float((weights * rows).sum())


@pytest.mark.parametrize(
    ("alone", "bound"),
    [
        # A spot 12 pixels right of the middle of 41: how far it may move at most, in pixels, by each change.
        ("DEGREES", 12 * 2 * math.sin(math.radians(augment.DEGREES / 2))),
        ("SHIFT", math.sqrt(2) * 41 * augment.SHIFT),
        ("SCALE", 12 * (1 / (1 - augment.SCALE) - 1)),
    ],
)
def test_each_change_stays_within_its_bound_and_reaches_for_it(monkeypatch, alone, bound):
    for name in {"DEGREES", "SHIFT", "SCALE", "SHEAR"} - {alone}:
        monkeypatch.setattr(augment, name, 0.0)
    rows, columns = torch.meshgrid(torch.arange(41), torch.arange(41), indexing="ij")
    spot = (255 * torch.exp(-((columns - 32) ** 2 + (rows - 20) ** 2) / 4)).to(torch.uint8)
    distances = [math.dist(centre(image[0]), (32, 20)) for image in moved(spot.expand(400, 1, 41, 41))]
    assert max(distances) < bound + 0.1  # pixels; the mean of a spot of whole numbers is that exact
    assert max(distances) > 0.8 * bound


def test_only_training_changes_images():
    task, batch = tasks.Classification.of(data.Images(augmentation="affine")), (NOISE[:, :1], torch.arange(6))
    net = nn.Sequential(nn.Flatten(), toys.AsFloat())
    with torch.random.fork_rng(devices=[]):
        plain = float(tasks.Classification()(net.eval(), batch).loss)
        assert float(task(net, batch).loss) == plain != float(task(net.train(), batch).loss)
