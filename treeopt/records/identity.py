"""Which pair of models, in which number format and on which machine: what a profile, a tree and a run are of.

A prediction holds for what was measured.  Where something else runs, its numbers say nothing of it, and whoever puts
both side by side has to be told.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from treeopt.errors import Warning
from treeopt.records.machine import BUNDLED, Machine, Pair
from treeopt.records.profile import IMPORTED, UNKNOWN
from treeopt.trees.tree_file import Provenance

CONDITIONS = ("machine", "device", "dtype", "threads")
"""What times depend on beside the models."""


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
        """Return whether both have the same models, as far as both are known: by their contents, else by their names.

        A draft model that only one of them has is no difference.
        """
        if self.target_digest is not None and other.target_digest is not None:
            drafts = (self.draft_digest, other.draft_digest)
            return self.target_digest == other.target_digest and (None in drafts or drafts[0] == drafts[1])
        return None in (self.pair, other.pair) or self.pair == other.pair

    @property
    def target_alone(self) -> "Identity":
        """The same without the draft model."""
        pair = None if self.pair is None else self.pair.partition(" + ")[0]
        return replace(self, pair=pair, draft=None, draft_digest=None)

    @property
    def bundled(self) -> bool:
        """Whether its models are those that ship with treeopt."""
        return self.target is None and self.pair is not None and self.pair.startswith(BUNDLED)

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
        """The options that load these models, ` --target T --draft D`; empty where it is not known where they are.

        >>> Identity(target="my models/t", draft="org/d").models
        " --target 'my models/t' --draft org/d"
        """
        if self.target is None:
            return ""
        draft = "" if self.draft is None else f" --draft {shlex.quote(self.draft)}"
        return f" --target {shlex.quote(self.target)}{draft}"


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
