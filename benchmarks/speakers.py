"""Adapters on nine speakers of Romeo and Juliet, beside each other at equal numbers of weights.

    OMP_NUM_THREADS=1 python -m benchmarks.speakers                 # all sizes
    OMP_NUM_THREADS=1 python -m benchmarks.speakers --sizes 1000    # one, so that several may run at once

The base is the recipe text_llama on tinyshakespeare without these speakers; then come the nets of the recipe
text_adapter on what they say. Of each net and size the step sizes are chosen on validation speeches, by a
seed of its own; then it is trained over other seeds, and its test speeches are looked at once. Printed, and
written to speakers-SIZE.json of the results' folder. The base lies there too, and is trained once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

from qnnkit import recipes, report, runs, stats, train
from qnnkit.data import Splits, load
from qnnkit.recipes import made, parameter_groups
from qnnkit.settings import Settings
from qnnkit.tasks import Language

SPEAKERS = "^(ROMEO|JULIET|MERCUTIO|BENVOLIO|TYBALT|Nurse|FRIAR LAURENCE|CAPULET|LADY CAPULET)$"
VOCABULARY = 1024
RATES = ((3e-3, 1e-2), (1e-2, 3e-2), (3e-2, 1e-1))
"""Step sizes of weights and of angles among which each net has its choice."""
TUNING_SEED = 1000
"""Not among those whose test speeches are looked at."""
SIZES = {1000: ("q_proj",), 4000: None, 16000: None}
"""Weights -> layers: LoRA's least on queries and values, 2,048, is more than a thousand."""


def base(text: str, folder: Path) -> runs.Run:
    """The language model that knows everybody else; one that is there already is left as it is."""
    settings: dict[str, Any] = {"data_dir": text, "part": f"!{SPEAKERS}", "vocabulary": VOCABULARY}
    run = runs.open_run(folder, "text_llama", **settings, device="cpu", threads=1)
    if run.result is None:
        for final in runs.train_all(run):
            told = f"{final['seconds_per_epoch']:.0f} s an epoch, validation {final['validation_loss']:.3f}"
            print(f"base: {final['classical']:,} weights, {told}", flush=True)
        report.finish(run)
    return run


def trained(name: str, config: Settings, data: Splits, seed: int, split: str) -> dict[str, Any]:
    """One net, trained and judged at its best epoch."""
    model, task, settings = made(config, data, name, seed), Language(), config
    loaders = {
        each: data.batches(each, settings.batch_size, shuffle=each == "train", seed=seed)
        for each in ("train", "validation", "test")
    }
    groups, start = parameter_groups(model, settings), time.perf_counter()
    fitted = {each: loaders[each] for each in ("train", "validation")}
    train.fit(model, task, fitted, settings, groups=groups, seed=seed)  # ends at its best epoch
    row = {
        "net": name,
        "seed": seed,
        "weights": sum(group.numel() for each in groups for group in each.parameters if group.requires_grad),
        "rates": [settings.learning_rate, settings.quantum_learning_rate],
        "epoch_seconds": (time.perf_counter() - start) / settings.epochs,
        split: train.evaluate(model, task, loaders[split])["loss"],
    }
    print(json.dumps(row), flush=True)
    return row


def chosen(name: str, config: Settings, data: Splits) -> Settings:
    """The recipe with the step sizes that serve this net best on validation speeches."""
    scored = []
    for rate, quantum_rate in RATES:
        settings = config.override(learning_rate=rate, quantum_learning_rate=quantum_rate)
        found = trained(name, settings, data, TUNING_SEED, "validation")
        scored.append((found["validation"], settings))
    return min(scored, key=lambda each: each[0])[1]


def compare(n_weights: int, text: str, model: str, seeds: int) -> dict[str, Any]:
    """All nets of one size: their rows, and what may be said of them."""
    config = recipes.settings(
        "text_adapter",
        data_dir=text,
        part=SPEAKERS,
        pretrained=model,
        tokenizer=model,
        adapter_weights=n_weights,
        targets=SIZES[n_weights],
    )
    options = {"part": SPEAKERS, "tokenizer": model, "sequence_length": config.sequence_length}
    data = load("text", root=text, **options)
    rows: list[dict[str, Any]] = []
    for name in ("hybrid", *config.controls):
        best = chosen(name, config, data)
        rows += [trained(name, best, data, seed, "test") for seed in range(seeds)]
    names = list(dict.fromkeys(row["net"] for row in rows))
    losses = {name: [row["test"] for row in rows if row["net"] == name] for name in names}
    hybrid, *others = names
    told = []
    for name in names:
        [first, *_] = of_net = [row for row in rows if row["net"] == name]
        mean = stats.mean_interval(losses[name])
        seconds = statistics.median(row["epoch_seconds"] for row in of_net)
        told.append(
            f"{n_weights:,}: {name}: {mean.mean:.3f} ± {(mean.high - mean.low) / 2:.3f}, "
            f"{first['weights']:,} weights, step sizes {first['rates']}, {seconds:.1f} s an epoch"
        )
    told += stats.verdicts(hybrid, losses[hybrid], {name: losses[name] for name in others}, stats.LOSS)
    start = train.evaluate(
        made(recipes.settings("text_llama", pretrained=model, data_dir=text), data, "reference", 0),
        Language(),
        data.batches("test", 16, shuffle=False),
    )["loss"]
    told.append(f"The base: {start:.3f}, {len(data.test):,} test blocks")
    print("\n".join(told), flush=True)
    return {"rows": rows, "base": start, "sentences": told}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--text", help="by default tinyshakespeare.txt of QNNKIT_TEST_DATA")
    given = parser.parse_args()
    text = given.text or str(Path(os.environ["QNNKIT_TEST_DATA"], "text", "tinyshakespeare.txt"))
    results = Path(__file__).parent / "results"
    model = str(base(text, results.absolute() / "speakers-base").folder / "model")
    for n_weights in given.sizes:
        found = compare(n_weights, text, model, given.seeds)
        (results / f"speakers-{n_weights}.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
