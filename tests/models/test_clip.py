"""CLIP: the same numbers as in transformers, heads and their controls, weights from folders."""

import copy
import json
import math
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from qnnkit.data.tokenizers import encode, of_captions
from qnnkit.layers import controls, count_parameters, exchanged_parameters
from qnnkit.models import Clip
from qnnkit.models.clip import CLIP, CLIP_MEAN, CLIP_STD, configuration
from tests.toys import noise, refused

TEXTS = ["a photo of a cat", "a dog", "two dogs and a cat on a mat"]
SIDE = 16
TOKENIZER = of_captions(None, TEXTS, 10)


def pixels_of(channels: int = 3) -> torch.Tensor:
    return torch.from_numpy(noise(3, channels, SIDE, SIDE))


def batch_of(channels: int = 3) -> dict[str, torch.Tensor]:
    ids, mask = encode(TOKENIZER, TEXTS)
    return {"pixel_values": pixels_of(channels), "input_ids": ids, "attention_mask": mask}


def clip_of(head: str = "linear", channels: int = 3, **options) -> Clip:
    usual = {"tokenizer": TOKENIZER, "image_size": (SIDE, SIDE), "patch_size": 8}
    return Clip(channels=channels, head=head, **usual | options)


def close(one: torch.Tensor, other: torch.Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(one, other, atol=tolerance, rtol=0)


@pytest.mark.parametrize(("head", "channels"), [("full", 3), ("linear", 1), ("quantum", 1), ("quantum", 3)])
def test_embeddings_are_unit_vectors_per_sample_in_every_precision(head, channels):
    clip, batch = clip_of(head, channels).eval(), batch_of(channels)
    single = clip(**batch)
    alone = [clip(**{name: values[row : row + 1] for name, values in batch.items()}) for row in range(3)]
    with torch.autocast("cpu", torch.bfloat16):
        half = clip(**batch)
    double, alone = clip.double()(**batch), map(torch.cat, zip(*alone, strict=True))
    for one, two, four, parts in zip(half, single, double, alone, strict=True):
        types = torch.float32, torch.float32, torch.float64
        assert two.shape == (3, 64) and (one.dtype, two.dtype, four.dtype) == types
        close(two.norm(dim=1), torch.ones(3))
        close(two, parts, 1e-5)
        close(two.double(), four, 1e-5)
        close(one.double(), four, 0.1)
        assert (two[0] - two[1]).abs().max() > 1e-3, "all samples are alike"


def test_only_the_seed_decides_the_initial_weights():
    one, again, other = (clip_of("quantum", seed=seed).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(value, again[name]) for name, value in one.items())
    drawn = ("net.text_projection.circuit.weights", "net.visual_projection.down.weight")
    assert all(not torch.equal(one[name], other[name]) for name in drawn)
    assert not torch.equal(one[drawn[0]], one[drawn[0].replace("text", "visual")]), "two circuits start alike"


# --- against transformers ----------------------------------------------------------------------------------


def test_a_full_head_equals_transformers():
    """With pixels scaled as by its image processor, and texts up to their end."""
    clip, batch = clip_of("full").eval(), batch_of()
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (CLIP_MEAN, CLIP_STD))
    theirs = clip.net(**batch | {"pixel_values": (batch["pixel_values"] / 255 - mean) / std})
    images, texts = clip(**batch)
    close(images, theirs.image_embeds)
    close(texts, theirs.text_embeds)
    ids, ends = batch["input_ids"], batch["attention_mask"].sum(1) - 1
    assert (ids[torch.arange(3), ends] == TOKENIZER.eos_token_id).all()
    close(clip.embed_texts(torch.where(batch["attention_mask"] == 0, 5, ids)), texts)
    first_word = torch.arange(ids.shape[1]) == 1
    assert (clip.embed_texts(torch.where(first_word, 5, ids)) - texts).abs().max() > 1e-3


@pytest.mark.parametrize("size", CLIP)
def test_sizes(size):
    from transformers import CLIPModel

    low, high = {"tiny": (1e5, 5e5), "small": (5e6, 1e7), "77m": (7.665e7, 7.675e7)}[size]
    for vocabulary in (300, 900):  # a size named by its weights has that many for any vocabulary
        tokenizer = of_captions(None, [f"word{i}" for i in range(vocabulary)])
        with torch.device("meta"):
            net = CLIPModel(configuration(size, tokenizer=tokenizer))
        assert low < sum(weight.numel() for weight in net.parameters()) < high


# --- the temperature ---------------------------------------------------------------------------------------


def test_the_scale_starts_at_1_over_007_and_stays_below_100():
    clip = clip_of()
    assert float(clip.scale().detach()) == pytest.approx(1 / 0.07, rel=1e-4)
    with torch.no_grad():
        clip.net.logit_scale.fill_(7.0)
    assert float(clip.eval().scale().detach()) == pytest.approx(100, rel=1e-5)
    assert float(clip.net.logit_scale.detach()) == 7, "evaluation changed a weight"
    clip.train().scale().neg().backward()
    assert float(clip.net.logit_scale.detach()) == pytest.approx(math.log(100))
    assert float(clip.net.logit_scale.grad) == pytest.approx(-100, rel=1e-5), "no gradient at the bound"


# --- controls ----------------------------------------------------------------------------------------------


def test_controls_have_equal_parameter_counts():
    clip = clip_of("quantum", circuit="hardware_efficient", n_layers=3).eval()
    before, nets = clip(**batch_of()), controls(clip)
    counts = {name: sum(count_parameters(net).values()) for name, net in nets.items()}
    n_weights, n_all = 2 * 24, sum(weight.numel() for weight in clip.parameters())
    assert sum(weight.numel() for weight in exchanged_parameters(clip)) == n_weights
    for name in ("no_entanglement", "frozen_random", "classical", "no_quantum"):
        assert counts[name] == n_all - n_weights * (name == "no_quantum"), name
        for one, other in zip(nets[name](**batch_of()), before, strict=True):
            assert one.shape == (3, 64) and (one - other).abs().max() > 1e-4, name
    linear = {name: value.shape for name, value in clip_of("linear").state_dict().items()}
    quantum = {name: value.shape for name, value in clip.state_dict().items() if "circuit" not in name}
    assert linear == quantum, "a linear head is the quantum one without its circuit"


def test_angles_lie_between_0_and_pi():
    clip, seen = clip_of("quantum", backend="batched"), []
    head = clip.net.visual_projection
    head.down.weight.data.mul_(100)
    with head.circuit.register_forward_pre_hook(lambda m, inputs: seen.append(inputs[0].detach())):
        clip.embed_images(pixels_of())
    assert seen[0].shape == (3, 4) and 0 <= float(seen[0].min()) < 0.1 < 3 < float(seen[0].max()) <= 3.15
    with refused("pixel_values"):
        clip.embed_images(pixels_of().float())


# --- weights from a folder ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Folders of transformers: a small CLIP with a tokenizer, a grey one in half precision, no CLIP."""
    folder = tmp_path_factory.mktemp("clip")
    for name, channels, kind in (("colour", 3, "float"), ("grey", 1, "half"), ("resnet", 1, "float")):
        getattr(clip_of("full", channels, seed=5).net, kind)().save_pretrained(folder / name)
    TOKENIZER.save_pretrained(folder / "colour")
    config = json.loads((folder / "resnet" / "config.json").read_text()) | {"model_type": "resnet"}
    (folder / "resnet" / "config.json").write_text(json.dumps(config))
    return folder


def test_weights_from_a_local_folder(saved):
    place = saved / "colour"
    options = {"tokenizer": of_captions(place, ()), "pretrained": str(place)}
    one, same = (clip_of("full", **each).eval()(**batch_of()) for each in (options, {"seed": 5}))
    close(one, same)
    other, stored = clip_of("quantum", n_qubits=3, **options), load_file(place / "model.safetensors")
    loaded = {name.removeprefix("net."): value for name, value in other.state_dict().items()}
    assert all(torch.equal(loaded[name], value) for name, value in stored.items() if "projection" not in name)
    assert clip_of("full", 1, pretrained=str(saved / "grey")).net.logit_scale.dtype == torch.float32
    grey, colour = (clip_of("full", channels, pretrained=str(place)).eval() for channels in (1, 3))
    image = pixels_of(1)
    close(grey.embed_images(image), colour.embed_images(image.expand(-1, 3, -1, -1)))


def ends_with_2() -> Any:
    wrong = copy.deepcopy(TOKENIZER)
    wrong.eos_token = wrong.convert_ids_to_tokens(2)
    return wrong


MANY_WORDS = [" ".join(f"word{i}" for i in range(99))]
PUBLISHED = {"pretrained": "colour"}


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("size", {"size": "large"}),
        ("n_qubits", {"head": "linear", "n_qubits": 0}),
        ("patch_size", {"patch_size": 5}),
        ("image_size", {"image_size": (16, 24)}),
        ("tokenizer", {"tokenizer": ends_with_2()}),
        ("pretrained", {"pretrained": "resnet", "channels": 1}),
        ("channels", {"pretrained": "grey"}),
        ("image_size", {**PUBLISHED, "image_size": (32, 32)}),
        ("tokenizer", {**PUBLISHED, "tokenizer": of_captions(None, MANY_WORDS, 10)}),
        ("tokenizer", {**PUBLISHED, "tokenizer": of_captions(None, TEXTS, 40)}),
    ],
)
def test_bad_options_raise_an_error(saved, argument, options):
    """Including data that do not fit the weights of a folder or published weights."""
    place = saved / options.get("pretrained", "none")
    with refused(argument):
        clip_of(**options | ({"pretrained": str(place)} if place.exists() else {}))
