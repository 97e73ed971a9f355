"""Drafters by name: their heads loaded once, and then made with any setting or tree."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from treeopt import bundled as bundle
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.files.json_file import read_object
from treeopt.runtime.drafters.drafted_nodes import ExpansionPolicy
from treeopt.runtime.drafters.drafter import Drafter
from treeopt.runtime.drafters.expanding_drafter import ExpandingDrafter
from treeopt.runtime.drafters.lookahead import LookaheadDrafter
from treeopt.runtime.drafters.medusa import MedusaDrafter, load_medusa
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.runtime.drafters.redrafter import RedrafterDrafter, load_redrafter
from treeopt.runtime.models.digest import model_digest
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.hub import model_folder
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.transformer import Transformer
from treeopt.trees import TokenTree
from treeopt.trees.drafter_setting import TREES, DrafterSetting, SettingValue
from treeopt.trees.dynamic_tree import DynamicTree

HEAD_FILES = ("*.json", "*.safetensors", "*.bin")
"""What is downloaded of heads on the hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDrafter:
    """A drafter that can be made with any of its settings."""

    name: str
    source: str | None
    digest: str | None
    layers: tuple[int, ...] = ()
    """These three as in `DrafterSetting`."""
    target: LanguageModel
    draft: LanguageModel | None
    """The draft model, which `eagle2` without a head and `specexec` expand."""
    heads: Any
    """Of the target, of the kind that the name says; None where it has none."""
    capacity: int
    """Longest text."""

    def setting(self, values: tuple[SettingValue, ...] = ()) -> DrafterSetting:
        """Return the drafter with its numbers, as plans and files name it."""
        return DrafterSetting(name=self.name, source=self.source, digest=self.digest, layers=self.layers, values=values)

    def filling(self, tree: TokenTree) -> Drafter:
        """Return the drafter that fills a static tree; raises InvalidValueError for one that it cannot."""
        if self.name not in TREES:
            raise InvalidValueError(
                f"drafter: expected one that fills a tree. Got {self.name}: it brings its own.", field="drafter"
            )
        return KINDS[self.name].make(self, tree)

    def set_to(self, setting: DrafterSetting) -> Drafter:
        """Return the drafter with trees of its own as it is set; raises InvalidValueError for numbers out of range."""
        return KINDS[self.name].make(self, setting.record)


class Kind(NamedTuple):
    """How drafters of one name are made."""

    make: Callable[[LoadedDrafter, Any], Drafter]
    """From the static tree that is filled, or from the record of `treeopt.trees.drafter_setting.RECORDS`."""
    load: Callable[[Path, Transformer, tuple[int, ...]], Any] | None = None
    """Loads heads from a folder, for a target, that read some layers; None for a drafter without heads."""
    bundled: str | None = None
    """Name in `treeopt.bundled` of the folder of the heads that ship."""


def _load_eagle(folder: Path, target: Transformer, layers: tuple[int, ...]) -> Any:
    from treeopt.runtime.drafters.eagle import load_eagle

    return load_eagle(folder, target, taps=layers or None)


def _eagle(loaded: LoadedDrafter, tree: TokenTree) -> Drafter:
    from treeopt.runtime.drafters.eagle import EagleDrafter

    return EagleDrafter(loaded.heads, tree, capacity=loaded.capacity)


def _load_dflash(folder: Path, target: Transformer, _: tuple[int, ...]) -> Any:
    from treeopt.runtime.drafters.dflash import load_dflash

    return load_dflash(folder, target)


def _dflash(loaded: LoadedDrafter, tree: TokenTree) -> Drafter:
    from treeopt.runtime.drafters.dflash import DFlashDrafter

    return DFlashDrafter(loaded.heads, tree, capacity=loaded.capacity)


def _expanding(loaded: LoadedDrafter, policy: ExpansionPolicy) -> Drafter:
    if loaded.heads is None:
        assert loaded.draft is not None  # loaded with one
        return ExpandingDrafter(loaded.draft, policy, capacity=loaded.capacity)
    from treeopt.runtime.drafters.eagle import EagleDynamicDrafter

    assert isinstance(policy, DynamicTree)  # only `eagle2` grows trees with a head
    return EagleDynamicDrafter(loaded.heads, policy, capacity=loaded.capacity)


KINDS = {
    "medusa": Kind(
        lambda loaded, tree: MedusaDrafter(loaded.heads, tree),
        load=lambda folder, target, _: load_medusa(folder, target),
        bundled="MEDUSA",
    ),
    "dflash": Kind(_dflash, load=_load_dflash, bundled="DFLASH"),
    "redrafter": Kind(
        lambda loaded, numbers: RedrafterDrafter(loaded.heads, numbers.width, numbers.length),
        load=lambda folder, target, _: load_redrafter(folder, target),
        bundled="REDRAFTER",
    ),
    "eagle": Kind(_eagle, load=_load_eagle, bundled="EAGLE"),
    "eagle2": Kind(_expanding, load=_load_eagle),
    "specexec": Kind(_expanding),
    "lookahead": Kind(lambda _, numbers: LookaheadDrafter(numbers.window, numbers.ngram, numbers.candidates)),
    "prompt-lookup": Kind(lambda _, numbers: PromptLookupDrafter(numbers.ngram, numbers.length)),
}
"""The drafters of `treeopt.trees.drafter_setting.RECORDS` but the draft model that fills a static tree."""


def load_drafter(
    name: str,
    source: str | None,
    target: LanguageModel,
    draft: LanguageModel | None,
    *,
    layers: tuple[int, ...] = (),
    target_digest: str | None,
    capacity: int,
) -> LoadedDrafter:
    """Load the heads of a drafter, where it has some.

    Args:
        name: as in `DRAFTERS`.
        source: the folder of its heads, or their name on the Hugging Face hub; None for those that ship, and where it has none.
        target: the model that verifies.
        draft: the draft model, which `eagle2` and `specexec` expand.
        layers: boundaries that an EAGLE head reads; by default those of its configuration.
        target_digest: what the target is known by: the heads that ship fit the bundled one only.
        capacity: longest text.

    Raises InfeasibleError for heads that ship where the target is another, for a target without hidden states, and for
    a drafter that expands a draft model where there is none, TreeoptError where the folder does not hold heads of this target.
    """
    kind, heads, digest = KINDS[name], None, None
    if draft is None and DrafterSetting(name=name, source=source).expands_draft_model:
        raise InfeasibleError(
            f"{name}: expected a draft model, which it expands. Got none: add --draft MODEL, or choose a drafter that "
            "needs none, such as prompt-lookup."
        )
    if kind.load is not None and (source is not None or kind.bundled is not None):
        folder = bundled_heads(name, target, target_digest) if source is None else source
        if not isinstance(target, Transformer):
            raise InfeasibleError(
                f"heads: expected a target that is built in, because they read its hidden states. Got {target.name}: "
                "choose a drafter without heads.",
                field="heads",
            )
        load = kind.load
        heads, digest = model_folder(
            folder, lambda folder: (load(folder, target, layers), heads_digest(folder)), HEAD_FILES
        )
    return LoadedDrafter(
        name=name,
        source=source,
        digest=digest,
        layers=layers,
        target=target,
        draft=draft,
        heads=heads,
        capacity=capacity,
    )


def bundled_heads(name: str, target: LanguageModel, target_digest: str | None) -> Path:
    """Return the folder of the heads that ship; raises InfeasibleError where they are of another target."""
    folder = getattr(bundle, KINDS[name].bundled or "", None)
    if folder is None or target_digest != ModelFolder(bundle.TARGET).digest:
        raise InfeasibleError(
            f"heads: those that ship are the bundled target's. Got {target.name}: give heads of your own with "
            f"--drafter {name}=DIR, or do without.",
            field="heads",
        )
    return Path(folder)


def heads_digest(folder: Path) -> str:
    """Return what heads are known by wherever they lie; see `treeopt.runtime.models.digest`."""
    weights = [file for file in folder.iterdir() if file.suffix in (".safetensors", ".bin")]
    return model_digest(read_object(folder / "config.json"), weights)
