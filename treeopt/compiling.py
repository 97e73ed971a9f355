"""Whether numba is compiling, for progress output.

Modules with compiled loops call `watch_compilation` on import; no other module imports numba for this.
"""

from functools import cache
from typing import Any

_running: list[object] = []


def is_compiling() -> bool:
    return bool(_running)


@cache
def watch_compilation() -> None:
    """Track compilations from now on; loads from numba's cache do not count."""
    from numba.core.event import Listener, register

    class CompilationListener(Listener):
        def on_start(self, event: Any) -> None:
            _running.append(event)

        def on_end(self, event: Any) -> None:
            del event
            _running.pop()

    register("numba:compile", CompilationListener())  # type: ignore[no-untyped-call]
