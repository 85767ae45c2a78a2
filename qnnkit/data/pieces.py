"""Music, MIDI files or JSON of 16ths by composer, as blocks of tokens, split by piece.

symusic reads and writes MIDI; `music_tokens` and `midi_events` turn a score into tokens and back.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError

from qnnkit import checks, words
from qnnkit.data import folders, music_tokens, places
from qnnkit.data.batches import keyed_generator
from qnnkit.data.places import refusal
from qnnkit.data.records import without_duplicates
from qnnkit.data.splits import SPLITS, duplicates, split_rows
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
    """A piece of music; `side` is the split that its source puts it in, "any" where it has none."""

    composer: str
    name: str
    score: Any  # symusic.Score, in ticks
    side: str = "any"


def collect(root: str | Path | None, composers: Sequence[str] | None = None) -> tuple[list[Piece], list[str]]:
    """Pieces, composer by composer in the order of their names; and sentences on what is not read.

    A composer is a folder of MIDI files (the folder next to the file counts; where there is none, the
    archive's or root's own name), or a JSON file, by its name without the suffix.

    Args:
        root: A folder, archive, JSON (.json, .json.gz) or MIDI file.
        composers: Which of them, all by default. Only these are read.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: No file of music is there, none of a composer, or none that can be read.
    """
    place, known, pieces, left_out = places.open_place(root, single=(*MIDI, *JSON)), set(), [], []
    for member in place.members:
        if not member.base.lower().endswith((*MIDI, *JSON)):
            continue
        composer = _composer(place, member)
        known.add(composer)
        if composers is not None and composer not in composers:
            continue
        try:
            read = _read(place.read(member.name), member.base, composer)
        except (ValueError, OSError, RuntimeError) as error:
            left_out.append(f"{member.name} ({words.first_line(error)})")
            continue
        pieces += [piece for piece in read if piece.score.note_num()]
        left_out += [f"{piece.name} (no notes)" for piece in read if not piece.score.note_num()]
    for each in composers or ():
        checks.choice("composers", each, sorted(known))
    if not pieces:
        step = f"Found there: {places.first(left_out, 3) or 'none'}. Add MIDI files, or JSON of 16ths."
        raise refusal("hold music that can be read", str(root), step)
    pieces.sort(key=lambda piece: places.natural(piece.composer))
    notes = place.notes((*MIDI, *JSON), "music") if composers is None else []
    return pieces, notes + places.left_out({"files or pieces of music": left_out})


def _composer(place: places.Place, member: places.Member) -> str:
    if (end := member.base.lower().find(".json")) >= 0:
        return member.base[:end]
    above = member.name.rpartition("/")[0].rpartition("/")[2]
    return above or (place.path.stem if place.path.is_file() else place.path.absolute().name)


def _read(content: bytes, name: str, composer: str) -> list[Piece]:
    """The pieces of a file; ValueError with the reason alone."""
    if name.lower().endswith(MIDI):
        return [Piece(composer, name.rpartition(".")[0], of_midi(content))]
    text = places.gunzipped(content) if name.lower().endswith(".gz") else content
    try:
        read = json.loads(text, object_pairs_hook=without_duplicates)
        parts, sided = TypeAdapter(dict[str, list]).validate_python(read), folders.SIDES
        rows = [(key, parts[key], "any") for key in sorted(parts, key=places.natural)]
        if set(parts) <= set(sided):
            rows = [(f"{sided[k]}-{i:03d}", each, sided[k]) for k, v, _ in rows for i, each in enumerate(v)]
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


def transposed(blocks: TokenSet, epoch: int, *, most: int, tokens: Any, seed: int = 0) -> TokenSet:
    """Training blocks in other keys: each is shifted as a whole, by a number drawn for it and the epoch.

    Shifts are drawn evenly from -most..most, less those that would leave the range of pitches. Drums stay.
    Called with the same blocks and epoch, it gives the same.

    Args:
        blocks: Their pitches are shifted in tokens and labels.
        epoch: With the seed, all that the shifts depend on.
        most: Semitones, up or down.
        tokens: How music is written, as `music_tokens.writing` gives it.
        seed: See `epoch`.
    """
    ids, pitches = blocks.input_ids, tokens.pitches
    is_pitch, last = tokens.is_pitch(ids), pitches.stop - 1  # (n, length)
    down = (torch.where(is_pitch, ids, last).amin(1) - pitches.start).clamp(max=most)
    up = (last - torch.where(is_pitch, ids, pitches.start).amax(1)).clamp(max=most)
    generator = keyed_generator("transposition", seed, epoch)
    drawn = torch.rand(len(ids), generator=generator, dtype=torch.float64)
    moved = tokens.shifted(ids, ((drawn * (down + up + 1)).long() - down)[:, None])
    labels = torch.where(blocks.labels == IGNORED, IGNORED, moved)
    return replace(blocks, input_ids=moved, labels=labels)


def music(
    root: str | Path | None = None,
    *,
    composers: Sequence[str] | None = None,
    sequence_length: int = 1024,
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
    change a split. A composer of fewer than three pieces is left out, if there are others.

    A piece stands between `BOS` and `EOS`, and is cut into blocks as `blocks` says.

    Args:
        root: Folder, archive, JSON or MIDI file; see `collect`.
        composers: Which of those found there; None takes all.
        sequence_length: Tokens of a block; a bar of a chorale has about 75.
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
    if not 0 <= transpose <= 12:
        raise ValueError(
            checks.message("transpose", "lie in 0..12", transpose, "Leave it out for the usual.")
        )
    kept = music_tokens.tokenizer(tokenizer, tokens)
    written = music_tokens.writing(kept)
    if sequence_length % written.width:
        rule, step = f"be a multiple of {written.width}", "An event has so many tokens."
        raise ValueError(checks.message("sequence_length", rule, sequence_length, step))
    pieces, notes = collect(root, composers)
    few = sorted(name for name, n in Counter(each.composer for each in pieces).items() if n < len(SPLITS))
    pieces = [each for each in pieces if each.composer not in few] or pieces
    rows, lost = encoded(pieces, written)
    placed: dict[str, list[Row]] = {name: [] for name in SPLITS}
    shares: dict[str, Any] = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
    for composer, group in itertools.groupby(range(len(pieces)), key=lambda row: pieces[row].composer):
        of = np.array([*group])
        names, sides = [pieces[row].name for row in of], [pieces[row].side for row in of]
        own = {"names": names, "sides": sides, "what": "pieces", "split_seed": split_seed}
        for name, part in zip(SPLITS, split_rows(0 * of, (composer,), **own, **shares), strict=True):
            placed[name] += [rows[row] for row in of[part]]
    notes += lost + places.left_out({"composers of fewer than three pieces": few})
    same = {name: [(str(ids).encode(), source) for source, ids in placed[name]] for name in SPLITS}
    notes += duplicates(same, "pieces", "note for note")
    sets = {name: blocks(placed[name], written, sequence_length) for name in SPLITS}
    augment = partial(transposed, most=transpose, tokens=written, seed=split_seed) if transpose else None
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


def blocks(rows: Sequence[Row], written: Any, length: int) -> TokenSet:
    """Pieces in blocks of `length` tokens, each of one piece, the last one padded.

    A block begins with the last token or event of the one before, so that each but a piece's first is
    predicted once.
    """
    input_ids, sources = [], []
    for source, ids in rows:
        for start in range(0, max(1, len(ids) - written.width), length - written.width):
            block = ids[start : start + length]
            input_ids.append(block + [written.pad] * (length - len(block)))
            sources.append(source)
    tokens = torch.tensor(input_ids)
    labels = tokens.masked_fill(tokens == written.pad, IGNORED)
    labels[:, : written.width] = IGNORED
    return TokenSet(tokens, labels, tuple(sources))
