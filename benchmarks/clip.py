"""CLIP of two small towers: its heads beside their controls on digits with captions, and COCO's pairs.

    OMP_NUM_THREADS=1 python -m benchmarks.clip heads
    OMP_NUM_THREADS=1 python -m benchmarks.clip coco --root /data/captions/coco_by

`heads` chooses the step sizes of every net alike, on validation digits and seeds of their own, then trains
each net anew over other seeds and looks at the test digits once. Each line is a net and a seed, as JSON; the
last ones are a table, and what may be said of it. All of it is written to clip.json of the results' folder.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

from torch import nn

from qnnkit import layers, recipes, stats, train
from qnnkit.data.captions import CaptionSplits, captions, digit_captions
from qnnkit.models import Clip, ClipSettings
from qnnkit.recipes import made, parameter_groups
from qnnkit.settings import Settings
from qnnkit.tasks import Contrastive

RECIPE = "digits_clip"
RATES, QUANTUM_RATES = (1e-3, 2e-3), (1e-2, 3e-2)
TUNING_SEEDS = (1000, 1001)
"""Of which none is among those whose test digits are looked at."""


def run(
    name: str,
    model: nn.Module,
    data: CaptionSplits,
    training: Settings,
    seed: int,
    judged: tuple[str, ...],
) -> dict[str, Any]:
    """Trains a net and prints what it is worth on the splits that are named."""
    loaders = {
        "train": data.batches("train", training.batch_size, shuffle=True, seed=seed),
        "validation": data.batches("validation", training.batch_size, shuffle=False),
    }
    task = Contrastive()
    start = time.perf_counter()
    groups = parameter_groups(model, training)
    progress = train.fit(model, task, loaders, training, groups=groups, seed=seed)
    found = {
        "net": name,
        "seed": seed,
        "learning_rate": training.learning_rate,
        "quantum_learning_rate": training.quantum_learning_rate,
        "parameters": sum(layers.count_parameters(model).values()),
        "seconds": round(time.perf_counter() - start, 1),
        "best_epoch": progress.best_epoch,
        "first_loss": round(progress.rows[0]["train_loss"], 3),
        "last_loss": round(progress.rows[-1]["train_loss"], 3),
    }
    for split in judged:
        scores = task.judge(model, data, split)
        found |= {f"{split}_{key}": round(value, 4) for key, value in scores.items()}
    print(json.dumps(found), flush=True)
    return found


def digits_net(name: str, config: Settings, data: CaptionSplits, seed: int) -> nn.Module:
    """The recipe's own net, one of its controls, or one with another head."""
    if name in ("linear", "full"):
        return made(config.override(head=name), data, "reference", seed)
    return made(config, data, name, seed)


def chosen(name: str, config: Settings, data: CaptionSplits) -> Settings:
    """The recipe with the step sizes that serve this net best on validation digits."""
    rates = QUANTUM_RATES if name not in ("linear", "full") else QUANTUM_RATES[:1]
    scored = []
    for rate, quantum_rate in itertools.product(RATES, rates):
        settings = config.override(learning_rate=rate, quantum_learning_rate=quantum_rate)
        found = [
            run(name, digits_net(name, settings, data, seed), data, settings, seed, ("validation",))
            for seed in TUNING_SEEDS
        ]
        scored.append((sum(each["validation_zero_shot"] for each in found), settings))
    return max(scored, key=lambda each: each[0])[1]


def heads(seeds: int, epochs: int | None) -> dict[str, Any]:
    """Every net at its own best step sizes, over seeds, on test digits."""
    config, data = recipes.settings(RECIPE), digit_captions()
    config = config if epochs is None else config.override(epochs=epochs)
    rows: list[dict[str, Any]] = []
    for name in ("hybrid", *config.controls, "linear", "full"):
        best = chosen(name, config, data)
        rows += [
            run(name, digits_net(name, best, data, seed), data, best, seed, ("test",))
            for seed in range(seeds)
        ]
    return {"nets": rows, "sentences": told(rows)}


def told(rows: list[dict[str, Any]]) -> list[str]:
    """The table of nets, and the verdicts on the hybrid one."""
    names, lines = list(dict.fromkeys(row["net"] for row in rows)), []
    scores = {name: [row["test_zero_shot"] for row in rows if row["net"] == name] for name in names}
    for name in names:
        of_net = [row for row in rows if row["net"] == name]
        shares = stats.mean_interval([100 * score for score in scores[name]])
        recalls = [
            50 * (row["test_image_to_text_recall_1"] + row["test_text_to_image_recall_1"]) for row in of_net
        ]
        first = of_net[0]
        lines.append(
            f"{name}: zero-shot {shares.mean:.1f} % ({shares.low:.1f} to {shares.high:.1f}), "
            f"recall@1 {sum(recalls) / len(recalls):.1f} %, {first['parameters']:,} weights, step sizes "
            f"{first['learning_rate']:g} and {first['quantum_learning_rate']:g}, {shares.n} seeds"
        )
    hybrid, *others = names
    return lines + stats.verdicts(hybrid, scores[hybrid], {name: scores[name] for name in others})


def coco(root: str, image_size: int, epochs: int, head: str, size: str, batch_size: int) -> dict[str, Any]:
    """Photographs with several captions each, from scratch: what is learned by heart, and what is not."""
    splits = captions(root, image_size=image_size)
    print("\n".join(splits.notes))
    shape: dict[str, Any] = {"size": size, "patch_size": image_size // 4 if size == "tiny" else None}
    model = Clip(ClipSettings(head=head, n_qubits=8, **shape), **splits.sizes)
    training = recipes.settings("captions_clip", epochs=epochs, batch_size=batch_size)
    return run(f"{size}, {head}", model, splits, training, 0, judged=("train", "test"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("heads", "coco"))
    parser.add_argument("--root", help="folder of COCO's pairs")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, help="the recipe's own by default; of COCO 60")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=46)
    parser.add_argument("--head", default="full")
    parser.add_argument("--size", default="tiny")
    given = parser.parse_args()
    if given.what == "heads":
        found = heads(given.seeds, given.epochs)
        print("\n".join(found["sentences"]))
    else:
        shape = given.image_size, given.epochs or 60, given.head, given.size, given.batch_size
        found = coco(given.root, *shape)
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    path = results / "clip.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    name = given.what if given.what == "heads" else f"coco, {found['net']}"
    path.write_text(json.dumps(kept | {name: found}, indent=1))


if __name__ == "__main__":
    main()
