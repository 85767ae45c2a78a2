"""Music as blocks of tokens, split by piece: what a language model of music reads."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qnnkit import checks
from qnnkit.data import duplicates, music_files, music_tokens
from qnnkit.data.batches import keyed_generator
from qnnkit.data.duplicates import Content
from qnnkit.data.music_files import Piece
from qnnkit.data.places import refusal
from qnnkit.data.splits import SPLITS, split_names
from qnnkit.data.tokens import IGNORED, TokenSet, TokenSplits


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
    pieces, notes = music_files.collect(root, composers)
    shares: dict[str, Any] = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
    rows: dict[str, list[Row]] = {name: [] for name in SPLITS}
    lost: Counter[str] = Counter()
    for piece, side in zip(pieces, _sides(pieces, split_seed=split_seed, **shares), strict=True):
        ids, without = written.encode(piece.score)
        rows[side].append((f"{piece.composer}/{piece.name}", ids))
        lost += without
    same = {name: [Content(str(ids).encode(), source) for source, ids in rows[name]] for name in SPLITS}
    notes += not_held(lost) + duplicates.notes(same, "pieces", "note for note")
    overlaps = {"train": overlap}
    sets = {name: blocks(rows[name], written, sequence_length, overlaps.get(name)) for name in SPLITS}
    augment = Transposition(transpose, written, split_seed) if transpose else None
    return TokenSplits("music", **sets, tokenizer=kept, notes=tuple(notes), augment=augment)


Row = tuple[str, list[int]]
"""Where a piece comes from, and its tokens."""


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


def not_held(lost: Counter[str]) -> list[str]:
    """A sentence on what tokens do not hold; none where nothing is lost."""
    told = ", ".join(f"{n:,} {what}" for what, n in (+lost).items())
    return [f"Not in the tokens: {told}."] if told else []


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
