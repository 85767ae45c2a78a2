"""Contrastive training of images and captions: CLIP's loss, and its metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from qnnkit import checks
from qnnkit.checkpoint import own_generators, random_state, set_random_state
from qnnkit.data import tokenizers
from qnnkit.data.captions import CaptionSplits
from qnnkit.data.places import SUFFIXES
from qnnkit.layers import evaluating
from qnnkit.stats import RECALL, Score
from qnnkit.tasks import pictures
from qnnkit.tasks.step import Shown, Step, counts

IMAGES = 12  # of a preview
RANKS = (1, 5, 10)
ROWS = 512
"""Number of queries that are compared with all candidates at once."""


@dataclass(frozen=True)
class Contrastive:
    """Symmetric cross-entropy: each image against all captions of a batch, each caption against all images.

    If several samples have the same caption, token by token, any of them is correct, in the loss as in the
    metrics: their probabilities are summed.

    Reports `loss`, `minus_loss`, `image_to_text` and `text_to_image` (how often the nearest one in the batch
    is correct), and `accuracy`, the mean of the last two.

    A batch is a dictionary of the model's arguments, including `input_ids`. The model returns embeddings of
    images and of texts, each (batch, n_dimensions) and of length 1, and has a method `scale()`. The batch
    decides how hard the task is: compare results at equal batch sizes.

    Args:
        monitor: The reported number that chooses the best epoch on the validation split.

    Reference:
        Radford et al. 2021, arXiv:2103.00020, figure 3 (InfoNCE: van den Oord et al. 2018, arXiv:1807.03748);
        several correct ones: Miech et al. 2020, arXiv:1912.06430, equation 1.
    """

    whole: ClassVar[bool] = True
    monitor: str = "accuracy"
    score: ClassVar[Score] = RECALL

    def __call__(self, model: nn.Module, batch: dict[str, Tensor], micro_batch: int | None = None) -> Step:
        """Returns the step of a batch; only `micro_batch` samples at a time hold a graph, see `in_chunks`."""
        ids, n = batch["input_ids"], len(batch["input_ids"])
        scale = model.scale()  # pyright: ignore[reportCallIssue]  first: it may move its weight
        size = n if micro_batch is None else micro_batch
        images, texts = model(**batch) if n <= size else in_chunks(model, batch, size)
        # bfloat16 would round a logit of 100 to halves.
        with torch.autocast(images.device.type, enabled=False):
            logits = scale * images @ texts.T  # (images, texts)
            same = torch.ones(n, n, dtype=torch.bool, device=ids.device)
            for token in ids.T:
                same &= token[:, None] == token
            right = logits.masked_fill(~same, -torch.inf)  # logits of correct pairs
            losses = [logits.logsumexp(side) - right.logsumexp(side) for side in (0, 1)]
            loss = (losses[0] + losses[1]).mean() / 2
        with torch.no_grad():
            ways = {"image_to_text": 1, "text_to_image": 0}
            hits = {name: (ids[logits.argmax(axis)] == ids).all(1).sum() for name, axis in ways.items()}
            total = n * loss.detach()
        accuracy = (hits["image_to_text"] + hits["text_to_image"]) / 2
        return Step(loss, {"loss": total, "minus_loss": -total, "accuracy": accuracy, **hits}, n)

    def judge(self, net: Any, splits: CaptionSplits, split: str = "test") -> dict[str, float]:
        """Returns metrics of the embeddings of a whole split.

        Returns:
            `image_to_text_recall_1`, `_5`, `_10`, the same for `text_to_image`, `zero_shot` if there are
            classes, and `recall_1`, the mean of both directions.
        """
        return scores(embed(net, splits, split))

    def preview(self, splits: CaptionSplits) -> list[Shown]:
        """Shows some training images with their first captions, and the numbers of images and captions."""
        from qnnkit import plots

        train, columns = splits.train, {"images": len, "captions": lambda part: sum(map(len, part.captions))}
        titles = [captions[0] for captions in train.captions[:IMAGES]]
        figure = plots.labelled_images(train.images[:IMAGES].numpy(), titles)
        caption = "The first caption of each image, from the training split."
        first = Shown(figure, "01_captions", "Images and captions", caption)
        return [first, counts(splits, "Images and captions of each split", **columns)]

    def mistakes(self, net: Any, splits: CaptionSplits, n: int = 12) -> list[Shown]:
        """Shows the test images whose nearest caption is wrong, largest lead over the correct one first."""
        from qnnkit import plots

        checks.positive("n", n, "Use 12, or 0 for none.", above=-1)
        embedded = embed(net, splits, "test")
        cosines = embedded.images @ embedded.texts.T
        of_right, text = cosines.masked_fill(~embedded.right, -torch.inf).max(1)
        nearest, predicted = cosines.max(1)
        wrong = (~embedded.right.gather(1, predicted[:, None])).flatten().nonzero().flatten()
        worst = wrong[(nearest - of_right)[wrong].argsort(descending=True, stable=True)][:n].tolist()
        if not worst:
            return []
        titles = [f"{embedded.captions[predicted[i]]}\nnot\n{embedded.captions[text[i]]}" for i in worst]
        figure = plots.labelled_images(splits.test.images.numpy()[worst], titles)
        return [Shown(figure, "06_worst", "Most wrong", "The nearest caption, and the image's own.")]

    def predict(self, net: Any, inputs: Sequence[Any], about: Any) -> list[dict[str, Any]]:
        """Returns how well each text fits each image: softmax over the texts, at the net's own scale.

        Args:
            net: A trained net.
            inputs: Images, and texts to compare them with.
            about: Description of the training data stored in the run.
        """
        are_texts = [isinstance(each, str) and Path(each).suffix.lower() not in SUFFIXES for each in inputs]
        images = [each for each, is_text in zip(inputs, are_texts, strict=True) if not is_text]
        texts = [*dict.fromkeys(each for each, is_text in zip(inputs, are_texts, strict=True) if is_text)]
        if not images or not texts:
            step = "Give images, and texts to compare them with."
            value = [*map(pictures.named, inputs)]
            raise ValueError(checks.message("inputs", "hold image files and texts", value, step))
        embedded, rows = net.embed_texts(*tokenizers.encode(about.tokenizer, texts)), []
        for each in images:
            pixels, notes = pictures.pixels(each, about)
            values = (net.scale() * net.embed_images(pixels) @ embedded.T)[0].double().softmax(0).tolist()
            shares = dict(zip(texts, values, strict=True))
            result = {"text": max(shares, key=lambda text: shares[text]), "probabilities": shares}
            rows.append({"input": pictures.named(each), **result, "notes": notes})
        return rows


@dataclass(frozen=True, eq=False)
class Embeddings:
    """Embeddings of a split; all vectors have length 1 and are on the CPU."""

    images: Tensor  # (n_images, n_dimensions)
    texts: Tensor  # distinct captions, (n_texts, n_dimensions)
    pairs: Tensor  # indices (image, caption), int64, (n_pairs, 2)
    captions: tuple[str, ...]  # the texts themselves
    labels: Tensor | None = None  # of the images, int64, (n_images,)
    classes: Tensor | None = None  # (n_classes, n_dimensions)

    @property
    def right(self) -> Tensor:
        """Whether a caption belongs to an image, bool, (n_images, n_texts)."""
        right = torch.zeros(len(self.images), len(self.texts), dtype=torch.bool)
        right[self.pairs[:, 0], self.pairs[:, 1]] = True
        return right


def embed(model: Any, splits: CaptionSplits, split: str = "test", *, batch_size: int = 256) -> Embeddings:
    """Embeds all images and captions of a split, and its classes if there are any.

    A class is the normalised mean of its prompts' embeddings; Radford et al. 2021, section 3.1.4.

    Args:
        model: The model; it is not changed, and stays on its device.
        splits: The dataset.
        split: "train", "validation" or "test".
        batch_size: Number of images or texts that are embedded at once.
    """
    part = splits.split(split)
    texts, pairs = part.texts()
    device = next(model.parameters()).device
    with evaluating(model):
        images = [model.embed_images(some.to(device)).cpu() for some in part.images.split(batch_size)]

        def of_texts(texts: Sequence[str]) -> Tensor:
            ids, mask = (each.split(batch_size) for each in tokenizers.encode(splits.tokenizer, texts))
            pairs = zip(ids, mask, strict=True)
            return torch.cat([model.embed_texts(x.to(device), y.to(device)).cpu() for x, y in pairs])

        classes = [of_texts(prompts).mean(0) for prompts in splits.prompts]
        directions = nn.functional.normalize(torch.stack(classes), dim=-1) if classes else None
        return Embeddings(torch.cat(images), of_texts(texts), pairs, texts, part.labels, directions)


def scores(embedded: Embeddings) -> dict[str, float]:
    """Returns recall in both directions, its mean, and with classes the zero-shot accuracy."""
    metrics = recall(embedded.images, embedded.texts, embedded.right)
    metrics["recall_1"] = (metrics["image_to_text_recall_1"] + metrics["text_to_image_recall_1"]) / 2
    if embedded.classes is not None and embedded.labels is not None:
        nearest = (embedded.images @ embedded.classes.T).argmax(1)
        metrics["zero_shot"] = float((nearest == embedded.labels).double().mean())
    return metrics


def recall(images: Tensor, texts: Tensor, right: Tensor, ranks: Sequence[int] = RANKS) -> dict[str, float]:
    """Returns the share of queries with a correct answer among the k nearest, by cosine, for k in `ranks`.

    An image counts if one of its captions is among them, a caption if one of its images is. A wrong answer
    that is as near as the best correct one ranks before it: if all embeddings are equal, the recall is 0.

    Args:
        images: Embeddings of length 1, (n_images, n_dimensions).
        texts: Embeddings of length 1, (n_texts, n_dimensions).
        right: Whether a text belongs to an image, bool, (n_images, n_texts); each image and text has a match.
        ranks: Values of k.

    Returns:
        `image_to_text_recall_<k>` and `text_to_image_recall_<k>`.

    Example:
        >>> images, texts = torch.eye(3), torch.eye(3)[[0, 2, 1]]
        >>> recall(images, texts, torch.eye(3, dtype=torch.bool), ranks=(1,))
        {'image_to_text_recall_1': 0.3333333333333333, 'text_to_image_recall_1': 0.3333333333333333}
    """
    both = {"image_to_text": (images, texts, right), "text_to_image": (texts, images, right.T)}
    places = {name: _ranks(*each) for name, each in both.items()}
    return {f"{name}_recall_{k}": float((places[name] <= k).double().mean()) for name in both for k in ranks}


def _ranks(queries: Tensor, candidates: Tensor, right: Tensor) -> Tensor:
    """Returns the rank, from 1, of the first correct answer to each query; int64, (n_queries,).

    Wrong answers with an equal cosine, or with NaN, count as ranked before it.
    """
    ranks = []
    for some, is_right in zip(queries.split(ROWS), right.split(ROWS), strict=True):
        cosines = some @ candidates.T  # (rows, n_candidates)
        best = cosines.masked_fill(~is_right, -torch.inf).amax(1, keepdim=True)
        ranks.append(1 + (~(cosines < best) & ~is_right).sum(1))
    return torch.cat(ranks)


def in_chunks(model: nn.Module, batch: dict[str, Tensor], micro_batch: int) -> tuple[Tensor, ...]:
    """Returns `model(**batch)`, a tuple of tensors, computed in chunks of the batch.

    The loss of a large batch then needs the memory of a small one: the backward pass computes each chunk
    again, with the same random numbers and autocast, which costs about one more forward pass. The model must
    treat samples independently (no batch normalisation).

    Reference:
        Gao et al. 2021, arXiv:2101.06983, section 3.
    """
    parts = zip(*(values.split(micro_batch) for values in batch.values()), strict=True)
    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    options["context_fn"] = lambda: (nullcontext(), _drawn(random_state()))
    chunks = [checkpoint(model, **dict(zip(batch, part, strict=True)), **options) for part in parts]
    return tuple(torch.cat(each) for each in zip(*chunks, strict=True))


@contextmanager
def _drawn(state: dict[str, Any]) -> Iterator[None]:
    """Restores the generators to `state` inside; torch's own context manager would omit that of MPS."""
    with own_generators():
        set_random_state(state)
        yield
