"""Language modelling of music: generated music, and the loss on each composer's pieces."""

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
"""Number of pieces that are shown, and 16ths shown of each in a preview."""
NEW_TOKENS = 1024
"""Default number of tokens that continue a piece, if the model has at least twice as many positions."""
MOST_BLOCKS = 128
"""Most test blocks of a composer on which each net is evaluated."""


@dataclass(frozen=True)
class Music(Language):
    """Language modelling of music; on the test split, it also reports the loss on each composer's pieces.

    Args:
        monitor: As in `Language`.
        settings: Settings derived from `data.Music`. Every composer in their `data_dir` is evaluated, whether
            the net was trained on them or not, with the splits of these settings. None evaluates no composer.
    """

    settings: Any = None

    def judge(self, net: Any, splits: TokenSplits, means: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics of Language, `loss_on_NAME` per composer, and for an adapter `base_on_NAME`."""
        metrics = super().judge(net, splits, means)
        for name, part in self.composers.items():
            metrics[f"loss_on_{name}"] = self.loss(net, part)
            if adapted(net):
                metrics[f"base_on_{name}"] = self.base_loss(net, part)
        return metrics

    @cached_property
    def composers(self) -> dict[str, TokenSplits]:
        """Composer -> the music of `data_dir`, with only the composer's part of the test split."""
        from qnnkit import data

        rows: dict[str, list[int]] = {}
        if self.settings is None:
            return {}
        splits = data.of(self.settings.override(composers=None, train_fraction=1.0))
        for row, source in enumerate(splits.test.sources):
            rows.setdefault(source.partition("/")[0], []).append(row)
        parts = {name: splits.test.at(spread(each, MOST_BLOCKS)) for name, each in rows.items()}
        return {name: replace(splits, test=part) for name, part in parts.items()}

    def preview(self, splits: TokenSplits) -> list[Shown]:
        """Shows piano rolls of some training pieces, and the numbers of blocks and tokens."""
        from qnnkit import plots

        begun = _beginnings(splits, "train", splits.length)
        rolls = {name: {"piece": _notes(score)} for name, score in begun.items()}
        caption = "The first bars, one row per piece."
        figure = plots.piano_roll(rolls, n_steps=STEPS)
        return [Shown(figure, "01_rolls", "Beginnings of pieces", caption), self.counts(splits)]

    def mistakes(
        self, net: Any, splits: TokenSplits, n: int = PIECES, seed: int = 0, folder: Path | None = None
    ) -> list[Shown]:
        """Shows piano rolls of how the net continues beginnings of test pieces, with MIDI in `music/`."""
        from qnnkit import plots

        rolls, begun = {}, _beginnings(splits, "test", splits.length // 2, n)
        for number, (name, intro) in enumerate(begun.items(), start=1):
            score, before = continue_piece(net, splits.tokenizer, intro, seed=seed), Counter(_notes(intro))
            new = Counter(_notes(score)) - before
            rolls[name] = {"given": [*before.elements()], "generated": [*new.elements()]}
            if folder is not None:
                path = workspace.make_folder(folder / "music") / f"{number}.mid"
                workspace.write_bytes(path, score.dumps_midi())
        caption = "Beginnings of test pieces, and how the net continues them. MIDI files are in music/."
        return [Shown(plots.piano_roll(rolls), "05_music", "What the net writes", caption)] if rolls else []

    def predict(self, net: Any, inputs: Sequence[Any], about: Any) -> Iterator[dict[str, Any]]:
        """Continues each piece of each music file, and yields the MIDI file that it writes next to it."""
        for each in inputs:
            with checks.renamed({"root": "inputs"}):
                pieces, notes = collect(str(each))
            for piece in pieces:
                name = piece.name if len(pieces) == 1 else f"{piece.composer}-{piece.name}"
                target = Path(each).expanduser().with_name(f"{name}.continued.mid")
                workspace.write_bytes(target, continue_piece(net, about.tokenizer, piece.score).dumps_midi())
                yield {"input": str(each), "file": str(target), "notes": notes}


def continue_piece(model: Any, tokenizer: Any, prompt: Any, n: int | None = None, **settings: Any) -> Any:
    """Returns a `symusic.Score` with the model's continuation: its programs, velocities and tempos too.

    Args:
        model: A causal language model over the tokens of `tokenizer`.
        tokenizer: MidiTok's REMI or `MidiEvents`, such as `splits.tokenizer`.
        prompt: The `symusic.Score` to continue; an empty one starts a new piece.
        n: Number of tokens to write; None writes 1,024, or half of the model's positions if that is less.
        settings: `temperature` (default: 1), `top_p`, `top_k` and `seed`, as in `generate`.

    Raises:
        ValueError: A setting is out of range.
    """
    written = writing(tokenizer)
    ids = written.encode(prompt)[0][: -written.width]  # without the end token
    n = min(NEW_TOKENS, positions(model) // 2) if n is None else n
    new = continuation(model, ids, n, logits_processor=[written.allowed], width=written.width, **settings)
    return written.decode(ids + new)


def _beginnings(splits: TokenSplits, split: str, n_tokens: int, n: int = PIECES) -> dict[str, Any]:
    """Returns {composer and name: score of the first tokens} for some pieces of a split."""
    part, written = splits.split(split), writing(splits.tokenizer)
    rows = (part.input_ids[:, 0] == written.bos).nonzero().flatten().tolist()
    ids = {row: part.input_ids[row, :n_tokens].tolist() for row in spread(rows, min(n, PIECES))}
    return {part.sources[row].replace("/", " ", 1): written.decode(each) for row, each in ids.items()}


def _notes(score: Any) -> list[tuple[float, int, float]]:
    """Returns start, pitch and duration of all notes except drums; times are in 16ths."""
    tracks = [track for track in score.to("quarter").tracks if not track.is_drum]
    return [(4 * note.start, note.pitch, 4 * note.duration) for track in tracks for note in track.notes]
