"""Music as a language of tokens: what a net writes, and its loss on each composer's pieces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from qnnkit import checks, workspace
from qnnkit.data.pieces import collect, writing
from qnnkit.data.tokens import TokenSplits
from qnnkit.tasks.language import Language, continuation, positions, spread
from qnnkit.tasks.saving import adapted
from qnnkit.tasks.step import Shown

PIECES, STEPS = 3, 128
"""Pieces that are shown, and 16ths of each in a preview."""
NEW_TOKENS = 1024
"""Written behind a piece, if the model has twice as many positions."""
MOST_BLOCKS = 128
"""Of a composer's test pieces: each net reads so much at most."""


@dataclass(frozen=True)
class Music(Language):
    """As Language, of music; the test split also tells the loss on each composer's pieces.

    Args:
        settings: Derived from `data.Music`: every composer of its `data_dir` is judged, whether the net was
            trained on them or not, in the splits that these settings give them. None judges none.
    """

    settings: Any = None

    def judge(self, net: Any, splits: TokenSplits, means: Mapping[str, float]) -> dict[str, float]:
        """As Language; and `loss_on_NAME` for each composer, of an adapter's base also `base_on_NAME`."""
        found = super().judge(net, splits, means)
        for name, part in self.composers.items():
            found[f"loss_on_{name}"] = self.loss(net, part)
            if adapted(net):
                found[f"base_on_{name}"] = self.base_loss(net, part)
        return found

    @cached_property
    def composers(self) -> dict[str, TokenSplits]:
        """Composer -> the music of `data_dir` with a part of the test split, that of the composer alone."""
        from qnnkit import data

        rows: dict[str, list[int]] = {}
        if self.settings is None:
            return {}
        whole = data.of(self.settings.override(composers=None, train_fraction=1.0))
        for row, source in enumerate(whole.test.sources):
            rows.setdefault(source.partition("/")[0], []).append(row)
        parts = {name: whole.test.at(spread(each, MOST_BLOCKS)) for name, each in rows.items()}
        return {name: replace(whole, test=part) for name, part in parts.items()}

    def preview(self, splits: TokenSplits) -> list[Shown]:
        """Piano rolls of some training pieces, and how many blocks and tokens there are."""
        from qnnkit import plots

        begun = _beginnings(splits, "train", splits.length)
        rolls = {name: {"piece": _notes(score)} for name, score in begun.items()}
        told = "The first bars, a row for each piece."
        figure = plots.piano_roll(rolls, n_steps=STEPS)
        return [Shown(figure, "01_rolls", "Beginnings of pieces", told), self.counts(splits)]

    def mistakes(
        self, net: Any, splits: TokenSplits, n: int = PIECES, seed: int = 0, folder: Path | None = None
    ) -> list[Shown]:
        """Piano rolls of what the net writes behind beginnings of test pieces, and MIDI in `music/`."""
        from qnnkit import plots

        rolls, begun = {}, _beginnings(splits, "test", splits.length // 2, n)
        for number, (name, given) in enumerate(begun.items(), start=1):
            score, before = continue_piece(net, splits.tokenizer, given, seed=seed), Counter(_notes(given))
            new = Counter(_notes(score)) - before
            rolls[name] = {"given": [*before.elements()], "generated": [*new.elements()]}
            if folder is not None:
                path = workspace.make_folder(folder / "music") / f"{number}.mid"
                workspace.write_bytes(path, score.dumps_midi())
        told = "Beginnings of test pieces, and what the net writes behind them; as MIDI in music/."
        return [Shown(plots.piano_roll(rolls), "05_music", "What the net writes", told)]

    def predict(self, net: Any, inputs: Sequence[Any], about: Any) -> Iterator[dict[str, Any]]:
        """Yields, for each file of music, the MIDI file next to it in which the net goes on with it."""
        for each in inputs:
            with checks.renamed({"root": "inputs"}):
                pieces, notes = collect(str(each))
            for piece in pieces:
                name = piece.name if len(pieces) == 1 else f"{piece.composer}-{piece.name}"
                target = Path(each).expanduser().with_name(f"{name}.continued.mid")
                workspace.write_bytes(target, continue_piece(net, about.tokenizer, piece.score).dumps_midi())
                yield {"input": str(each), "file": str(target), "notes": notes}


def continue_piece(model: Any, tokenizer: Any, prompt: Any, n: int | None = None, **settings: Any) -> Any:
    """A score with what the model writes behind it: with programs, velocities and tempos.

    Args:
        model: A causal language model over the tokens of `tokenizer`.
        tokenizer: MidiTok's REMI or `MidiEvents`, as `splits.tokenizer` is.
        prompt: What is gone on with, a `symusic.Score`; an empty one begins from nothing.
        n: Tokens to write; None writes 1,024, or half of the model's positions if these are fewer.
        settings: What else `tasks.language.continuation` takes: `temperature`, `top_p`, `top_k`, `seed`.

    Raises:
        ValueError: A setting is out of range.
    """
    written = writing(tokenizer)
    given = written.encode(prompt)[0][: -written.width]  # without its end
    n = min(NEW_TOKENS, positions(model) // 2) if n is None else n
    new = continuation(model, given, n, allowed=written.allowed, width=written.width, **settings)
    return written.decode(given + new)


def _beginnings(splits: TokenSplits, split: str, n_tokens: int, n: int = PIECES) -> dict[str, Any]:
    """Composer and name -> the score of the first tokens, of some pieces of a split."""
    part, written = splits.split(split), writing(splits.tokenizer)
    rows = (part.input_ids[:, 0] == written.bos).nonzero().flatten().tolist()
    ids = {row: part.input_ids[row, :n_tokens].tolist() for row in spread(rows, min(n, PIECES))}
    return {part.sources[row].replace("/", " ", 1): written.decode(each) for row, each in ids.items()}


def _notes(score: Any) -> list[tuple[float, int, float]]:
    """Beginning in 16ths, pitch and length of all notes but drums."""
    tracks = [track for track in score.to("quarter").tracks if not track.is_drum]
    return [(4 * note.start, note.pitch, 4 * note.duration) for track in tracks for note in track.notes]
