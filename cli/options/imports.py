"""Options that name what was measured elsewhere."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from treeopt.cli.options.inputs import file
from treeopt.cli.options.record import Heading, option

if TYPE_CHECKING:
    from treeopt.engines.importers import ImportedLatency
    from treeopt.records.measured_acceptance import MeasuredAcceptance
    from treeopt.records.sampling import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """Files of what was measured elsewhere; None where it is to be measured here."""

    latency: Path | None = field(
        metadata=option(
            "--latency",
            heading=Heading.IMPORTS,
            type=file,
            metavar="FILE",
            help="Verify times measured elsewhere: CSV (tokens and a time), what llama-bench or llama-batched-bench prints, SGLang's or TensorRT-LLM's cost table.",
        )
    )
    draft_latency: Path | None = field(
        metadata=option(
            "--draft-latency",
            heading=Heading.IMPORTS,
            type=file,
            metavar="FILE",
            help="Draft times measured elsewhere: CSV, what llama-bench prints of the draft model, llama-server's log.",
        )
    )
    acceptance: Path | None = field(
        metadata=option(
            "--acceptance",
            heading=Heading.IMPORTS,
            type=file,
            metavar="FILE",
            help="Acceptance measured elsewhere: rates or counts per position, /metrics of vLLM or llama.cpp, a speculation profile, requests of vLLM or AIPerf, Spec-Bench's answers, Sequoia's vector.",
        )
    )
    sweep: tuple[Path, ...] = field(
        metadata=option(
            "--sweep",
            heading=Heading.IMPORTS,
            type=file,
            multiple=True,
            metavar="FILE",
            help="Whole steps by draft length measured elsewhere, several times for several files: CSV or JSON with draft length, batch, speed and accept length.",
        )
    )

    @property
    def times(self) -> bool:
        """Whether nothing is left to be timed here."""
        return self.latency is not None and self.draft_latency is not None

    @property
    def any(self) -> bool:
        """Whether anything was measured elsewhere."""
        return any((self.latency, self.draft_latency, self.acceptance))

    @property
    def everything(self) -> bool:
        """Whether no model is needed at all."""
        return self.times and self.acceptance is not None

    def latencies(self) -> "tuple[ImportedLatency, ...]":
        """Return the imported curves."""
        from treeopt.engines.importers import read_latency

        files = ((self.latency, "verify"), (self.draft_latency, "draft"))
        return tuple(each for path, what in files if path for each in read_latency(path, default_pass=what))

    def acceptances(self, rule: str, sampling: "Sampling") -> "tuple[MeasuredAcceptance, ...]":
        """Return the imported acceptance, if there is one."""
        from treeopt.engines.importers import read_acceptance

        if self.acceptance is None:
            return ()
        return (read_acceptance(self.acceptance, rule=rule, temperature=sampling.temperature, top_p=sampling.top_p),)
