"""llama.cpp's server: started for each draft length from the wheel xllamacpp, or asked where it runs."""

import json
from dataclasses import asdict

from treeopt.engines.probes.child import Child, python
from treeopt.engines.probes.client import (
    Availability,
    EngineClient,
    Launch,
    Running,
    address_of,
    addresses,
    served_model,
)
from treeopt.engines.probes.http import HttpEngine
from treeopt.engines.probes.llama_program import LlamaProgram, on_path
from treeopt.engines.probes.running_llama import NAME, RunningLlama
from treeopt.engines.probes.started import installed_version, threads_setting
from treeopt.errors import EngineError
from treeopt.records.profile import UNKNOWN

PACKAGE = "xllamacpp"


def client(name: str, *, url: str | None, threads: int | None, timeout_s: float) -> EngineClient:
    """Return the server at an address, else that of the wheel, else the one on PATH; see `treeopt.engines.probes.named`."""
    del name
    if url is not None:
        return LlamaAtUrl(url, timeout_s=timeout_s)
    program = on_path()
    if _wheel() is None and program is not None:
        return LlamaProgram(program, threads=threads)
    return LlamaServer(threads=threads)


def available(name: str = NAME) -> Availability:
    """Return what is known of it here."""
    return Availability(
        name=name,
        title="llama.cpp's server",
        version=_wheel() or on_path(),
        started="by treeopt, once for each length, from the wheel xllamacpp, or a llama-server on PATH; or --url of one that runs",
        tells="seconds and steps of each text, accepted tokens by position",
        install=f"pip install {PACKAGE}",
    )


def _wheel() -> str | None:
    found = installed_version(PACKAGE)
    return None if found is None else f"{PACKAGE} {found}"


class LlamaServer:
    """The server of the wheel, started anew for each draft length.

    Raises EngineError where the wheel is not installed.
    """

    name = NAME
    device = "cpu"
    concurrent = False

    def __init__(self, *, threads: int | None = None) -> None:
        found = _wheel()
        if found is None:
            raise EngineError(
                f"{NAME}: expected the package {PACKAGE}, or {NAME} on PATH. Neither is installed: pip install {PACKAGE}."
            )
        self.version = found
        self.settings = threads_setting(threads)

    def start(self, launch: Launch) -> Running:
        asked = json.dumps(asdict(launch))
        child = Child(NAME, python("treeopt.engines.probes.llama_process", asked), timeout_s=launch.timeout_s)
        return RunningLlama(child.ready["address"], launch, child)


class LlamaAtUrl:
    """Servers that run already, one for each draft length."""

    name = NAME
    device = UNKNOWN
    concurrent = True

    def __init__(self, urls: str, *, timeout_s: float) -> None:
        self._by_length = addresses(urls)
        http = HttpEngine(NAME, next(iter(self._by_length.values())), timeout_s=timeout_s)
        found = http.get("/props")
        http.close()
        self.version = str(found.get("build_info", "unknown"))
        self.settings = served_model(found.get("model_path"))

    def start(self, launch: Launch) -> Running:
        """See `EngineClient`; it is left running."""
        return RunningLlama(address_of(NAME, self._by_length, launch), launch, None)
