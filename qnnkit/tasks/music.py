"""Music as a language of tokens: what a net writes, its sound, and its loss on each composer's pieces."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from qnnkit import checks, workspace
from qnnkit.data import music_tokens
from qnnkit.data.pieces import collect, composers_in, first_pieces
from qnnkit.data.tokens import TokenSplits
from qnnkit.tasks.language import Language, continuation, evaluate, fewer, token_counts
from qnnkit.tasks.saving import adapted
from qnnkit.tasks.step import Shown

if TYPE_CHECKING:
    from IPython.display import HTML

BARS, PIECES = 8, 3
"""Bars that are shown, given or written; and pieces."""
MOST_TOKENS = 2048
"""Of one continuation: a net need not ever begin another bar."""
BEFORE, AFTER, RATE = 2, 6, 8000
"""Seconds that can be heard, given and written, and samples of a second: a notebook keeps every sample."""
MOST_BLOCKS, MOST_COMPOSERS = 128, 12
"""Of a composer's test pieces, and composers: each net reads so much at most."""
HARMONICS = np.array([1.0, 0.5, 0.25, 0.12, 0.06])
"""Strength of a tone's first five partials."""
DECAY, BEAT, FADE = 1.2, 0.08, 0.03
"""Seconds in which a tone and a drum fall to 1/e, and over which a tone begins and ends."""


@dataclass(frozen=True)
class Music(Language):
    """As Language, of music; the test split also tells the loss on each composer's pieces.

    Args:
        settings: Derived from `data.Music`: every composer of its `data_dir` is judged, whether the net was
            trained on them or not, in the splits that these settings give them. None judges none.
    """

    settings: Any = None
    _of_base: dict[str, float] = field(default_factory=dict, init=False, repr=False, compare=False)

    def judge(self, net: Any, means: Mapping[str, float]) -> dict[str, float]:
        """The perplexity; `loss_on_NAME` for each composer, of an adapter's base also `base_on_NAME`."""
        found = super().judge(means)
        for name, splits in self.composers.items():
            found[f"loss_on_{name}"] = evaluate(net, splits, "test")["loss"]
            if adapted(net):
                if name not in self._of_base:
                    with net.disable_adapter():
                        self._of_base[name] = evaluate(net, splits, "test")["loss"]
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

        pieces = first_pieces(splits, "train", PIECES, BARS)
        rolls = {f"{each.composer} {each.name}": {"piece": _notes(each.score)} for each in pieces}
        figure = plots.piano_roll(rolls, n_steps=16 * BARS)
        told = f"The first {BARS} bars, a row for each piece."
        return [Shown(figure, "01_rolls", "Beginnings of pieces", told), token_counts(splits)]

    def mistakes(
        self, net: Any, splits: TokenSplits, n: int = PIECES, seed: int = 0, folder: Path | None = None
    ) -> list[Any]:
        """What the net writes behind beginnings of test pieces: piano rolls, sound, and MIDI in `music/`."""
        from qnnkit import plots

        rolls, sounds = {}, []
        for number, piece in enumerate(first_pieces(splits, "test", min(n, PIECES), BARS), start=1):
            score = continue_piece(net, splits.tokenizer, piece.score, seed=seed)
            name, given = f"{piece.composer} {piece.name}", Counter(_notes(piece.score))
            new = Counter(_notes(score)) - given
            rolls[name] = {"given": [*given.elements()], "generated": [*new.elements()]}
            if folder is not None:
                path = workspace.make_folder(folder / "music") / f"{number}.mid"
                workspace.write_bytes(path, score.dumps_midi())
            sounds.append(_player(name, piece.score, score))
        told = f"Beginnings of test pieces, and {BARS} bars that the net writes; as MIDI in music/."
        return [Shown(plots.piano_roll(rolls), "05_music", "What the net writes", told), *sounds]

    def predict(self, net: Any, inputs: Sequence[Any], about: Any) -> Iterator[dict[str, Any]]:
        """Yields, for each file of music, the MIDI file next to it in which the net goes on with it."""
        for each in inputs:
            with checks.renamed({"root": "inputs"}):
                pieces, notes = collect(str(each))
            for piece in pieces:
                target = Path(each).expanduser().with_name(f"{piece.name}.continued.mid")
                start = time.perf_counter()
                score, n_tokens = _continued(net, about.tokenizer, piece.score)
                speed = n_tokens / (time.perf_counter() - start)
                workspace.write_bytes(target, score.dumps_midi())
                row: dict[str, Any] = {"input": str(each), "file": str(target), "tokens_per_second": speed}
                if (width := music_tokens.writing(about.tokenizer).width) > 1:
                    row["events_per_second"] = speed / width
                yield row | ({"notes": notes} if notes else {})


def continue_piece(model: Any, tokenizer: Any, prompt: Any, n_bars: int = BARS, **settings: Any) -> Any:
    """A score with so many bars more, with their programs, velocities and tempos.

    What the model sees at once begins where a bar, position or event begins, and only tokens that make music
    can be drawn.

    Args:
        model: A causal language model over the tokens of `tokenizer`.
        tokenizer: MidiTok's REMI or `MidiEvents`, as `splits.tokenizer` is.
        prompt: What is gone on with, a `symusic.Score`; an empty one begins from nothing.
        n_bars: Bars of four quarters to add, as far as 2,048 tokens go.
        settings: What else `tasks.language.continuation` takes: `temperature`, `top_p`, `top_k`, `seed`.

    Raises:
        ValueError: A setting is out of range, or the model has fewer tokens.
        FloatingPointError: The model gives numbers that are not finite.
    """
    return _continued(model, tokenizer, prompt, n_bars, **settings)[0]


def _continued(
    model: Any, tokenizer: Any, prompt: Any, n_bars: int = BARS, **settings: Any
) -> tuple[Any, int]:
    """As `continue_piece`; and how many tokens the model wrote."""
    checks.positive("n_bars", n_bars)
    written = music_tokens.writing(tokenizer)
    given = written.encode(prompt)[0][: -written.width]  # without its end
    tokens = continuation(
        model,
        given,
        MOST_TOKENS * min(2, written.width),
        allowed=written.allowed,
        border=written.borders.__contains__,
        enough=lambda new: written.first_bars(new, n_bars) < len(new),
        **settings,
    )
    return written.decode(given + tokens[: written.first_bars(tokens, n_bars)]), len(tokens)


def synthesise(score: Any, *, rate: int = 22050) -> np.ndarray:
    """A score as sound, sines and noise for drums: `IPython.display.Audio(synthesise(score), rate=22050)`.

    Args:
        score: A `symusic.Score`, which is played by its tempos and velocities.
        rate: Samples a second.

    Returns:
        float32, of shape (samples,), within -0.9..0.9; a second longer than the score.

    Raises:
        ValueError: `rate` is not above 0.
    """
    checks.positive("rate", rate)
    score, noise = score.to("second"), np.random.default_rng(0)
    sound = np.zeros(int((score.end() + 1) * rate) + 1)
    for note, is_drum in [(note, track.is_drum) for track in score.tracks for note in track.notes]:
        t = np.arange(int((note.duration + FADE) * rate)) / rate
        frequencies = np.arange(1, 1 + len(HARMONICS)) * 440 * 2 ** ((note.pitch - 69) / 12)
        partials = HARMONICS * (frequencies < rate / 2) @ np.sin(2 * np.pi * np.outer(frequencies, t))
        tone = noise.standard_normal(len(t)) * np.exp(-t / BEAT) if is_drum else partials * np.exp(-t / DECAY)
        first, rise = int(note.start * rate), np.minimum(1, np.minimum(t, t[-1] - t) / FADE)  # no click
        sound[first : first + len(t)] += note.velocity / 127 * tone * rise
    return (0.9 * sound / (np.abs(sound).max() or 1)).astype(np.float32)


def _player(name: str, given: Any, score: Any) -> HTML:
    """The passage as sound that a notebook keeps: 16 bits, 21 KB a second."""
    from IPython.display import HTML, Audio

    end = given.to("second").end()
    sound = synthesise(score, rate=RATE)[max(0, int((end - BEFORE) * RATE)) : int((end + AFTER) * RATE)]
    told = f"{name}: {BEFORE} seconds that were given, and {AFTER} that the net writes"
    return HTML(f"<p>{escape(told)}</p>{Audio(sound, rate=RATE)._repr_html_()}")


def _notes(score: Any) -> list[tuple[float, int, float]]:
    """Beginning in 16ths, pitch and length of all notes but drums."""
    tracks = [track for track in score.to("quarter").tracks if not track.is_drum]
    return [(4 * note.start, note.pitch, 4 * note.duration) for track in tracks for note in track.notes]
