"""Music as blocks of events, split by piece: what a language model of music reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qnnkit import checks
from qnnkit.data import duplicates
from qnnkit.data.batches import keyed_generator
from qnnkit.data.duplicates import Content
from qnnkit.data.music_events import DURATION, FILE, N_PITCHES, PAD, PITCH, START, TIME, MusicTokenizer, Piece
from qnnkit.data.music_sources import Collection, collect
from qnnkit.data.places import refusal
from qnnkit.data.splits import SPLITS, split_names
from qnnkit.data.tokens import IGNORED, TokenSet, TokenSplits

SHORTEST = 32
"""Tokens of a block, at least: a step with all its notes has room in it."""


@dataclass(frozen=True)
class Transposition:
    """Training blocks in other keys: each is shifted as a whole, by a number drawn for it and the epoch.

    Shifts are drawn evenly from -most..most, less those that would leave the MIDI range. Called with the
    same blocks and epoch, it gives the same.

    Args:
        most: Semitones, up or down.
        seed: With the epoch, all that the shifts depend on.
    """

    most: int
    seed: int = 0

    def __call__(self, blocks: TokenSet, epoch: int) -> TokenSet:
        ids = blocks.input_ids
        is_pitch = ids >= PITCH  # (n, length)
        highest = torch.where(is_pitch, ids - PITCH, 0).amax(1)
        lowest = torch.where(is_pitch, ids - PITCH, N_PITCHES - 1).amin(1)
        down = lowest.clamp(max=self.most)
        up = (N_PITCHES - 1 - highest).clamp(max=self.most)
        drawn = torch.rand(
            len(ids), generator=keyed_generator("transposition", self.seed, epoch), dtype=torch.float64
        )
        shift = (drawn * (down + up + 1)).long() - down  # (n,)
        labels_too = is_pitch & (blocks.labels != IGNORED)
        labels = blocks.labels + labels_too * shift[:, None]
        return replace(blocks, input_ids=ids + is_pitch * shift[:, None], labels=labels)


def music(
    root: str | Path | Sequence[str | Path] | None = None,
    *,
    composers: Sequence[str] | None = None,
    sequence_length: int = 512,
    overlap: int | None = None,
    split_seed: int = 0,
    validation_fraction: float = 0.1,
    test_fraction: float = 0.1,
    transpose: int = 5,
    tokenizer: str | Path | None = None,
) -> TokenSplits:
    """Pieces as blocks of events, each block of one piece, in splits by piece.

    A JSON's own splits are kept. Other pieces are placed by `split_seed` and the hash of their name, composer
    by composer: one piece more or less moves no other, and neither other composers nor the length of a block
    change a split.

    A piece longer than a block is cut where a note begins. In training the next block begins `overlap` tokens
    or a little more before the last one ends, and all of it is predicted. In validation and test it begins
    with the least that shows a whole step, and what was predicted before is not predicted again: every token
    of a piece but `start` counts once. What a block has too much is padded, at its end, and not predicted.

    Args:
        root: Folder, zip, JSON or MIDI file, "music21:<composer>", or several; see `collect`.
        composers: Which of those found there; None takes all.
        sequence_length: Tokens of a block, usually 512 to 1,024; a bar is 10 to 25.
        overlap: Tokens that two training blocks of a piece share; a quarter of a block by default.
        split_seed: Fixes who is in which split, and the shifts.
        validation_fraction: Share of each composer's pieces, about; one piece at least.
        test_fraction: Likewise.
        transpose: Semitones by which training blocks are shifted at most, anew in every epoch; 0 leaves them.
        tokenizer: Folder of the model that an adapter goes on; it must read this kit's events.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: A setting is out of range, or there is no music, or too little; see `collect`.
    """
    overlap = sequence_length // 4 if overlap is None else overlap
    _require(sequence_length, overlap, transpose)
    if tokenizer is not None and not Path(tokenizer).expanduser().joinpath(FILE).is_file():
        step = "One with another vocabulary, such as REMI, cannot be the base: train one by music_llama."
        rule = f"be the folder of a model of music that this kit saved, with {FILE}"
        raise ValueError(checks.message("tokenizer", rule, str(tokenizer), step))
    events = MusicTokenizer() if tokenizer is None else MusicTokenizer.from_pretrained(tokenizer)
    shares: dict[str, Any] = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
    collections = collect(root, composers)
    notes = [note for each in collections for note in each.notes]
    blocks: dict[str, list[_Block]] = {name: [] for name in SPLITS}
    same: dict[str, list[Content]] = {name: [] for name in SPLITS}
    n_short = n_pieces = 0
    for collection in collections:
        sides = _sides(collection, split_seed=split_seed, **shares)
        for piece, side in zip(collection.pieces, sides, strict=True):
            ids = events.encode(piece)
            n_pieces, n_short = n_pieces + 1, n_short + (len(ids) < sequence_length)
            source = f"{collection.composer}/{piece.name}"
            same[side].append(Content(str(ids).encode(), source))
            learns = side == "train"
            for start, stop, known in _cuts(ids, sequence_length, overlap if learns else 0):
                blocks[side].append((source, ids[start:stop], 1 if learns else known))
    if n_short:
        notes.append(
            f"{n_short:,} of {n_pieces:,} pieces are shorter than a block of {sequence_length} tokens: the "
            "rest of such a block is padded and not predicted."
        )
    notes += duplicates.notes(same, "pieces", "note for note")
    sets = {name: _stack(rows, sequence_length) for name, rows in blocks.items()}
    augment = Transposition(transpose, split_seed) if transpose else None
    return TokenSplits("music", **sets, tokenizer=events, notes=tuple(notes), augment=augment)


def first_pieces(splits: TokenSplits, split: str, n: int) -> list[Piece]:
    """The beginnings of the first pieces of a split, as far as their first block goes: to show and to go on.

    Of several composers each gives as many as the others, as far as there are.
    """
    part = splits.split(split)
    starts = [row for row in range(len(part)) if int(part.input_ids[row, 0]) == START]
    queues: dict[str, list[int]] = {}
    for row in starts:
        queues.setdefault(part.sources[row].partition("/")[0], []).append(row)
    rows = [row for turn in range(len(starts)) for queue in queues.values() for row in queue[turn : turn + 1]]
    pieces = []
    for row in rows[:n]:
        composer, _, name = part.sources[row].partition("/")
        pieces.append(splits.tokenizer.decode(part.input_ids[row].tolist(), name, composer))
    return pieces


_Block = tuple[str, list[int], int]
"""Where it comes from, its tokens, and how many at its beginning are not predicted."""


def _cuts(ids: Sequence[int], length: int, overlap: int) -> Iterable[tuple[int, int, int]]:
    """(Start, stop, known) of each block: all blocks cover all tokens, and `known` were covered before."""
    start, covered = 0, 1  # nothing stands before the first token: it is never predicted
    while True:
        stop = min(start + length, len(ids))
        yield start, stop, covered - start
        if stop == len(ids):
            return
        covered, latest = stop, stop - max(overlap, 1)
        start = next((i for i in range(latest, start, -1) if TIME <= ids[i] < DURATION), latest)


def _stack(blocks: Sequence[_Block], length: int) -> TokenSet:
    input_ids = torch.full((len(blocks), length), PAD)
    labels = torch.full((len(blocks), length), IGNORED)
    for row, (_, ids, known) in enumerate(blocks):
        input_ids[row, : len(ids)] = torch.tensor(ids)
        labels[row, known : len(ids)] = torch.tensor(ids[known:])
    return TokenSet(input_ids, labels, tuple(source for source, _, _ in blocks))


def _sides(collection: Collection, **options: Any) -> list[str]:
    """The split of each piece: that of its source, or by the hash of its name."""
    sides = list(collection.sides)
    free = [row for row, side in enumerate(sides) if not side]
    if free:
        names = [collection.pieces[row].name for row in free]
        new = split_names(names, collection.composer, what="pieces", **options)
        for row, side in zip(free, new, strict=True):
            sides[row] = side
    if missing := [name for name in SPLITS if name not in sides]:
        step = f"The split {missing[0]} has no piece with a note: add some."
        raise refusal("hold pieces in all three splits", collection.composer, step)
    return sides


def _require(length: int, overlap: int, transpose: int) -> None:
    if length < SHORTEST:
        step = "Use 512 to 1,024: a bar is 10 to 25 tokens."
        raise ValueError(checks.message("sequence_length", f"be {SHORTEST} or more", length, step))
    if not 0 <= overlap <= length // 2:
        rule = f"lie in 0..{length // 2}, half a block of {length}"
        raise ValueError(checks.message("overlap", rule, overlap, "Leave it out for a quarter of a block."))
    if not 0 <= transpose <= 12:
        step = "Use 5 for all keys near by, or 0 for none."
        raise ValueError(checks.message("transpose", "lie in 0..12 semitones", transpose, step))
