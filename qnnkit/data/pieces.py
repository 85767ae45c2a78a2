"""Music, MIDI files or JSON of 16ths by composer, as blocks of tokens, split by piece.

symusic reads and writes MIDI; `music_tokens` and `midi_events` turn a score into tokens and back.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field, TypeAdapter, ValidationError

from qnnkit import checks, words
from qnnkit.data import music_tokens, places
from qnnkit.data.batches import keyed_generator
from qnnkit.data.folders import SIDES
from qnnkit.data.places import refusal
from qnnkit.data.records import without_duplicates
from qnnkit.data.splits import SPLITS, duplicates, split_names
from qnnkit.data.tokens import IGNORED, TokenSet, TokenSplits

# --- pieces ------------------------------------------------------------------------------------------

JSON, MIDI = (".json", ".json.gz"), (".mid", ".midi")
STEPS_PER_QUARTER, VELOCITY = 4, 79
"""Of JSON of 16ths, which knows no velocity."""
LONGEST = 2**15
"""Quarters; more (8,192 bars) is no music but a damaged file."""
Steps = list[list[Annotated[int | None, Field(ge=-1, le=127)]]]
"""The pitches that sound in each 16th; a voice that rests is -1 or None."""


class Piece(NamedTuple):
    """A piece of music; `side` is the split that its source puts it in, "" where it has none."""

    composer: str
    name: str
    score: Any  # symusic.Score, in ticks
    side: str = ""


def collect(
    root: str | Path | Sequence[str | Path] | None, composers: Sequence[str] | None = None
) -> tuple[list[Piece], list[str]]:
    """Pieces, composer by composer in the order of their names; and sentences on what is not read.

    A composer is a folder of MIDI files (in a folder or archive, the folder next to the file counts; where
    there is none, the archive's or root's own name), or a JSON file, by its name without the suffix.

    Args:
        root: A folder, archive, JSON (.json, .json.gz) or MIDI file, or several of them.
        composers: Which of them, all by default. Only these are read.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: No file of music is there, none of a composer, or none that can be read.
    """
    pieces, left_out = [], []
    files, notes = _listed(root)
    chosen = files if composers is None else [checks.choice("composers", each, files) for each in composers]
    for place, name, composer in [(*file, each) for each in chosen for file in files[each]]:
        try:
            read = _read(place, name, composer)
        except (ValueError, OSError, RuntimeError) as error:
            left_out.append(f"{name} ({words.first_line(error)})")
            continue
        pieces += [piece for piece in read if piece.score.note_num()]
        left_out += [f"{piece.name} (no notes)" for piece in read if not piece.score.note_num()]
    if not pieces:
        step = f"Found there: {places.first(left_out, 3) or 'none'}. Add MIDI files, or JSON of 16ths."
        raise refusal("hold music that can be read", str(root), step)
    notes = notes if composers is None else []
    notes += places.left_out({"files or pieces of music": left_out})
    return pieces, notes


def composers_in(root: str | Path) -> tuple[str, ...]:
    """The names of all composers in a folder, archive or file, as `collect` takes them; no piece is read."""
    return tuple(_listed(root)[0])


def _listed(root: Any) -> tuple[dict[str, list[tuple[places.Place, str]]], list[str]]:
    """Composer -> where each file is and its name there; and sentences on what is no music."""
    files, notes, queue = {}, [], [root] if isinstance(root, str | Path | None) else [*root]
    for each in queue:
        place = places.open_place(each, single=(*MIDI, *JSON))
        zips = (".zip",) if place.path.is_dir() else ()
        notes += place.notes((*MIDI, *JSON, *zips), "music")
        for member in place.members:
            above = member.name.rpartition("/")[0].rpartition("/")[2] or place.path.absolute().name
            if zips and member.base.lower().endswith(zips):
                queue.append(place.path / member.name)
            elif (base := member.base.lower()).endswith((*MIDI, *JSON)):
                named = member.base if base.endswith(JSON) else above
                composer = re.sub(r"\.(json|json\.gz|zip|tar|tar\.gz|tgz)$", "", named, flags=re.IGNORECASE)
                files.setdefault(composer, []).append((place, member.name))
    return files, notes


def _read(place: places.Place, name: str, composer: str) -> list[Piece]:
    """The pieces of a file; ValueError with the reason alone."""
    content = place.read(name)
    if name.lower().endswith(MIDI):
        return [Piece(composer, name.rpartition("/")[2].rpartition(".")[0], of_midi(content))]
    text = places.gunzipped(content) if name.lower().endswith(".gz") else content
    try:
        content = json.loads(text, object_pairs_hook=without_duplicates)
        parts = TypeAdapter(dict[str, list]).validate_python(content)
        rows = [(key, parts[key], "") for key in sorted(parts, key=places.natural)]
        if parts and set(parts) <= set(SIDES):
            rows = [(f"{SIDES[k]}-{i:03d}", each, SIDES[k]) for k, v, _ in rows for i, each in enumerate(v)]
        if not rows:
            raise ValueError("no pieces")
        steps = TypeAdapter(Steps).validate_python
        return [Piece(composer, title, of_steps(steps(piece)), side) for title, piece, side in rows]
    except ValidationError as error:
        raise ValueError(f"no JSON of 16ths: {error.errors()[0]['msg']}") from None


def of_midi(content: bytes) -> Any:
    """The notes of a MIDI file with their tracks, programs, velocities and tempos: a `symusic.Score`."""
    from symusic import Score

    score: Any = Score.from_midi(content)
    if content[8:10] == b"\0\2" and content[10:12] > b"\0\1":
        raise ValueError("its tracks are pieces of their own, type 2")
    if score.end() > LONGEST * score.tpq:  # also of a file without ticks
        raise ValueError(f"damaged: longer than {LONGEST:,} quarters")
    return score


def of_steps(steps: Sequence[Sequence[int | None]]) -> Any:
    """A score of 16ths, each a list of the MIDI pitches that sound in it; a pitch that stays is one note.

    Voices in unison are notes of their own.

    Example:
        >>> [(note.time, note.duration, note.pitch) for note in of_steps([[60], [60, 64]]).tracks[0].notes]
        [(0, 2, 60), (1, 1, 64)]
    """
    from symusic import Note, Score, Track

    notes, begun = [], {}
    for time, step in enumerate([*steps, []]):
        voices = Counter(pitch for pitch in step if pitch is not None and pitch >= 0)
        sounding = {(pitch, voice) for pitch, n in voices.items() for voice in range(n)}
        for ended in begun.keys() - sounding:
            start = begun.pop(ended)
            notes.append((start, time - start, int(ended[0])))
        begun |= dict.fromkeys(sounding - begun.keys(), time)
    score: Any = Score(STEPS_PER_QUARTER)
    track: Any = Track()
    track.notes.extend(Note(start, length, pitch, VELOCITY) for start, length, pitch in sorted(notes))
    score.tracks.append(track)
    return score


# --- blocks ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Transposition:
    """Training blocks in other keys: each is shifted as a whole, by a number drawn for it and the epoch.

    Shifts are drawn evenly from -most..most, less those that would leave the range of pitches. Drums stay.
    Called with the same blocks and epoch, it gives the same.

    Args:
        most: Semitones, up or down.
        tokens: How music is written, as `music_tokens.writing` gives it.
        seed: With the epoch, all that the shifts depend on.
    """

    most: int
    tokens: Any
    seed: int = 0

    def __call__(self, blocks: TokenSet, epoch: int) -> TokenSet:
        ids, pitches = blocks.input_ids, self.tokens.pitches
        is_pitch, last = self.tokens.is_pitch(ids), pitches.stop - 1  # (n, length)
        down = (torch.where(is_pitch, ids, last).amin(1) - pitches.start).clamp(max=self.most)
        up = (last - torch.where(is_pitch, ids, pitches.start).amax(1)).clamp(max=self.most)
        generator = keyed_generator("transposition", self.seed, epoch)
        drawn = torch.rand(len(ids), generator=generator, dtype=torch.float64)
        moved = self.tokens.shifted(ids, ((drawn * (down + up + 1)).long() - down)[:, None])
        labels = torch.where(blocks.labels == IGNORED, IGNORED, moved)
        return replace(blocks, input_ids=moved, labels=labels)


def music(
    root: str | Path | Sequence[str | Path] | None = None,
    *,
    composers: Sequence[str] | None = None,
    sequence_length: int = 1024,
    overlap: int | None = None,
    split_seed: int = 0,
    validation_fraction: float = 0.1,
    test_fraction: float = 0.1,
    transpose: int = 5,
    tokens: str = "remi",
    tokenizer: str | Path | None = None,
) -> TokenSplits:
    """Pieces as blocks of tokens, each block of one piece, in splits by piece.

    A JSON's own splits are kept. Other pieces are placed by `split_seed` and the hash of their name, composer
    by composer: one piece more or less moves no other, and neither other composers nor the length of a block
    change a split.

    A piece stands between `BOS` and `EOS`. One longer than a block is cut where a bar or a position begins.
    In training the next block begins `overlap` tokens or a little more before the last one ends, and all of
    it is predicted. In validation and test it begins with the least that shows a whole position, and what was
    predicted before is not predicted again: every token of a piece but `BOS` counts once. The end of a block
    that is not full is padded and not predicted.

    Args:
        root: Folder, archive, JSON or MIDI file, or several; see `collect`.
        composers: Which of those found there; None takes all.
        sequence_length: Tokens of a block; a bar of a chorale has about 75.
        overlap: Tokens that two training blocks of a piece share; a quarter of a block by default.
        split_seed: Fixes who is in which split, and the shifts.
        validation_fraction: Share of each composer's pieces, about; one piece at least.
        test_fraction: Likewise.
        transpose: Semitones by which training blocks are shifted at most, anew in every epoch; 0 leaves them.
        tokens: How music is written: "remi", a token after the other (MidiTok's); or "midi_v1" or "midi_v2",
            an event of eight tokens after the other, as SkyTNT's midi_model reads it.
        tokenizer: Folder of a model, whose tokenizer is used in its place.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: A setting is out of range, or there is no music, or too little; see `collect`.
    """
    overlap = sequence_length // 4 if overlap is None else overlap
    for name, value, most in (("overlap", overlap, sequence_length // 2), ("transpose", transpose, 12)):
        if not 0 <= value <= most:
            raise ValueError(checks.message(name, f"lie in 0..{most}", value, "Leave it out for the usual."))
    kept = music_tokens.tokenizer(tokenizer, tokens)
    written = music_tokens.writing(kept)
    if sequence_length % written.width:
        rule, step = f"be a multiple of {written.width}", "An event has so many tokens."
        raise ValueError(checks.message("sequence_length", rule, sequence_length, step))
    pieces, notes = collect(root, composers)
    shares: dict[str, Any] = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
    sides = _sides(pieces, split_seed=split_seed, **shares)
    every, lost = encoded(pieces, written)
    rows = {name: [row for row, side in zip(every, sides, strict=True) if side == name] for name in SPLITS}
    same = {name: [(str(ids).encode(), source, 0) for source, ids in rows[name]] for name in SPLITS}
    notes += lost + duplicates(same, "pieces", "note for note")
    overlaps = {"train": overlap}
    sets = {name: blocks(rows[name], written, sequence_length, overlaps.get(name)) for name in SPLITS}
    augment = Transposition(transpose, written, split_seed) if transpose else None
    return TokenSplits("music", **sets, tokenizer=kept, notes=tuple(notes), augment=augment)


Row = tuple[str, list[int]]
"""Where a piece comes from, and its tokens."""


def encoded(pieces: Sequence[Piece], written: Any) -> tuple[list[Row], list[str]]:
    """The tokens of each piece, and a sentence on what they do not hold, if there is any."""
    rows, lost = [], Counter[str]()
    for piece in pieces:
        ids, without = written.encode(piece.score)
        rows.append((f"{piece.composer}/{piece.name}", ids))
        lost += without
    told = ", ".join(f"{n:,} {what}" for what, n in (+lost).items())
    return rows, [f"Not in the tokens: {told}."] * bool(told)


def blocks(rows: Sequence[Row], written: Any, length: int, overlap: int | None = None) -> TokenSet:
    """Pieces in blocks, one piece after another.

    Args:
        rows: One piece or more.
        written: As `music_tokens.writing` gives it.
        length: Tokens of a block.
        overlap: Tokens that two training blocks share at least, all of them predicted; None as in the test
            split, where every token of a piece but the first ones is predicted once.
    """
    input_ids, labels, sources = [], [], []
    for source, ids in rows:
        start, covered, stop = 0, 1, 0  # nothing stands before the first token: it is never predicted
        while stop < len(ids):
            stop = min(start + length, len(ids))
            known, block = covered - start if overlap is None else written.width, ids[start:stop]
            input_ids.append(block + [written.pad] * (length - len(block)))
            labels.append([IGNORED] * known + block[known:] + [IGNORED] * (length - len(block)))
            sources.append(source)
            covered, latest = stop, stop - max(overlap or 0, 1)
            start = next((i for i in range(latest, start, -1) if ids[i] in written.borders), latest)
    tokens, learned = torch.tensor(input_ids), torch.tensor(labels)
    return TokenSet(tokens, learned.masked_fill(tokens == written.pad, IGNORED), tuple(sources))


def first_pieces(splits: TokenSplits, split: str, n: int, n_bars: int) -> list[Piece]:
    """The first bars of some pieces of a split, as far as their first block goes: to show and to go on."""
    part, written, pieces = splits.split(split), music_tokens.writing(splits.tokenizer), []
    rows = (part.input_ids[:, 0] == written.bos).nonzero().flatten().tolist()
    for row in rows[:: max(1, len(rows) // n)][:n]:
        ids = part.input_ids[row].tolist()
        composer, _, name = part.sources[row].partition("/")
        pieces.append(Piece(composer, name, written.decode(ids[: written.first_bars(ids, n_bars)])))
    return pieces


def _sides(pieces: Sequence[Piece], **options: Any) -> list[str]:
    """The split of each piece: that of its source, or by the hash of its name, composer by composer."""
    sides = []
    for composer, group in itertools.groupby(pieces, key=lambda piece: piece.composer):
        group = list(group)
        names = [piece.name for piece in group if not piece.side]
        drawn = iter(split_names(names, composer, what="pieces", **options) if names else ())
        sides.append([piece.side or next(drawn) for piece in group])
        if missing := [name for name in SPLITS if name not in sides[-1]]:
            step = f"The split {missing[0]} has no piece with a note: add some."
            raise refusal("hold pieces in all three splits", composer, step)
    return [side for group in sides for side in group]
