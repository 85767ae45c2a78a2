"""CLIP's loss in NumPy, gradients by chunks beside those of the whole batch, recall by hand, zero-shot."""

from __future__ import annotations

import contextlib
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
from tests.toys import refused


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


def in_numpy(model: Pairs, log_scale: float = 2.0) -> tuple[float, np.ndarray]:
    images, texts = (part.detach().numpy() for part in model(None))
    logits = np.exp(log_scale) * images @ texts.T
    by_image = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    by_text = logits - np.log(np.exp(logits).sum(0, keepdims=True))
    return float(-(np.diag(by_image) + np.diag(by_text)).mean() / 2), logits


def test_the_loss_looks_both_ways_and_trains_the_temperature():
    model, batch = pairs_of(30)
    step = Contrastive()(model, batch)
    expected, logits = in_numpy(model)
    assert float(step.loss.detach()) == pytest.approx(expected, abs=1e-12) and step.count == 30
    assert float(step.sums["loss"]) == -float(step.sums["minus_loss"]) == pytest.approx(30 * expected)
    hits = [(logits.argmax(axis) == np.arange(30)).sum() for axis in (1, 0)]
    assert [int(step.sums[name]) for name in ("image_to_text", "text_to_image")] == hits
    assert float(step.sums["accuracy"]) == sum(hits) / 2 and hits[0] != hits[1]
    assert Contrastive().monitor in step.sums
    assert not any(value.requires_grad for value in step.sums.values())
    step.loss.backward()
    slope = (in_numpy(model, 2 + 1e-5)[0] - in_numpy(model, 2 - 1e-5)[0]) / 2e-5
    assert float(model.log_scale.grad) == pytest.approx(slope, rel=1e-6)


def test_the_same_caption_is_right_too_in_the_loss():
    model, batch = pairs_of(6)
    batch["input_ids"][[2, 5]] = batch["input_ids"][0].clone()
    with torch.no_grad():
        model.texts[[2, 5]] = model.texts[0].clone()  # as a model gives equal captions equal embeddings
    _, logits = in_numpy(model)
    same = (batch["input_ids"][:, None] == batch["input_ids"]).all(-1).numpy()
    odds = np.exp(logits)
    by_image, by_text = ((same * odds).sum(axis) / odds.sum(axis) for axis in (1, 0))
    step = Contrastive()(model, batch)
    assert float(step.loss.detach()) == pytest.approx(-np.log(by_image * by_text).mean() / 2, abs=1e-12)
    exchanged = Pairs(torch.eye(4)[[1, 0, 2, 3]], torch.eye(4))  # the first two
    for first, right in ((6, 2), (5, 4)):
        ids = torch.tensor([[1, 5], [1, first], [2, 5], [3, 5]])
        assert float(Contrastive()(exchanged, {"input_ids": ids}).sums["accuracy"]) == right
    eye = torch.eye(3, dtype=torch.float64)
    best = Pairs(eye[[0, 0, 1]], eye[[0, 0, 1]])
    with torch.no_grad():
        best.log_scale.fill_(5)
    found = Contrastive()(best, {"input_ids": torch.tensor([[1], [1], [2]])})
    assert float(found.loss.detach()) < 1e-9, "nothing is wrong"


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


def in_pieces(n: int | None) -> functools.partial:
    return functools.partial(Contrastive(), micro_batch=n)


def clip_of(head: str = "linear", dropout: float = 0.0, seed: int = 0) -> Clip:
    clip = Clip(**SPLITS.sizes, head=head, patch_size=4, n_qubits=3, seed=seed)
    for module in clip.modules():
        if hasattr(module, "q_proj"):  # attention, which transformers gives its dropout as a number
            module.dropout = dropout
    return clip


def batch_of(n: int = 20) -> dict[str, torch.Tensor]:
    return next(iter(SPLITS.batches("train", n, shuffle=True)))


def gradients(model: nn.Module, task, batch, around=contextlib.nullcontext) -> dict[str, torch.Tensor]:
    model.zero_grad()
    with own_generators():
        torch.default_generator.manual_seed(7)
        with around():
            step = task(model, batch)
        step.loss.backward()
    named = {name: weight.grad for name, weight in model.named_parameters()}
    found = {name: slope.clone() for name, slope in named.items() if slope is not None}
    return found | {"loss": step.loss.detach()}


@pytest.mark.parametrize("chunk", [1, 6, 19])
@pytest.mark.parametrize("head", ["full", "quantum"])
def test_chunks_give_the_gradient_of_the_whole(head, chunk):
    clip = clip_of(head).double()
    whole = gradients(clip, Contrastive(), batch_of())
    close(gradients(clip, in_pieces(chunk), batch_of()), whole, atol=1e-10)
    assert max(float(value.abs().max()) for value in whole.values()) > 1e-2, "nothing to compare"


def test_what_is_refused(monkeypatch):
    for chunk in (0, -3):
        with refused("micro_batch"):
            in_pieces(chunk)(clip_of(), batch_of())
    spread = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    with refused("processes", NotImplementedError):
        Contrastive()(spread, batch_of())


def test_dropout_draws_the_same_on_the_way_back():
    """By differences: the loss that was told is the one whose gradient is given."""
    clip, batch, task = clip_of(dropout=0.3).double().train(), batch_of(12), in_pieces(5)
    found = gradients(clip, task, batch)
    name, change, losses = "net.vision_model.encoder.layers.0.mlp.fc1.bias", 1e-5, []
    weight, place = clip.get_parameter(name).data, int(found[name].abs().argmax())
    for move in (-change, 2 * change):
        weight[place] += move
        losses.append(float(gradients(clip, task, batch)["loss"]))
    weight[place] -= change
    slope = (losses[1] - losses[0]) / (2 * change)
    assert float(found[name][place]) == pytest.approx(slope, rel=1e-5) and abs(slope) > 1e-4
    still = gradients(clip.eval(), task, batch)["loss"]
    assert abs(float(still) - float(found["loss"])) > 1e-6, "nothing was dropped"


@pytest.mark.parametrize("chunk", [12, 5])
def test_what_is_drawn_next_is_the_same(chunk):
    with own_generators():
        loss = in_pieces(chunk)(clip_of(dropout=0.3).train(), batch_of(12)).loss
        torch.rand(3)  # whoever else draws before the way back
        before = torch.get_rng_state()
        loss.backward()
        assert torch.equal(before, torch.get_rng_state())


def test_one_chunk_is_in_memory_at_once():
    clip, batch = clip_of(), batch_of(20)
    alive: list[weakref.ref] = []
    most = []

    def kept(module, given, outputs):
        alive.append(weakref.ref(outputs))
        most.append(sum(ref() is not None and ref().grad_fn is not None for ref in alive))

    with clip.net.vision_model.encoder.layers[0].mlp.fc1.register_forward_hook(kept):
        loss = in_pieces(5)(clip, batch).loss
        assert len(alive) == 4 and not any(ref() is not None for ref in alive), "a graph is kept"
        loss.backward()
        assert len(alive) == 8 and max(most) == 1 and not any(ref() is not None for ref in alive)
        Contrastive()(clip, batch).loss.backward()
        assert len(alive) == 9, "a batch in one piece is computed once"


# --- what embeddings are worth ------------------------------------------------------------------------------


def directions(n: int, seed: int, size: int = 6) -> torch.Tensor:
    vectors = torch.randn(n, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(vectors, dim=1)


def by_hand(queries, candidates, right: set[tuple[int, int]], k: int) -> float:
    """Sorted lists, one query after the other."""
    hits = 0
    for q, query in enumerate(queries.tolist()):
        cosines = [sum(a * b for a, b in zip(query, c, strict=True)) for c in candidates.tolist()]
        hits += any((q, c) in right for c in sorted(range(len(cosines)), key=lambda c: -cosines[c])[:k])
    return hits / len(queries)


def test_what_cannot_be_compared_is_never_found():
    """Not a number, and all alike: who stands level comes before."""
    good, broken, right = torch.eye(3), torch.full((3, 3), torch.nan), torch.eye(3, dtype=torch.bool)
    for images, texts in ((good, broken), (broken, good), (broken, broken), (torch.ones(3, 1),) * 2):
        assert set(recall(images, texts, right, ranks=(1, 2)).values()) == {0.0}
    good[1] = torch.nan
    found = recall(good, torch.eye(3), right, ranks=(1,))
    assert found["image_to_text_recall_1"] == pytest.approx(2 / 3), "the others are found all the same"


@pytest.mark.parametrize("rows", [3, 512])
def test_recall_with_several_captions(rows, monkeypatch):
    monkeypatch.setattr(contrastive, "ROWS", rows)
    images, texts = directions(10, 0), directions(25, 1)
    right = [(i % 10, i) for i in range(25)] + [(3, 0), (7, 0)]  # a caption of three images
    flipped = {(t, i) for i, t in right}
    pairs = torch.tensor(right)[torch.randperm(27, generator=torch.Generator().manual_seed(2))]
    given = Embeddings(images, texts, pairs, ("",) * 25)
    found = recall(images, texts, given.right, ranks=(1, 2, 5, 30))
    for k in (1, 2, 5, 30):
        assert found[f"image_to_text_recall_{k}"] == by_hand(images, texts, {*right}, k)
        assert found[f"text_to_image_recall_{k}"] == by_hand(texts, images, flipped, k)
    assert found["image_to_text_recall_30"] == found["text_to_image_recall_30"] == 1
    assert 0 < found["image_to_text_recall_1"] != found["text_to_image_recall_1"]


def test_zero_shot():
    images, classes = directions(50, 0), directions(4, 1)
    labels, pairs = (images @ classes.T).argmax(1), torch.arange(50)[:, None].expand(50, 2)
    for shift, expected in ((0, 1), (1, 0)):
        given = Embeddings(images, images, pairs, ("",) * 50, (labels + shift) % 4, classes)
        assert scores(given)["zero_shot"] == expected
    assert "zero_shot" not in scores(Embeddings(images, images, pairs, ("",) * 50))


def test_a_split_in_the_space_of_a_model():
    part, clip = SPLITS.validation, clip_of()
    found, whole = (embed(clip, SPLITS, "validation", batch_size=n) for n in (100, 1000))
    assert found.images.shape == (len(part), 64) and found.texts.shape == (30, 64)
    assert torch.equal(found.labels, part.labels) and found.classes.shape == (10, 64)
    batch = next(iter(SPLITS.batches("validation", 7, shuffle=False)))
    ids, mask = tokenizers.encode(SPLITS.tokenizer, SPLITS.prompts[4])
    with torch.no_grad():
        (images, texts), mean = clip(**batch), clip.embed_texts(ids, mask).mean(0)
    close(found.images, whole.images)
    close(found.images[:7], images)
    close(found.texts[found.captions.index(part.captions[0][0])], texts[0])
    close(found.classes[4], mean / mean.norm())
    assert {tuple(pair) for pair in found.pairs.tolist()} == {
        (image, found.captions.index(text)) for image, texts in enumerate(part.captions) for text in texts
    }
    told = scores(found)
    assert len(told) == 8 and all(0 <= value <= 1 for value in told.values())
    assert told["recall_1"] == (told["image_to_text_recall_1"] + told["text_to_image_recall_1"]) / 2
    assert Contrastive().judge(clip, SPLITS, "validation") == told
