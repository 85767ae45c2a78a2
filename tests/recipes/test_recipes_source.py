"""A recipe's digest: over what its source does, alike in every Python."""

from __future__ import annotations

import ast

import pytest

from qnnkit.recipes import _source

SOURCE = '''
"""About it."""
import torch

class Settings:
    n: int = 2  # of them
    """Told."""

def load(settings, *, scale=1.5):
    return [f"{settings.n:>3}", None, b"a", ...]
'''


def digest(text: str, **preset) -> str:
    return _source.digest({"": text}, preset)


@pytest.mark.parametrize(
    ("here", "there", "same"),
    [
        ("# of them", "# of these", True),
        ('"""Told."""', '"""Said."""', True),
        ("n: int = 2  #", "n: int   =   2  #", True),
        ('"""About it."""', '"""Something else."""', True),
        ("return [f", "return [\n        f", True),
        ("int = 2", "int = 3", False),
        ("1.5", "1.25", False),
        ("None", "False", False),
        ('b"a"', '"a"', False),
        (">3", ">4", False),
        ("def load", "def Load", False),
    ],
)
def test_what_a_source_does_counts(here, there, same):
    assert here in SOURCE
    assert (digest(SOURCE) == digest(SOURCE.replace(here, there))) is same
    assert digest(SOURCE) != digest(SOURCE, n=3)


def test_every_python_tells_it_alike():
    """3.12 gave functions and classes type parameters, and 3.13 dumps no empty fields: neither counts."""
    assert digest(SOURCE) == "81caf94649db637e287edea42ba726a6261ec5db845562a4076e3d3177ee6726"
    assert "type_params" not in str(_source._plain(ast.parse(SOURCE)))
