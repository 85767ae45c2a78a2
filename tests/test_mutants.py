"""The errors of `tests.mutants` can still be planted: the code that each changes exists exactly once."""

from tests.mutants import MUTANTS, ROOT


def test_each_error_can_be_planted_and_names_tests_that_catch_it():
    for file, old, new, tests in MUTANTS:
        assert (ROOT / "qnnkit" / file).read_text().count(old) == 1 and new != old, (file, old)
        assert all(list((ROOT / "tests").rglob(f"test_{name}.py")) for name in tests.split()), (file, tests)
