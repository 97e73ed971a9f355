"""A drafter and its parameters, as a plan chooses and a tree file names them."""

from dataclasses import MISSING, dataclass, field
from dataclasses import fields as fields_of

from treeopt.array_record import ShortRepr
from treeopt.errors import InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.record_form import in_file
from treeopt.trees.dynamic_tree import DynamicTree
from treeopt.trees.own_trees import LookaheadSetting, PromptLookupSetting, RedrafterSetting, SpecExecSetting

OwnTrees = DynamicTree | LookaheadSetting | PromptLookupSetting | RedrafterSetting | SpecExecSetting
"""Parameters of drafters that build their own trees; the others are fully described by the tree."""
RECORDS: dict[str, type[OwnTrees] | None] = {
    "model": None,
    "medusa": None,
    "dflash": None,
    "redrafter": RedrafterSetting,
    "eagle": None,
    "eagle2": DynamicTree,
    "specexec": SpecExecSetting,
    "lookahead": LookaheadSetting,
    "prompt-lookup": PromptLookupSetting,
}
"""Parameter record of every drafter by its name in `--drafter NAME`; None for drafters of a static tree."""
DRAFTERS = tuple(RECORDS)
"""All names; a file without a drafter means `model`, the draft model."""
TREES = tuple(name for name, record in RECORDS.items() if record is None)
"""Drafters of a static tree, which is solved from their acceptance table."""
FROM_FOLDER = ("medusa", "dflash", "redrafter", "eagle", "eagle2")
"""Drafters that may name a folder, `--drafter NAME=DIR`: `eagle2` without one expands the draft model."""
MAX_VALUE = 65_536
"""Largest parameter in a file, as for the nodes of a tree file."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class SettingValue(ShortRepr):
    """A parameter and its value."""

    name: str
    value: int


def _read_values(fields: Fields, name: str) -> tuple[SettingValue, ...]:
    given = fields.mapping(name)
    return tuple(SettingValue(name=each, value=given.integer(each)) for each in given.names())


def _written_values(values: tuple[SettingValue, ...]) -> dict[str, int]:
    return {each.name: each.value for each in values}


def _read_layers(fields: Fields, name: str) -> tuple[int, ...]:
    if found := fields.integers(name):
        return tuple(found)
    raise fields.error(name, "expected a list of at least one. Got none: leave it out.")


LAYERS = in_file(read=_read_layers)
"""File form of `layers`."""


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class DrafterSetting(ShortRepr):
    """A drafter with its setting.

    Raises InvalidValueError for an unknown name, or settings that are not each once in the order of their names.
    """

    name: str
    source: str | None = None
    """Folder of the heads, as the user typed it; None for bundled heads and drafters without heads."""
    digest: str | None = None
    """Digest of the heads' files."""
    layers: tuple[int, ...] = field(default=(), metadata=LAYERS)
    """Hidden-state layer ids of an EAGLE head, in the order of training; empty for those of its configuration."""
    values: tuple[SettingValue, ...] = field(default=(), metadata=in_file(read=_read_values, write=_written_values))
    """Parameters such as `length` and `ngram`, from 1 to `MAX_VALUE`; empty for static trees."""

    def __post_init__(self) -> None:
        if self.name not in DRAFTERS:
            raise InvalidValueError(f"expected a drafter: {', '.join(DRAFTERS)}. Got {self.name!r:.40}.", field="name")
        names = [each.name for each in self.values]
        if names != sorted(set(names)):
            raise InvalidValueError(
                f"expected settings once each, in the order of their names. Got {names}.", field="values"
            )

    def value(self, name: str) -> int:
        """Return the value of a parameter; raises InvalidValueError if it is missing."""
        for each in self.values:
            if each.name == name:
                return each.value
        raise InvalidValueError(f"drafter: expected the setting {name} of {self.name}. Got none: plan again.")

    @property
    def eagle_head(self) -> bool:
        """Whether an EAGLE head drafts."""
        return self.name == "eagle" or (self.name == "eagle2" and self.source is not None)

    @property
    def expands_draft_model(self) -> bool:
        """Whether the draft model drafts."""
        return self.name in ("model", "specexec") or (self.name == "eagle2" and self.source is None)

    @property
    def own_trees(self) -> bool:
        """Whether the drafter builds its own trees, so that the tree of a file is a stand-in."""
        return self.name not in TREES

    @property
    def longest_draft(self) -> int:
        """Most draft tokens that a step can accept, the length of the stand-in chain, for drafters with their own trees.

        Raises as `record` does.
        """
        return self.record.longest_draft

    @property
    def record(self) -> OwnTrees:
        """The parameters of a drafter with its own trees.

        Raises InvalidValueError for a drafter of a static tree, for a missing parameter, and for one out of range.
        """
        record = RECORDS[self.name]
        if record is None:
            raise InvalidValueError(
                f"drafter: expected one with trees of its own. Got {self.name}: it fills a tree.", field="drafter"
            )
        return record(**{name: self.value(name) for name in number_names(self.name)})

    @property
    def words(self) -> str:
        """Name and numbers, such as `prompt-lookup: length 8, ngram 4`."""
        return f"{self.name}: {self.parameters_text}" if self.values else self.name

    @property
    def parameters_text(self) -> str:
        """The numbers alone, such as `length 8, ngram 4`."""
        return ", ".join(f"{each.name} {each.value}" for each in self.values)


def number_names(name: str) -> tuple[str, ...]:
    """Return the names of a drafter's parameters in the order of a file.

    >>> number_names("prompt-lookup"), number_names("medusa")
    (('length', 'ngram'), ())
    """
    record = RECORDS[name]
    return () if record is None else tuple(sorted(each.name for each in fields_of(record) if each.default is MISSING))


def drafter_setting(
    name: str, *, source: str | None = None, digest: str | None = None, layers: tuple[int, ...] = (), **values: int
) -> DrafterSetting:
    """Return a drafter with its parameters; raises InvalidValueError as `DrafterSetting` does.

    >>> drafter_setting("prompt-lookup", ngram=4, length=8).words
    'prompt-lookup: length 8, ngram 4'
    """
    numbers = tuple(SettingValue(name=each, value=values[each]) for each in sorted(values))
    return DrafterSetting(name=name, source=source, digest=digest, layers=layers, values=numbers)


def checked_setting(setting: DrafterSetting) -> DrafterSetting:
    """Return the setting if a drafter can be made of it.

    Raises InvalidValueError, with the field, for missing or unknown parameters, a folder of a drafter without heads, and
    layers of a drafter without an EAGLE head.
    """
    wanted, names = number_names(setting.name), tuple(each.name for each in setting.values)
    if names != wanted:
        raise InvalidValueError(
            f"expected {_listed(wanted)} of {setting.name}. Got {_listed(names)}: plan again.", field="values"
        )
    for each in setting.values:
        if not 1 <= each.value <= MAX_VALUE:
            raise InvalidValueError(f"expected {each.name} from 1 to {MAX_VALUE}. Got {each.value}.", field="values")
    for name in ("source", "digest"):
        if getattr(setting, name) is not None and setting.name not in FROM_FOLDER:
            raise InvalidValueError(
                f"expected none, because {setting.name} reads no folder. Got one: leave it out.", field=name
            )
    _check_layers(setting)
    return setting


def _check_layers(setting: DrafterSetting) -> None:
    layers = setting.layers
    if layers and not setting.eagle_head:
        name = "eagle2 without source" if setting.name == "eagle2" else setting.name
        raise InvalidValueError(
            f"expected none, because {name} reads no EAGLE head. Got some: leave them out.", field="layers"
        )
    if len(set(layers)) < len(layers) or not all(0 <= each <= MAX_VALUE for each in layers):
        raise InvalidValueError(
            f"expected boundaries from 0 to {MAX_VALUE}, each once, as the head reads them. Got {layers!s:.60}.",
            field="layers",
        )


def _listed(names: tuple[str, ...]) -> str:
    return f"the numbers {', '.join(names):.80}" if names else "no numbers"
