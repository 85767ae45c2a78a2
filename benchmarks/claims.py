"""Six published hybrid nets: the claims of their papers, and the same nets and controls trained here.

    python -m benchmarks.claims DATA_FOLDER     40 minutes; after Ctrl-C the same command resumes it

DATA_FOLDER holds mnist/ and ahcd/ahcd_csv.zip. Every net and control gets the best learning
rate of RATES on validation samples, from two separate seeds; then ten seeds are trained. The nets are in
benchmarks/recipes/NAME.py, with the claim in NAME.yaml; runs go to runs/claims of the workspace.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from benchmarks import recipe, record
from qnnkit import runs
from qnnkit.report.tables import WITH_CIRCUIT, comparisons, frame_of, means

RATES = (0.01, 0.03, 0.1)
RECIPES = Path(__file__).parent / "recipes"
CLAIMS = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in sorted(RECIPES.glob("*.yaml"))}
"""Recipe -> the claim of its paper."""


def trained(folder: str, name: str, **settings: Any) -> runs.Run:
    run = runs.open_run(f"runs/claims/{folder}", recipe(name), **settings)
    for final in runs.train_all(run):
        print(folder, final["net"], final["seed"], flush=True)
    return run


def tuned(folder: str, name: str, **settings: Any) -> dict[str, float]:
    """Net -> the learning rate of the best mean validation score over two seeds."""
    settings |= {"seed": 100, "n_seeds": 2}
    tries = {rate: trained(f"{folder}_{rate:g}", name, learning_rate=rate, **settings) for rate in RATES}
    score = tries[RATES[0]].score
    frame = pd.concat([frame_of(run).assign(rate=rate) for rate, run in tries.items()])
    pivot: Any = frame.pivot_table(f"validation_{score.on_validation}", "net", "rate")
    return (pivot.idxmax(axis=1) if score.larger else pivot.idxmin(axis=1)).to_dict()


def rows(data: Path, **smaller: Any) -> Iterator[dict[str, Any]]:
    """A row per net and control: both scores with their intervals, the difference and the verdict."""
    for name, claim in CLAIMS.items():
        place = {"data_dir": str(data / claim["folder"])} if claim["folder"] else {}
        for case, own in claim.get("cases", {"": {}}).items():
            folder, settings = f"{name}_{case}".rstrip("_"), {**own, **place, **smaller}
            rates = tuned(folder, name, **settings)
            chosen = [f"{net}.learning_rate={rate:g}" for net, rate in rates.items()]
            run = trained(folder, name, **settings, net_settings=chosen)
            score, frame = run.score, frame_of(run)
            names = [f"{score.name}{end}" for end in ("", "_low", "_high")]
            text = {row["net"]: score.with_interval(*row[names]) for _, row in means(frame, score).iterrows()}
            for row in comparisons(frame, score)[0].to_dict("records"):
                about = {"recipe": name, "case": case, "score": score.column, "larger": score.larger}
                for net, control in (("net", "hybrid"), ("other", row["other_net"])):
                    about |= {f"{net}_score": text[control], f"{net}_rate": rates[control]}
                gap = (score.signed(row[key]) for key in ("difference", "low", "high"))
                yield about | row | {"text": "{} ({} to {})".format(*gap)}


def table(frame: pd.DataFrame) -> str:
    """Claimed, reproduced, the strongest control without a circuit, and the verdict, in Markdown."""
    without = frame[~frame["other_net"].isin((*WITH_CIRCUIT, "joint"))].fillna({"case": ""})
    gain = without["difference"].where(without["larger"], -without["difference"])
    lines = []
    for row in without.loc[gain.groupby([without["recipe"], without["case"]]).idxmin()].itertuples():
        claim = CLAIMS[row.recipe]
        paper = f"[{claim['citation'].split(',')[0]}](https://arxiv.org/abs/{claim['arxiv']}) {row.case}"
        reproduced, control = f"{row.net_score}, {row.score}", f"{row.other_score}, `{row.other_net}`"
        verdict = f"**{row.verdict}**: {row.text}, p = {row.p_holm:.2g}"
        lines.append([paper.strip(), claim["claimed"], reproduced, control, verdict])
    return record.markdown(["paper", "claimed", "reproduced", "best control", "hybrid net against it"], lines)


if __name__ == "__main__":
    record.keep("claims", rows(Path(sys.argv[1]).resolve()))
