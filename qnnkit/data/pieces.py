"""Music, MIDI files or JSON of 16ths by composer, as blocks of tokens, split by piece.

symusic reads and writes MIDI. MidiTok's REMI writes it one token after another, `midi_events` in rows of
eight. REMI (Huang and Yang 2020, arXiv:2002.00212, with the programs of REMI+, arXiv:2201.10936) writes a
note as `Program`, `Pitch` (of drums `PitchDrum`), `Velocity` and `Duration`, behind the `Bar`, `Position` and
`Tempo` where it begins. Each note names its program, so a sequence may be cut at any `Bar` or `Position`
without losing an instrument.
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
"""Of JSON of 16ths, which knows no velocity."""
ENDS = bytes(x for n in range(2 * 2048) for x in (0, 128 + n // 128 % 16, n % 128, 0))[1:] + b"\0\xff/\0"
"""MIDI behind the time of the last event of a track: each pitch of each channel ends, twice; the end."""
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
    top = place.path.stem if place.path.is_file() else place.path.absolute().name
    for member in place.members:
        name, folder = member.base.lower(), ("", *member.name.split("/"))[-2]
        if not name.endswith((*MIDI, *JSON)):
            continue
        composer = folder or top if name.endswith(MIDI) else member.base[: name.index(".json")]
        known.add(composer)
        if composers is not None and composer not in composers:
            continue
        try:
            content = place.read(member.name)
            read = _read(content, member.base)
            endless = _endless(content) - read[0][1].note_num() if name.endswith(MIDI) else 0
        except (ValueError, OSError, RuntimeError) as error:
            left_out.append(f"{member.name} ({words.first_line(error)})")
            continue
        left_out += [f"{member.name} ({endless:,} notes without an end)"] * (endless > 0)
        pieces += [Piece(composer, *each) for each in read if each[1].note_num()]
        left_out += [f"{title} (no notes)" for title, score, _ in read if not score.note_num()]
    for each in composers or ():
        checks.choice("composers", each, sorted(known))
    notes = place.notes((*MIDI, *JSON), "music") if composers is None else []
    notes += places.left_out({"files or pieces of music, or parts of them": left_out})
    if not pieces:
        step = " ".join(["Add MIDI files, or JSON of 16ths.", *notes])
        raise refusal("hold music that can be read", str(root), step)
    pieces.sort(key=lambda piece: places.natural(piece.composer))
    return pieces, notes


def _read(content: bytes, name: str) -> list[tuple[str, Any, str]]:
    """Name, score and side of the pieces of a file; ValueError with the reason alone."""
    if name.lower().endswith(MIDI):
        return [(name.rpartition(".")[0], of_midi(content), "any")]
    try:
        whole = json.loads(content, object_pairs_hook=without_duplicates)
        parts = TypeAdapter(dict[str, list]).validate_python(whole)
        rows = [(key, parts[key], "any") for key in sorted(parts, key=places.natural)]
        if parts.keys() <= SIDES.keys():
            rows = [(f"{SIDES[k]}-{i:03d}", each, SIDES[k]) for k, v, _ in rows for i, each in enumerate(v)]
        steps = TypeAdapter(Steps).validate_python
        return [(title, of_steps(steps(piece)), side) for title, piece, side in rows]
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


def _endless(content: bytes) -> int:
    """Notes of a MIDI file where all have an end: symusic passes over those that have none."""

    def ended(track: re.Match[bytes]) -> bytes:
        return b"MTrk" + len(track[1] + ENDS).to_bytes(4, "big") + track[1] + ENDS

    return of_midi(re.sub(rb"(?s)MTrk....(.*?)\xff/\0(?=MTrk|\Z)", ended, content)).note_num()


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


# --- tokens ------------------------------------------------------------------------------------------

FILE = "tokenizer.json"
"""What MidiTok writes."""
GRID: dict[str, Any] = {"beat_res": {(0, 4): 24, (4, 16): 4, (16, 64): 1}, "use_time_signatures": False}
"""Notes begin on 24ths of a quarter (32nds and triplets of 16ths are exact), and last whole numbers of these
up to 4 quarters, of 16ths up to 16, of quarters up to 64. Bars have four quarters, so all share one grid."""
NOTES: dict[str, Any] = {"pitch_range": (0, 127), "drums_pitch_range": (0, 127), "use_programs": True}
TEMPOS: dict[str, Any] = {"use_tempos": True, "tempo_range": (20, 260), "num_tempos": 241}
"""Whole quarters a minute."""
UNREAD = ("controls", "pedals", "pitch_bends", "lyrics", "key_signatures")
"""What a score or track of symusic has and the tokens have not."""
OTHERS = "controls, pedals, bends, lyrics, key signatures, bars other than 4/4, tempos beyond 20..260"
OFF_GRID = "notes off the grid of 24 points a quarter (moved to it, or one with another)"
KINDS = ("remi", "midi_v1", "midi_v2")
"""How music may be written for a net from scratch."""


class Remi:
    """What the kit asks of a tokenizer of music, of MidiTok's REMI; `MidiEvents` answers alike."""

    width = 1
    """Tokens that are written together."""

    def __init__(self, tokens: Any):
        self.tokens = tokens
        self.bos, self.eos, self.pad = (tokens[f"{name}_None"] for name in ("BOS", "EOS", "PAD"))
        graph, marks = tokens.tokens_types_graph | {"BOS": {"Bar"}}, {"PAD", "BOS", "EOS"}
        self.types = [name.partition("_")[0] for name in sorted(tokens.vocab, key=tokens.vocab.get)]
        self.after = {kind: torch.tensor([t in graph[kind] - marks for t in self.types]) for kind in graph}
        """Type of a token -> which tokens may follow one of it."""
        pitches = tokens.token_ids_of_type("Pitch")
        self.pitches = range(min(pitches), max(pitches) + 1)
        """Tokens of the pitches, drums' apart, from the lowest on."""

    def encode(self, score: Any) -> tuple[list[int], Counter[str]]:
        """The tokens of a `symusic.Score` between BOS and EOS; and what they do not hold -> how often."""
        on_grid, (low, high) = self.tokens.preprocess_score(score), TEMPOS["tempo_range"]
        moved = _places(score) - _places(on_grid)
        others = [x for what in UNREAD for each in (score, *score.tracks) for x in getattr(each, what, ())]
        others += [x for x in score.time_signatures if (x.numerator, x.denominator) != (4, 4)]
        others += [x for x in score.tempos if not low - 0.5 <= x.qpm <= high + 0.5]
        ids = self.tokens.encode(on_grid, no_preprocess_score=True).ids
        return [self.bos, *ids, self.eos], +Counter({OTHERS: len(others), OFF_GRID: moved.total()})

    def decode(self, ids: Sequence[int]) -> Any:
        """The `symusic.Score` of tokens; marks are passed over."""
        return self.tokens.decode([each for each in ids if each not in self.tokens.special_tokens_ids])

    def shifted(self, ids: Tensor, shift: Tensor) -> Tensor:
        """Tokens of shape (n, length) with pitches so many semitones, (n, 1), higher; drums stay."""
        return ids + shift * self.is_pitch(ids)

    def is_pitch(self, ids: Tensor) -> Tensor:
        """Which tokens are pitches that may be shifted."""
        return (ids >= self.pitches.start) & (ids < self.pitches.stop)

    def allowed(self, ids: Tensor, scores: Tensor) -> Tensor:
        """A logits processor of transformers: -inf where a token is no music behind the last one."""
        mask = self.after[self.types[int(ids[0, -1])]]
        mask = nn.functional.pad(mask, (0, scores.shape[-1] - len(mask)))
        return scores.masked_fill(~mask.to(scores.device), -torch.inf)


def _places(score: Any) -> Counter[tuple]:
    """Program, pitch, beginning and length (quarters) of the notes of a score."""
    notes = [(track.program, track.is_drum, note) for track in score.tracks for note in track.notes]
    return Counter((*of, n.pitch, n.start / score.tpq, n.duration / score.tpq) for *of, n in notes)


def tokenizer_of(folder: str | Path | None = None, tokens: str = "remi") -> Any:
    """MidiTok's REMI or the tokenizer of a `midi_model`; that of a model's folder where one is given.

    Args:
        folder: A model's or an adapter's, or a name on the Hub; None takes a new one.
        tokens: Which one is taken then: "remi", or `midi_model`'s "midi_v1" or "midi_v2".

    Raises:
        ValueError: The folder holds none, or another than `tokens` asks for; or MidiTok is not installed.
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
        made = of_folder(hub.folder_of(folder))
        kind = f"midi_{made.version}" if isinstance(made, MidiEvents) else made and KINDS[0]
        if made is None or tokens not in (KINDS[0], kind):
            raise ValueError(f"it has {kind or 'no tokens of music'}, and tokens={tokens}")
    except Exception as error:  # the Hub has errors of its own
        rule, step = "be a model of music", f"It was not taken: {words.first_line(error)}."
        raise ValueError(checks.message("tokenizer", rule, str(folder), step)) from None
    return made


def of_folder(folder: Path) -> Any:
    """The tokenizer of music in a model's or an adapter's folder; None if there is none."""
    content = workspace.read_json(folder / FILE)
    if isinstance(content, dict) and content.get("tokenization") == "REMI":
        from miditok import REMI

        return REMI(params=folder / FILE)
    return MidiEvents.of_folder(folder)


def writing(tokens: Any) -> Any:
    """What the kit asks of a tokenizer of music, `Remi` or `MidiEvents`; None if it is another."""
    if type(tokens).__module__.startswith("miditok."):
        return Remi(tokens)
    return tokens if isinstance(tokens, MidiEvents) else None


# --- blocks ------------------------------------------------------------------------------------------


def transposed(blocks: TokenSet, epoch: int, *, most: int, tokens: Any, seed: int = 0) -> TokenSet:
    """Training blocks in other keys: each is shifted as a whole, by a number drawn for it and the epoch.

    Shifts are drawn evenly from -most..most, less those that would leave the range of pitches. Drums stay.

    Args:
        blocks: Their pitches are shifted in tokens and labels.
        epoch: With the seed, all that the shifts depend on.
        most: Semitones, up or down.
        tokens: How music is written, as `writing` gives it.
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

    Args:
        root: Folder, archive, JSON or MIDI file; see `collect`.
        composers: Which of the composers there; None takes all.
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
    kept = tokenizer_of(tokenizer, tokens)
    written = writing(kept)
    if sequence_length % written.width:
        rule, step = f"be a multiple of {written.width}", "An event has so many tokens."
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
