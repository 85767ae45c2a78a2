"""A recipe's digest: over what its source does, alike in every Python."""

import ast

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
SAME = {
    "# of them": "# of these", '"""Told."""': '"""Said."""', "n: int = 2  #": "n: int   =   2  #",
    '"""About it."""': '"""Something else."""', "return [f": "return [\n        f",
}  # fmt: skip
OTHER = {
    "int = 2": "int = 3",
    "1.5": "1.25",
    "None": "False",
    'b"a"': '"a"',
    ">3": ">4",
    "def load": "def Load",
}


def test_what_a_source_does_counts():
    before = _source.digest({"": SOURCE})
    for here, there in (SAME | OTHER).items():
        assert here in SOURCE
        assert (before == _source.digest({"": SOURCE.replace(here, there)})) is (here in SAME), here
    assert before != _source.digest({"": SOURCE, "near.py": ""})


def test_every_python_tells_it_alike():
    """3.12 gave functions and classes type parameters, and 3.13 dumps no empty fields: neither counts."""
    known = "81caf94649db637e287edea42ba726a6261ec5db845562a4076e3d3177ee6726"
    assert _source.digest({"": SOURCE}) == known
    assert "type_params" not in str(_source._plain(ast.parse(SOURCE)))
