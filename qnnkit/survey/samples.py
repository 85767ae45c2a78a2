"""A few training samples and all that their net must know of the data, for a process without the dataset."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qnnkit.data import Splits
from qnnkit.data.captioned_tokens import CaptionTokenizer
from qnnkit.data.splits import SPLITS
from qnnkit.data.tokens import IGNORED


@dataclass(frozen=True)
class Sample:
    """The first batch of a dataset; for `runs.nets.made` it stands for the whole."""

    batch: Any
    """As the task takes it: (images, labels), or tensors by name."""
    sizes: dict[str, Any]
    """What a net must know of the data, as `models.build` takes it."""
    n_samples: int
    """In an epoch."""
    n_all: int
    """Samples of the whole dataset."""
    data_bytes: int
    """What they take in RAM."""

    def __len__(self) -> int:
        """Samples in the batch."""
        return len(self.tensors[next(iter(self.tensors))])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The batch by name."""
        if isinstance(self.batch, dict):
            return self.batch
        return dict(zip(("images", "labels"), self.batch, strict=True))

    @property
    def n_tokens(self) -> float | None:
        """Tokens of the batch that are predicted, as a mean over its samples, where samples are sequences."""
        if "labels" not in self.tensors or "length" not in self.sizes:
            return None
        return float((self.tensors["labels"][:, 1:] != IGNORED).sum()) / len(self)

    def example(self, n: int = 1) -> Any:
        """What a net takes, of the first `n` samples."""
        if not isinstance(self.batch, dict):
            return self.batch[0][:n]
        return {name: tensor[:n] for name, tensor in self.batch.items() if name != "labels"}


def of(splits: Splits, batch_size: int, n_samples: int | None = None) -> Sample:
    """The first training samples, fewer than `batch_size` where there are no more.

    Args:
        splits: The dataset.
        batch_size: Samples of a batch.
        n_samples: In an epoch; those of the training split without it.
    """
    parts = [splits.split(name) for name in SPLITS]
    held = [each for part in parts for each in vars(part).values() if isinstance(each, Tensor)]
    return Sample(
        next(iter(splits.batches("train", batch_size, shuffle=False))),
        splits.sizes,
        n_samples or len(splits.train),
        sum(map(len, parts)),
        sum(tensor.nbytes for tensor in held),
    )


def write(sample: Sample, folder: Path) -> None:
    """Writes a sample as plain files, for `read` in another process."""
    arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in sample.tensors.items()}
    np.savez(folder / "batch.npz", **arrays)
    sizes = dict(sample.sizes)
    if tokenizer := sizes.pop("tokenizer", None):
        tokenizer.save_pretrained(folder / "tokenizer")
    facts = {name: getattr(sample, name) for name in ("n_samples", "n_all", "data_bytes")}
    (folder / "sample.json").write_text(json.dumps({"sizes": sizes, **facts}))


def read(folder: Path) -> Sample:
    """What `write` has written."""
    facts = json.loads((folder / "sample.json").read_text())
    sizes = {
        name: tuple(value) if isinstance(value, list) else value for name, value in facts["sizes"].items()
    }
    if (folder / "tokenizer").is_dir():
        sizes["tokenizer"] = CaptionTokenizer.load(folder / "tokenizer")
    with np.load(folder / "batch.npz") as kept:  # no pickle in it
        tensors = {name: torch.from_numpy(kept[name]) for name in kept.files}
    batch = (tensors["images"], tensors["labels"]) if "images" in tensors else tensors
    return Sample(batch, **{**facts, "sizes": sizes})
