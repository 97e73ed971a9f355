"""Whether numba compiles a loop at this moment, so that those who wait can be told why.

Modules with compiled loops call `watch` when they are imported; nobody else imports numba for it.
"""

from functools import cache
from typing import Any

_running: list[object] = []


def compiling() -> bool:
    """Return whether a loop is being compiled."""
    return bool(_running)


@cache
def watch() -> None:
    """Notice from now on when numba compiles; loops that are found compiled do not count."""
    from numba.core.event import Listener, register

    class Noted(Listener):
        def on_start(self, event: Any) -> None:
            _running.append(event)

        def on_end(self, event: Any) -> None:
            del event
            _running.pop()

    register("numba:compile", Noted())  # type: ignore[no-untyped-call]
