"""Music as blocks of tokens, split by piece: what a language model of music reads."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from qnnkit import checks
from qnnkit.data import duplicates, music_files
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
        first: Token of the lowest pitch.
        last: Token of the highest pitch.
        seed: With the epoch, all that the shifts depend on.
    """

    most: int
    first: int
    last: int
    seed: int = 0

    def __call__(self, blocks: TokenSet, epoch: int) -> TokenSet:
        ids, first, last = blocks.input_ids, self.first, self.last
        is_pitch = (ids >= first) & (ids <= last)  # (n, length)
        down = (torch.where(is_pitch, ids, last).amin(1) - first).clamp(max=self.most)
        up = (last - torch.where(is_pitch, ids, first).amax(1)).clamp(max=self.most)
        generator = keyed_generator("transposition", self.seed, epoch)
        drawn = torch.rand(len(ids), generator=generator, dtype=torch.float64)
        shift = is_pitch * ((drawn * (down + up + 1)).long() - down)[:, None]
        return replace(
            blocks, input_ids=ids + shift, labels=blocks.labels + shift * (blocks.labels != IGNORED)
        )


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
        tokenizer: Folder of the model that an adapter goes on, whose tokenizer is used; None takes the kit's.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: A setting is out of range, or there is no music, or too little; see `collect`.
    """
    overlap = sequence_length // 4 if overlap is None else overlap
    for name, value, most in (("overlap", overlap, sequence_length // 2), ("transpose", transpose, 12)):
        if not 0 <= value <= most:
            raise ValueError(checks.message(name, f"lie in 0..{most}", value, "Leave it out for the usual."))
    tokens = music_files.tokenizer(tokenizer)
    pieces, notes = music_files.collect(root, composers)
    shares: dict[str, Any] = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
    rows: dict[str, list[Row]] = {name: [] for name in SPLITS}
    count: Counter[str] = Counter()
    for piece, side in zip(pieces, _sides(pieces, split_seed=split_seed, **shares), strict=True):
        score, n_notes = tokens.preprocess_score(piece.score), piece.score.note_num()
        count.update(notes=n_notes, moved=_moved(tokens, piece.score), lost=n_notes - score.note_num())
        rows[side].append(row(piece, tokens, score))
    if count["moved"] or count["lost"]:
        told = (
            f"Of {count['notes']:,} notes {count['moved']:,} begin or end off the grid of 24 points a quarter"
        )
        notes.append(f"{told} and are moved to it; {count['lost']:,} are left out.")
    same = {name: [Content(str(ids).encode(), source) for source, ids in rows[name]] for name in SPLITS}
    notes += duplicates.notes(same, "pieces", "note for note")
    overlaps = {"train": overlap}
    sets = {name: blocks(rows[name], tokens, sequence_length, overlaps.get(name)) for name in SPLITS}
    pitches = tokens.token_ids_of_type("Pitch")
    augment = Transposition(transpose, min(pitches), max(pitches), split_seed) if transpose else None
    return TokenSplits("music", **sets, tokenizer=tokens, notes=tuple(notes), augment=augment)


Row = tuple[str, list[int]]
"""Where a piece comes from, and its tokens."""


def row(piece: Piece, tokens: Any, score: Any = None) -> Row:
    """The name and the tokens of a piece; of a score that went through `preprocess_score` if it is given."""
    ids = tokens.encode(score or piece.score, no_preprocess_score=score is not None).ids
    return f"{piece.composer}/{piece.name}", [tokens["BOS_None"], *ids, tokens["EOS_None"]]


def blocks(rows: Sequence[Row], tokens: Any, length: int, overlap: int | None = None) -> TokenSet:
    """Pieces in blocks, as `music` says: with an overlap those of training, else those of a test."""
    borders = {*tokens.token_ids_of_type("Bar"), *tokens.token_ids_of_type("Position")}
    input_ids, labels, sources = [], [], []
    for source, ids in rows:
        start, covered, stop = 0, 1, 0  # nothing stands before the first token: it is never predicted
        while stop < len(ids):
            stop = min(start + length, len(ids))
            known = covered - start if overlap is None else 1
            rest = [tokens.pad_token_id] * (start + length - stop), [IGNORED] * (start + length - stop)
            input_ids.append([*ids[start:stop], *rest[0]])
            labels.append([*[IGNORED] * known, *ids[start + known : stop], *rest[1]])
            sources.append(source)
            covered, latest = stop, stop - max(overlap or 0, 1)
            start = next((i for i in range(latest, start, -1) if ids[i] in borders), latest)
    both = torch.tensor([input_ids, labels], dtype=torch.int64).view(2, -1, length)
    return TokenSet(both[0], both[1], tuple(sources))


def _moved(tokens: Any, score: Any) -> int:
    """How many notes begin or end elsewhere in the tokens."""
    lengths, n = [beat + part / res for beat, part, res in tokens.durations], 0
    for notes in (track.notes.numpy() for track in score.tracks):
        starts = notes["time"].astype(np.int64) * tokens.time_division % score.tpq
        far = np.abs(np.subtract.outer(notes["duration"] / score.tpq, lengths)).min(1) > 1e-6
        n += int(np.count_nonzero(far | (starts != 0)))
    return n


def first_pieces(splits: TokenSplits, split: str, n: int, n_bars: int) -> list[Piece]:
    """The first bars of some pieces of a split, as far as their first block goes: to show and to go on."""
    part, tokens, pieces = splits.split(split), splits.tokenizer, []
    rows = (part.input_ids[:, 0] == tokens["BOS_None"]).nonzero().flatten().tolist()
    for row in rows[:: max(1, len(rows) // n)][:n]:
        ids = [each for each in part.input_ids[row].tolist() if each not in tokens.special_tokens_ids]
        bars = [i for i, each in enumerate(ids) if each == tokens["Bar_None"]]
        composer, _, name = part.sources[row].partition("/")
        pieces.append(
            Piece(composer, name, tokens.decode(ids[: bars[n_bars] if len(bars) > n_bars else None]))
        )
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
