"""Images and their captions told apart from all others of a batch: CLIP's loss, and what it is judged by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from qnnkit import checks, retrieval
from qnnkit.stats import RECALL, Score
from qnnkit.tasks import cached
from qnnkit.tasks.step import Step

if TYPE_CHECKING:
    from qnnkit.retrieval import Embeddings


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
        """What a batch gives; of `micro_batch` samples alone a graph is kept (`tasks.cached`)."""
        ids, n = batch["input_ids"], len(batch["input_ids"])
        if isinstance(model, nn.parallel.DistributedDataParallel):
            step = "Use one process, with micro_batch=64 where a large batch does not fit."
            value, rule = torch.distributed.get_world_size(), "be 1 for a contrastive loss"
            raise NotImplementedError(checks.message("processes", rule, value, step))
        scale = model.scale()  # pyright: ignore[reportCallIssue]  first: it may move its weight
        if micro_batch is None or n <= micro_batch:
            images, texts = model(**batch)
        else:
            images, texts = cached.outputs(model, batch, micro_batch)
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
            hits = {
                "image_to_text": (ids[logits.argmax(1)] == ids).all(1).sum(),
                "text_to_image": (ids[logits.argmax(0)] == ids).all(1).sum(),
            }
            total = n * loss.detach()
        accuracy = (hits["image_to_text"] + hits["text_to_image"]) / 2
        return Step(loss, {"loss": total, "minus_loss": -total, "accuracy": accuracy, **hits}, n)

    def judge(self, embeddings: Embeddings, truth: None = None, /) -> dict[str, float]:
        """What the embeddings of a whole split are worth, as `retrieval.embed` gives them.

        Returns:
            `image_to_text_recall_1`, `_5`, `_10`, the same for `text_to_image`, and `zero_shot` where there
            are classes.
        """
        return retrieval.scores(embeddings)
