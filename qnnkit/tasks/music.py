"""Music as a language of events: what a net writes, its sound, and its loss on each composer's pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from qnnkit import checks, workspace
from qnnkit.adapters import once
from qnnkit.data.music_blocks import first_pieces
from qnnkit.data.music_events import (
    DURATION,
    LONGEST,
    PITCH,
    SIZE,
    START,
    STEPS_PER_QUARTER,
    TIME,
    MusicTokenizer,
    Piece,
)
from qnnkit.data.music_midi import read_midi, write_midi
from qnnkit.data.music_sources import composers_in
from qnnkit.data.tokens import TokenSplits
from qnnkit.layers import evaluating
from qnnkit.tasks.language import Language, evaluate, fewer, perplexity, token_counts
from qnnkit.tasks.sampling import sample
from qnnkit.tasks.saving import adapted
from qnnkit.tasks.step import Shown

if TYPE_CHECKING:
    from IPython.display import HTML

BAR, BARS, PIECES = 16, 8, 3
"""Steps of a bar; bars that are shown, given or written; and pieces."""
HEARD, BPM, RATE = 4, 120.0, 8000
"""Bars that can be heard, quarters a minute, and samples a second: a notebook keeps every sample."""
MOST_BLOCKS, MOST_COMPOSERS = 128, 12
"""Of a composer's test pieces, and composers: each net reads so much at most."""
MOST_BARS = 16
"""Bars that a single note lasts at most, as it is sampled: so every step comes to an end."""
HARMONICS = (1.0, 0.5, 0.25, 0.12, 0.06)
"""Strength of a tone's first five partials."""
DECAY, FADE = 1.2, 0.03
"""Seconds in which a tone falls to 1/e, and over which it begins and ends."""


@dataclass(frozen=True)
class Music(Language):
    """As Language, of events; the test split also tells the loss on each composer's pieces.

    Args:
        settings: Derived from `data.Music`: every composer of its `data_dir` is judged, whether the net was
            trained on them or not, in the splits that these settings give them. None judges none.
    """

    settings: Any = None
    _of_base: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def judge(self, net: Any, means: Mapping[str, float]) -> dict[str, float]:
        """The perplexity; `loss_on_NAME` for each composer, of an adapter's base also `base_on_NAME`."""
        found = {"perplexity": perplexity(means["loss"])}
        size = getattr(self.settings, "batch_size", 8)
        size = size if isinstance(size, int) else 8

        def loss(splits: TokenSplits) -> float:
            return evaluate(net, splits, "test", batch_size=size)["loss"]

        for name, splits in self.composers.items():
            found[f"loss_on_{name}"] = loss(splits)
            if adapted(net):
                if name not in self._of_base:
                    with net.disable_adapter():
                        self._of_base[name] = loss(splits)
                found[f"base_on_{name}"] = self._of_base[name]
        return found

    @cached_property
    def composers(self) -> dict[str, TokenSplits]:
        """Composer -> some of the music in `data_dir`; those that the net was trained on come first."""
        from qnnkit import data

        if self.settings is None:
            return {}
        found, there = {}, composers_in(str(self.settings.data_dir))
        own = self.settings.composers or there
        for name in sorted(there, key=lambda name: name not in own)[:MOST_COMPOSERS]:
            alone = self.settings.override(composers=[name], train_fraction=1.0)
            try:
                found[name] = fewer(data.of(alone), "test", MOST_BLOCKS)
            except (ValueError, OSError) as error:
                print(f"{name} is left out of the losses by composer. {error}")
        return found

    def preview(self, splits: TokenSplits) -> list[Shown]:
        """Piano rolls of some training pieces, and how many blocks and tokens there are."""
        from qnnkit import plots

        pieces = first_pieces(splits, "train", PIECES)
        rolls = {f"{piece.composer} {piece.name}": {"piece": piece.notes()} for piece in pieces}
        told = f"The first {BARS} bars, a row for each piece."
        figure = plots.piano_roll(rolls, n_steps=BAR * BARS)
        return [Shown(figure, "01_rolls", "Beginnings of pieces", told), token_counts(splits)]

    def mistakes(
        self, net: Any, splits: TokenSplits, n: int = PIECES, seed: int = 0, folder: Path | None = None
    ) -> list[Any]:
        """What the net writes behind beginnings of test pieces: piano rolls, sound, and MIDI in `music/`."""
        from qnnkit import plots

        rolls, sounds = {}, []
        for number, piece in enumerate(first_pieces(splits, "test", min(n, PIECES)), start=1):
            given = piece.part(0, BAR * BARS)
            written = continue_piece(net, given, BAR * BARS, seed=seed)
            name = f"{piece.composer} {piece.name}"
            new = [note for note in written.notes() if note.start >= len(given)]
            old = [note for note in written.notes() if note.start < len(given)]
            rolls[name] = {"given": old, "generated": new}
            if folder is not None:
                write_midi(written, workspace.make_folder(folder / "music") / f"{number}.mid")
            heard = written.part(max(0, len(given) - BAR), len(given) + BAR * (HEARD - 1))
            sounds.append(_player(name, heard))
        if not rolls:
            print("No piece of the test split begins with its block: there is none to go on with.")
            return []
        told = f"Beginnings of test pieces, and {BARS} bars that the net writes; as MIDI in music/."
        return [Shown(plots.piano_roll(rolls), "05_music", "What the net writes", told), *sounds]

    def predict(self, net: Any, inputs: Sequence[Any], about: Any = None) -> Iterator[dict[str, Any]]:
        """Yields, for each MIDI file, the file beside it in which the net goes on with it."""
        for each in inputs:
            target = Path(each).with_name(f"{Path(each).stem}.continued.mid")
            write_midi(continue_piece(net, read_midi(each), BAR * BARS), target)
            yield {"input": str(each), "file": str(target)}


def continue_piece(model: nn.Module, prompt: Piece, n_steps: int, **settings: Any) -> Piece:
    """The piece with so many steps more, event after event; only those that make music can be drawn.

    The window of the model begins where a step begins. Notes that sound across its beginning are not lost; a
    note knows its length from its beginning.

    Args:
        model: A causal language model over the events of `MusicTokenizer`.
        prompt: What is gone on with; a piece without steps to begin from nothing.
        n_steps: 16ths to add.
        settings: What else `sample` takes: `temperature`, `top_p`, `top_k`, `seed`, `window`.

    Raises:
        ValueError: A setting is out of range, or the model has another vocabulary.
        FloatingPointError: The model gives numbers that are not finite.
    """
    checks.positive("n_steps", n_steps, "16 is a bar of four quarters.")
    tokenizer, grammar, written = MusicTokenizer(), Grammar(), []
    ids = [START, *tokenizer.encode(prompt, marks=False)]
    for token in ids:
        grammar.read(token)
    n_given = grammar.steps
    with evaluating(model), once(model):
        begins = {"allowed": grammar.allowed, "border": lambda token: TIME <= token < DURATION}
        for token in sample(model, ids, **begins, **settings):
            grammar.read(token)
            written.append(token)
            if grammar.steps >= n_given + n_steps:
                break
    added = [note._replace(start=note.start + n_given) for note in tokenizer.decode(written).notes()]
    return Piece.of_notes(prompt.name, [*prompt.notes(), *added], n_given + n_steps, prompt.composer)


class Grammar:
    """Reads events one by one and knows which may follow, so that whatever is sampled is music.

    Those that `MusicTokenizer.encode` may write next, less `end`: notes of a step from high to low, each
    after a duration; a time of less than 16 steps leads to a note.

    Example:
        >>> grammar = Grammar()
        >>> for token in (START, DURATION + 3, PITCH + 60):
        ...     grammar.read(token)
        >>> allowed = grammar.allowed()
        >>> bool(allowed[PITCH + 59]), bool(allowed[PITCH + 60]), bool(allowed[TIME])
        (True, False, True)
    """

    def __init__(self) -> None:
        self.steps = 0
        """Told so far."""
        self.last = START
        self.lowest = SIZE - PITCH  # pitch of the last note of this step
        self.bars = 0  # longest durations told one after the other

    def read(self, token: int) -> None:
        """Goes on by one event, an allowed one or not: a prompt may be of any origin."""
        if TIME <= token < DURATION:
            self.steps += token - TIME + 1
            self.lowest = SIZE - PITCH
        elif token >= PITCH:
            self.lowest = token - PITCH
        self.bars = self.bars + 1 if token == DURATION + LONGEST - 1 else 0
        self.last = token

    def allowed(self) -> Tensor:
        """Whether each token may come next, of shape (tokens,)."""
        mask = torch.zeros(SIZE, dtype=torch.bool)
        full_time, full_duration = TIME + LONGEST - 1, DURATION + LONGEST - 1
        after_time = self.last < DURATION  # or at the start
        after_pitch = self.last >= PITCH
        if after_pitch or self.last in (START, full_time):
            mask[TIME:DURATION] = True
        if after_time or (after_pitch and self.lowest > 0):
            mask[DURATION:PITCH] = True
        if self.last == full_duration and self.bars < MOST_BARS:
            mask[DURATION:PITCH] = True
        if not after_time:
            mask[PITCH : PITCH + self.lowest] = True
        return mask


def synthesise(piece: Piece, *, bpm: float = 100.0, rate: int = 22050) -> np.ndarray:
    """A piece as sound, by adding sines: `IPython.display.Audio(synthesise(piece), rate=22050)` plays it.

    Args:
        piece: Any.
        bpm: Quarters a minute.
        rate: Samples a second.

    Returns:
        float32, of shape (samples,), within -0.9..0.9; a second longer than the piece.

    Raises:
        ValueError: `bpm` or `rate` is not above 0.
    """
    checks.positive("bpm", bpm)
    checks.positive("rate", rate)
    seconds = 60 / bpm / STEPS_PER_QUARTER
    sound = np.zeros(int((len(piece) * seconds + 1) * rate) + 1)
    for note in piece.notes():
        first = int(note.start * seconds * rate)
        t = np.arange(int((note.duration * seconds + FADE) * rate)) / rate
        frequency = 440 * 2 ** ((note.pitch - 69) / 12)
        tone = sum(
            strength * np.sin(2 * np.pi * k * frequency * t)
            for k, strength in enumerate(HARMONICS, start=1)
            if k * frequency < rate / 2
        )
        rise = np.minimum(1, np.minimum(t, t[-1] - t) / FADE)  # no click at either end
        sound[first : first + len(t)] += tone * np.exp(-t / DECAY) * rise
    loudest = np.abs(sound).max()
    return (0.9 * sound / loudest if loudest else sound).astype(np.float32)


def _player(name: str, piece: Piece) -> HTML:
    """The piece as sound that a notebook keeps: 16 bits, 21 KB a second."""
    from IPython.display import HTML, Audio

    player = Audio(synthesise(piece, bpm=BPM, rate=RATE), rate=RATE)
    told = f"{name}: the last bar that was given, and {HEARD - 1} that the net writes"
    return HTML(f"<p>{escape(told)}</p>{player._repr_html_()}")
