"""A drafter and its parameters, as plans choose them and tree files contain them."""

from dataclasses import MISSING, dataclass, field, fields

from treeopt.array_record import ShortRepr
from treeopt.errors import InvalidValueError
from treeopt.files.fields import Fields
from treeopt.files.serialization import in_file
from treeopt.trees.drafter_parameters import (
    DDTreeSetting,
    DynamicTree,
    LookaheadSetting,
    PromptLookupSetting,
    RedrafterSetting,
    SpecExecSetting,
)

DrafterParameters = (
    DDTreeSetting | DynamicTree | LookaheadSetting | PromptLookupSetting | RedrafterSetting | SpecExecSetting
)
PARAMETERS: dict[str, type[DrafterParameters] | None] = {
    "model": None,
    "medusa": None,
    "dflash": None,
    "dspark": None,
    "ddtree": DDTreeSetting,
    "redrafter": RedrafterSetting,
    "eagle": None,
    "p-eagle": None,
    "eagle2": DynamicTree,
    "specexec": SpecExecSetting,
    "lookahead": LookaheadSetting,
    "prompt-lookup": PromptLookupSetting,
}
"""Parameters of every drafter that builds its own trees, by its name in `--drafter NAME`; None for a static tree."""
DRAFTERS = tuple(PARAMETERS)
"""A file without a drafter means `model`, the draft model."""
STATIC_TREE_DRAFTERS = tuple(name for name, parameters in PARAMETERS.items() if parameters is None)
"""Drafters of a static tree, which is solved from their acceptance table."""
HEAD_DRAFTERS = ("medusa", "dflash", "dspark", "ddtree", "redrafter", "eagle", "p-eagle", "eagle2")
"""Drafters with a folder of heads, `--drafter NAME=DIR`; `eagle2` without one expands the draft model."""
BLOCK_DRAFTERS = ("dflash", "dspark", "ddtree")
"""Drafters whose head predicts a block in one pass, other slots with another block size."""
MAX_VALUE = 65_536
"""Largest parameter in a file, as for the nodes of a tree file."""


SettingValues = tuple[tuple[str, int], ...]
"""Parameters and their values, sorted by name."""


def _read_values(fields: Fields, name: str) -> SettingValues:
    values = fields.mapping(name)
    return tuple((parameter, values.integer(parameter)) for parameter in values.names())


def _read_layers(fields: Fields, name: str) -> tuple[int, ...]:
    layers = fields.integers(name)
    if not layers:
        raise fields.error(name, "expected a list of at least one. Got none: leave it out.")
    return tuple(layers)


VALUES = in_file(read=_read_values, write=dict)
LAYERS = in_file(read=_read_layers)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class DrafterSetting(ShortRepr):
    """A drafter with its parameters.

    Raises InvalidValueError for an unknown name, and for parameters that are not sorted or not unique.
    """

    name: str
    source: str | None = None
    """Folder of the heads, as the user typed it; None for bundled heads and drafters without heads."""
    digest: str | None = None
    """Digest of the heads' files."""
    layers: tuple[int, ...] = field(default=(), metadata=LAYERS)
    """Hidden-state layer ids of an EAGLE head, in the order of training; empty for those of its configuration."""
    block_draft_tokens: int | None = field(default=None, metadata=in_file(least=1))
    """Draft tokens of each block of a DFlash or DSpark head; None if unknown."""
    values: SettingValues = field(default=(), metadata=VALUES)
    """Parameters such as `length` and `ngram`, from 1 to `MAX_VALUE`; empty for static trees."""

    def __post_init__(self) -> None:
        if self.name not in DRAFTERS:
            raise InvalidValueError(f"expected a drafter: {', '.join(DRAFTERS)}. Got {self.name!r:.40}.", field="name")
        names = [name for name, _ in self.values]
        if names != sorted(set(names)):
            raise InvalidValueError(
                f"expected settings once each, in the order of their names. Got {names}.", field="values"
            )

    def value(self, name: str) -> int:
        """Return the value of a parameter; raises InvalidValueError if it is missing."""
        values = dict(self.values)
        if name not in values:
            raise InvalidValueError(f"drafter: expected the setting {name} of {self.name}. Got none: plan again.")
        return values[name]

    @property
    def parameters(self) -> DrafterParameters:
        """The parameters of a drafter that builds its own trees.

        Raises InvalidValueError for a drafter of a static tree, and for a parameter that is missing or out of range.
        """
        parameters = PARAMETERS[self.name]
        if parameters is None:
            raise InvalidValueError(
                f"drafter: expected one with trees of its own. Got {self.name}: it fills a tree.", field="drafter"
            )
        return parameters(**{name: self.value(name) for name in parameter_names(self.name)})

    @property
    def eagle_head(self) -> bool:
        """Whether it has an EAGLE or P-EAGLE head, which reads the hidden states of `layers`."""
        return self.name in ("eagle", "p-eagle") or (self.name == "eagle2" and self.source is not None)

    @property
    def expands_draft_model(self) -> bool:
        return self.name in ("model", "specexec") or (self.name == "eagle2" and self.source is None)

    @property
    def builds_own_trees(self) -> bool:
        """Whether every step builds a new tree; a tree file then contains a chain of `longest_draft` tokens."""
        return self.name not in STATIC_TREE_DRAFTERS

    @property
    def longest_draft(self) -> int:
        """Most draft tokens that a step can accept; raises as `parameters` does."""
        return self.parameters.longest_draft

    @property
    def label(self) -> str:
        """Name and block size, which tell the drafters of a profile apart."""
        block = self.block_draft_tokens
        return self.name if block is None else f"{self.name}, blocks of {block}"

    @property
    def description(self) -> str:
        """Name and parameters, such as `prompt-lookup: length 8, ngram 4`."""
        return f"{self.name}: {self.parameters_text}" if self.values else self.name

    @property
    def parameters_text(self) -> str:
        """Such as `length 8, ngram 4`."""
        return ", ".join(f"{name} {value}" for name, value in self.values)


def parameter_names(drafter: str) -> tuple[str, ...]:
    """Return the names of a drafter's parameters in the order of a file.

    >>> parameter_names("prompt-lookup"), parameter_names("medusa")
    (('length', 'ngram'), ())
    """
    parameters = PARAMETERS[drafter]
    if parameters is None:
        return ()
    return tuple(sorted(parameter.name for parameter in fields(parameters) if parameter.default is MISSING))


def drafter_setting(
    name: str, *, source: str | None = None, digest: str | None = None, layers: tuple[int, ...] = (), **values: int
) -> DrafterSetting:
    """Return a drafter with its parameters; raises InvalidValueError as `DrafterSetting` does.

    >>> drafter_setting("prompt-lookup", ngram=4, length=8).description
    'prompt-lookup: length 8, ngram 4'
    """
    return DrafterSetting(name=name, source=source, digest=digest, layers=layers, values=tuple(sorted(values.items())))


def checked_setting(setting: DrafterSetting) -> DrafterSetting:
    """Return the setting if a drafter can be built from it.

    Raises InvalidValueError, with the field, for missing or unknown parameters, a folder of a drafter without heads,
    layers of a drafter without an EAGLE head, and a block size of one without a DFlash head.
    """
    expected, names = parameter_names(setting.name), tuple(name for name, _ in setting.values)
    if names != expected:
        raise InvalidValueError(
            f"expected {_list_names(expected)} of {setting.name}. Got {_list_names(names)}: plan again.", field="values"
        )
    for name, value in setting.values:
        if not 1 <= value <= MAX_VALUE:
            raise InvalidValueError(f"expected {name} from 1 to {MAX_VALUE}. Got {value}.", field="values")
    if setting.builds_own_trees and names:
        try:
            setting.parameters  # noqa: B018 - checks the values together
        except InvalidValueError as error:
            raise InvalidValueError(str(error), field="values") from None
    for name in ("source", "digest"):
        if getattr(setting, name) is not None and setting.name not in HEAD_DRAFTERS:
            raise InvalidValueError(
                f"expected none, because {setting.name} reads no folder. Got one: leave it out.", field=name
            )
    if setting.block_draft_tokens is not None and setting.name not in BLOCK_DRAFTERS:
        raise InvalidValueError(
            f"expected none, because {setting.name} drafts no blocks of a DFlash head. Got some: leave them out.",
            field="block_draft_tokens",
        )
    if setting.layers and not setting.eagle_head:
        name = "eagle2 without source" if setting.name == "eagle2" else setting.name
        raise InvalidValueError(
            f"expected none, because {name} reads no EAGLE head. Got some: leave them out.", field="layers"
        )
    layers = set(setting.layers)
    if len(layers) < len(setting.layers) or not all(0 <= layer <= MAX_VALUE for layer in layers):
        raise InvalidValueError(
            f"expected layer ids from 0 to {MAX_VALUE}, each once, as the head reads them. Got {setting.layers!s:.60}.",
            field="layers",
        )
    return setting


def _list_names(names: tuple[str, ...]) -> str:
    return f"the numbers {', '.join(names):.80}" if names else "no numbers"
