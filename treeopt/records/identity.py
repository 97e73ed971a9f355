"""Which pair of models, in which number format and on which machine: what a profile, a tree and a run are of.

A prediction holds for what was measured.  Where something else runs, its numbers say nothing of it, and whoever puts
both side by side has to be told.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields

from treeopt.errors import Warning
from treeopt.records.machine import Machine, Pair
from treeopt.records.profile import IMPORTED, UNKNOWN
from treeopt.trees.provenance import Provenance

CONDITIONS = ("machine", "device", "dtype", "threads")
"""What times depend on beside the models."""
DEFAULTS = {"device": "cpu", "dtype": "float32"}
"""What the options of these names are where they are left out."""
CHOSEN_FORMATS = ("float32", "bfloat16", "float16")
"""Number formats that an option asks for; GGUF files have their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A pair and a machine; None where a file does not say."""

    pair: str | None = None
    """Target and draft model in words."""
    target: str | None = None
    """What the target is loaded from; None for the bundled one too."""
    draft: str | None = None
    target_digest: str | None = None
    draft_digest: str | None = None
    dtype: str | None = None
    machine: str | None = None
    """Processor or accelerator."""
    device: str | None = None
    threads: int | None = None

    @classmethod
    def of(cls, pair: Pair, machine: Machine) -> "Identity":
        """Return that of a profile, or of what has been loaded."""
        return cls(
            pair=None if UNKNOWN in (pair.target, pair.draft) else pair.label,
            target=pair.target_source,
            draft=pair.draft_source,
            target_digest=pair.target_digest,
            draft_digest=pair.draft_digest,
            dtype=_known(pair.dtype),
            machine=_known(machine.processor),
            device=_known(machine.device),
            threads=machine.threads,
        )

    @classmethod
    def planned_for(cls, provenance: Provenance | None) -> "Identity":
        """Return that of a tree, all unknown where it does not say what it was planned for."""
        known = provenance or Provenance()
        return cls(**{field.name: getattr(known, field.name) for field in fields(cls)})

    def same_pair(self, other: "Identity") -> bool:
        """Return whether both have the same models, as far as both say: by their contents, else by their names."""
        own = (self.target_digest, self.draft_digest)
        theirs = (other.target_digest, other.draft_digest)
        if None not in (*own, *theirs):
            return own == theirs
        return None in (self.pair, other.pair) or self.pair == other.pair

    def differences(self, other: "Identity") -> tuple[str, ...]:
        """Return in what another differs beside its models, such as `2 threads, not 1`; what either leaves open does not."""
        both = [(name, getattr(self, name), getattr(other, name)) for name in CONDITIONS]
        return tuple(
            f"{_in_words(name, own)}, not {_in_words(name, theirs)}"
            for name, own, theirs in both
            if None not in (own, theirs) and own != theirs
        )

    @property
    def models(self) -> str:
        """The options that load this pair, ` --target T --draft D`; empty for the bundled one.

        >>> Identity(target="my models/t", draft="org/d").models
        " --target 'my models/t' --draft org/d"
        """
        if self.target is None or self.draft is None:
            return ""
        return f" --target {shlex.quote(self.target)} --draft {shlex.quote(self.draft)}"

    def options(self, *, threads: int | None = None) -> str:
        """Return the options that bring this pair and its conditions about, but for those that hold without them.

        Args:
            threads: what holds without an option.
        """
        held = {**DEFAULTS, "threads": threads}
        asked = {name: getattr(self, name) for name in held}
        asked["dtype"] = self.dtype if self.dtype in CHOSEN_FORMATS else None
        rest = [f" --{name} {value}" for name, value in asked.items() if value is not None and value != held[name]]
        return self.models + "".join(rest)


def _known(text: str) -> str | None:
    return None if text in (IMPORTED, UNKNOWN) else text


def _in_words(name: str, value: object) -> str:
    return f"{value} thread{'s' * (value != 1)}" if name == "threads" else str(value)


def other_pair_warning(subject: str, planned: str | None, here: str | None, remedy: str) -> Warning:
    """Return the warning that a prediction is for other models than those that run.

    Args:
        subject: what was predicted, up to a preposition, such as `tree.json was planned for`.
        planned: the pair that it was planned for.
        here: the pair that runs.
        remedy: how the planned pair is loaded.
    """
    this = f"this is {here}" if here != planned else "the models of these names have other weights here"
    return Warning(f"{subject} {planned}, and {this}: the prediction does not hold.", f"For the planned pair {remedy}.")


def other_conditions_warning(subject: str, differences: Sequence[str], effect: str = "times differ") -> Warning:
    """Return the warning that a prediction is for another machine, dtype or number of threads; `subject` as above."""
    return Warning(
        f"{subject} {'; '.join(differences)}: {effect}.", "Give the same options, or profile again on this machine."
    )
