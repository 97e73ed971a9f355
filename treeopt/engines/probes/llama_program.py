"""llama.cpp's server as a program of its own: started for each draft length with the flags that its help names."""

import re
import shutil
import socket
import subprocess

from treeopt.engines.probes.child import Child, python
from treeopt.engines.probes.client import NGRAM, Launch, Running
from treeopt.engines.probes.running_llama import NAME, RunningLlama
from treeopt.engines.probes.started import missing_models, threads_setting
from treeopt.errors import EngineError, printable
from treeopt.records.profile import UNKNOWN

HELP_S = 30.0
"""Longest wait for help or version: a build for a GPU looks for it first."""
METHOD = "--spec-type"
LENGTHS = (
    ("--spec-draft-n-max", "--spec-draft-n-min", "--spec-draft-p-min"),
    ("--draft-max", "--draft-min", "--draft-p-min"),
)
"""Most draft tokens, fewest, and the probability below which no more are drafted: today's names, and those before."""

DEVICES = "--list-devices"
NGRAM_SIZES = ("--spec-ngram-simple-size-", "--spec-ngram-size-")


def on_path() -> str | None:
    """Return the program of that name on PATH; None where there is none."""
    return shutil.which(NAME)


class LlamaProgram:
    """A llama-server that is started anew for each draft length, on a free port of this machine alone.

    Args:
        program: its path, or its name on PATH.
        threads: of the CPU, for both models; None leaves them to it.

    Raises EngineError where it cannot be run, or does not know how to draft.
    """

    name = NAME
    concurrent = False

    def __init__(self, program: str, *, threads: int | None = None) -> None:
        found = shutil.which(program)
        if found is None:
            raise EngineError(f"{NAME}: expected a program. Got {program!r:.200}: give the path of one with --program.")
        self._program, self._threads = found, threads
        self.version = _version(_said(found, "--version"))
        self._knows = frozenset(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", _said(found, "--help")))
        self._length_flags()
        self.settings = threads_setting(threads)
        self.device = self._device()

    def _device(self) -> str:
        """Return `cpu` where the build lists no accelerator; one that lists some may use any of them, or none."""
        if DEVICES not in self._knows:
            return UNKNOWN
        return UNKNOWN if re.search(r"^\s+\w+: ", _said(self._program, DEVICES), re.MULTILINE) else "cpu"

    def start(self, launch: Launch) -> Running:
        """See `EngineClient`; it ends with treeopt."""
        if not launch.complete:
            raise missing_models(NAME)
        port = _free_port()
        command = (self._program, *self.flags(launch), "--host", "127.0.0.1", "--port", str(port))
        child = Child(
            NAME, python("treeopt.engines.probes.supervised", str(port), *command), timeout_s=launch.timeout_s
        )
        return RunningLlama(child.ready["address"], launch, child)

    def flags(self, launch: Launch) -> tuple[str, ...]:
        """Return what it is started with, but for its address."""
        slots, context = str(launch.slots), str(launch.slots * launch.context_tokens)
        flags = ["--model", str(launch.target), "-np", slots, "-c", context, "--metrics"]
        if self._threads is not None:
            flags += ["-t", str(self._threads)]
        if launch.draft_tokens and launch.method == NGRAM:
            flags += [METHOD, "ngram-simple", self._ngram_flag("m"), str(launch.draft_tokens)]
            if launch.ngram_tokens is not None:
                flags += [self._ngram_flag("n"), str(launch.ngram_tokens)]
        elif launch.draft_tokens:
            most, least, cut = self._length_flags()
            flags += ["--model-draft", str(launch.draft), most, str(launch.draft_tokens), least, "0", cut, "0"]
            kind = "draft-simple" if launch.method is None else f"draft-{launch.method}"
            flags += [METHOD, kind] if METHOD in self._knows else []
        return tuple(flags)

    def _ngram_flag(self, size: str) -> str:
        """Return the flag of tokens that match, `n`, or that are drafted, `m`; raises EngineError where help names none."""
        names = [f"{each}{size}" for each in NGRAM_SIZES]
        for name in names:
            if name in self._knows and METHOD in self._knows:
                return name
        raise EngineError(
            f"{NAME}: expected a program whose --help names {METHOD} and {names[0]}. {self._program} does not: update "
            "llama.cpp, or leave --method out."
        )

    def _length_flags(self) -> tuple[str, str, str]:
        for names in LENGTHS:
            if self._knows.issuperset(names):
                return names
        raise EngineError(
            f"{NAME}: expected a program whose --help names {LENGTHS[0][0]} or {LENGTHS[1][0]}. {self._program} does not: "
            "update llama.cpp."
        )


def _said(program: str, flag: str) -> str:
    """Return what a program says of itself, on either stream."""
    try:
        done = subprocess.run(
            [program, flag], capture_output=True, timeout=HELP_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else f"no answer within {HELP_S:g} s"
        raise EngineError(
            f"{NAME}: expected {program} {flag} to say something. Got: {why}. Give another --program."
        ) from None
    return (done.stdout + done.stderr).decode(errors="replace")


def _version(said: str) -> str:
    found = re.search(r"^version: (.+)$", said, re.MULTILINE)
    return printable(found[1].strip()) if found else "unknown"


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
