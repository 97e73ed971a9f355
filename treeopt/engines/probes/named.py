"""Which engines can be probed, by name; each module is imported when its engine is asked for."""

from collections.abc import Iterator
from importlib import import_module

from treeopt.engines.probes.client import Availability, EngineClient
from treeopt.errors import InvalidValueError

MODULES = {
    "llama-server": "llama_server",
    "transformers": "assisted",
    "openai": "openai_server",
    "vllm": "openai_server",
}
"""Name on the command line: module here."""


def engine_client(name: str, *, url: str | None, threads: int | None, timeout_s: float) -> EngineClient:
    """Return an engine by its name, started by treeopt or asked at its address.

    Raises InvalidValueError for a name that is none, and where it cannot be reached in that way; EngineError where it
    is not installed or does not answer.
    """
    if name not in MODULES:
        raise InvalidValueError(f"ENGINE: expected one of {', '.join(MODULES)}. Got {name!r:.40}.")
    module = import_module(f"treeopt.engines.probes.{MODULES[name]}")
    client: EngineClient = module.client(name, url=url, threads=threads, timeout_s=timeout_s)
    return client


def availabilities() -> Iterator[Availability]:
    """Yield what is known here of every engine."""
    for name, module in MODULES.items():
        yield import_module(f"treeopt.engines.probes.{module}").available(name)
