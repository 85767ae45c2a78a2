"""What a trained net makes of the test split, and where it errs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from qnnkit import retrieval, workspace
from qnnkit.data import ImageSplits
from qnnkit.data.captions import CaptionSplits
from qnnkit.data.music import first_pieces
from qnnkit.data.music_events import MusicTokenizer, Piece
from qnnkit.data.tensors import TensorSplits
from qnnkit.data.tokens import TokenSplits
from qnnkit.report import own
from qnnkit.report.run import predict
from qnnkit.runs import Run, trained
from qnnkit.tasks import Classification

if TYPE_CHECKING:
    import pandas as pd
    from IPython.display import HTML

    from qnnkit.plots import Picture

QUERIES, FOUND, PAIRS = 4, 5, 12
"""Of a gallery: queries and what is found for each; of a matrix of similarities, its side."""
WORDS = 60
"""Tokens that are read, and as many as are written, of a text."""
BARS = 8
"""Read, and as many written, of a piece."""
HEARD, BPM, RATE = 4, 120.0, 8000
"""Bars that can be heard, quarters a minute, and samples a second: a notebook keeps every sample."""


def keep_mistakes(run: Run, n_worst: int) -> Sequence[Picture | pd.DataFrame | HTML]:
    """What the run's own net, first seed, makes of the test split, drawn and kept.

    Args:
        run: Whose net is trained.
        n_worst: Examples to show: the most wrong images, or texts and pieces to go on with (at most 3).

    Returns:
        Of labelled images the confusion matrix and the most wrong ones; of captions what is found for some of
        them, and for some images, and the similarities of some pairs; of music what it writes, as piano
        rolls, with MIDI files in `music/`, and some seconds of each to hear; of text what it writes, as a
        table.
    """
    splits = run.splits
    drawn = None
    if hasattr(run.task, "mistakes"):
        drawn = own.shown(run, "mistakes", trained(run), splits, name="05_mistakes", title="Where it errs")
    if drawn is not None:
        return list(drawn) if isinstance(drawn, list | tuple) else [drawn]
    if isinstance(splits, TensorSplits):
        return [own.worst(run, splits, n_worst)]
    if isinstance(splits, ImageSplits) and isinstance(run.task, Classification):
        return _classified(run, splits, n_worst)
    if isinstance(splits, CaptionSplits):
        return _retrieved(run, splits)
    if isinstance(splits, ImageSplits):
        print("What a task of yours errs in, its `mistakes(net, splits)` shows: it has none.")
        return []
    assert isinstance(splits, TokenSplits)
    if isinstance(splits.tokenizer, MusicTokenizer):
        return _composed(run, splits, min(n_worst, 3))
    return [_written(run, splits, min(n_worst, 3))]


def _classified(run: Run, splits: ImageSplits, n_worst: int) -> list[Picture | pd.DataFrame]:
    from qnnkit import plots

    found = predict(run)
    figure = plots.confusion(found.confusion(), splits.classes)
    told = "Test images, first seed; rows are the truth, and off the diagonal is wrong."
    kept: list[Any] = [run.keep(figure, "05_confusion", "Confusion matrix", told)]
    worst, test, names = found.worst(n_worst), splits.test, splits.classes
    titles = [
        f"{names[found.labels[i]]}, not {names[found.predicted[i]]}\n"
        f"({100 * found.class_probs[i].max():.0f} % sure)\n{test.sources[i]}"
        for i in worst
    ]
    figure = plots.labelled_images(test.images.numpy()[worst], titles)
    told = "The truth, what the net says and how sure it is, and the file."
    return [*kept, run.keep(figure, "06_worst", "Most wrong", told)]


def _retrieved(run: Run, splits: CaptionSplits) -> list[Picture | pd.DataFrame]:
    from qnnkit import plots

    found = retrieval.embed(trained(run), splits, "test")  # type: ignore[arg-type]
    images, texts = splits.test.images.numpy(), found.captions
    right = torch.zeros(len(images), len(texts), dtype=torch.bool)
    right[found.pairs[:, 0], found.pairs[:, 1]] = True
    order = torch.linspace(0, len(texts) - 1, min(QUERIES, len(texts))).long()
    rows, cosines = retrieval.nearest(found.texts[order], found.images, FOUND)
    figure = plots.images_found(
        [texts[row] for row in order],
        images[rows.numpy()],
        cosines.numpy(),
        right.T[order].gather(1, rows).numpy(),
    )
    kept: list[Any] = [
        run.keep(figure, "05_images_found", "What is found for a caption", "Test images; right ones framed.")
    ]
    order = torch.linspace(0, len(images) - 1, min(QUERIES, len(images))).long()
    rows, cosines = retrieval.nearest(found.images[order], found.texts, FOUND)
    figure = plots.captions_found(
        images[order.numpy()],
        [[texts[column] for column in each] for each in rows.tolist()],
        cosines.numpy(),
        right[order].gather(1, rows).numpy(),
    )
    told = "Captions of the test split; right ones bold."
    kept.append(run.keep(figure, "05_captions_found", "What is found for an image", told))
    order = torch.linspace(0, len(images) - 1, min(PAIRS, len(images))).long()
    firsts = {int(row): int(text) for row, text in reversed(found.pairs.tolist())}
    columns = torch.tensor([firsts[int(row)] for row in order])
    figure = plots.similarities(
        (found.images[order] @ found.texts[columns].T).numpy(),
        [splits.test.sources[row] for row in order],
        [texts[column] for column in columns],
        right[order][:, columns].numpy(),
    )
    told = "Cosine of test images with their first captions; the marked ones belong together."
    return [*kept, run.keep(figure, "06_similarities", "Similarities", told)]


def _composed(run: Run, splits: TokenSplits, n: int) -> list[Picture | HTML]:
    from qnnkit import music, plots

    model, rolls, sounds = trained(run), {}, []
    folder = workspace.make_folder(run.folder / "music")
    for number, piece in enumerate(first_pieces(splits, "test", n), start=1):
        given = piece.part(0, 16 * BARS)
        written = music.continue_piece(model, splits.tokenizer, given, 16 * BARS, seed=run.config.seed)
        name = f"{piece.composer} {piece.name}"
        rolls[name] = written.parts
        music.write_midi(written.piece, folder / f"{number}.mid")
        heard = written.piece.part(max(0, written.n_given - 16), written.n_given + 16 * (HEARD - 1))
        sounds.append(_sound(name, heard))
    if not rolls:
        print("No piece of the test split begins with its block: there is none to go on with.")
        return []
    told = f"Beginnings of test pieces, and {BARS} bars that the net writes; as MIDI in music/."
    return [run.keep(plots.piano_roll(rolls), "05_music", "What the net writes", told), *sounds]


def _sound(name: str, piece: Piece) -> HTML:
    """The piece as sound that a notebook keeps: 16 bits, 21 KB a second."""
    from html import escape

    from IPython.display import HTML, Audio

    from qnnkit import music

    player = Audio(music.synthesise(piece, bpm=BPM, rate=RATE), rate=RATE)
    told = f"{name}: the last bar that was given, and {HEARD - 1} that the net writes"
    return HTML(f"<p>{escape(told)}</p>{player._repr_html_()}")


def _written(run: Run, splits: TokenSplits, n: int) -> pd.DataFrame:
    import pandas as pd

    from qnnkit import language

    model, tokenizer, test = trained(run), splits.tokenizer, splits.test
    step = max(1, len(test) // max(1, n))
    rows = []
    for row in range(0, len(test), step)[:n]:
        prompt = tokenizer.decode(test.input_ids[row, :WORDS].tolist())
        settings = {"max_new_tokens": WORDS, "seed": run.config.seed}
        told = {"given": prompt}
        if _is_adapted(model):
            with language.without_adapter(model):
                told["the base writes"] = language.generate(model, tokenizer, prompt, **settings).text
        rows.append({**told, "the net writes": language.generate(model, tokenizer, prompt, **settings).text})
    return pd.DataFrame(rows)


def _is_adapted(model: nn.Module) -> bool:
    return hasattr(model, "peft_config")
