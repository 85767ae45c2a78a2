"""Music: pieces and their events, MIDI, generation, and what adapters are worth by composer."""

from qnnkit.data.music_events import MusicTokenizer, Note, Piece
from qnnkit.data.music_midi import read_midi, write_midi
from qnnkit.music.adapters import adapter_names, load_adapters, using_adapter
from qnnkit.music.generation import Continuation, continue_piece, for_each_adapter
from qnnkit.music.grammar import Grammar
from qnnkit.music.matrix import LossMatrix, loss_matrix, mean_nats
from qnnkit.music.over_runs import RunsMatrix, matrix_of_runs
from qnnkit.music.sound import synthesise

__all__ = [
    "Piece", "Note", "MusicTokenizer", "read_midi", "write_midi", "continue_piece", "Continuation",
    "for_each_adapter", "Grammar", "adapter_names", "using_adapter", "loss_matrix", "LossMatrix", "mean_nats",
    "load_adapters", "synthesise", "RunsMatrix", "matrix_of_runs",
]  # fmt: skip
