"""The pair of models, dtype and machine of a profile, a tree or a run, and warnings where two of them differ."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from treeopt.errors import Warning
from treeopt.records.machine import BUNDLED, Machine, Pair
from treeopt.records.profile import IMPORTED, UNKNOWN
from treeopt.trees.tree_file import Provenance

CONDITIONS = ("machine", "device", "dtype", "threads")
"""What times depend on, other than the models and the distribution of the target."""
_DEVICE = r"(?:cpu|disk|\d+|[a-z]+:\d+)"
DISTRIBUTION = re.compile(rf" (over {_DEVICE}(?:, {_DEVICE})*|split over \d+ processes)(?= \+ |$)")
"""Devices or processes of a distributed target, which `load_pair` appends to its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A pair and a machine; None for what a file does not contain."""

    pair: str | None = None
    """Names of the target and draft model."""
    target: str | None = None
    """Source of the target; None if unknown or bundled."""
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
        return cls(
            pair=None if UNKNOWN in (pair.target, pair.draft) else pair.label,
            target=pair.target_source,
            draft=pair.draft_source,
            target_digest=pair.target_digest,
            draft_digest=pair.draft_digest,
            dtype=_none_if_unknown(pair.dtype),
            machine=_none_if_unknown(machine.processor),
            device=_none_if_unknown(machine.device),
            threads=machine.threads,
        )

    @classmethod
    def from_provenance(cls, provenance: Provenance | None) -> "Identity":
        """Return the identity that a tree was planned for; all None without a provenance."""
        provenance = provenance or Provenance()
        return cls(**{field.name: getattr(provenance, field.name) for field in fields(cls)})

    def same_pair(self, other: "Identity") -> bool:
        """Return whether no known model differs: compares digests if both targets have one, else names.

        A draft model that only one of the two has is not a difference, nor is the distribution of the target.
        """
        if self.target_digest is not None and other.target_digest is not None:
            drafts = (self.draft_digest, other.draft_digest)
            return self.target_digest == other.target_digest and (None in drafts or drafts[0] == drafts[1])
        return None in (self.pair, other.pair) or self._undistributed_pair == other._undistributed_pair

    @property
    def without_draft(self) -> "Identity":
        pair = None if self.pair is None else self.pair.partition(" + ")[0]
        return replace(self, pair=pair, draft=None, draft_digest=None)

    @property
    def bundled(self) -> bool:
        """Whether the models ship with treeopt."""
        return self.target is None and self.pair is not None and self.pair.startswith(BUNDLED)

    @property
    def distribution(self) -> str | None:
        """Devices or processes of the target in words; None for an unknown pair."""
        if self.pair is None:
            return None
        match = DISTRIBUTION.search(self.pair)
        return f"the target {'on one device' if match is None else match[1]}"

    @property
    def _undistributed_pair(self) -> str | None:
        return None if self.pair is None else DISTRIBUTION.sub("", self.pair, count=1)

    def differences(self, other: "Identity") -> tuple[str, ...]:
        """Describe the known `CONDITIONS` and distributions that differ, such as `2 threads, not 1 thread`."""
        values = [(name, getattr(self, name), getattr(other, name)) for name in (*CONDITIONS, "distribution")]
        return tuple(
            f"{_describe(name, value)}, not {_describe(name, other_value)}"
            for name, value, other_value in values
            if None not in (value, other_value) and value != other_value
        )

    @property
    def model_options(self) -> str:
        """The options that load these models, ` --target T --draft D`; empty if the target's source is unknown.

        >>> Identity(target="my models/t", draft="org/d").model_options
        " --target 'my models/t' --draft org/d"
        """
        if self.target is None:
            return ""
        draft = "" if self.draft is None else f" --draft {shlex.quote(self.draft)}"
        return f" --target {shlex.quote(self.target)}{draft}"


def _none_if_unknown(text: str) -> str | None:
    return None if text in (IMPORTED, UNKNOWN) else text


def _describe(name: str, value: object) -> str:
    return f"{value} thread{'s' * (value != 1)}" if name == "threads" else str(value)


def pair_mismatch_warning(subject: str, planned: str | None, here: str | None, remedy: str) -> Warning:
    """Return the warning that a prediction is for another pair of models.

    Args:
        subject: start of the sentence, such as `tree.json was planned for`.
        planned: the planned pair.
        here: the loaded pair.
        remedy: how to load the planned pair.
    """
    this = f"this is {here}" if here != planned else "the models of these names have other weights here"
    return Warning(f"{subject} {planned}, and {this}: the prediction does not hold.", f"For the planned pair {remedy}.")


def machine_mismatch_warning(subject: str, differences: Sequence[str], effect: str = "times differ") -> Warning:
    """Return the warning that a prediction is for another machine, dtype or number of threads."""
    return Warning(
        f"{subject} {'; '.join(differences)}: {effect}.", "Give the same options, or profile again on this machine."
    )
