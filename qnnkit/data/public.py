"""Public datasets: where they can be had, how it is known that they are right, and what is in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qnnkit import checks
from qnnkit.data import fetch


@dataclass(frozen=True)
class Public:
    """Where a dataset comes from."""

    page: str
    """For people: what it is, its terms, and its files."""
    mirrors: tuple[str, ...]
    """Addresses to which a file's name is added, tried in order."""
    files: Mapping[str, str]
    """Name of each file -> its checksum."""
    needs: str
    """What a folder with it holds, for the message."""


FOUR = tuple(
    f"{side}-{kind}-ubyte.gz" for side in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
)


def _four(page: str, mirrors: tuple[str, ...], *sums: str) -> Public:
    """A dataset of MNIST's four files."""
    return Public(page, mirrors, dict(zip(FOUR, sums, strict=True)), f"{', '.join(FOUR)} (or unpacked)")


# The MD5 sums of three families are those that torchvision (datasets/mnist.py) publishes; they are checked
# against it, not against the files. Those of MNIST and AHCD, SHA-256, are of the files themselves.
PUBLIC = {
    "mnist": _four(
        "https://en.wikipedia.org/wiki/MNIST_database",
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
    "fashion_mnist": _four(
        "https://github.com/zalandoresearch/fashion-mnist",
        ("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",),
        "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "md5:25c81989df183df01b3e8a0aad5dffbe",
        "md5:bef4ecab320f06d8554ea6380940ec79",
        "md5:bb300cfdad3c16e7a12a480ee83cd310",
    ),
    "kmnist": _four(
        "https://github.com/rois-codh/kmnist",
        ("https://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
        "md5:bdb82020997e1d708af4cf47b453dcf7",
        "md5:e144d726b3acfaa3e44228e80efcd344",
        "md5:5c965bf0a639b31b8f53240b1b52f4d7",
        "md5:7320c461ea6c1c855c0b718fb2a4b134",
    ),
    "emnist": Public(
        "https://www.nist.gov/itl/products-and-services/emnist-dataset",
        (
            "https://biometrics.nist.gov/cs_links/EMNIST/",
            "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/",
        ),
        {"gzip.zip": "md5:58c8d27c78d21e728a6bc7b3cc06412e"},
        "emnist-<variant>-train-images-idx3-ubyte and the other three (or gzip.zip with all of them)",
    ),
    "ahcd": Public(
        "https://github.com/mloey/Arabic-Handwritten-Characters-Dataset",
        ("https://raw.githubusercontent.com/mloey/Arabic-Handwritten-Characters-Dataset/master/",),
        {
            "Arabic%20Handwritten%20Characters%20Dataset%20CSV.zip": (
                "sha256:3dcf2ed8f57a5914078929a53a6302aeb1b065ffec5f0dd92b3b463a121d0161"
            )
        },
        "csvTrainImages 13440x1024.csv, csvTrainLabel 13440x1.csv, csvTestImages 3360x1024.csv and "
        "csvTestLabel 3360x1.csv",
    ),
}


def obtain(name: str, root: str | Path | None, download: bool) -> Path:
    """The folder or archive of a public dataset on local disk.

    Args:
        name: Entry of PUBLIC.
        root: Where it is; None looks where downloads go.
        download: Whether to fetch what is not there. Nothing is fetched without being asked for.

    Raises:
        FileNotFoundError: It is not there; the message says where to get it and how to ask.
        OSError: It cannot be fetched.
    """
    public = PUBLIC[name]
    path = fetch.local(root) if root else fetch.store() / name
    if download and not path.is_file():
        for file, checksum in public.files.items():
            plain = path / file.replace("%20", " ")
            if not (root and _is_there(plain)):  # files of your own are taken as they are
                fetch.download([mirror + file for mirror in public.mirrors], plain, checksum=checksum)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        raise missing(name, root, [public.needs])
    if len(public.files) == 1 and path.is_dir():  # an archive stands for the folder it was packed from
        inside = path / next(iter(public.files)).replace("%20", " ")
        return inside if inside.is_file() else path
    return path


def missing(name: str, root: str | Path | None, files: list[str]) -> FileNotFoundError:
    """What is not there, where to get it, and how to have it fetched."""
    step = f"Get the dataset from {PUBLIC[name].page}, or set download to true to have it fetched."
    rule = f"name a folder or an archive with {', '.join(files)}"
    return FileNotFoundError(checks.message("root", rule, None if root is None else str(root), step))


def _is_there(path: Path) -> bool:
    """Whether a folder has a file, packed or not, perhaps deeper down."""
    plain = re.sub(r"\.gz$", "", path.name)
    return any(path.parent.rglob(f"{plain}*")) if path.parent.is_dir() else False
