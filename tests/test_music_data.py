"""Music as blocks: every token predicted once, splits by piece, other keys; and folders that are wrong."""

from __future__ import annotations

import gzip
import json
import sys
import types
import zipfile
from pathlib import Path

import pytest
import torch

from qnnkit.data.music_blocks import Transposition, first_pieces, music
from qnnkit.data.music_events import DURATION, END, PITCH, START, TIME, MusicTokenizer, Note, Piece
from qnnkit.data.music_midi import write_midi
from qnnkit.data.music_sources import collect
from qnnkit.data.splits import SPLITS
from qnnkit.data.tokens import IGNORED, TokenSet
from tests.toys import by_composer, places_of, real, refused

TOKENIZER = MusicTokenizer()


def scale(length: int, first: int = 60) -> list[list[int]]:
    """Steps of two voices: one moves, one holds for four steps."""
    return [[first + i % 7, first - 12 - i // 4 % 5] for i in range(length)]


def written(folder: Path, name: str, lengths: list[int], first: int = 60) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({f"piece{i}": scale(n, first + i % 5) for i, n in enumerate(lengths)}))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two composers: ten pieces of many blocks, five of one or two."""
    written(tmp_path / "music", "ann", [70 + 9 * i for i in range(10)])
    written(tmp_path / "music", "bob", [20 + 5 * i for i in range(5)], 72)
    return tmp_path / "music"


# --- blocks


def by_source(part: TokenSet) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for row, source in enumerate(part.sources):
        found.setdefault(source, []).append(row)
    return found


def test_blocks(folder):
    splits = music(folder, sequence_length=64, overlap=20)
    pieces = {f"{each.composer}/{piece.name}": piece for each in collect(folder) for piece in each.pieces}
    assert splits.name == "music" and splits.length == 64 and splits.vocabulary == 163
    seen = []
    for side in SPLITS:
        part = splits.split(side)
        assert part.input_ids.dtype == part.labels.dtype == torch.int64
        for source, rows in by_source(part).items():
            seen.append(source)
            ids = TOKENIZER.encode(pieces[source])
            check_cover(ids, part, rows, side == "train")
            assert TOKENIZER.decode(part.input_ids[rows[0]].tolist()).steps[:4] == pieces[source].steps[:4]
    assert sorted(seen) == sorted(pieces)  # each piece is in one split


def check_cover(ids: list[int], part: TokenSet, rows: list[int], training: bool) -> None:
    """The blocks of a piece lie on it one behind the other, and what is predicted is all of it."""
    predicted, place, covered = [0] * len(ids), 0, 0
    for number, row in enumerate(rows):
        block = part.input_ids[row].tolist()
        n = max(i for i, token in enumerate(block) if token) + 1  # padding is 0 and only at the end
        if number:
            assert TIME <= block[0] < DURATION  # begins where a step has ended
            after = (at for at in range(place + 1, len(ids)) if ids[at : at + n] == block[:n])
            place = next(at for at in after if at + n > covered)
            assert place < covered  # no gap
            if training:
                assert covered - place >= 20
        assert ids[place : place + n] == block[:n] and (n == 64 or place + n == len(ids))
        covered = place + n
        labels = part.labels[row].tolist()
        for i in range(1, 64):  # the shift: position 0 is never predicted
            if labels[i] != IGNORED:
                assert labels[i] == block[i] and i < n
                predicted[place + i] += 1
    assert covered == len(ids) and predicted[0] == 0
    if training:
        assert min(predicted[1:]) == 1 and (len(rows) == 1 or max(predicted) > 1)
    else:
        assert predicted[1:] == [1] * (len(ids) - 1)


def test_a_step_longer_than_a_block_is_cut_inside(tmp_path):
    """Where no step ends within a block, it is cut at its end."""
    chord = [list(range(0, 127, 2))] * 4
    (tmp_path / "a.json").write_text(json.dumps({name: chord for name in "abc"}))
    splits = music(tmp_path, sequence_length=32, overlap=16)
    ids = TOKENIZER.encode(Piece("", tuple(map(tuple, chord))))
    assert splits.test.n_predicted == len(ids) - 1 == 67
    assert splits.test.input_ids[0].tolist() == ids[:32] and splits.test.input_ids[1].tolist() == ids[31:63]


def test_settings_change_what_they_should(folder, tmp_path):
    splits = music(folder, sequence_length=64)
    TOKENIZER.save_pretrained(tmp_path / "base")
    same = music(folder, sequence_length=64, overlap=16, tokenizer=tmp_path / "base")
    assert splits.fingerprint() == same.fingerprint()
    assert len(music(folder, sequence_length=64, overlap=32).train) > len(splits.train)
    other = music(folder, sequence_length=64, split_seed=1)
    assert set(other.test.sources) != set(splits.test.sources)
    wider = music(folder, sequence_length=64, test_fraction=0.6)
    assert set(splits.test.sources) < set(wider.test.sources)
    assert "shorter than a block of 512" in music(folder).notes[0]
    assert "15 of 15 pieces" in music(folder, sequence_length=2048).notes[0]


def test_a_composer_is_split_alike_alone_and_beside_others(folder):
    both = by_composer(music(folder, sequence_length=64))
    assert list(both) == ["ann", "bob"]
    for name, part in both.items():
        alone = music(folder, composers=[name], sequence_length=64)
        assert alone.fingerprint() == part.fingerprint()
        longer = music(folder, composers=[name], sequence_length=128)
        for side in SPLITS:
            assert set(longer.split(side).sources) == set(part.split(side).sources)
            assert all(source.startswith(f"{name}/") for source in part.split(side).sources)


@pytest.mark.parametrize("gone", [0, 17, 39])
def test_a_piece_more_or_less_moves_no_other(gone, tmp_path):
    def sides(name, chosen):
        (tmp_path / name).mkdir()
        content = {f"piece{i}": scale(20 + i) for i in chosen}
        (tmp_path / name / "ann.json").write_text(json.dumps(content))
        return places_of(music(tmp_path / name, validation_fraction=0.3, test_fraction=0.3))

    before = sides("before", range(40))
    del before[f"ann/piece{gone}"]
    assert before == sides("after", [i for i in range(40) if i != gone])


def test_own_splits_are_kept(tmp_path):
    sides = {"test": [scale(20)], "train": [scale(30), scale(31)], "valid": [scale(40)]}
    (tmp_path / "own.json").write_text(json.dumps(sides))
    for seed in (0, 1, 2):
        splits = music(tmp_path, split_seed=seed, sequence_length=256, transpose=0)
        assert splits.augment is None
        lengths = [
            [len(TOKENIZER.decode(ids.tolist())) for ids in splits.split(name).input_ids] for name in SPLITS
        ]
        assert lengths == [[30, 31], [40], [20]]
    assert splits.train.sources == ("own/train-000", "own/train-001")


def test_a_piece_in_two_splits_is_told(tmp_path):
    (tmp_path / "ann.json").write_text(json.dumps({str(i): scale(40) for i in range(10)}))
    (note,) = [each for each in music(tmp_path, sequence_length=64).notes if each.startswith("Duplicates")]
    assert note.startswith("Duplicates: 2 of 2 pieces of validation and test stand in an earlier split too")


def test_first_pieces_take_turns(folder):
    splits = music(folder, sequence_length=64)
    found = first_pieces(splits, "train", 4)
    assert [piece.composer for piece in found] == ["ann", "bob", "ann", "bob"]
    assert len({(piece.composer, piece.name) for piece in found}) == 4
    assert found[0].steps[:8] == tuple(
        tuple(sorted(step)) for step in scale(8, 60 + int(found[0].name[5:]) % 5)
    )
    assert len(first_pieces(splits, "test", 99)) == 2


def test_batches_and_epochs(folder):
    splits = music(folder, sequence_length=64)
    loader = splits.batches("train", 4, shuffle=False)

    def whole(epoch):
        loader.set_epoch(epoch)
        return torch.cat([batch["input_ids"] for batch in loader])

    assert torch.equal(whole(3), whole(3)) and not torch.equal(whole(3), whole(4))
    assert torch.equal(whole(3), splits.augment(splits.train, 3).input_ids)
    test = splits.batches("test", 4, shuffle=False)
    assert torch.equal(torch.cat([batch["input_ids"] for batch in test]), splits.test.input_ids)


# --- other keys


def block_of(*steps) -> TokenSet:
    ids = torch.tensor([TOKENIZER.encode(Piece("", steps))])
    labels = ids.clone()
    labels[0, :3] = IGNORED
    return TokenSet(ids, labels, ("a/b",))


def test_transposition_shifts_pitches_alone():
    blocks = block_of((60, 64), (60, 67), ())
    change, seen = Transposition(5, 7), set()
    for epoch in range(60):
        shifted = change(blocks, epoch)
        piece = TOKENIZER.decode(shifted.input_ids[0].tolist())
        shift = piece.steps[0][0] - 60
        seen.add(shift)
        assert piece.steps == tuple(tuple(p + shift for p in step) for step in ((60, 64), (60, 67), ()))
        assert shifted.labels[0, :3].tolist() == [IGNORED] * 3
        assert torch.equal(shifted.labels[0, 3:], shifted.input_ids[0, 3:])
        assert shifted.sources == blocks.sources
    assert seen == set(range(-5, 6))
    assert torch.equal(change(blocks, 5).input_ids, Transposition(5, 7)(blocks, 5).input_ids)
    drawn = [
        [int(Transposition(5, seed)(blocks, epoch).input_ids[0, 2]) for epoch in range(20)] for seed in (7, 8)
    ]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize(
    ("steps", "expected"), [(((1,),), (0, 6)), (((125,),), (120, 127)), (((0, 127),), (0, 0))]
)
def test_transposition_stays_within_midi(steps, expected):
    blocks = block_of(*steps)
    lowest = [
        TOKENIZER.decode(Transposition(5)(blocks, epoch).input_ids[0].tolist()).steps[0][0]
        for epoch in range(80)
    ]
    assert (min(lowest), max(lowest)) == expected
    silent = block_of((), ())
    assert torch.equal(Transposition(5)(silent, 0).input_ids, silent.input_ids)
    both = (tensor.repeat(50, 1) for tensor in (block_of((60,)).input_ids, block_of((60,)).labels))
    assert len(set(Transposition(5)(TokenSet(*both, ()), 0).input_ids[:, 2].tolist())) == 11  # each by itself


# --- where music lies


def midi(path: Path, length: int = 20, first: int = 60) -> Path:
    steps = tuple(tuple(step) for step in scale(length, first))
    return write_midi(Piece(path.stem, steps), path)


def test_folders_zips_and_json_of_every_kind(tmp_path):
    root = tmp_path / "root"
    for i in range(3):
        midi(root / "ann" / f"{i}.mid", 20 + i)
        midi(root / "deep" / "bob" / f"{i}.MIDI", 30 + i)
        midi(root / f"{i}.mid", 40 + i)
    with zipfile.ZipFile(root / "zipped.zip", "w") as archive:
        for i in range(3):
            archive.write(root / "ann" / f"{i}.mid", f"{i}.mid")
            archive.write(root / "ann" / f"{i}.mid", f"cat/{i}.mid")
    (root / "dan.json.gz").write_bytes(gzip.compress(json.dumps({"a": scale(9)}).encode()))
    (root / "readme.txt").write_text("not music")
    found = {each.composer: [len(piece) for piece in each.pieces] for each in collect(root)}
    expected = {"ann": [20, 21, 22], "bob": [30, 31, 32], "root": [40, 41, 42], "zipped": [20, 21, 22]}
    assert found == expected | {"cat": [20, 21, 22], "dan": [9]}
    several = [root / "zipped.zip", root / "dan.json.gz", root / "0.mid"]
    assert {each.composer: len(each.pieces) for each in collect(several)} == {
        "zipped": 3, "cat": 3, "dan": 1, "root": 1,
    }  # fmt: skip
    assert [piece.composer for piece in collect(root, ["ann"])[0].pieces] == ["ann"] * 3
    (root / "eve.json").write_text(json.dumps({"p": [[60, -1, 60], [None, 62.0], []]}))
    assert collect(root, ["eve"])[0].pieces[0].steps == ((60,), (62,), ())  # silent voices and unisons


def test_bad_midi_is_counted_and_named(tmp_path):
    for i in range(4):
        midi(tmp_path / "ann" / f"{i}.mid")
    (tmp_path / "ann" / "bad.mid").write_bytes(b"MThd")
    (tmp_path / "ann" / "empty.mid").write_bytes((tmp_path / "ann" / "0.mid").read_bytes()[:14])
    splits = music(tmp_path)
    assert splits.notes[0].startswith("Left out 2 of 6 MIDI files of ann: bad.mid (damaged")
    assert "empty.mid" in splits.notes[0]
    for i in range(4):
        (tmp_path / "ann" / f"{i}.mid").write_bytes(b"")
    with refused("root"):
        music(tmp_path)


def test_percussion_is_told(tmp_path):
    import mido

    for i in range(3):
        path = midi(tmp_path / "ann" / f"{i}.mid")
        file = mido.MidiFile(path)
        file.tracks[0].insert(3, mido.Message("note_on", note=36, velocity=9, channel=9))
        file.save(path)
    assert collect(tmp_path)[0].notes == ["Percussion was left out of 3 MIDI files of ann."]


BAD_JSON = {
    "a cut gzip": gzip.compress(b'{"a": [[60]]}')[:-9],
    "no JSON": "[[",
    "not UTF-8": b"\xff\xfe{}",
    "a list": "[]",
    "a split without a piece": json.dumps({"a": scale(30), "b": scale(30)}),
    "a split without a note": json.dumps({"train": [scale(9)], "valid": [[]], "test": [scale(9)]}),
    "empty": "{}",
    "numbers": '{"a": 3}',
    "flat": '{"a": [60, 62]}',
    "too deep": '{"a": [[[60]]]}',
    "no pitch": '{"a": [[128]]}',
    "half a pitch": '{"a": [[60.5]]}',
    "names": '{"a": [["C4"]]}',
    "no note": '{"a": [[], []]}',
    "a split missing": '{"train": [[[60]]], "test": [[[60]]]}',
    "more than splits": '{"train": [], "valid": [], "test": [], "a": []}',
    "splits of numbers": '{"train": 1, "valid": 2, "test": 3}',
    "steps as a split": '{"train": [[60]], "valid": [[60]], "test": [[60]]}',
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_json_that_is_not_the_form(name, tmp_path):
    content = BAD_JSON[name]
    path = tmp_path / ("wrong.json.gz" if name == "a cut gzip" else "wrong.json")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with refused("root") as told:
        music(tmp_path)
    assert "wrong" in str(told.value)


def test_a_folder_without_music(tmp_path):
    (tmp_path / "readme.txt").write_text("la la la")
    with refused("root"):
        music(tmp_path)


@pytest.mark.parametrize(
    ("argument", "options"),
    [
        ("root", {"root": "nowhere"}),
        ("composers", {"composers": ["anne"]}),
        ("composers", {"composers": []}),
        ("sequence_length", {"sequence_length": 31}),
        ("overlap", {"sequence_length": 64, "overlap": 33}),
        ("overlap", {"overlap": -1}),
        ("test_fraction", {"test_fraction": 0.0}),
        ("test_fraction", {"test_fraction": 0.6, "validation_fraction": 0.4}),
        ("transpose", {"transpose": 13}),
        ("tokenizer", {"tokenizer": "natsu/remi-transformer"}),
    ],
)
def test_options_that_are_refused(folder, argument, options):
    with refused(argument, FileNotFoundError if argument == "root" else ValueError):
        music(**({"root": folder} | options))


# --- music21


def test_music21(monkeypatch):
    """As much of music21's objects as is asked of them: it is not among what the tests install."""
    thing = types.SimpleNamespace

    def element(offset, length, *pitches, grace=False, classes=("Note",)):
        duration = thing(quarterLength=length, isGrace=grace)
        return thing(
            offset=offset, duration=duration, pitches=[thing(midi=p) for p in pitches], classes=classes
        )

    chord, grace = element(0.0, 1.0, 60, 64), element(1.0, 0.0, 65, grace=True)
    symbol, percussion = element(1.0, 2.0, 40, classes=("ChordSymbol",)), element(2.0, 1.0)  # without a pitch
    score = thing(flatten=lambda: thing(notes=[chord, grace, symbol, element(1.0, 0.5, 65), percussion]))
    score.stripTies = lambda: score
    there = {"ann": ["/corpus/one.xml", "/corpus/two.xml"]}
    corpus = thing(getComposer=lambda name: there.get(name, []), parse=lambda path: score)
    monkeypatch.setitem(sys.modules, "music21", thing(corpus=corpus))
    [collection] = collect("music21:ann")
    assert [piece.name for piece in collection.pieces] == ["one", "two"]
    assert collection.pieces[0].notes() == (Note(0, 64, 4), Note(0, 60, 4), Note(4, 65, 2))
    for argument, module in (("root", sys.modules["music21"]), ("music21", None)):
        monkeypatch.setitem(sys.modules, "music21", module)
        with refused(argument):
            collect("music21:nobody")


# --- the real data


@pytest.mark.data
def test_real_chorales_and_sonatas():
    root, composers = real("music"), ["jsb-chorales-16th", "mozart-16th"]
    splits = music(root, composers=composers)
    counts = {
        name: [len(set(part.split(side).sources)) for side in SPLITS]
        for name, part in by_composer(splits).items()
    }
    assert counts == dict(zip(composers, ([229, 76, 77], [56, 5, 8]), strict=True))
    pieces = {
        f"{each.composer}/{piece.name}": piece for each in collect(root, composers) for piece in each.pieces
    }
    for side in ("validation", "test"):
        part = splits.split(side)
        lengths = {source: len(TOKENIZER.encode(pieces[source])) - 1 for source in part.sources}
        assert part.n_predicted == sum(lengths.values())
        assert int((part.labels == END).sum()) == len(lengths) == int((part.input_ids == START).sum())
    shifted = splits.augment(splits.train, 1).input_ids
    assert int(shifted.max()) < 163 and torch.equal(
        shifted[shifted < PITCH], splits.train.input_ids[shifted < PITCH]
    )
