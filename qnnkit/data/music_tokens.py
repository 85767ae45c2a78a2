"""Music as MidiTok's REMI writes it, one token after another, as `midi_events` does it in rows of eight.

REMI (Huang and Yang 2020, arXiv:2002.00212, with the programs of REMI+, arXiv:2201.10936) writes a note as
`Program`, `Pitch` (of drums `PitchDrum`), `Velocity` and `Duration`, behind the `Bar`, `Position` and `Tempo`
where it begins. Each note names its program, so a sequence may be cut at any `Bar` or `Position` without
losing an instrument.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
UNREAD = ("controls", "pedals", "pitch_bends", "lyrics", "key_signatures")
"""What a score or track of symusic has and the tokens have not."""
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
        on_grid, (lowest, highest) = self.tokens.preprocess_score(score), TEMPOS["tempo_range"]
        lost = Counter[str]()
        for what, each in itertools.product(UNREAD, (score, *score.tracks)):
            lost[what.replace("_", " ")] += len(getattr(each, what, ()))
        for each in score.time_signatures:
            lost["time signatures other than 4/4"] += (each.numerator, each.denominator) != (4, 4)
        for each in score.tempos:
            lost[f"tempos beyond {lowest}..{highest} a minute"] += not lowest <= round(each.qpm) <= highest
        moved = _places(score) - _places(on_grid)
        lost["notes off the grid of 24 points a quarter (moved to it, or one with another)"] += moved.total()
        return [self.bos, *self.tokens.encode(on_grid, no_preprocess_score=True).ids, self.eos], +lost

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
    if folder is None and checks.choice("tokens", tokens, KINDS) != "remi":
        return MidiEvents(tokens.removeprefix("midi_"))
    if folder is None:
        options: dict[str, Any] = GRID | NOTES | TEMPOS
        return REMI(TokenizerConfig(special_tokens=["PAD", "BOS", "EOS"], **options))
    try:
        path = hub.read(hub.Described, folder)
        if (made := of_folder(path)) is None:
            raise ValueError(f"it has neither midi_model's config.json nor the {FILE} of MidiTok's REMI")
    except ValueError as error:
        step = f"It was not read: {error}."
        raise ValueError(checks.message("tokenizer", "be a model of music", str(folder), step)) from None
    kind = f"midi_{made.version}" if isinstance(made, MidiEvents) else KINDS[0]
    if tokens not in (KINDS[0], kind):
        rule, step = f"be those of the model in {folder}, {kind}", "Leave it out."
        raise ValueError(checks.message("tokens", rule, tokens, step))
    return made


def of_folder(folder: Path) -> Any:
    """The tokenizer of music in a model's or an adapter's folder; None if there is none."""
    content = workspace.read_json(folder / FILE)
    if isinstance(content, dict) and content.get("tokenization") == "REMI":
        from miditok import REMI

        return REMI(params=folder / FILE)
    return MidiEvents.of_folder(folder)


def are_music(tokens: Any) -> bool:
    """Whether a tokenizer is one of music."""
    return isinstance(tokens, MidiEvents) or type(tokens).__module__.startswith("miditok.")


def writing(tokens: Any) -> Remi | MidiEvents:
    """What the kit asks of a tokenizer of music, of either kind."""
    return tokens if isinstance(tokens, MidiEvents) else Remi(tokens)
