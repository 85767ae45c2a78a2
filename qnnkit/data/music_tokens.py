"""Music as MidiTok's REMI writes it, one token after another, as `midi_events` does it in rows of eight.

REMI (Huang and Yang 2020, arXiv:2002.00212, with the programs of REMI+, arXiv:2201.10936) writes a note as
`Program`, `Pitch` (of drums `PitchDrum`), `Velocity` and `Duration`, behind the `Bar`, `Position` and `Tempo`
where it begins. Each note names its program, so a sequence may be cut at any `Bar` or `Position` without
losing an instrument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qnnkit import checks, workspace
from qnnkit.data import hub
from qnnkit.data.midi_events import MidiEvents

FILE = "tokenizer.json"
"""What MidiTok writes."""
GRID = {"beat_res": {(0, 4): 24, (4, 16): 4, (16, 64): 1}, "use_time_signatures": False}
"""Notes begin on 24ths of a quarter (32nds and triplets of 16ths are exact), and last whole numbers of these
up to 4 quarters, of 16ths up to 16, of quarters up to 64. Bars have four quarters, so all share one grid."""
NOTES = {"pitch_range": (0, 127), "drums_pitch_range": (0, 127), "use_programs": True}
TEMPOS: dict[str, Any] = {"use_tempos": True, "tempo_range": (20, 260), "num_tempos": 241}
"""Whole quarters a minute."""
UNREAD = {"pedals": "pedals", "pitch_bends": "pitch bends", "controls": "control changes", "lyrics": "lyrics"}
"""What a track of symusic has and the tokens have not."""


KINDS = ("remi", "midi_v1", "midi_v2")
"""How music may be written for a net from scratch."""


class Remi:
    """What the kit asks of a tokenizer of music, of MidiTok's REMI; `MidiEvents` answers alike."""

    width = 1
    """Tokens that are written together."""

    def __init__(self, tokens: Any):
        self.tokens = tokens
        self.bos, self.eos, self.pad = (tokens[f"{name}_None"] for name in ("BOS", "EOS", "PAD"))
        self.bar = tokens["Bar_None"]
        self.borders = frozenset({self.bar, *tokens.token_ids_of_type("Position")})
        """Tokens at which a block may begin."""
        pitches = tokens.token_ids_of_type("Pitch")
        self.pitches = range(min(pitches), max(pitches) + 1)
        """Tokens of the pitches, drums' apart, from the lowest on."""

    def encode(self, score: Any) -> tuple[list[int], Counter[str]]:
        """The tokens of a `symusic.Score` between BOS and EOS; and what they do not hold -> how often."""
        on_grid, lost = self.tokens.preprocess_score(score), Counter[str]()
        for each in score.time_signatures:
            lost["time signatures other than 4/4"] += (each.numerator, each.denominator) != (4, 4)
        for track in score.tracks:
            lost.update({what: len(getattr(track, field)) for field, what in UNREAD.items()})
        lowest, highest = TEMPOS["tempo_range"]
        lost["key signatures"] += len(score.key_signatures)
        for each in score.tempos:
            lost[f"tempos beyond {lowest}..{highest} a minute"] += not lowest <= round(each.qpm) <= highest
        lost["notes"] += score.note_num() - on_grid.note_num()
        lost["notes off the grid of 24 points a quarter (moved to it)"] += self._moved(score)
        return [self.bos, *self.tokens.encode(on_grid, no_preprocess_score=True).ids, self.eos], +lost

    def decode(self, ids: Sequence[int]) -> Any:
        """The `symusic.Score` of tokens; marks are passed over."""
        return self.tokens.decode([each for each in ids if each not in self.tokens.special_tokens_ids])

    def first_bars(self, ids: Sequence[int], n_bars: int) -> int:
        """How many of the tokens are before the end of the bar `n_bars`."""
        bars = [i for i, each in enumerate(ids) if each == self.bar]
        return bars[n_bars] if len(bars) > n_bars else len(ids)

    def shifted(self, ids: Tensor, shift: Tensor) -> Tensor:
        """Tokens of shape (n, length) with pitches so many semitones, (n, 1), higher; drums stay."""
        return ids + shift * self.is_pitch(ids)

    def is_pitch(self, ids: Tensor) -> Tensor:
        """Which tokens are pitches that may be shifted."""
        return (ids >= self.pitches.start) & (ids < self.pitches.stop)

    def allowed(self, ids: Tensor, scores: Tensor) -> Tensor:
        """A logits processor of transformers: -inf where a token is no music behind the last one.

        What may follow is MidiTok's graph of token types, less padding and ends; positions go forward until
        the next bar.
        """
        seen, (types, after) = ids[0].tolist(), self._grammar
        mask = nn.functional.pad(after[types[seen[-1]]], (0, scores.shape[-1] - len(types)))
        last = next((token for token in reversed(seen) if types[token] in ("Bar", "Position")), 0)
        if types[last] == "Position":
            mask[types.index("Position") : last + 1] = False
        return scores.masked_fill(~mask.to(scores.device), -torch.inf)

    @cached_property
    def _grammar(self) -> tuple[list[str], dict[str, Tensor]]:
        """The type of each token; and of each type the tokens that may follow."""
        vocabulary, marks = self.tokens.vocab, {"PAD", "BOS", "EOS"}
        types = [name.partition("_")[0] for name in sorted(vocabulary, key=vocabulary.get)]
        graph = self.tokens.tokens_types_graph | {"BOS": {"Bar"}}
        return types, {kind: torch.tensor([each in graph[kind] - marks for each in types]) for kind in graph}

    def _moved(self, score: Any) -> int:
        """How many notes begin or end elsewhere in the tokens."""
        lengths, n = [beat + part / res for beat, part, res in self.tokens.durations], 0
        for notes in (track.notes.numpy() for track in score.tracks):
            starts = notes["time"].astype(np.int64) * self.tokens.time_division % score.tpq
            far = np.abs(np.subtract.outer(notes["duration"] / score.tpq, lengths)).min(1) > 1e-6
            n += int(np.count_nonzero(far | (starts != 0)))
        return n


def tokenizer(folder: str | Path | None = None, tokens: str = "remi") -> Any:
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
        if checks.choice("tokens", tokens, KINDS) != "remi":
            return MidiEvents(tokens.removeprefix("midi_"))
        options: dict[str, Any] = GRID | NOTES | TEMPOS
        return REMI(TokenizerConfig(special_tokens=["PAD", "BOS", "EOS"], **options))
    rule = f"be a model of music: midi_model, or one with the {FILE} of MidiTok's REMI"
    try:
        path = hub.read(hub.Described, folder)
    except ValueError as error:
        step = f"It was not read: {error}."
        raise ValueError(checks.message("tokenizer", rule, str(folder), step)) from None
    if not is_music(path):
        raise ValueError(checks.message("tokenizer", rule, str(folder), "Train one by music_llama."))
    made = MidiEvents.of_folder(path) or REMI(params=path / FILE)
    kind = f"midi_{made.version}" if isinstance(made, MidiEvents) else KINDS[0]
    if tokens not in (KINDS[0], kind):
        rule, step = f"be those of the model in {folder}, {kind}", "Leave it out."
        raise ValueError(checks.message("tokens", rule, tokens, step))
    return made


def is_music(folder: Path) -> bool:
    """Whether a folder holds a tokenizer of music."""
    content = workspace.read_json(folder / FILE)
    is_remi = isinstance(content, dict) and content.get("tokenization") == "REMI"
    return is_remi or MidiEvents.of_folder(folder) is not None


def are_music(tokens: Any) -> bool:
    """Whether a tokenizer is one of music."""
    return isinstance(tokens, MidiEvents) or type(tokens).__module__.startswith("miditok.")


def writing(tokens: Any) -> Remi | MidiEvents:
    """What the kit asks of a tokenizer of music, of either kind."""
    return tokens if isinstance(tokens, MidiEvents) else Remi(tokens)
