"""Small recipes with nets that no shipped recipe has, and other helpers of tests."""

import contextlib
import gzip
import io
import json
import os
import re
import resource
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pennylane as qp
import pytest
import torch
from PIL import Image

import qnnkit
from qnnkit import circuits, data
from qnnkit.data.batches import DictBatches
from qnnkit.data.splits import SPLITS


class Digits:
    """The digits of scikit-learn; a test derives a recipe with its own `build`."""

    class Settings(data.Images, qnnkit.Settings):
        epochs: int = 2
        batch_size: int = 32
        threads: int = 1
        controls: tuple[str, ...] = ()

    def load(settings):
        return data.of(settings)


class AsFloat(torch.nn.Module):
    """Pixels from 0 to 1."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.float() / 255


TINY = {"image_size": 6, "n_layers": 1, "hidden": 2, "batch_size": 4, "n_seeds": 1, "epochs": 2}
TINY |= {"controls": ["classical"]}
"""Settings of `folder_quanv` on `pictures`: a net of a few hundred weights, with epochs of milliseconds."""


def trained(folder: Path | str, recipe: Any, **settings: Any) -> Any:
    """Opens and trains a run."""
    from qnnkit import runs

    run = runs.open_run(folder, recipe, **settings)
    list(runs.train_all(run))
    return run


def each_epoch(do: Callable) -> Callable:
    """A callback for `runs.train_all` that passes only the rows of epochs to `do`."""
    return lambda row: do(row) if row["event"] == "epoch" else None


@contextlib.contextmanager
def refused(
    argument: str, error: type[Exception] | tuple[type[Exception], ...] = ValueError, says: str = ""
) -> Iterator[pytest.ExceptionInfo]:
    """Asserts that an error of one line names argument, rule, value and next step, and contains `says`."""
    with pytest.raises(error) as caught:
        yield caught
    message = str(caught.value)
    form = rf"(.*: )?Argument `{re.escape(argument)}` must .+, but is .+[.?] \S.+[.?]"
    assert re.fullmatch(form, message), message
    assert says in message, message


@contextlib.contextmanager
def room_for(n_bytes: int) -> Iterator[None]:
    """Limits files of this process and its children to `n_bytes`; as with a quota, more raises EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def closed(fill: Callable[[Path], Any]) -> Iterator[Path]:
    """A folder with what `fill` writes, which this process may read but not write."""
    # Not in tmp_path, which the user `nobody` cannot even read.
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as last:
        folder = Path(name)
        fill(folder)
        last.callback(folder.chmod, 0o755)
        folder.chmod(0o555)
        if os.geteuid() == 0:
            last.callback(os.seteuid, 0)
            os.seteuid(65534)  # nobody
        yield folder


def damage(path: Path, harm: str) -> None:
    """Damages a file: "flip" a bit, "cut" its end, "grow", "empty", "swap" for noise, "delete";
    puts a "folder", a "link" to it or a "loop" of links in its place."""
    content, moved = bytearray(path.read_bytes()), path.with_name("moved")
    path.rename(moved)
    if harm == "link":
        path.symlink_to(moved)
        return
    moved.unlink()
    if harm == "folder":
        path.mkdir()
    elif harm == "loop":
        path.symlink_to(path)
    elif harm != "delete":
        content[len(content) // 2] ^= 1
        swapped = noise(len(content)).tobytes()
        kinds = {"flip": content, "cut": content[:-1], "grow": content + b"0", "empty": b"", "swap": swapped}
        path.write_bytes(kinds[harm])


def disk_order(monkeypatch: Any) -> list[tuple[str, Any]]:
    """A list of flushed files (by inode) and renamed ones (by name), in the order of the calls."""
    done, flush, replace = [], os.fsync, os.replace

    def flushed(descriptor: int) -> None:
        done.append(("flush", os.fstat(descriptor).st_ino))
        flush(descriptor)

    def replaced(source: Any, target: Any) -> None:
        done.append(("replace", Path(target).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", replaced)
    return done


# --- circuits -----------------------------------------------------------------------------------------------


def uniform(
    *shape: int, seed: int = 0, top: float = np.pi, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Numbers between 0 and `top`."""
    return top * torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def linear(n_in: int, n_out: int, **options: Any) -> torch.nn.Linear:
    """A linear layer with weights from a local generator; nn.Linear uses the global one."""
    module = torch.nn.utils.skip_init(torch.nn.Linear, n_in, n_out, **options)
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(uniform(*weight.shape, seed=2, top=n_in**-0.5))
    return module


def shipped(
    ansatz="data_reuploading", embedding="angle", *, n_qubits=3, seed=0, kind=qnnkit.QuantumLayer, **options
):
    """A layer with a circuit of the kit that has run once, with weights between 0 and 2 pi."""
    backend = {"backend": options.pop("backend")} if "backend" in options else {}
    qnode, shapes = circuits.build(ansatz, embedding=embedding, n_qubits=n_qubits, **options)
    layer = kind(qnode, shapes, {"weights": uniform(*shapes["weights"], seed=seed, top=2 * np.pi)}, **backend)
    layer(uniform(1, circuits.embedding_of(ansatz, embedding).n_features(n_qubits)))
    return layer


def layer_on(n_wires: int, circuit: Callable, shapes: dict[str, tuple], device: str = "default.qubit") -> Any:
    """The same for another circuit, which has one feature per wire."""
    qnode = qp.QNode(circuit, qp.device(device, wires=n_wires, seed=None))
    start = {name: uniform(*shape, seed=5, top=2 * np.pi) for name, shape in shapes.items()}
    layer = qnnkit.QuantumLayer(qnode, shapes, start)
    layer(uniform(1, n_wires, top=0.9))
    return layer


def two_expvals() -> list:
    """<Z> of two wires."""
    return [qp.expval(qp.Z(0)), qp.expval(qp.Z(1))]


def measured(model: torch.nn.Module, inputs: torch.Tensor) -> list[torch.Tensor]:
    """Outputs, and gradients of a mixture of them with respect to the inputs and each parameter."""
    inputs = inputs.clone().requires_grad_()
    outputs = model(inputs)
    weights = torch.linspace(-1, 2, outputs.numel(), device=outputs.device)
    (outputs * weights.reshape(outputs.shape)).sum().backward()
    results = [outputs.detach(), inputs.grad, *(weight.grad for weight in model.parameters())]
    model.zero_grad()
    return results


def same(ours: list[torch.Tensor], theirs: list[torch.Tensor], tolerance: float = 1e-5) -> None:
    """Asserts that tensors agree one by one, by default to float32 precision."""
    for mine, true in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, true, rtol=0, atol=tolerance, equal_nan=True)


def mixture(values: torch.Tensor) -> torch.Tensor:
    """A weight for each value, so that no two errors cancel in the sum."""
    return torch.linspace(-0.9, 1.1, values.numel(), dtype=values.dtype).reshape(values.shape)


def mixed_gradients(values: torch.Tensor, leaves: Any) -> tuple[torch.Tensor, ...]:
    """Gradients of a mixture of the values with respect to leaves, which may be unused."""
    total = (values * mixture(values)).sum() + 0 * sum(leaf.sum() for leaf in leaves)
    return torch.autograd.grad(total, leaves)


# --- data ---------------------------------------------------------------------------------------------------


class Batches(DictBatches):
    """Batches of pairs, the same samples in every epoch."""

    def __init__(self, inputs: Any, targets: Any, batch_size: int, **options: Any) -> None:
        super().__init__(lambda epoch: (inputs, targets), batch_size, **options)


def real(*names: str) -> Path:
    """A file or folder of the real datasets; skips the test without it."""
    path = Path(os.environ.get("QNNKIT_TEST_DATA", ""), *names)
    if "QNNKIT_TEST_DATA" not in os.environ or not path.exists():
        pytest.skip(f"QNNKIT_TEST_DATA has no {'/'.join(names)}")
    return path


def no_workspace(monkeypatch: Any, tmp_path: Path) -> Path:
    """Makes `tmp_path` the current folder of a machine without a workspace; returns the folder for copies."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("QNNKIT_HOME", "QNNKIT_LOCAL", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache" / "qnnkit" / "datasets"


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Random bytes."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx_bytes(values: np.ndarray, magic: int | None = None) -> bytes:
    """An idx file of bytes, like those of MNIST."""
    magic = 0x800 + values.ndim if magic is None else magic
    return struct.pack(f">I{values.ndim}I", magic, *values.shape) + values.astype(np.uint8).tobytes()


def midi_bytes(*tracks: bytes, kind: int = 1, ticks: int = 96) -> bytes:
    """A MIDI file of tracks, given without their end events."""
    ended = [body + b"\0\xff\x2f\0" for body in tracks]
    chunks = [b"MTrk" + struct.pack(">I", len(body)) + body for body in ended]
    return b"MThd" + struct.pack(">IHHH", 6, kind, len(tracks), ticks) + b"".join(chunks)


def put(path: Path, pixels: np.ndarray | Image.Image, **options: Any) -> Path:
    """Writes one image; the suffix chooses the format."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(path, **options)
    return path


def write(folder: Path, files: dict[str, Any]) -> Path:
    """Writes bytes and texts under their names, and other values as JSON, line by line for ".jsonl"."""
    for name, content in files.items():
        if not isinstance(content, str | bytes):
            content = "\n".join(map(json.dumps, content)) if name.endswith("jsonl") else json.dumps(content)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def fill(folder: Path, names: Iterable[str], seed: int = 0, size: tuple[int, ...] = (6, 5)) -> Path:
    """Writes an image of noise under each name, or a text if the name has no image suffix."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (folder / name).suffix in Image.registered_extensions():
            put(folder / name, noise(*size, seed=seed + number))
        else:
            (folder / name).write_text("no image")
    return folder


def pictures(root: Path) -> Path:
    """Twelve 6x6 images in each of two class folders, bright at the top or at the bottom."""
    generator = np.random.default_rng(0)
    for name, rows in (("above", slice(0, 3)), ("below", slice(3, 6))):
        for i in range(12):
            pixels = generator.integers(0, 100, (6, 6), dtype=np.uint8)
            pixels[rows] += 120
            put(root / name / f"{i}.png", pixels)
    return root


def pack(folder: Path, path: Path, above: str = "") -> Path:
    """Packs a folder's files into an archive, below the folder `above`."""
    files = [each for each in sorted(folder.rglob("*")) if each.is_file()]
    return archive(path, {above + each.relative_to(folder).as_posix(): each.read_bytes() for each in files})


def archive(path: Path, files: dict[str, bytes]) -> Path:
    """A compressed archive of these members, with arbitrary names."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, content in files.items():
                packed.writestr(name, content)
    else:
        with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as packed:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                packed.addfile(info, io.BytesIO(content))
    return path


def idx_files(
    counts: tuple[int, int] = (40, 40), size: tuple[int, int] = (6, 6), suffix: str = ""
) -> dict[str, bytes]:
    """The four files of MNIST by name, with `counts` images of ten classes per part; gzipped for ".gz"."""
    files = {}
    for seed, (stem, n) in enumerate(zip(("train", "t10k"), counts, strict=True)):
        files[f"{stem}-images-idx3-ubyte{suffix}"] = idx_bytes(noise(n, *size, seed=seed))
        files[f"{stem}-labels-idx1-ubyte{suffix}"] = idx_bytes(np.arange(n) % 10)
    return {name: gzip.compress(each) if suffix else each for name, each in files.items()}


def ahcd_files(folder: Path, *counts: int) -> Path:
    """The four CSV files of AHCD, with 4 and 2 letters (or other counts) of each of its 28 classes."""
    folder.mkdir(parents=True)
    for side, n in zip(("Train", "Test"), [28 * count for count in counts or (4, 2)], strict=True):
        np.savetxt(folder / f"csv{side}Images {n}x1024.csv", noise(n, 1024, seed=n), "%d", ",")
        np.savetxt(folder / f"csv{side}Label {n}x1.csv", np.arange(n) % 28 + 1, "%d")
    return folder


def places_of(splits: Any) -> dict[str, str]:
    """Source -> the name of its split."""
    return {source: name for name in SPLITS for source in splits.split(name).sources}


def by_composer(splits: Any) -> dict[str, Any]:
    """Blocks of music separately per composer, in the same splits."""

    def part(side: Any, name: str) -> Any:
        return side.at([row for row, source in enumerate(side.sources) if source.partition("/")[0] == name])

    names = dict.fromkeys(source.partition("/")[0] for source in splits.train.sources)
    return {
        name: replace(splits, **{side: part(splits.split(side), name) for side in SPLITS}) for name in names
    }


def music(path: Path, third: int = 4, n: int = 12, length: int = 12) -> Path:
    """Pieces of chords in JSON, which are gzipped for ".gz"."""
    notes = (0, third, 7, 12)
    pieces = {f"{i}": [[60 + i % 5 + each] for _ in range(length) for each in notes] for i in range(n)}
    content = json.dumps(pieces).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def texts(folder: Path) -> Path:
    """Twelve short texts in a folder."""
    for number in range(12):
        words = f"{number}. " + "the cat sat on the mat and a dog ran. " * 8
        (folder / f"{number}.txt").write_text(words)
    return folder


def typing(monkeypatch: Any, capfd: Any) -> Callable[..., tuple[Any, str, str]]:
    """A function that runs `qnnkit` with these words and returns exit status, stdout and stderr."""
    from qnnkit import cli

    def command(*words: Any) -> tuple[Any, str, str]:
        monkeypatch.setattr("sys.argv", ["qnnkit", *map(str, words)])
        monkeypatch.setattr(cli.device, "launch_environment", dict)
        with pytest.raises(SystemExit) as caught:
            cli.main()
        return caught.value.code, *capfd.readouterr()

    return command
