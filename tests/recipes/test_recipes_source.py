"""A recipe's digest covers what its source does, and is the same in every Python."""

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
SAME = {"# of them": "# of these", '"""Told."""': '"""Said."""', "return [f": "return [\n        f"}
OTHER = {"int = 2": "int = 3", "1.5": "1.25", "None": "False", 'b"a"': '"a"', ">3": ">4"}


def test_the_digest_depends_on_the_code_and_not_on_the_python():
    """3.12 added type parameters to functions and classes, 3.13 dumps no empty fields: neither counts."""
    known = "81caf94649db637e287edea42ba726a6261ec5db845562a4076e3d3177ee6726"
    for before, after in (SAME | OTHER).items():
        assert before in SOURCE
        assert (known == _source.digest({"": SOURCE.replace(before, after)})) is (before in SAME), before
    assert known == _source.digest({"": SOURCE}) != _source.digest({"": SOURCE, "near.py": ""})
    assert "type_params" not in str(_source._plain(ast.parse(SOURCE)))
