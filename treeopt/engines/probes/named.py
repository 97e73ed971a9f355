"""Which engines can be probed, by name; each module is imported when its engine is asked for."""

from collections.abc import Iterator
from typing import Protocol

from treeopt.engines.probes.client import EAGLE3, NGRAM, Availability, EngineClient
from treeopt.errors import InvalidValueError

NAMES = ("llama-server", "transformers", "openvino", "mlx-lm", "vllm", "openai")
STARTED_METHODS = {"llama-server": (NGRAM, EAGLE3), "transformers": (NGRAM,)}
"""How engines that treeopt starts can be told to draft, beside a draft model; those at an address are as they are."""


PLACED = ("transformers",)
"""Engines in this process that run on a device and in a dtype of the user's choice."""


class ProbeModule(Protocol):
    """What a module of this package offers for its engines."""

    def client(self, name: str, *, url: str | None, threads: int | None, timeout_s: float) -> EngineClient:
        """Return the engine, started by treeopt or asked at its addresses."""

    def available(self, name: str) -> Availability:
        """Return what is known of it here."""


def engine_client(
    name: str, *, url: str | None, threads: int | None, timeout_s: float, program: str | None = None
) -> EngineClient:
    """Return an engine by its name, started by treeopt or asked at its addresses.

    Args:
        name: as in `treeopt probe --list`.
        url: addresses of engines that run already.
        threads: of the CPU; None leaves them to the engine.
        timeout_s: longest wait for an answer.
        program: the executable to start, of llama-server alone.

    Raises InvalidValueError for a name that is none, and where it cannot be reached in that way; EngineError where it
    is not installed or does not answer.
    """
    if program is not None:
        if name != "llama-server" or url is not None:
            raise InvalidValueError("--program: expected with llama-server alone, and without --url. Leave it out.")
        from treeopt.engines.probes.llama_program import LlamaProgram

        return LlamaProgram(program, threads=threads)
    return _module(name).client(name, url=url, threads=threads, timeout_s=timeout_s)


def check_method(name: str, method: str | None, *, url: str | None) -> None:
    """Raise InvalidValueError for a method that an engine cannot be started with; those at an address are as they are."""
    if method is None or url is not None:
        return
    known = STARTED_METHODS.get(name, ())
    if method not in known:
        raise InvalidValueError(
            f"--method: expected {', '.join((*known, 'none'))} with {name} that treeopt starts. Got {method}: leave it out, or "
            "start the engine with it and give --url."
        )


def availabilities() -> Iterator[Availability]:
    """Yield what is known here of every engine."""
    for name in NAMES:
        yield _module(name).available(name)


def _module(name: str) -> ProbeModule:
    if name == "llama-server":
        from treeopt.engines.probes import llama_server

        return llama_server
    if name == "transformers":
        from treeopt.engines.probes import assisted

        return assisted
    if name == "mlx-lm":
        from treeopt.engines.probes import mlx_lm

        return mlx_lm
    if name == "openvino":
        from treeopt.engines.probes import openvino_genai

        return openvino_genai
    if name in ("vllm", "openai"):
        from treeopt.engines.probes import openai_server

        return openai_server
    raise InvalidValueError(f"ENGINE: expected one of {', '.join(NAMES)}. Got {name!r:.40}.")
