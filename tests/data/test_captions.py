"""Images with captions: where they are read from, what is skipped and reported, which caption is drawn."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from qnnkit.data import load
from qnnkit.data.captions import CaptionSplits, captions, digit_captions
from qnnkit.data.splits import SPLITS
from qnnkit.data.tokenizers import EOS, SPECIAL, encode, losses, of_captions, trained
from tests.toys import archive, fill, idx_files, real, refused, write

WORDS = ("cat", "dog", "bird", "horse", "boat", "tree", "house", "cup", "lamp", "chair")
TEXTS = {f"{word}.png": [f"a {word}", f"The {word} on a mat."] for word in WORDS}


def pictures(folder: Path, names=TEXTS) -> Path:
    return fill(folder, names, size=(10, 12, 3))


def of_all(splits: CaptionSplits) -> dict[str, tuple[str, ...]]:
    parts = [splits.split(name) for name in SPLITS]
    return {name: texts for part in parts for name, texts in zip(part.sources, part.captions, strict=True)}


def test_pairs_are_counted_when_sizes_are_given(tmp_path):
    texts = {f"{i}.png": "a" for i in range(60)}
    options = {"root": write(pictures(tmp_path, texts), {"captions.json": texts}), "image_size": 8}
    options |= {"train_fraction": 21, "validation_fraction": 24, "test_fraction": 6}
    splits = load("captions", **options)
    assert (splits.channels, splits.image_size) == (3, (8, 8))
    assert [len(splits.split(name)) for name in SPLITS] == [21, 24, 6]
    for wrong in ({"test_fraction": 60}, {"train_fraction": 31}, {"validation_fraction": 2.5}):
        with refused(*wrong):
            load("captions", **(options | wrong))


def test_skipped_images_are_counted_and_named_and_folders_are_splits(tmp_path):
    folder = pictures(tmp_path / "set" / "train")
    pictures(folder, ["stranger.png", "one/mouse.png", "two/mouse.png"])  # an ambiguous name matches neither
    cat = {"cat.png": ["a\n  cat ", "a cat", "é", "  ", 7]}  # becomes one line, counted once
    more = {"gone.png": ["a ghost"], "cup.png": [], "mouse.png": "a mouse"}
    files = {"captions.json": TEXTS | more | cat, "captions_more.csv": "image,caption\ncat.png,a puss\n"}
    write(folder, files | {"boat.png": "no image", "cat.heic": "no image"})
    write(pictures(tmp_path / "set" / "dev"), {"captions.json": TEXTS})
    splits = captions(tmp_path / "set", image_size=8)
    notes, files = "\n".join(splits.notes), "captions.json, train/captions_more.csv"
    assert f"{files} that are not there: gone.png, mouse.png." in notes
    assert "Left out 4 of 23 images without a caption: train/cup.png, train/one/mouse.png, train/str" in notes
    assert "Left out 1 of 19 images that cannot be read: train/boat.png (cannot identify image f" in notes
    assert "Left out files that are not images" in notes and "): train/cat.heic." in notes
    assert "There is no test part" in notes
    assert {*splits.validation.sources} == {f"dev/{name}" for name in TEXTS}
    lost = {"boat.png", "cup.png"}
    assert {*splits.train.sources, *splits.test.sources} == {f"train/{x}" for x in TEXTS.keys() - lost}
    assert of_all(splits)["train/cat.png"] == ("a cat", "é", "7", "a puss")


def test_images_in_two_splits_or_under_two_names_are_reported(tmp_path):
    rows = [f"{name},a,train" for name in (*TEXTS, "x/hen.png")] + ["cat.png,b,test", "gone/dog.png,c,train"]
    folder = pictures(tmp_path, [*TEXTS, "y/hen.png"])
    write(folder, {"captions.csv": "\n".join(["image,caption,split", *rows])})
    notes = "\n".join(captions(tmp_path, image_size=8).notes)
    assert "dog.png (dog.png, gone/dog.png), y/hen.png (x/hen.png, y/hen.png)." in notes


BAD = [
    ("notes.txt", ""),
    ("captions.json", 3),
    ("captions.tsv", ""),
    ("captions.json", dict.fromkeys(TEXTS, "")),
    ("captions.json", {"notes.png": "a", "other.png": "b"}),  # it cannot be read
]


@pytest.mark.parametrize(("name", "content"), BAD)
def test_wrong_input_raises_an_error_of_one_sentence(tmp_path, name, content):
    write(pictures(tmp_path), {"notes.png": "no image", "other.png": "no image", name: content})
    with refused("root"):
        captions(tmp_path, image_size=8)


# --- captions of labelled images ---------------------------------------------------------------------------


def test_a_training_image_draws_a_caption_per_epoch_others_have_their_first():
    splits = digit_captions()
    several = tuple(texts[: 1 + row % 3] for row, texts in enumerate(splits.train.captions))
    splits = replace(splits, train=replace(splits.train, captions=several))

    def said(epoch, split="train", seed=3):
        loader = splits.batches(split, 512, shuffle=False, seed=seed)
        loader.set_epoch(epoch)
        ids = torch.cat([batch["input_ids"] for batch in loader])
        return splits.tokenizer.batch_decode(ids, skip_special_tokens=True)

    epochs = [said(epoch) for epoch in range(8)]
    assert epochs[3] == said(3) != said(3, seed=4)
    seen = [{*texts} for texts in zip(*epochs, strict=True)]
    assert all(texts <= {*texts_of_row} for texts, texts_of_row in zip(seen, several, strict=True))
    assert sum(map(len, seen)) > 0.85 * sum(map(len, several)), "a caption is never drawn"
    for split in ("validation", "test"):
        assert said(5, split) == [texts[0] for texts in splits.split(split).captions]


def test_captions_of_digits_name_the_labels_of_the_dataset(tmp_path):
    root = archive(tmp_path / "all.zip", idx_files())
    both = (digit_captions(), load("digits")), (digit_captions(root), load("mnist", root=root))
    for splits, digits in both:
        for part, plain in ((splits.split(name), digits.split(name)) for name in SPLITS):
            assert torch.equal(part.images, plain.images) and torch.equal(part.labels, plain.labels)
        row = int((splits.test.labels == 3).nonzero()[0])
        assert splits.test.captions[row][0] == "a photo of the digit three"
        assert splits.prompts[3] == splits.test.captions[row] and len(set(splits.prompts)) == 10


# --- tokenizers of captions ---------------------------------------------------------------------------------

SAID = ["A dog runs, fast.", "a dog sleeps", "The cat and the dog"]
LONG = " ".join(["dog"] * 40)


def test_texts_are_restored_between_begin_and_end_tokens_also_from_a_folder(tmp_path):
    made = of_captions(None, SAID, 12)
    made.save_pretrained(tmp_path)
    for tokenizer in (made, of_captions(tmp_path, ["other"])):
        ids, mask = encode(tokenizer, ["a dog sleeps", "THE CAT", LONG])
        assert ids.shape == mask.shape == (3, 12) and ids.dtype == mask.dtype == torch.int64
        texts = [tokenizer.decode(row, skip_special_tokens=True) for row in ids]
        assert texts == ["a dog sleeps", "the cat", " ".join(["dog"] * 10)]
        assert tokenizer.eos_token_id == SPECIAL.index(EOS) != 2  # transformers pools such texts elsewhere
        for row, n in zip(ids.tolist(), mask.sum(1).tolist(), strict=True):
            assert (row[0], row[n - 1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id)
            assert {*row[n:]} <= {tokenizer.pad_token_id}
    assert losses(made, ["a dog sleeps"]) == []
    [note] = losses(made, [LONG, "a dog", "a zebra sleeps"])
    assert "of 3 captions, 1 are cut to 10 tokens (sequence_length), 1 have words" in note
    assert encode(of_captions(tmp_path, (), 5), SAID)[0].shape == (3, 5)


WANTED = [(None, 2, "sequence_length"), ("{}", 8, "tokenizer"), ("nobody/nothing", None, "tokenizer")]


@pytest.mark.parametrize(("wanted", "length", "argument"), WANTED)
def test_tokenizers_that_raise_an_error(tmp_path, wanted, length, argument):
    """A tokenizer without an end token, and a folder without a tokenizer."""
    trained(SAID, 300).save_pretrained(tmp_path)
    with refused(argument):
        of_captions(wanted and wanted.format(tmp_path), SAID, length)


@pytest.mark.data
def test_coco():
    splits = captions(real("captions/coco_by"), image_size=32)
    assert sum(len(splits.split(name)) for name in SPLITS) == 76 and 35 < len(splits.train) < 55
    assert splits.channels == 3 and all(len(texts) == 5 for texts in of_all(splits).values())
    notes = "\n".join(splits.notes)
    assert all(each in notes for each in ("Resized 76 of 76", "Converted 1 of 76", "that it does not know"))
    words = splits.tokenizer.decode(encode(splits.tokenizer, splits.train.captions[0])[0][0])
    assert words.split()[1:4] == splits.train.captions[0][0].lower().split()[:3]
