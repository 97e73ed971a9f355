"""Cases that only the slow run tries, beside the ones that the fast run tries too."""

from collections.abc import Iterable
from typing import Any

import pytest


def parameter(case: Any, *marks: pytest.MarkDecorator) -> Any:
    """Return a parameter with marks; a tuple holds several arguments, as in `pytest.mark.parametrize`."""
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks)


def slow(cases: Iterable[Any]) -> list[Any]:
    """Return parameters that are marked slow."""
    return [parameter(case, pytest.mark.slow) for case in cases]
