"""CLIP's loss in NumPy, gradients in chunks against the whole batch, recall by hand, zero-shot."""

import functools
import weakref

import numpy as np
import pytest
import torch
from torch import nn

from qnnkit.checkpoint import own_generators
from qnnkit.data import tokenizers
from qnnkit.data.captions import digit_captions
from qnnkit.models import Clip
from qnnkit.tasks import Contrastive, contrastive
from qnnkit.tasks.contrastive import Embeddings, embed, recall, scores


class Pairs(nn.Module):
    """A table of embeddings in place of a model."""

    def __init__(self, images: torch.Tensor, texts: torch.Tensor):
        super().__init__()
        self.images, self.texts = nn.Parameter(images), nn.Parameter(texts)
        self.log_scale = nn.Parameter(torch.tensor(2.0, dtype=images.dtype))

    def forward(self, input_ids):
        norm = nn.functional.normalize
        return norm(self.images, dim=1), norm(self.texts, dim=1)

    def scale(self):
        return self.log_scale.exp()


def pairs_of(n: int = 6) -> tuple[Pairs, dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    images, texts = torch.randn(2, n, 5, generator=generator, dtype=torch.float64)
    return Pairs(images, texts), {"input_ids": torch.arange(2 * n).reshape(n, 2)}


def in_numpy(model: Pairs, ids: torch.Tensor, log_scale: float = 2.0) -> tuple[float, list[int]]:
    """The loss, and how many images retrieve one of their captions and captions their image."""
    images, texts = (part.detach().numpy() for part in model(None))
    logits = np.exp(log_scale) * images @ texts.T
    right, odds, each = (ids[:, None] == ids).all(-1).numpy(), np.exp(logits), np.arange(len(ids))
    by_image, by_text = ((right * odds).sum(axis) / odds.sum(axis) for axis in (1, 0))
    hits = [right[each, logits.argmax(1)].sum(), right[logits.argmax(0), each].sum()]
    return float(-np.log(by_image * by_text).mean() / 2), hits


@pytest.mark.parametrize("n_alike", [0, 12])
def test_the_loss_is_symmetric_trains_the_temperature_and_accepts_equal_captions(n_alike):
    model, batch = pairs_of(30)
    ids, alike = batch["input_ids"], slice(1, max(1, n_alike))
    diagonal = in_numpy(model, ids)[1]
    ids[alike] = ids[0].clone()
    with torch.no_grad():
        model.texts[alike] = model.texts[0].clone()  # a model gives equal captions equal embeddings
    step = Contrastive()(model, batch)
    expected, hits = in_numpy(model, ids)
    assert float(step.loss.detach()) == pytest.approx(expected, abs=1e-12) and step.count == 30
    assert float(step.sums["loss"]) == -float(step.sums["minus_loss"]) == pytest.approx(30 * expected)
    assert [int(step.sums[name]) for name in ("image_to_text", "text_to_image")] == hits
    assert float(step.sums["accuracy"]) == sum(hits) / 2 and hits[0] != hits[1]
    assert (hits == diagonal) == (n_alike == 0)
    assert not any(value.requires_grad for value in step.sums.values())
    step.loss.backward()
    slope = (in_numpy(model, ids, 2 + 1e-5)[0] - in_numpy(model, ids, 2 - 1e-5)[0]) / 2e-5
    assert float(model.log_scale.grad) == pytest.approx(slope, rel=1e-6)


def test_autocast_does_not_round_the_logits():
    model, batch = pairs_of()
    model = model.float()
    plain = Contrastive()(model, batch)
    with torch.autocast("cpu", torch.bfloat16):
        step = Contrastive()(model, batch)
    assert step.loss.dtype == torch.float32 and float(step.loss.detach()) == float(plain.loss.detach())


# --- gradients by chunks -----------------------------------------------------------------------------------

SPLITS = digit_captions()
close = functools.partial(torch.testing.assert_close, atol=1e-5, rtol=0)


def clip_of(head: str = "linear") -> Clip:
    return Clip(**SPLITS.sizes, head=head, patch_size=4, n_qubits=3)


def batch_of(n: int = 20) -> dict[str, torch.Tensor]:
    return next(iter(SPLITS.batches("train", n, shuffle=True)))


@pytest.mark.parametrize("chunk", [1, 6, 19])
@pytest.mark.parametrize("head", ["full", "quantum"])
def test_chunks_give_the_gradient_of_the_whole_batch(head, chunk):
    clip, batch, results = clip_of(head).double(), batch_of(), []
    for pieces in ({}, {"micro_batch": chunk}):
        clip.zero_grad()
        loss = Contrastive()(clip, batch, **pieces).loss
        loss.backward()
        slopes = {name: each.grad.clone() for name, each in clip.named_parameters() if each.grad is not None}
        results.append(slopes | {"loss": loss.detach()})
    close(results[1], results[0], atol=1e-10)
    assert max(float(value.abs().max()) for value in results[0].values()) > 1e-2, "nothing to compare"


def test_one_chunk_is_in_memory_at_a_time_and_recomputed_identically():
    clip, batch = clip_of().train(), batch_of(20)
    for module in clip.modules():
        if hasattr(module, "q_proj"):  # attention: transformers passes its dropout as a number
            module.dropout = 0.3
    alive: list[weakref.ref] = []
    most, drawn = [], []

    def hook(module, inputs, outputs):
        alive.append(weakref.ref(outputs))
        most.append(sum(ref() is not None and ref().grad_fn is not None for ref in alive))
        drawn.append(float(outputs.detach().double().sum()))

    with clip.net.vision_model.encoder.layers[0].mlp.fc1.register_forward_hook(hook), own_generators():
        loss = Contrastive()(clip, batch, micro_batch=5).loss
        assert len(alive) == 4 and not any(ref() is not None for ref in alive), "a graph is still in memory"
        torch.rand(3)  # other draws before the backward pass
        before = torch.get_rng_state()
        loss.backward()
        assert torch.equal(before, torch.get_rng_state()), "later draws differ"
        assert len(alive) == 8 and max(most) == 1 and not any(ref() is not None for ref in alive)
        assert sorted(drawn[4:]) == sorted(drawn[:4])
        Contrastive()(clip, batch).loss.backward()
        assert len(alive) == 9, "a batch in one piece is computed twice"
        assert drawn[8] != pytest.approx(sum(drawn[:4]), rel=1e-3), "dropout had no effect"


# --- scores of embeddings -----------------------------------------------------------------------------------


def directions(n: int, seed: int, size: int = 6) -> torch.Tensor:
    vectors = torch.randn(n, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(vectors, dim=1)


def by_hand(queries, candidates, right: set[tuple[int, int]], k: int) -> float:
    """Recall from the k nearest candidates of each query, one after the other."""
    nearest = (-queries @ candidates.T).argsort(1)[:, :k].tolist()
    return np.mean([any((q, c) in right for c in row) for q, row in enumerate(nearest)])


def test_candidates_that_cannot_be_compared_count_as_missed():
    """NaN, and all equal: a tied candidate ranks before the right one."""
    good, broken, right = torch.eye(3), torch.full((3, 3), torch.nan), torch.eye(3, dtype=torch.bool)
    for images, texts in ((good, broken), (broken, good), (broken, broken), (torch.ones(3, 1),) * 2):
        assert set(recall(images, texts, right, ranks=(1, 2)).values()) == {0.0}
    good[1] = torch.nan
    scored = recall(good, torch.eye(3), right, ranks=(1,))
    assert scored["image_to_text_recall_1"] == pytest.approx(2 / 3), "the others still count"


@pytest.mark.parametrize("rows", [3, 512])
def test_recall_with_several_captions(rows, monkeypatch):
    monkeypatch.setattr(contrastive, "ROWS", rows)
    images, texts = directions(10, 0), directions(25, 1)
    right = [(i % 10, i) for i in range(25)] + [(3, 0), (7, 0)]  # a caption of three images
    flipped = {(t, i) for i, t in right}
    pairs = torch.tensor(right)[torch.randperm(27, generator=torch.Generator().manual_seed(2))]
    space = Embeddings(images, texts, pairs, ("",) * 25)
    scored = recall(images, texts, space.right, ranks=(1, 2, 5, 30))
    for k in (1, 2, 5, 30):
        assert scored[f"image_to_text_recall_{k}"] == by_hand(images, texts, {*right}, k)
        assert scored[f"text_to_image_recall_{k}"] == by_hand(texts, images, flipped, k)
    assert 0 < scored["image_to_text_recall_1"] != scored["text_to_image_recall_1"]


def test_zero_shot():
    images, classes = directions(50, 0), directions(4, 1)
    labels, pairs = (images @ classes.T).argmax(1), torch.arange(50)[:, None].expand(50, 2)
    for shift, expected in ((0, 1), (1, 0)):
        space = Embeddings(images, images, pairs, ("",) * 50, (labels + shift) % 4, classes)
        assert scores(space)["zero_shot"] == expected
    assert "zero_shot" not in scores(Embeddings(images, images, pairs, ("",) * 50))


def test_a_split_is_embedded_and_scored():
    part, clip = SPLITS.validation, clip_of()
    space, at_once = (embed(clip, SPLITS, "validation", batch_size=n) for n in (100, 1000))
    assert space.images.shape == (len(part), 64) and space.texts.shape == (30, 64)
    assert torch.equal(space.labels, part.labels) and space.classes.shape == (10, 64)
    batch = next(iter(SPLITS.batches("validation", 7, shuffle=False)))
    ids, mask = tokenizers.encode(SPLITS.tokenizer, SPLITS.prompts[4])
    with torch.no_grad():
        (images, texts), mean = clip(**batch), clip.embed_texts(ids, mask).mean(0)
    close(space.images, at_once.images)
    close(space.images[:7], images)
    close(space.texts[space.captions.index(part.captions[0][0])], texts[0])
    close(space.classes[4], mean / mean.norm())
    pairs = {(i, space.captions.index(text)) for i, texts in enumerate(part.captions) for text in texts}
    assert {tuple(pair) for pair in space.pairs.tolist()} == pairs
    judged = scores(space)
    assert len(judged) == 8 and all(0 <= value <= 1 for value in judged.values())
    assert judged["recall_1"] == (judged["image_to_text_recall_1"] + judged["text_to_image_recall_1"]) / 2
    assert Contrastive().judge(clip, SPLITS, "validation") == judged
