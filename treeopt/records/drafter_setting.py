"""Which drafter fills a tree or brings its own, and how it is set: what a plan chooses and a tree file names."""

from dataclasses import dataclass

from treeopt.array_record import ShortRepr
from treeopt.errors import InvalidValueError

DRAFTERS = ("model", "medusa", "redrafter", "eagle", "eagle2", "specexec", "lookahead", "prompt-lookup")
"""As in `--drafter NAME`; `model`, the draft model, is what a file without a drafter means."""
HEADS = ("medusa", "redrafter", "eagle")
"""Those that are read from a folder of their own, `--drafter NAME=DIR`."""
TREES = ("model", "medusa", "eagle")
"""Those that draft a static tree, which is solved for from their acceptance table."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class SettingValue(ShortRepr):
    """One number that a drafter is set to."""

    name: str
    value: int


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class DrafterSetting(ShortRepr):
    """A drafter with its setting.

    Raises InvalidValueError for an unknown name, or settings that are not each once in the order of their names.
    """

    name: str
    source: str | None = None
    """The folder of its heads as it was given; None for those that ship, and where it has none."""
    digest: str | None = None
    """What the heads' files hold."""
    values: tuple[SettingValue, ...] = ()
    """Such as `length` and `ngram`; none where the tree says all."""

    def __post_init__(self) -> None:
        if self.name not in DRAFTERS:
            raise InvalidValueError(f"drafter: expected one of {', '.join(DRAFTERS)}. Got {self.name!r:.40}.")
        names = [each.name for each in self.values]
        if names != sorted(set(names)):
            raise InvalidValueError(f"drafter: expected settings once each, in the order of their names. Got {names}.")

    def value(self, name: str) -> int:
        """Return the number that it is set to; raises InvalidValueError where it is not said."""
        for each in self.values:
            if each.name == name:
                return each.value
        raise InvalidValueError(f"drafter: expected the setting {name} of {self.name}. Got none: plan again.")
