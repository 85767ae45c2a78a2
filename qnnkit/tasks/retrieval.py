"""Finding images by their captions and captions by their images, and classes by what may be said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from qnnkit import checks
from qnnkit.layers import evaluating

if TYPE_CHECKING:
    from qnnkit.data.captions import CaptionSplits
    from qnnkit.models.clip import Clip

RANKS = (1, 5, 10)
ROWS = 512
"""Queries that are compared with everything at once."""


@dataclass(frozen=True, eq=False)
class Embeddings:
    """A split in the space of a model; every vector of length 1, on the CPU."""

    images: Tensor  # (n_images, n_dimensions)
    texts: Tensor  # every caption once, (n_texts, n_dimensions)
    pairs: Tensor  # which image has which caption, int64, (n_pairs, 2)
    captions: tuple[str, ...]  # the texts
    labels: Tensor | None = None  # of the images, int64, (n_images,)
    classes: Tensor | None = None  # (n_classes, n_dimensions)


def embed(
    model: Clip,
    splits: CaptionSplits,
    split: str = "test",
    *,
    batch_size: int = 256,
) -> Embeddings:
    """All images and all captions of a split in the space of a model, and its classes where there are any.

    A class lies where the mean of its prompts points to; Radford et al. 2021, section 3.1.4.

    Args:
        model: Left as it was; it computes where it is.
        splits: The data.
        split: "train", "validation" or "test".
        batch_size: Images or texts at once.
    """
    part = splits.split(split)
    texts, pairs = part.texts()
    device = next(model.parameters()).device
    with evaluating(model):
        images = [model.embed_images(some.to(device)).cpu() for some in part.images.split(batch_size)]

        def of_texts(texts: Sequence[str]) -> Tensor:
            encoded = zip(*(each.split(batch_size) for each in splits.tokenizer.encode(texts)), strict=True)
            return torch.cat([model.embed_texts(ids.to(device), m.to(device)).cpu() for ids, m in encoded])

        classes = [of_texts(prompts).mean(0) for prompts in splits.prompts]
        return Embeddings(
            torch.cat(images),
            of_texts(texts),
            pairs,
            texts,
            part.labels,
            nn.functional.normalize(torch.stack(classes), dim=-1) if classes else None,
        )


def scores(embeddings: Embeddings) -> dict[str, float]:
    """Recall both ways, and the accuracy of zero-shot classification where there are classes."""
    found = recall(embeddings.images, embeddings.texts, embeddings.pairs)
    if embeddings.classes is not None and embeddings.labels is not None:
        found["zero_shot"] = zero_shot(embeddings.images, embeddings.classes, embeddings.labels)
    return found


def recall(images: Tensor, texts: Tensor, pairs: Tensor, ranks: Sequence[int] = RANKS) -> dict[str, float]:
    """Share of queries with a right answer among the k nearest, by cosine, for each k of `ranks`.

    An image has found its captions once one of them is found, and a caption one of its images. A wrong answer
    that lies as near as the best right one comes before it: a model that holds all alike finds nothing.

    Args:
        images: Embeddings of length 1, (n_images, n_dimensions).
        texts: Embeddings of length 1, (n_texts, n_dimensions).
        pairs: Which image has which text, int64, (n_pairs, 2); every image and every text is in one.
        ranks: How many are looked at.

    Returns:
        `image_to_text_recall_<k>` and `text_to_image_recall_<k>`.

    Raises:
        ValueError: Shapes do not fit, or an image or a text stands in no pair.

    Example:
        >>> images, texts = torch.eye(3), torch.eye(3)[[0, 2, 1]]
        >>> recall(images, texts, torch.tensor([[0, 0], [1, 1], [2, 2]]), ranks=(1,))
        {'image_to_text_recall_1': 0.3333333333333333, 'text_to_image_recall_1': 0.3333333333333333}
    """
    checks.axes("images", images, "image, dimension", "Give a row per image.")
    checks.last_axis("texts", texts, images.shape[1], "Embed both by one model.")
    checks.last_axis("pairs", pairs, 2, "Give rows of (image, text).")
    for name, column, n in (("image", 0, len(images)), ("text", 1, len(texts))):
        found = pairs[:, column].unique()
        if len(found) != n or n == 0 or found[0] < 0 or found[-1] >= n:
            step = f"There are {n} of them."
            raise ValueError(checks.message("pairs", f"hold every {name}", f"{len(found)} of them", step))
    both = {
        "image_to_text": _ranks(images, texts, pairs),
        "text_to_image": _ranks(texts, images, pairs.flip(1)),
    }
    return {
        f"{name}_recall_{k}": float((found <= k).double().mean())
        for name, found in both.items()
        for k in ranks
    }


def _ranks(queries: Tensor, candidates: Tensor, pairs: Tensor) -> Tensor:
    """At which place, from 1, each query has its first right answer; int64, (n_queries,).

    Who stands level with it counts as before it, and so does who cannot be compared (NaN).
    """
    found = []
    for first in range(0, len(queries), ROWS):
        cosines = queries[first : first + ROWS] @ candidates.T  # (rows, n_candidates)
        here = pairs[(pairs[:, 0] >= first) & (pairs[:, 0] < first + ROWS)]
        right = torch.zeros_like(cosines, dtype=torch.bool)
        right[here[:, 0] - first, here[:, 1]] = True
        best = cosines.masked_fill(~right, -torch.inf).amax(1, keepdim=True)
        found.append(1 + (~(cosines < best) & ~right).sum(1))
    return torch.cat(found)


def zero_shot(images: Tensor, classes: Tensor, labels: Tensor) -> float:
    """Share of images whose nearest class is their own.

    Args:
        images: Embeddings of length 1, (n_images, n_dimensions).
        classes: Embeddings of what may be said of each class, (n_classes, n_dimensions).
        labels: int64, (n_images,).

    Example:
        >>> zero_shot(torch.eye(3), torch.eye(3), torch.tensor([0, 1, 1]))
        0.6666666666666666
    """
    checks.last_axis("classes", classes, images.shape[-1], "Embed both by one model.")
    checks.last_axis("labels", labels, len(images), "Give a label per image.")
    return float(((images @ classes.T).argmax(1) == labels).double().mean())


def nearest(queries: Tensor, candidates: Tensor, n: int = 5) -> tuple[Tensor, Tensor]:
    """The candidates nearest to each query, the nearest first: rows and cosines, (n_queries, n) each.

    Args:
        queries: Embeddings of length 1, (n_queries, n_dimensions).
        candidates: Embeddings of length 1, (n_candidates, n_dimensions).
        n: How many; all where there are fewer.

    Example:
        >>> rows, cosines = nearest(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.6, 0.8]]), n=1)
        >>> rows.tolist(), round(float(cosines), 3)
        ([[1]], 0.6)
    """
    checks.positive("n", n)
    checks.last_axis("candidates", candidates, queries.shape[-1], "Embed both by one model.")
    cosines, rows = (queries @ candidates.T).topk(min(n, len(candidates)))
    return rows, cosines
