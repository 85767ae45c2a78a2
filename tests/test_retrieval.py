"""Retrieval: recall against a count by hand, zero-shot, and what lies nearest."""

from __future__ import annotations

import pytest
import torch

from qnnkit.data.captions import digit_captions
from qnnkit.models import Clip, ClipSettings
from qnnkit.tasks import Contrastive, contrastive
from qnnkit.tasks.contrastive import Embeddings, embed, recall, scores


def directions(n: int, seed: int, size: int = 6) -> torch.Tensor:
    vectors = torch.randn(n, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(vectors, dim=1)


def by_hand(queries, candidates, right: set[tuple[int, int]], k: int) -> float:
    """Sorted lists, one query after the other."""
    hits = 0
    for q, query in enumerate(queries.tolist()):
        cosines = [sum(a * b for a, b in zip(query, c, strict=True)) for c in candidates.tolist()]
        nearest_k = sorted(range(len(cosines)), key=lambda c: -cosines[c])[:k]
        hits += any((q, c) in right for c in nearest_k)
    return hits / len(queries)


def test_what_cannot_be_compared_is_never_found():
    pairs = torch.tensor([[0, 0], [1, 1], [2, 2]])
    good, broken = torch.eye(3), torch.full((3, 3), torch.nan)
    for images, texts in ((good, broken), (broken, good), (broken, broken)):
        assert set(recall(images, texts, pairs, ranks=(1, 2)).values()) == {0.0}
    good[1] = torch.nan
    found = recall(good, torch.eye(3), pairs, ranks=(1,))
    assert found["image_to_text_recall_1"] == pytest.approx(2 / 3), "the others are found all the same"


@pytest.mark.parametrize("rows", [3, 512])
def test_recall_with_several_captions(rows, monkeypatch):
    monkeypatch.setattr(contrastive, "ROWS", rows)
    images, texts = directions(10, 0), directions(25, 1)
    pairs = [(i % 10, i) for i in range(25)] + [(3, 0), (7, 0)]  # a caption of three images
    pairs = torch.tensor(pairs)[torch.randperm(27, generator=torch.Generator().manual_seed(2))]
    found = recall(images, texts, pairs, ranks=(1, 2, 5, 30))
    right = {(int(i), int(t)) for i, t in pairs}
    for k in (1, 2, 5, 30):
        assert found[f"image_to_text_recall_{k}"] == by_hand(images, texts, right, k)
        flipped = {(t, i) for i, t in right}
        assert found[f"text_to_image_recall_{k}"] == by_hand(texts, images, flipped, k)
    assert found["image_to_text_recall_30"] == found["text_to_image_recall_30"] == 1
    assert 0 < found["image_to_text_recall_1"] != found["text_to_image_recall_1"]


def test_a_model_that_holds_all_alike_finds_nothing():
    same, pairs = torch.ones(12, 1), torch.arange(12)[:, None].expand(12, 2)
    found = recall(same, same, pairs)
    assert found["image_to_text_recall_1"] == found["text_to_image_recall_10"] == 0


def test_chance():
    n = 400
    found = recall(directions(n, 0), directions(n, 1), torch.arange(n)[:, None].expand(n, 2), ranks=(1, 100))
    assert found["image_to_text_recall_1"] < 0.02 and abs(found["text_to_image_recall_100"] - 0.25) < 0.1


def test_zero_shot():
    images, classes = directions(50, 0), directions(4, 1)
    labels, pairs = (images @ classes.T).argmax(1), torch.arange(50)[:, None].expand(50, 2)
    for shift, expected in ((0, 1), (1, 0)):
        given = Embeddings(images, images, pairs, ("",) * 50, (labels + shift) % 4, classes)
        assert scores(given)["zero_shot"] == expected
    assert "zero_shot" not in scores(Embeddings(images, images, pairs, ("",) * 50))


def test_a_split_in_the_space_of_a_model():
    splits = digit_captions()
    clip = Clip(ClipSettings(head="linear", patch_size=4), **splits.sizes)
    found = embed(clip, splits, "validation", batch_size=100)
    part = splits.validation
    assert found.images.shape == (len(part), 64) and found.texts.shape == (30, 64)
    assert torch.equal(found.labels, part.labels) and found.classes.shape == (10, 64)
    whole = embed(clip, splits, "validation", batch_size=1000)
    torch.testing.assert_close(found.images, whole.images, atol=1e-5, rtol=0)
    batch = next(iter(splits.batches("validation", 7, shuffle=False)))
    with torch.no_grad():
        images, texts = clip(**batch)
    torch.testing.assert_close(found.images[:7], images, atol=1e-5, rtol=0)
    row = found.captions.index(part.captions[0][0])
    torch.testing.assert_close(found.texts[row], texts[0], atol=1e-5, rtol=0)
    assert {tuple(pair) for pair in found.pairs.tolist()} == {
        (image, found.captions.index(text)) for image, texts in enumerate(part.captions) for text in texts
    }
    ids, mask = splits.tokenizer.encode(splits.prompts[4])
    with torch.no_grad():
        mean = clip.embed_texts(ids, mask).mean(0)
    torch.testing.assert_close(found.classes[4], mean / mean.norm(), atol=1e-5, rtol=0)
    told = scores(found)
    assert len(told) == 7 and all(0 <= value <= 1 for value in told.values())
    judged = Contrastive().judge(clip, splits, "validation")
    both = judged["image_to_text_recall_1"] + judged["text_to_image_recall_1"]
    assert judged == told | {"recall_1": both / 2}
