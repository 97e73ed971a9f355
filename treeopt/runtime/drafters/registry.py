"""Drafters by name: heads are loaded once, and drafters then made with any setting or tree."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from treeopt import bundled as bundle
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.files.json_file import read_object
from treeopt.runtime.drafters.dflash import DDTreeDrafter, DFlashDrafter, DFlashHead, load_dflash
from treeopt.runtime.drafters.drafter import Drafter
from treeopt.runtime.drafters.eagle import PEagleDrafter, load_eagle, load_p_eagle
from treeopt.runtime.drafters.expanding_drafter import ExpandingDrafter
from treeopt.runtime.drafters.lookahead import LookaheadDrafter
from treeopt.runtime.drafters.medusa import MedusaDrafter, load_medusa
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.runtime.drafters.redrafter import RedrafterDrafter, load_redrafter
from treeopt.runtime.drafters.static_tree import StaticTreeDrafter
from treeopt.runtime.models.folder import ModelFolder, hash_model
from treeopt.runtime.models.load import read_model_folder
from treeopt.runtime.models.model import LanguageModel
from treeopt.runtime.models.pair import ModelPair
from treeopt.runtime.models.transformer import Transformer
from treeopt.trees import TokenTree
from treeopt.trees.drafter_setting import BLOCK_DRAFTERS, STATIC_TREE_DRAFTERS, DrafterSetting

HEAD_FILES = ("*.json", "*.safetensors", "*.bin")
"""Files of heads that are downloaded from the hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDrafter:
    """The models of a drafter, from which it is made with any setting or tree."""

    setting: DrafterSetting
    """The drafter with the digest and the blocks of its heads, without values."""
    target: LanguageModel
    draft: LanguageModel | None
    """For `eagle2` without a head, and `specexec`."""
    heads: Any
    """Heads on the target, None if the drafter has none."""
    capacity: int
    cuda_graphs: bool | None = None
    """Whether passes are captured as CUDA graphs, by default on a CUDA device."""

    @property
    def name(self) -> str:
        return self.setting.name

    @property
    def label(self) -> str:
        return self.setting.label

    def with_block_of(self, draft_tokens: int | None) -> "LoadedDrafter":
        """Return the drafter with smaller blocks, or as it is for None; raises InvalidValueError for larger ones."""
        if draft_tokens is None:
            return self
        setting = replace(self.setting, block_draft_tokens=draft_tokens)
        return replace(self, setting=setting, heads=self.heads.with_levels(draft_tokens))

    def make_with_tree(self, tree: TokenTree) -> Drafter:
        """Return the drafter with a static tree; raises InvalidValueError for one that it cannot fill."""
        if self.name not in STATIC_TREE_DRAFTERS:
            raise InvalidValueError(
                f"drafter: expected one that fills a tree. Got {self.name}: it brings its own.", field="drafter"
            )
        return DRAFTER_KINDS[self.name].make(self, tree)

    def make_with_setting(self, setting: DrafterSetting) -> Drafter:
        """Return the drafter with a setting of its own trees; raises InvalidValueError for numbers out of range."""
        return DRAFTER_KINDS[self.name].make(self, setting.parameters)


class DrafterKind(NamedTuple):
    """The constructors of one kind of drafter."""

    make: Callable[[LoadedDrafter, Any], Drafter]
    """From a static tree, or from a record of `treeopt.trees.drafter_setting.PARAMETERS`."""
    load: Callable[..., Any] | None = None
    """From folder, target, and for EAGLE heads `layer_ids`, to heads; None for a drafter without heads."""
    bundled: Path | None = None


def _load_block_head(name: str, folder: Path, target: Transformer, *, markov: bool = False) -> DFlashHead:
    """Load the head of a drafter whose heads have, or do not have, a Markov head.

    Engines have other methods for the one than for the other, and DDTree needs distributions that do not change with the
    token before.
    """
    head = load_dflash(folder, target)
    if (head.markov is not None) != markov:
        expected, kind, other = ("with", "DFlash", "dflash") if markov else ("without", "DSpark", "dspark")
        raise InfeasibleError(
            f"{name}: expected a head {expected} a Markov head. Got a {kind} head, {folder}: draft static trees with "
            f"--drafter {other}=DIR.",
            field="heads",
        )
    return head


def _with_caches(drafter: Callable[..., Drafter]) -> Callable[[LoadedDrafter, Any], Drafter]:
    """Return the constructor of a drafter with caches, from its class."""

    def make(loaded: LoadedDrafter, setting: Any) -> Drafter:
        model = loaded.draft if loaded.heads is None else loaded.heads
        return drafter(model, setting, capacity=loaded.capacity, cuda_graphs=loaded.cuda_graphs)

    return make


DRAFTER_KINDS = {
    "medusa": DrafterKind(
        lambda loaded, tree: MedusaDrafter(loaded.heads, tree),
        load=load_medusa,
        bundled=bundle.MEDUSA,
    ),
    "dflash": DrafterKind(_with_caches(DFlashDrafter), load=partial(_load_block_head, "dflash"), bundled=bundle.DFLASH),
    "dspark": DrafterKind(_with_caches(DFlashDrafter), load=partial(_load_block_head, "dspark", markov=True)),
    "ddtree": DrafterKind(_with_caches(DDTreeDrafter), load=partial(_load_block_head, "ddtree"), bundled=bundle.DFLASH),
    "redrafter": DrafterKind(
        lambda loaded, setting: RedrafterDrafter(loaded.heads, setting.width, setting.length),
        load=load_redrafter,
        bundled=bundle.REDRAFTER,
    ),
    "eagle": DrafterKind(_with_caches(StaticTreeDrafter), load=load_eagle, bundled=bundle.EAGLE),
    "p-eagle": DrafterKind(_with_caches(PEagleDrafter), load=load_p_eagle),
    "eagle2": DrafterKind(_with_caches(ExpandingDrafter), load=load_eagle),
    "specexec": DrafterKind(_with_caches(ExpandingDrafter)),
    "lookahead": DrafterKind(lambda _, setting: LookaheadDrafter(setting.window, setting.ngram, setting.candidates)),
    "prompt-lookup": DrafterKind(lambda _, setting: PromptLookupDrafter(setting.ngram, setting.length)),
}
"""The drafters of `treeopt.trees.drafter_setting.PARAMETERS`, except a draft model with a static tree."""


def load_drafter(
    setting: DrafterSetting, models: ModelPair, *, capacity: int | None = None, cuda_graphs: bool | None = None
) -> LoadedDrafter:
    """Load the heads of a drafter, if it has any.

    All of the setting but its digest and values is used.  The capacity, the longest sequence, is by default the
    target's.

    Raises InfeasibleError for bundled heads with another target, for a target without hidden states, and for a drafter
    that needs a draft model without one, InvalidValueError for larger blocks than the head was trained for,
    TreeoptError if the folder does not contain heads of this target.
    """
    name, target, load = setting.name, models.target, DRAFTER_KINDS[setting.name].load
    heads: Any = None
    digest = None
    if models.draft is None and setting.expands_draft_model:
        raise InfeasibleError(
            f"{name}: expected a draft model, which it expands. Got none: add --draft MODEL, or choose a drafter that "
            "needs none, such as prompt-lookup."
        )
    if load is not None and not setting.expands_draft_model:
        folder = find_bundled_heads(name, models) if setting.source is None else setting.source
        if not isinstance(target, Transformer):
            raise InfeasibleError(
                f"heads: expected a target that is built in, because they read its hidden states. Got {target.name}: "
                "choose a drafter without heads.",
                field="heads",
            )
        if setting.layers and setting.eagle_head:
            load = partial(load, layer_ids=setting.layers)
        heads, digest = read_model_folder(
            folder, lambda folder: (load(folder, target), digest_heads(folder)), HEAD_FILES
        )
    loaded = LoadedDrafter(
        setting=replace(
            setting,
            digest=digest,
            block_draft_tokens=heads.levels if name in BLOCK_DRAFTERS else None,
            values=(),
        ),
        target=target,
        draft=models.draft,
        heads=heads,
        capacity=target.config.max_positions if capacity is None else capacity,
        cuda_graphs=cuda_graphs,
    )
    return loaded.with_block_of(setting.block_draft_tokens)


def find_bundled_heads(name: str, models: ModelPair) -> Path:
    """Return the folder of the bundled heads; raises InfeasibleError if there are none for the drafter and target."""
    folder = DRAFTER_KINDS[name].bundled
    if folder is None:
        raise InfeasibleError(
            f"heads: expected a folder, because none ship for {name}. Got none: add it with --drafter {name}=DIR.",
            field="heads",
        )
    if models.described.target_digest != ModelFolder(bundle.TARGET).digest:
        raise InfeasibleError(
            f"heads: those that ship are the bundled target's. Got {models.target.name}: give heads of your own with "
            f"--drafter {name}=DIR, or do without.",
            field="heads",
        )
    return folder


def digest_heads(folder: Path) -> str:
    weights = [file for file in folder.iterdir() if file.suffix in (".safetensors", ".bin")]
    return hash_model(read_object(folder / "config.json"), weights)
