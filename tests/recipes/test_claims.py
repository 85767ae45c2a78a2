"""Published nets as recipes: each trains, and the page quotes its claim with all deviations."""

import math
from pathlib import Path

import pytest

from benchmarks import claims, recipe
from qnnkit import runs
from tests.toys import real

PAGE = (Path(__file__).parents[2] / "docs" / "claims.md").read_text("utf-8")
FIELDS = ("citation", "arxiv", "claim", "number", "claimed", "data", "where", "source", "verified", "here")
SOME = ["lstm", "classical", "no_quantum", "fourier"]  # four circuits each: more would take long
SMALL = {
    "henderson_quanv": {"dataset": "digits", "filters": 2, "train_fraction": 60, "validation_fraction": 60},
    "perez_salinas_reuploading": {"n_layers": 2, "test_fraction": 40},
    "cong_qcnn": {"n_side": 3, "batch_size": 20},
    "altmann_sequent": {"points": "spirals", "n_layers": 1, "n_first": 2, "test_fraction": 40},
    "mari_transfer": {"n_features": 8, "n_layers": 1, "train_fraction": 0.05},
    "chen_qlstm": {"series": "bessel", "n_layers": 1, "batch_size": 144, "controls": SOME},
}
"""Recipe -> settings of a quick training."""


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", claims.CLAIMS)
def test_a_published_net_trains_with_its_controls(name, tmp_path):
    folder, small = claims.CLAIMS[name]["folder"], SMALL[name]
    if folder and "dataset" not in small:
        small = {**small, "data_dir": str(real(*folder.split("/")))}
    run = runs.open_run(tmp_path / "run", recipe(name), epochs=1, n_seeds=1, **small)
    finals = runs.train_all(run)
    assert [row["net"] for row in finals] == list(run.nets) and len(run.nets) >= 5
    assert all(math.isfinite(row[f"test_{run.score.name}"]) for row in finals)


def test_a_recipe_may_have_settings_of_a_control_that_a_run_leaves_out(tmp_path):
    assert runs.open_run(tmp_path, recipe("ahcd_frozen"), dataset="digits", controls=[]).nets == ("hybrid",)


@pytest.mark.parametrize("name", claims.CLAIMS)
def test_its_claim_is_quoted_with_its_source(name):
    claim = claims.CLAIMS[name]
    assert [field for field in FIELDS if field not in claim] == [] and claim["deviations"]
    assert claim["arxiv"] in (claims.RECIPES / f"{name}.py").read_text("utf-8")
    assert claim["verified"] or ("as remembered" in claim["claimed"] and "as remembered" in claim["source"])
    assert claim["number"] is None or f"{claim['number']:g} %" in claim["claimed"]
    text = " ".join(PAGE.split())
    assert all(deviation in text for deviation in claim["deviations"]) and claim["claim"] in text
