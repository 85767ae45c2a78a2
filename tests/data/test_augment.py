"""qnnkit.data.augment: slightly changed images, reproducible by seed, only in training."""

import math

import pytest
import torch
from torch import nn

from qnnkit import recipes, tasks
from qnnkit.data import augment
from tests import toys

NOISE = torch.randint(256, (6, 3, 9, 12), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def moved(images, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return augment.affine(images)


def test_changes_depend_only_on_the_seed_and_a_uniform_image_stays_uniform(monkeypatch):
    """Pixels from outside repeat the border: no black corners on white paper."""
    images = moved(NOISE)
    assert images.shape == NOISE.shape and images.dtype == torch.uint8
    assert torch.equal(images, moved(NOISE)) and not torch.equal(images, moved(NOISE, seed=1))
    assert all(not torch.equal(new, old) for new, old in zip(images, NOISE, strict=True))
    assert (moved(torch.full((20, 1, 8, 8), 200, dtype=torch.uint8)) == 200).all()
    for name in ("DEGREES", "SHIFT", "SCALE", "SHEAR"):
        monkeypatch.setattr(augment, name, 0.0)
    assert torch.equal(moved(NOISE), NOISE)


BOUNDS = {
    "DEGREES": 12 * 2 * math.sin(math.radians(augment.DEGREES / 2)),
    "SHIFT": math.sqrt(2) * 41 * augment.SHIFT,
    "SCALE": 12 * (1 / (1 - augment.SCALE) - 1),
}
"""The largest shift in pixels, by each change, of a spot 12 pixels right of the middle of 41."""


@pytest.mark.parametrize("alone", BOUNDS)
def test_each_change_stays_within_its_bound_and_comes_close_to_it(monkeypatch, alone):
    for name in {*BOUNDS, "SHEAR"} - {alone}:
        monkeypatch.setattr(augment, name, 0.0)
    place = torch.stack(torch.meshgrid(torch.arange(41), torch.arange(41), indexing="ij"))
    begin = torch.tensor([20.0, 32.0])
    spot = 255 * torch.exp(-((place - begin[:, None, None]) ** 2).sum(0) / 4)
    images = moved(spot.to(torch.uint8).expand(400, 1, 41, 41)).double()
    centres = (images * place).sum((2, 3)) / images.sum((2, 3))
    distance = (centres - begin).norm(dim=1).max()
    assert 0.8 * BOUNDS[alone] < distance < BOUNDS[alone] + 0.1  # rounding to whole values adds up to 0.1


def test_only_training_images_are_augmented():
    """By the setting, also if a recipe has no task."""
    recipe, batch = recipes.Recipe("", "", toys.Digits, ""), (NOISE[:, :1], torch.arange(6))
    task = recipe.task(recipe.settings(augmentation="affine"))
    net = nn.Sequential(nn.Flatten(), toys.AsFloat())
    with torch.random.fork_rng(devices=[]):
        plain = float(tasks.Classification()(net.eval(), batch).loss)
        assert float(task(net, batch).loss) == plain != float(task(net.train(), batch).loss)
    assert recipe.task(recipe.settings(label_smoothing=0.5)).label_smoothing == 0.5
