"""Music as blocks of tokens, split by piece: MIDI files or JSON of 16ths, by composer.

symusic reads and writes MIDI. MidiTok's REMI encodes it as single tokens, `midi_events` as rows of eight.
REMI (Huang and Yang 2020, arXiv:2002.00212, with the programs of REMI+, arXiv:2201.10936) writes a note as
`Program`, `Pitch` (`PitchDrum` for drums), `Velocity` and `Duration`, after the `Bar`, `Position` and `Tempo`
at which it starts. Each note names its program, so a sequence can be cut at any `Bar` or `Position` without
losing an instrument.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor, nn

from qnnkit import checks, words, workspace
from qnnkit.data import hub, places
from qnnkit.data.batches import keyed_generator
from qnnkit.data.folders import SIDES
from qnnkit.data.midi_events import MidiEvents
from qnnkit.data.places import refusal
from qnnkit.data.records import without_duplicates
from qnnkit.data.splits import SPLITS, duplicates, split_rows
from qnnkit.data.tokens import IGNORED, TokenSet, TokenSplits

# --- pieces ------------------------------------------------------------------------------------------

JSON, MIDI = (".json", ".json.gz"), (".mid", ".midi", ".kar")
STEPS_PER_QUARTER, VELOCITY = 4, 79
"""Grid and velocity of notes read from JSON of 16ths, which stores no velocity."""
ENDS = bytes(x for n in range(2 * 2048) for x in (0, 128 + n // 128 % 16, n % 128, 0))[1:] + b"\0\xff/\0"
"""MIDI events that, appended to a track, end each pitch of each channel twice and then the track."""
LONGEST = 2**15
"""Most quarters of a piece; a longer one (8,192 bars) is a damaged file."""
Steps = list[list[Annotated[int | None, Field(ge=-1, le=127)]]]
"""The pitches that sound in each 16th; a voice that rests is -1 or None."""


class Piece(NamedTuple):
    """A piece of music; `side` is the split given by its source, or "any"."""

    composer: str
    name: str
    score: Any  # symusic.Score, in ticks
    side: str = "any"


def collect(root: str | Path | None, composers: Sequence[str] | None = None) -> tuple[list[Piece], list[str]]:
    """Returns pieces, sorted by composer and name, and notes on what is not read.

    A composer is a folder of MIDI files (the innermost one; files in no folder have the name of the archive
    or root), or a JSON file, named without its suffix.

    Args:
        root: A folder, archive, JSON (.json, .json.gz) or MIDI file.
        composers: Names of the composers to read; None reads all.

    Raises:
        FileNotFoundError: Nothing is at the root.
        ValueError: There is no readable music, or none by one of the composers.
    """
    place, available, pieces, left_out = places.open_place(root, single=(*MIDI, *JSON)), set(), [], []
    top = place.path.stem if place.path.is_file() else place.path.absolute().name
    for member in place.members:
        name, folder = member.base.lower(), ("", *member.name.split("/"))[-2]
        if not name.endswith((*MIDI, *JSON)):
            continue
        composer = folder or top if name.endswith(MIDI) else member.base[: name.index(".json")]
        available.add(composer)
        if composers is not None and composer not in composers:
            continue
        try:
            content = place.read(member.name)
            read = _read(content, member.base)
            endless = _endless(content) - read[0][1].note_num() if name.endswith(MIDI) else 0
        except (ValueError, RuntimeError) as error:  # not of the disk, which may recover
            left_out.append(f"{member.name} ({words.first_line(error)})")
            continue
        left_out += [f"{member.name} (notes without an end: {endless:,})"] * (endless > 0)
        pieces += [Piece(composer, *each) for each in read if each[1].note_num()]
        left_out += [f"{title} (no notes)" for title, score, _ in read if not score.note_num()]
    for each in composers or ():
        checks.choice("composers", each, sorted(available))
    notes = place.notes((*MIDI, *JSON), "music") if composers is None else []
    notes += places.left_out({"files, pieces or parts of music": left_out})
    if not pieces:
        step = " ".join(["Add MIDI files, or JSON of 16ths.", *notes])
        raise refusal("hold readable music", str(root), step)
    pieces.sort(key=lambda piece: places.natural(piece.composer))
    return pieces, notes


def _read(content: bytes, name: str) -> list[tuple[str, Any, str]]:
    """Returns name, score and split of the pieces of a file; a ValueError holds only the reason."""
    if name.lower().endswith(MIDI):
        return [(name.rpartition(".")[0], of_midi(content), "any")]
    try:
        document = json.loads(content, object_pairs_hook=without_duplicates)
        parts = TypeAdapter(dict[str, list]).validate_python(document)
        rows = [(key, parts[key], "any") for key in sorted(parts, key=places.natural)]
        if parts.keys() <= SIDES.keys():
            rows = [(f"{SIDES[k]}-{i:03d}", each, SIDES[k]) for k, v, _ in rows for i, each in enumerate(v)]
        steps = TypeAdapter(Steps).validate_python
        return [(title, of_steps(steps(piece)), side) for title, piece, side in rows]
    except ValidationError as error:
        raise ValueError(f"no JSON of 16ths: {error.errors()[0]['msg']}") from None


def of_midi(content: bytes) -> Any:
    """Returns a MIDI file as a `symusic.Score`: notes, tracks, programs, velocities and tempos."""
    from symusic import Score

    score: Any = Score.from_midi(content)
    if content[8:10] == b"\0\2" and content[10:12] > b"\0\1":
        raise ValueError("type 2 is not supported: its tracks are separate pieces")
    if score.end() > LONGEST * score.tpq:  # also true for a file without ticks
        raise ValueError(f"damaged: longer than {LONGEST:,} quarters")
    return score


def _endless(content: bytes) -> int:
    """Returns the number of notes of a MIDI file, including those without an end, which symusic skips."""

    def ended(track: re.Match[bytes]) -> bytes:
        return b"MTrk" + len(track[1] + ENDS).to_bytes(4, "big") + track[1] + ENDS

    return of_midi(re.sub(rb"(?s)MTrk....(.*?)\xff/\0(?=MTrk|\Z)", ended, content)).note_num()


def of_steps(steps: Sequence[Sequence[int | None]]) -> Any:
    """Converts a list of 16ths, each a list of sounding MIDI pitches, to a score.

    A pitch that continues is one note; voices in unison are separate notes.

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


# --- tokens ------------------------------------------------------------------------------------------

FILE = "tokenizer.json"
"""File that MidiTok writes."""
GRID: dict[str, Any] = {"beat_res": {(0, 4): 24, (4, 16): 4, (16, 64): 1}, "use_time_signatures": False}
"""Notes start on 24ths of a quarter (32nds and 16th triplets are exact). Durations are multiples of these up
to 4 quarters, of 16ths up to 16, of quarters up to 64. Bars have four quarters, so they share one grid."""
NOTES: dict[str, Any] = {"pitch_range": (0, 127), "drums_pitch_range": (0, 127), "use_programs": True}
TEMPOS: dict[str, Any] = {"use_tempos": True, "tempo_range": (20, 260), "num_tempos": 241}
"""Tempos are whole quarters per minute."""
UNREAD = ("controls", "pedals", "pitch_bends", "lyrics", "key_signatures")
"""Fields of symusic's scores and tracks that REMI does not encode."""
OTHERS = "controls, pedals, bends, lyrics, key signatures, bars other than 4/4, tempos beyond 20..260"
OFF_GRID = "notes off the grid of 24 points per quarter (moved to it, or merged)"
KINDS = ("remi", "midi_v1", "midi_v2")
"""Encodings of music for a net from scratch."""


class Remi:
    """MidiTok's REMI with the methods that qnnkit needs; `MidiEvents` has the same."""

    width = 1
    """Number of tokens that are never separated."""

    def __init__(self, tokens: Any):
        self.tokens = tokens
        self.bos, self.eos, self.pad = (tokens[f"{name}_None"] for name in ("BOS", "EOS", "PAD"))
        graph, marks = tokens.tokens_types_graph | {"BOS": {"Bar"}}, {"PAD", "BOS", "EOS"}
        self.types = [name.partition("_")[0] for name in sorted(tokens.vocab, key=tokens.vocab.get)]
        self.after = {kind: torch.tensor([t in graph[kind] - marks for t in self.types]) for kind in graph}
        """Type of a token -> mask of the tokens that may follow it."""
        pitches = tokens.token_ids_of_type("Pitch")
        self.pitches = range(min(pitches), max(pitches) + 1)
        """Tokens of the pitches, lowest first; drums have others."""

    def encode(self, score: Any) -> tuple[list[int], Counter[str]]:
        """Returns the tokens of a `symusic.Score` between BOS and EOS, and {what they omit: how often}."""
        on_grid, (low, high) = self.tokens.preprocess_score(score), TEMPOS["tempo_range"]
        moved = _places(score) - _places(on_grid)
        omitted = [x for what in UNREAD for each in (score, *score.tracks) for x in getattr(each, what, ())]
        omitted += [x for x in score.time_signatures if (x.numerator, x.denominator) != (4, 4)]
        omitted += [x for x in score.tempos if not low - 0.5 <= x.qpm <= high + 0.5]
        ids = self.tokens.encode(on_grid, no_preprocess_score=True).ids
        return [self.bos, *ids, self.eos], +Counter({OTHERS: len(omitted), OFF_GRID: moved.total()})

    def decode(self, ids: Sequence[int]) -> Any:
        """Returns tokens as a `symusic.Score`, skipping special tokens."""
        return self.tokens.decode([each for each in ids if each not in self.tokens.special_tokens_ids])

    def shifted(self, ids: Tensor, shift: Tensor) -> Tensor:
        """Transposes tokens of shape (n, length) up by `shift` semitones, (n, 1); drums do not change."""
        return ids + shift * self.is_pitch(ids)

    def is_pitch(self, ids: Tensor) -> Tensor:
        """Returns which tokens are pitches that can be transposed."""
        return (ids >= self.pitches.start) & (ids < self.pitches.stop)

    def allowed(self, ids: Tensor, scores: Tensor) -> Tensor:
        """A logits processor of transformers: -inf for tokens that cannot follow the last one."""
        mask = self.after[self.types[int(ids[0, -1])]]
        mask = nn.functional.pad(mask, (0, scores.shape[-1] - len(mask)))
        return scores.masked_fill(~mask.to(scores.device), -torch.inf)


def _places(score: Any) -> Counter[tuple]:
    """Counts the notes of a score by program, drums, pitch, start and duration (quarters)."""
    notes = [(track.program, track.is_drum, note) for track in score.tracks for note in track.notes]
    return Counter((*of, n.pitch, n.start / score.tpq, n.duration / score.tpq) for *of, n in notes)


def tokenizer_of(folder: str | Path | None = None, tokens: str = "remi") -> Any:
    """Returns MidiTok's REMI or the tokenizer of a `midi_model`.

    Args:
        folder: Folder of a model or adapter, or a name on the Hub, to read it from; None makes a new one.
        tokens: Which one to make: "remi", or `midi_model`'s "midi_v1" or "midi_v2".

    Raises:
        ValueError: The folder has no music tokenizer or not that of `tokens`, or MidiTok is not installed.
    """
    try:
        from miditok import REMI, TokenizerConfig
    except ImportError:
        step = "Run: pip install 'qnnkit[music]'."
        raise ValueError(checks.message("miditok", "be installed for music", "missing", step)) from None
    if folder is None:
        if checks.choice("tokens", tokens, KINDS) == KINDS[0]:
            return REMI(TokenizerConfig(special_tokens=["PAD", "BOS", "EOS"], **GRID, **NOTES, **TEMPOS))
        return MidiEvents(tokens.removeprefix("midi_"))
    try:
        tokenizer = of_folder(hub.folder_of(folder))
        kind = f"midi_{tokenizer.version}" if isinstance(tokenizer, MidiEvents) else tokenizer and KINDS[0]
        if tokenizer is None or tokens not in (KINDS[0], kind):
            raise ValueError(f"it has {kind or 'no tokens of music'}, and tokens={tokens}")
    except Exception as error:  # the Hub has errors of its own
        rule, step = "be a model of music", f"Reading says: {words.first_line(error)}."
        raise ValueError(checks.message("tokenizer", rule, str(folder), step)) from None
    return tokenizer


def of_folder(folder: Path) -> Any:
    """Returns the music tokenizer in the folder of a model or adapter; None if there is none."""
    content = workspace.read_json(folder / FILE)
    if isinstance(content, dict) and content.get("tokenization") == "REMI":
        from miditok import REMI

        return REMI(params=folder / FILE)
    return MidiEvents.of_folder(folder)


def writing(tokens: Any) -> Any:
    """Wraps a music tokenizer as `Remi` or `MidiEvents`; None if it is of another kind."""
    if type(tokens).__module__.startswith("miditok."):
        return Remi(tokens)
    return tokens if isinstance(tokens, MidiEvents) else None


# --- blocks ------------------------------------------------------------------------------------------


def transposed(blocks: TokenSet, epoch: int, *, most: int, tokens: Any, seed: int = 0) -> TokenSet:
    """Transposes training blocks, each as a whole by a number of semitones drawn for the block and epoch.

    Shifts are uniform over -most..most, without those that would leave the pitch range. Drums do not change.

    Args:
        blocks: Training blocks; pitches change in tokens and labels.
        epoch: Determines the shifts, together with the seed.
        most: Largest shift up or down, in semitones.
        tokens: The tokenizer, as `writing` returns it.
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
    """Your own music as blocks of tokens, each from one piece, split by piece.

    Splits of a JSON file are kept. Other pieces are placed by `split_seed` and the hash of their name,
    composer by composer: adding or removing a piece moves no other, and a split depends neither on other
    composers nor on the block length. Composers with fewer than three pieces are omitted if there are others.

    Args:
        root: Folder or archive with a folder of MIDI for each composer, or JSON of 16ths; or one such file.
        composers: Names of the composers to use; None takes all.
        sequence_length: Tokens in a block, above 1 (events: 16, 24, ...); a bar of a chorale has about 75.
        split_seed: Chooses the split of each piece, and the transpositions.
        validation_fraction, test_fraction: Approximate shares of each composer's pieces; at least one piece.
        transpose: Most semitones by which training blocks are transposed in each epoch; 0 turns it off.
        tokens: Encoding: "remi" (MidiTok's), or "midi_v1" or "midi_v2", events of eight tokens each as in
            SkyTNT's midi_model.
        tokenizer: Folder or hub name of a model, whose tokenizer is used instead.

    Raises:
        FileNotFoundError: Nothing is at the root.
        ValueError: A setting is out of range, the extra `music` is missing, or there is too little music.
    """
    chosen = tokenizer_of(tokenizer, tokens)
    written = writing(chosen)
    checks.positive("sequence_length", sequence_length, "Use 1024.", above=written.width)
    if sequence_length % written.width:
        rule, step = f"be a multiple of {written.width}", "An event has this many tokens."
        raise ValueError(checks.message("sequence_length", rule, sequence_length, step))
    pieces, notes = collect(root, composers)
    few = sorted(name for name, n in Counter(each.composer for each in pieces).items() if n < len(SPLITS))
    pieces = [each for each in pieces if each.composer not in few] or pieces
    shares: dict[str, Any] = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
    shares |= {"split_seed": split_seed, "what": "pieces"}
    rows, lost = encoded(pieces, written)
    placed: dict[str, list[Row]] = {name: [] for name in SPLITS}
    for composer, each in itertools.groupby(zip(pieces, rows, strict=True), lambda pair: pair[0].composer):
        of, written_of = zip(*each, strict=True)
        names, sides = [piece.name for piece in of], [piece.side for piece in of]
        parts = split_rows(0 * np.arange(len(of)), (composer,), names=names, sides=sides, **shares)
        for name, part in zip(SPLITS, parts, strict=True):
            placed[name] += [written_of[row] for row in part]
    notes += lost + places.left_out({"composers of fewer than three pieces": few})
    same = [[(str(ids).encode(), source) for source, ids in placed[name]] for name in SPLITS]
    notes += duplicates(same, "pieces", "note for note")
    sets = {name: blocks(placed[name], written, sequence_length) for name in SPLITS}
    augment = partial(transposed, most=transpose, tokens=written, seed=split_seed) if transpose > 0 else None
    return TokenSplits("music", **sets, tokenizer=chosen, notes=tuple(notes), augment=augment)


Row = tuple[str, list[int]]
"""Composer/name of a piece, and its tokens."""


def encoded(pieces: Sequence[Piece], written: Any) -> tuple[list[Row], list[str]]:
    """Returns the tokens of each piece, and a note on what they omit, if anything."""
    rows, lost = [], Counter[str]()
    for piece in pieces:
        ids, without = written.encode(piece.score)
        rows.append((f"{piece.composer}/{piece.name}", ids))
        lost += without
    items = ", ".join(f"{n:,} {what}" for what, n in (+lost).items())
    return rows, [f"Not in the tokens: {items}."] * bool(items)


def blocks(rows: Sequence[Row], written: Any, length: int) -> TokenSet:
    """Cuts pieces into blocks of `length` tokens, each from one piece; the last one is padded.

    A block starts with the last token or event of the previous one, so that every token or event of a piece
    is predicted exactly once, except the first.
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
