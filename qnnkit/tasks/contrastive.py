"""Images and captions, distinguished from all others of a batch: CLIP's loss, and what it is judged by."""

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


@dataclass(frozen=True)
class Contrastive:
    """Symmetric cross-entropy: each image against all captions of a batch, each caption against images.

    Where several samples have the same caption, token by token, any of them is right, in the loss as in what
    is reported: an answer has the probability of all of them together.

    Reports `loss`, `minus_loss`, `image_to_text` and `text_to_image` (how often the right one of the batch is
    the nearest; one whose caption is the same, token by token, is right too) and `accuracy`, their mean.

    A batch is a dictionary of the model's arguments, `input_ids` among them; the model gives embeddings of
    images and of texts, each (batch, n_dimensions) and of length 1, and `scale()`. What stands in a batch
    decides how hard the task is: compare numbers at equal batch sizes. So it is for one process: several,
    each with its own share of a batch, would train for another loss.

    Reference:
        Radford et al. 2021, arXiv:2103.00020, figure 3 (InfoNCE: van den Oord et al. 2018, arXiv:1807.03748);
        several right ones: Miech et al. 2020, arXiv:1912.06430, equation 1.
    """

    whole: ClassVar[bool] = True
    monitor: str = "accuracy"
    score: ClassVar[Score] = RECALL

    def __call__(self, model: nn.Module, batch: dict[str, Tensor], micro_batch: int | None = None) -> Step:
        """What a batch gives; of `micro_batch` samples alone a graph is kept (`in_chunks`)."""
        ids, n = batch["input_ids"], len(batch["input_ids"])
        if isinstance(model, nn.parallel.DistributedDataParallel):
            step = "Use one process, with micro_batch=64 where a large batch does not fit."
            value, rule = torch.distributed.get_world_size(), "be 1 for a contrastive loss"
            raise NotImplementedError(checks.message("processes", rule, value, step))
        scale = model.scale()  # pyright: ignore[reportCallIssue]  first: it may move its weight
        if micro_batch is None or n <= micro_batch:
            images, texts = model(**batch)
        else:
            images, texts = in_chunks(model, batch, micro_batch)
        # bfloat16 would round a logit of 100 to halves.
        with torch.autocast(images.device.type, enabled=False):
            logits = scale * images @ texts.T  # (images, texts)
            same = torch.ones(n, n, dtype=torch.bool, device=ids.device)
            for token in ids.T:
                same &= token[:, None] == token
            right = logits.masked_fill(~same, -torch.inf)  # minus the log of the probability of a right one
            losses = [logits.logsumexp(side) - right.logsumexp(side) for side in (0, 1)]
            loss = (losses[0] + losses[1]).mean() / 2
        with torch.no_grad():
            ways = {"image_to_text": 1, "text_to_image": 0}
            hits = {name: (ids[logits.argmax(axis)] == ids).all(1).sum() for name, axis in ways.items()}
            total = n * loss.detach()
        accuracy = (hits["image_to_text"] + hits["text_to_image"]) / 2
        return Step(loss, {"loss": total, "minus_loss": -total, "accuracy": accuracy, **hits}, n)

    def judge(self, net: Any, splits: CaptionSplits, split: str = "test") -> dict[str, float]:
        """What the embeddings of a whole split are worth.

        Returns:
            `image_to_text_recall_1`, `_5`, `_10`, the same for `text_to_image`, `zero_shot` where there are
            classes, and `recall_1`, the mean of both ways.
        """
        return scores(embed(net, splits, split))

    def preview(self, splits: CaptionSplits) -> list[Shown]:
        """Some training images with their first captions, and how many of both there are."""
        from qnnkit import plots

        train, columns = splits.train, {"images": len, "captions": lambda part: sum(map(len, part.captions))}
        titles = [captions[0] for captions in train.captions[:IMAGES]]
        figure = plots.labelled_images(train.images[:IMAGES].numpy(), titles)
        told = "The first of what is said of each, from the training split."
        first = Shown(figure, "01_captions", "Images and captions", told)
        return [first, counts(splits, "Images and captions of each split", **columns)]

    def mistakes(self, net: Any, splits: CaptionSplits, n: int = 12) -> list[Shown]:
        """The test images to which a wrong caption is nearest, the largest lead over the right one first."""
        from qnnkit import plots

        found = embed(net, splits, "test")
        cosines = found.images @ found.texts.T
        of_right, text = cosines.masked_fill(~found.right, -torch.inf).max(1)
        nearest, said = cosines.max(1)
        wrong = (~found.right.gather(1, said[:, None])).flatten().nonzero().flatten()
        worst = wrong[(nearest - of_right)[wrong].argsort(descending=True, stable=True)][:n].tolist()
        if not worst:
            return []
        titles = [f"{found.captions[said[i]]}\nnot\n{found.captions[text[i]]}" for i in worst]
        figure = plots.labelled_images(splits.test.images.numpy()[worst], titles)
        return [Shown(figure, "06_worst", "Most wrong", "The nearest caption, and the image's own.")]

    def predict(self, net: Any, inputs: Sequence[Any], about: Any) -> list[dict[str, Any]]:
        """Of each image, how well each text fits it: softmax over the texts, at the net's own scale.

        Args:
            net: A trained one.
            inputs: Images, and texts to hold them against; without texts those of the training.
            about: What the run keeps of its data.
        """
        are_texts = [isinstance(each, str) and Path(each).suffix.lower() not in SUFFIXES for each in inputs]
        images = [each for each, is_text in zip(inputs, are_texts, strict=True) if not is_text]
        texts = [each for each, is_text in zip(inputs, are_texts, strict=True) if is_text] or about.captions
        if not images:
            step = "Give images, and texts to hold them against."
            raise ValueError(checks.message("inputs", "hold an image file", list(inputs), step))
        embedded, rows = net.embed_texts(*tokenizers.encode(about.tokenizer, texts)), []
        for each in images:
            pixels, notes = pictures.pixels(each, about)
            shares = (net.scale() * net.embed_images(pixels) @ embedded.T)[0].double().softmax(0).tolist()
            found = dict(zip(texts, shares, strict=True))
            told = {"text": max(found, key=lambda text: found[text]), "probabilities": found, "notes": notes}
            rows.append({"input": pictures.named(each), **told})
        return rows


@dataclass(frozen=True, eq=False)
class Embeddings:
    """A split in the space of a model; every vector of length 1, on the CPU."""

    images: Tensor  # (n_images, n_dimensions)
    texts: Tensor  # every caption once, (n_texts, n_dimensions)
    pairs: Tensor  # which image has which caption, int64, (n_pairs, 2)
    captions: tuple[str, ...]  # the texts
    labels: Tensor | None = None  # of the images, int64, (n_images,)
    classes: Tensor | None = None  # (n_classes, n_dimensions)

    @property
    def right(self) -> Tensor:
        """Whether a caption is one of an image, bool, (n_images, n_texts)."""
        right = torch.zeros(len(self.images), len(self.texts), dtype=torch.bool)
        right[self.pairs[:, 0], self.pairs[:, 1]] = True
        return right


def embed(model: Any, splits: CaptionSplits, split: str = "test", *, batch_size: int = 256) -> Embeddings:
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
            ids, mask = (each.split(batch_size) for each in tokenizers.encode(splits.tokenizer, texts))
            pairs = zip(ids, mask, strict=True)
            return torch.cat([model.embed_texts(x.to(device), y.to(device)).cpu() for x, y in pairs])

        classes = [of_texts(prompts).mean(0) for prompts in splits.prompts]
        directions = nn.functional.normalize(torch.stack(classes), dim=-1) if classes else None
        return Embeddings(torch.cat(images), of_texts(texts), pairs, texts, part.labels, directions)


def scores(found: Embeddings) -> dict[str, float]:
    """Recall both ways, its mean, and with classes the share of images whose nearest class is their own."""
    told = recall(found.images, found.texts, found.right)
    told["recall_1"] = (told["image_to_text_recall_1"] + told["text_to_image_recall_1"]) / 2
    if found.classes is not None and found.labels is not None:
        nearest = (found.images @ found.classes.T).argmax(1)
        told["zero_shot"] = float((nearest == found.labels).double().mean())
    return told


def recall(images: Tensor, texts: Tensor, right: Tensor, ranks: Sequence[int] = RANKS) -> dict[str, float]:
    """Share of queries with a right answer among the k nearest, by cosine, for each k of `ranks`.

    An image counts if one of its captions is among them, a caption if one of its images is. A wrong answer as
    near as the best right one ranks before it: a model that holds all alike scores 0.

    Args:
        images: Embeddings of length 1, (n_images, n_dimensions).
        texts: Embeddings of length 1, (n_texts, n_dimensions).
        right: Whether a text is one of an image, bool, (n_images, n_texts); each image and text has one.
        ranks: How many are looked at.

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
    """At which place, from 1, each query has its first right answer; int64, (n_queries,).

    Who stands level with it counts as before it, and so does who cannot be compared (NaN).
    """
    cosines = queries @ candidates.T  # (n_queries, n_candidates)
    best = cosines.masked_fill(~right, -torch.inf).amax(1, keepdim=True)
    return 1 + (~(cosines < best) & ~right).sum(1)


def in_chunks(model: nn.Module, batch: dict[str, Tensor], micro_batch: int) -> tuple[Tensor, ...]:
    """What `model(**batch)` gives, a tuple of tensors, each computed in chunks of the batch.

    The loss of a large batch takes the memory of a small one: the backward pass computes each chunk again,
    with the same random numbers and under the same autocast, for about one forward pass more. The model must
    treat samples apart from each other (no batch normalisation).

    Reference:
        Gao et al. 2021, arXiv:2101.06983, section 3.
    """
    checks.positive("micro_batch", micro_batch, "Use 64, or None for the whole batch at once.")
    parts = zip(*(values.split(micro_batch) for values in batch.values()), strict=True)
    given: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    given["context_fn"] = lambda: (nullcontext(), _drawn(random_state()))
    found = [checkpoint(model, **dict(zip(batch, part, strict=True)), **given) for part in parts]
    return tuple(torch.cat(each) for each in zip(*found, strict=True))


@contextmanager
def _drawn(state: dict[str, Any]) -> Iterator[None]:
    """Generators as they were in `state`; torch would leave out that of MPS."""
    with own_generators():
        set_random_state(state)
        yield
