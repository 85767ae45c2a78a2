"""What stands in more than one split: a test that contains it says less than it seems to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from qnnkit.data.places import first


class Content(NamedTuple):
    """What is compared, byte by byte, and what it is called."""

    content: bytes | memoryview
    source: str
    label: int = 0
    """Where the same content may be called otherwise."""


def notes(parts: Mapping[str, Iterable[Content]], what: str, how: str) -> list[str]:
    """A sentence on what stands in an earlier split too; none where nothing does.

    Args:
        parts: Split -> all that is in it, in the order train, validation, test.
        what: What is counted, in the plural: images, documents.
        how: How equal: pixel for pixel, word for word.

    Example:
        >>> parts = {"train": [Content(b"to be", "a.txt")], "test": [Content(b"to be", "b.txt")]}
        >>> notes(parts, "documents", "letter for letter")[0].partition(", letter")[0]
        'Duplicates: 1 of 1 documents of test stand in an earlier split too'
    """
    seen: dict[bytes, tuple[str, str, int]] = {}  # digest -> the split, source and label that had it first
    pairs, otherwise, n = [], 0, 0
    later = list(parts)[1:]
    for name, contents in parts.items():
        for each in contents:
            n += name in later
            digest = hashlib.blake2b(each.content, digest_size=16).digest()
            where, source, label = seen.setdefault(digest, (name, each.source, each.label))
            if where != name:
                pairs.append(f"{source} ({where}) = {each.source} ({name})")
                otherwise += label != each.label
    if not pairs:
        return []
    labelled = f", {otherwise:,} of them under another label" if otherwise else ""
    return [
        f"Duplicates: {len(pairs):,} of {n:,} {what} of {' and '.join(later)} stand in an earlier split too, "
        f"{how}{labelled}: {first(pairs, 3)}."
    ]
