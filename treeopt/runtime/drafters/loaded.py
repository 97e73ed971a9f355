"""Drafters by name: their heads loaded once, and then made with any setting or tree."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from treeopt import bundled as bundle
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.files.json_file import read_object
from treeopt.runtime.drafters.best_first import SpecExecDrafter
from treeopt.runtime.drafters.drafter import Drafter
from treeopt.runtime.drafters.dynamic_tree import DynamicDrafter
from treeopt.runtime.drafters.lookahead import LookaheadDrafter
from treeopt.runtime.drafters.medusa import MedusaDrafter, load_medusa
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.runtime.drafters.redrafter import RedrafterDrafter, load_redrafter
from treeopt.runtime.models.digest import model_digest
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.transformer import Transformer
from treeopt.trees import TokenTree
from treeopt.trees.drafter_setting import DrafterSetting, SettingValue
from treeopt.trees.dynamic_tree import DynamicTree
from treeopt.trees.specexec import SpecExecSetting

BUNDLED = {"medusa": "MEDUSA", "redrafter": "REDRAFTER", "eagle": "EAGLE"}
"""The folders of heads that ship, by their names in `treeopt.bundled`."""


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
        if self.name == "medusa":
            return MedusaDrafter(self.heads, tree)
        if self.name == "eagle":
            from treeopt.runtime.drafters.eagle import EagleDrafter

            filled: Drafter = EagleDrafter(self.heads, tree, capacity=self.capacity)
            return filled
        raise InvalidValueError(
            f"drafter: expected one that fills a tree. Got {self.name}: it brings its own.", field="drafter"
        )

    def set_to(self, setting: DrafterSetting) -> Drafter:
        """Return the drafter with trees of its own as it is set; raises InvalidValueError for numbers out of range."""
        of = setting.value
        if self.name == "redrafter":
            return RedrafterDrafter(self.heads, of("width"), of("length"))
        if self.name == "lookahead":
            return LookaheadDrafter(of("window"), of("ngram"), of("candidates"))
        if self.name == "prompt-lookup":
            return PromptLookupDrafter(of("ngram"), of("length"))
        if self.name == "specexec":
            names = ("budget", "branching", "batch", "max_passes")
            limits = SpecExecSetting(**{name: of(name) for name in names})
            assert self.draft is not None  # loaded with one
            return SpecExecDrafter(self.draft, limits, capacity=self.capacity)
        if self.name == "eagle2":
            tree = DynamicTree(top_k=of("top_k"), depth=of("depth"), nodes=of("nodes"))
            return self._dynamic(tree)
        raise InvalidValueError(
            f"drafter: expected one with trees of its own. Got {self.name}: it fills a tree.", field="drafter"
        )

    def _dynamic(self, tree: DynamicTree) -> Drafter:
        if self.heads is None:
            assert self.draft is not None  # loaded with one
            return DynamicDrafter(self.draft, tree, capacity=self.capacity)
        from treeopt.runtime.drafters.eagle import EagleDynamicDrafter

        dynamic: Drafter = EagleDynamicDrafter(self.heads, tree, capacity=self.capacity)
        return dynamic


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
        source: the folder of its heads; None for those that ship, and where it has none.
        target: the model that verifies.
        draft: the draft model, which `eagle2` and `specexec` expand.
        layers: boundaries that an EAGLE head reads; by default those of its configuration.
        target_digest: what the target is known by: the heads that ship fit the bundled one only.
        capacity: longest text.

    Raises InfeasibleError for heads that ship where the target is another, for a target without hidden states, and for
    a drafter that expands a draft model where there is none, TreeoptError where the folder does not hold heads of this target.
    """
    heads, digest = None, None
    if draft is None and DrafterSetting(name=name, source=source).expands_draft_model:
        raise InfeasibleError(
            f"{name}: expected a draft model, which it expands. Got none: add --draft MODEL, or choose a drafter that "
            "needs none, such as prompt-lookup."
        )
    if source is not None or name in BUNDLED:
        folder = bundled_heads(name, target, target_digest) if source is None else Path(source)
        heads, digest = _load(name, folder, target, layers), heads_digest(folder)
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
    folder = getattr(bundle, BUNDLED[name], None)
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


def _load(name: str, folder: Path, target: LanguageModel, layers: tuple[int, ...]) -> Any:
    if not isinstance(target, Transformer):
        raise InfeasibleError(
            f"heads: expected a target that is built in, because they read its hidden states. Got {target.name}: "
            "choose a drafter without heads.",
            field="heads",
        )
    if name == "medusa":
        return load_medusa(folder, target)
    if name == "redrafter":
        return load_redrafter(folder, target)
    from treeopt.runtime.drafters.eagle import load_eagle

    return load_eagle(folder, target, taps=layers or None)
