"""What hardware would make of a net is asked of as many images as its circuits allow."""

from __future__ import annotations

import pytest

from qnnkit import layers, noise, recipes, report, runs


@pytest.fixture
def run(tmp_path):
    return runs.Run(tmp_path, recipes.settings("digits_quanv"))


@pytest.mark.parametrize(
    ("circuits", "asked", "used"),
    [(1, 64, 64), (49, 64, 64), (64, 64, 64), (128, 64, 32), (7688, 64, 8), (7688, 3, 3), (1, 5000, 360)],
)
def test_many_circuits_take_fewer_images(run, monkeypatch, capsys, circuits, asked, used):
    given = []

    def robustness(model, images, labels, device, seed):
        given.append((len(images), len(labels)))
        return []

    monkeypatch.setattr(layers, "circuits_per_image", lambda model, images: circuits)
    monkeypatch.setattr(noise, "robustness", robustness)
    assert report.robustness(run, runs.build(run, "hybrid", 0), asked) == []
    n_test = len(run.splits.test)
    assert given == [(min(used, n_test),) * 2]
    plural = "" if circuits == 1 else "s"
    told = f"{min(used, n_test)} of the {n_test} test images; each takes {circuits:,} circuit{plural}."
    assert capsys.readouterr().out == f"Classified are {told}\n"
