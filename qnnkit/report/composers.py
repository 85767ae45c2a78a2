"""What the nets of a run are worth on each composer's music that lies in its data_dir."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from qnnkit import device, measure, music, stats
from qnnkit.data.music_events import MusicTokenizer
from qnnkit.data.music_sources import composers_in
from qnnkit.data.tokens import TokenSplits
from qnnkit.music.adapters import BASE
from qnnkit.music.over_runs import RunsMatrix, spread
from qnnkit.runs import Run, trained
from qnnkit.runs.reading import work
from qnnkit.settings import MAIN_NETS

if TYPE_CHECKING:
    import pandas as pd

    from qnnkit.plots import Picture

SPLIT = "test"
MOST_BLOCKS, MOST_COMPOSERS = 64, 12
"""Of a composer's test pieces, and composers: each net reads so much at most, in a report."""


def losses_by_composer(run: Run, most_blocks: int | None = MOST_BLOCKS) -> list[dict[str, Any]]:
    """The loss on every composer's test pieces: of the base, and of each trained net and seed.

    Composers are those of data_dir, whether the run was trained on them or not, in the splits that the run's
    settings give them. Nothing, with a printed sentence, for other kinds of data.

    Args:
        run: Whose nets are trained.
        most_blocks: Of a composer, spread evenly over its test pieces; None takes all.

    Returns:
        Plain values: `net`, `kind` (the adapter's method, or "base"), `seed` (None for the base), `composer`,
        `trained` (whether the run was trained on that composer), `split`, `nats_per_token`, `tokens`.
    """
    if not (isinstance(run.splits, TokenSplits) and isinstance(run.splits.tokenizer, MusicTokenizer)):
        print("The run is not one of music: there are no composers to set beside each other.")
        return []
    pieces, own = _pieces(run, most_blocks)
    place = device.choose("cpu" if run.config.device == "cpu" else "auto")
    size = run.config.batch_size
    rows: list[dict[str, Any]] = []

    def judge(model: nn.Module, net: str, kind: str, seed: int | None) -> None:
        for composer, splits in pieces.items():
            nats = music.mean_nats(model, splits, SPLIT, size, device=place)
            facts = {"net": net, "kind": kind, "seed": seed, "composer": composer, "trained": composer in own}
            tokens = splits.split(SPLIT).n_predicted
            rows.append({**facts, "split": SPLIT, "nats_per_token": nats, "tokens": tokens})

    with measure.threads(run.placement.get("threads")):
        for net in run.nets:
            for seed in run.seeds:
                model = trained(run, net, seed)
                if not rows and getattr(run.config, "adapter", None):
                    with music.using_adapter(model, BASE):
                        judge(model, BASE, BASE, None)
                adapter = getattr(run.config, "adapter", None) if net in MAIN_NETS else None
                judge(model, net, adapter or net, seed)
    return rows


def keep_composers(run: Run, rows: Sequence[dict[str, Any]]) -> list[pd.DataFrame | Picture]:
    """A table and a picture of the rows of `losses_by_composer`, kept; nothing without rows.

    Prints what the run's own net gained on the composers that it was trained on, and on the others.
    """
    import pandas as pd

    from qnnkit import plots

    if not rows:
        return []
    composers = list(dict.fromkeys(row["composer"] for row in rows))
    nets = list(dict.fromkeys(row["net"] for row in rows))
    own = {row["composer"] for row in rows if row["trained"]}
    found = {(net, name): stats.mean_interval(_values(rows, net, name)) for net in nets for name in composers}
    heads = {name: f"{name} (trained)" if name in own else name for name in composers}
    cells = {heads[name]: [spread(found[net, name]) for net in nets] for name in composers}
    halves = np.array([[found[net, name].half_width for name in composers] for net in nets])
    marked = [
        (row, column)
        for row, net in enumerate(nets)
        for column, name in enumerate(composers)
        if net != BASE and name in own
    ]
    figure = plots.loss_matrices(
        {"": np.array([[found[net, name].mean for name in composers] for net in nets])},
        nets,
        composers,
        half_widths={"": np.where(np.isfinite(halves), halves, np.nan)},
        framed=marked,
        rows="net",
    )
    told = "Mean over seeds on test pieces; framed: what the nets were trained on. Compare within a column."
    for sentence in _gains(rows, nets, composers, own):
        print(sentence)
    return [
        pd.DataFrame({"nats per token": nets, **cells}).set_index("nats per token"),
        run.keep(figure, "05_composers", "Loss on each composer's music", told),
    ]


def matrices_picture(matrices: dict[str, RunsMatrix]) -> Picture:
    """The matrices of `music.matrix_of_runs`, a panel for each kind of adapter; own composers are framed."""
    from qnnkit import plots

    first = next(iter(matrices.values()))
    rows = list(dict.fromkeys(row for each in matrices.values() for row in each.rows))

    def whole(matrix: RunsMatrix, values: np.ndarray) -> np.ndarray:
        """With a row of NaN for an adapter that the kind has not."""
        there = dict(zip(matrix.rows, values, strict=True))
        return np.array([there.get(row, np.full(len(first.composers), np.nan)) for row in rows])

    return plots.loss_matrices(
        {kind: whole(each, each.means()) for kind, each in matrices.items()},
        rows,
        first.composers,
        half_widths={kind: whole(each, each.half_widths()) for kind, each in matrices.items()},
        framed=[(rows.index(name), column) for column, name in enumerate(first.composers) if name in rows],
    )


def batch_composers(folder: Path, planned: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the page of a batch over `composers` shows: sentences and a picture for every other setting.

    Runs that are not finished are left out; nothing where the batch has no such setting.

    Args:
        folder: The batch's.
        planned: The runs of its batch.json, each with `folder` and `settings`.
    """
    groups: dict[str, list[Path]] = {}
    for run in planned:
        settings = run.get("settings")
        place = work(Path(os.path.normpath(folder / str(run["folder"]))))
        if not (isinstance(settings, dict) and "composers" in settings):
            continue
        others = {name: value for name, value in settings.items() if name not in ("composers", "seed")}
        told = ", ".join(f"{name} {value}" for name, value in others.items())
        runs = groups.setdefault(told, [])
        if (place / "result.json").is_file():
            runs.append(place)
    found = []
    for told, runs in groups.items():
        if len(runs) < 2:
            continue
        try:
            matrices = music.matrix_of_runs(runs)
        except (OSError, ValueError, KeyError, TypeError) as error:  # any folder may be damaged
            found.append({"settings": told, "sentences": [f"There is no matrix: {error}"], "source": None})
            continue
        encoded = base64.b64encode(matrices_picture(matrices).png()).decode()
        sentences = [matrix.sentence for matrix in matrices.values()]
        found.append({"settings": told, "sentences": sentences, "source": f"data:image/png;base64,{encoded}"})
    return found


def _pieces(run: Run, most_blocks: int | None) -> tuple[dict[str, TokenSplits], set[str]]:
    """Composer -> some of its music; and on whom the run was trained."""
    there = composers_in(str(run.config.data_dir))
    own = run.config.composers or there
    names = sorted(there, key=lambda name: name not in own)[:MOST_COMPOSERS]
    if len(names) < len(there):
        print(f"{len(names)} of {len(there)} composers are judged, those of the training first.")
    found, shortened = {}, False
    for name in (each for each in there if each in names):
        settings: dict[str, Any] = {"composers": [name], "train_fraction": 1.0}
        alone = Run(run.folder, run.config.override(**settings))
        try:
            splits = alone.load_data()
        except (ValueError, OSError) as error:
            print(f"{name} is left out. {error}")
            continue
        assert isinstance(splits, TokenSplits)
        part = splits.split(SPLIT)
        if most_blocks is not None and len(part) > most_blocks:
            part, shortened = part.at(torch.linspace(0, len(part) - 1, most_blocks).long().tolist()), True
        found[name] = replace(splits, **{SPLIT: part})
    if shortened:
        print(f"Of each composer at most {most_blocks} blocks are read, spread over its {SPLIT} pieces.")
    return found, set(own)


def _values(rows: Sequence[dict[str, Any]], net: str, composer: str) -> list[float]:
    return [row["nats_per_token"] for row in rows if (row["net"], row["composer"]) == (net, composer)]


def _gains(
    rows: Sequence[dict[str, Any]], nets: Sequence[str], composers: Sequence[str], own: set[str]
) -> list[str]:
    """What adapting changed, for the run's own net."""
    main = next((net for net in nets if net in MAIN_NETS), None)
    if BASE not in nets or main is None:
        return []
    told = []
    for name in sorted(composers, key=lambda each: each not in own):
        [base], values = _values(rows, BASE, name), _values(rows, main, name)
        n = sum(value < base for value in values)
        where = "trained on it" if name in own else "not trained on it"
        told.append(
            f"On {name} ({where}) {main} has {spread(stats.mean_interval(values))} nats per token, the base "
            f"{base:.4f}: lower at {n} of {len(values)} seed{'s' * (len(values) != 1)}."
        )
    return told
