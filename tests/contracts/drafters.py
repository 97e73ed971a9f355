"""Every drafter by name: the arguments of `Decoder` after the target, for any pair of models."""

import re
import runpy
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch

from tests.runtime.learning.toy import FAST
from tests.support import dflash_heads, eagle_heads
from tests.support.slow import parameter
from treeopt.runtime import Sampling, Transformer
from treeopt.runtime.drafters.dflash import DDTreeDrafter, DFlashDrafter, load_dflash
from treeopt.runtime.drafters.eagle import PEagleDrafter, load_eagle, load_p_eagle
from treeopt.runtime.drafters.expanding_drafter import ExpandingDrafter
from treeopt.runtime.drafters.lookahead import LookaheadDrafter
from treeopt.runtime.drafters.medusa import MedusaDrafter, MedusaHeads
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.runtime.drafters.redrafter import RedrafterDrafter, RedrafterHead
from treeopt.runtime.drafters.static_tree import StaticTreeDrafter
from treeopt.runtime.learning.learner import Learner
from treeopt.runtime.models.linear import Linear
from treeopt.runtime.models.trainable import copy_model
from treeopt.runtime.rules.rule import RULES
from treeopt.trees import chain, k_ary, level_widths
from treeopt.trees.drafter_parameters import DDTreeSetting, DynamicTree, SpecExecSetting

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "add-a-drafter.md"


class Case(NamedTuple):
    """A drafter."""

    make: Callable[[Transformer, Transformer], tuple[Any, ...]]
    """From target and draft model to the arguments of `Decoder` after the target."""
    options: Mapping[str, Any] = MappingProxyType({})
    own_models: bool = True
    """Whether drafting runs passes other than the target's."""
    history: bool = False
    """Whether drafts depend on the earlier steps, not on the sequence alone."""
    learns: bool = False
    """Whether the draft model learns while decoding, so that sampled outputs depend on earlier ones."""

    def arguments(self, target, draft):
        """Return the positional arguments of `Decoder` after the target, and its options; a draft that learns is a copy."""
        if not self.learns:
            return self.make(target, draft), self.options
        own = copy_model(draft)
        return self.make(target, own), {**self.options, "on_step": Learner(own, FAST)}


def independent(name, temperature):
    """Return a temperature at which outputs depend on prompt and seed alone: 0 if the draft learns."""
    return 0.0 if CASES[name].learns else temperature


def page_drafter(length):
    """Return the drafter that docs/guides/add-a-drafter.md walks through."""
    file, *_ = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    with tempfile.NamedTemporaryFile("w", suffix=".py", encoding="utf-8") as module:
        module.write(file)
        module.flush()
        return runpy.run_path(module.name)["RepeatDrafter"](length)


def medusa(target, tree, *, second_bias=0.0):
    """Return a drafter with random heads; `second_bias` is added to a bias of the second."""
    size, generator = target.config.hidden, torch.Generator().manual_seed(0)
    weight, bias = 0.3 * torch.randn(3, size, size, generator=generator), torch.randn(3, size, generator=generator)
    bias[1, 0] += second_bias
    return MedusaDrafter(MedusaHeads(target, weight.to(target.device), bias.to(target.device)), tree)


def block_head(target, *, markov=False, **changes):
    """Return a random DFlash head that reads the embedding and the first layer's output."""
    config, tensors = dflash_heads.z_lab(dflash_heads.make_oracle(target.config, seed=0))
    config |= {"vocab_size": target.config.vocabulary, **changes}
    config["dflash_config"] |= {"mask_token_id": 0, "target_layer_ids": [-1, 0]}
    if markov:
        config, tensors = dflash_heads.add_markov(config, tensors)
    with tempfile.TemporaryDirectory() as folder:
        return load_dflash(dflash_heads.save(Path(folder) / "head", config, tensors), target)


def dflash(target, tree, *, cuda_graphs=None, **changes):
    capacity = target.config.max_positions
    return DFlashDrafter(block_head(target, **changes), tree, capacity=capacity, cuda_graphs=cuda_graphs)


def ddtree(target, budget, *, cuda_graphs=None, **changes):
    setting, capacity = DDTreeSetting(budget=budget), target.config.max_positions
    return DDTreeDrafter(block_head(target, **changes), setting, capacity=capacity, cuda_graphs=cuda_graphs)


def redrafter(target, width, length):
    size, generator = target.config.hidden, torch.Generator().manual_seed(4)
    products = [Linear((torch.randn((size, size), generator=generator) / 10).to(target.device)) for _ in range(4)]
    bias = torch.zeros(size, device=target.device)
    head = RedrafterHead(
        target=target,
        recurrence=Linear(products[0].weight, bias),
        token=products[1],
        from_hidden=Linear(products[2].weight, bias),
        from_state=products[3],
        blocks=(),
    )
    return RedrafterDrafter(head, width, length)


def eagle(layout, target, **options):
    """Return a random head that was saved in a layout."""
    made = eagle_heads.make_head(target, **{"layer_ids": (1, 1), "seed": 3, **options})
    with tempfile.TemporaryDirectory() as folder:
        layer_ids = made.layer_ids if layout is eagle_heads.safeailab else None
        return load_eagle(eagle_heads.save_head(layout, Path(folder), made, target), target, layer_ids=layer_ids)


def eagle_static(layout, target, tree, **options):
    return StaticTreeDrafter(eagle(layout, target, **options), tree, capacity=target.config.max_positions)


def eagle_sampled(target, tree):
    head = eagle(eagle_heads.safeailab, target, ids=range(target.config.vocabulary - 1))
    return StaticTreeDrafter(
        head, tree, capacity=target.config.max_positions, rule=RULES["sequoia"], sampling=Sampling(1.0)
    )


def p_eagle(target, tree, **options):
    made = eagle_heads.make_head(target, layer_ids=(0, 1), seed=3, layers=2, mask=True, **options)
    with tempfile.TemporaryDirectory() as folder:
        saved = eagle_heads.save_head(eagle_heads.speculators_p_eagle, Path(folder), made, target)
        return PEagleDrafter(load_p_eagle(saved, target), tree, capacity=target.config.max_positions)


def eagle_dynamic(layout, target, **options):
    tree = DynamicTree(top_k=2, depth=3, nodes=6)
    return ExpandingDrafter(eagle(layout, target, **options), tree, capacity=target.config.max_positions)


def best_first(draft):
    setting = SpecExecSetting(budget=6, branching=2, batch=2, max_passes=3)
    return ExpandingDrafter(draft, setting, capacity=draft.config.max_positions)


def dynamic(draft):
    return ExpandingDrafter(draft, DynamicTree(top_k=2, depth=3, nodes=6), capacity=draft.config.max_positions)


TREE = level_widths([2, 2])
CASES = {
    "plain": Case(lambda *_: (None,), own_models=False),
    "static tree": Case(lambda _, draft: (draft, TREE)),
    "static tree, specinfer": Case(lambda _, draft: (draft, TREE), {"rule": "specinfer"}),
    "static tree, target": Case(lambda _, draft: (draft, TREE), {"rule": "target"}),
    "static tree, traversal": Case(lambda _, draft: (draft, k_ary(2, 2)), {"rule": "traversal"}),
    "static chain as graphs": Case(lambda _, draft: (draft, chain(3)), {"cuda_graphs": True}),
    "dynamic tree": Case(lambda _, draft: (dynamic(draft),)),
    "best first": Case(lambda _, draft: (best_first(draft),)),
    "static tree that learns": Case(lambda _, draft: (draft, TREE), {"rule": "sequoia"}, history=True, learns=True),
    "chain that learns, specinfer": Case(
        lambda _, draft: (draft, chain(3)), {"rule": "specinfer"}, history=True, learns=True
    ),
    "dynamic tree that learns": Case(lambda _, draft: (dynamic(draft),), {"rule": "target"}, history=True, learns=True),
    "medusa": Case(lambda target, _: (medusa(target, TREE),)),
    "medusa as graphs": Case(lambda target, _: (medusa(target, TREE),), {"cuda_graphs": True}),
    "dflash": Case(lambda target, _: (dflash(target, TREE),)),
    "dspark, causal and shifted": Case(
        lambda target, _: (
            dflash(
                target,
                level_widths([2, 3, 2, 1, 1]),
                cuda_graphs=True,
                markov=True,
                causal_head=True,
                shift_label=True,
            ),
        ),
        {"cuda_graphs": True},
    ),
    "ddtree": Case(lambda target, _: (ddtree(target, 9),)),
    "ddtree as graphs": Case(
        lambda target, _: (ddtree(target, 5, cuda_graphs=True, causal_head=True),), {"cuda_graphs": True}
    ),
    "redrafter": Case(lambda target, _: (redrafter(target, 2, 3),)),
    "eagle": Case(lambda target, _: (eagle_static(eagle_heads.safeailab, target, TREE, ids=(0, 2, 3, 4)),)),
    "eagle, sampled": Case(lambda target, _: (eagle_sampled(target, TREE),), {"rule": "sequoia"}, history=True),
    "eagle of speculators": Case(
        lambda target, _: (eagle_static(eagle_heads.speculators, target, chain(3), norm_before_residual=True),)
    ),
    "eagle, dynamic": Case(lambda target, _: (eagle_dynamic(eagle_heads.model_optimizer, target, ids=(0, 1, 3, 4)),)),
    "eagle-2": Case(lambda target, _: (eagle_dynamic(eagle_heads.eagle1, target, layer_ids=(), eagle1=True, seed=2),)),
    "eagle as graphs": Case(
        lambda target, _: (eagle_static(eagle_heads.specforge, target, TREE, norm_output=True),), {"cuda_graphs": True}
    ),
    "p-eagle": Case(lambda target, _: (p_eagle(target, TREE, ids=(0, 1, 3, 4)),)),
    "lookahead": Case(lambda *_: (LookaheadDrafter(2, 3, 3),), own_models=False, history=True),
    "prompt lookup": Case(lambda *_: (PromptLookupDrafter(2, 3),), own_models=False),
    "prompt lookup as graphs": Case(lambda *_: (PromptLookupDrafter(2, 3),), {"cuda_graphs": True}, own_models=False),
    "of the page": Case(lambda *_: (page_drafter(3),), own_models=False),
}
VARIANTS = {
    "static tree, specinfer",
    "static tree, target",
    "static tree, traversal",
    "chain that learns, specinfer",
    "dynamic tree that learns",
    "medusa as graphs",
    "ddtree as graphs",
    "eagle as graphs",
    "eagle of speculators",
    "eagle-2",
    "prompt lookup as graphs",
}
"""Cases whose drafter is also in another case, with another rule, tree or layout, or without graphs."""


def one_case_per_drafter(included: Callable[[Case], bool] = lambda _: True) -> list[Any]:
    """Return the names of cases as parameters; variants are marked slow."""
    return [
        parameter(name, *([pytest.mark.slow] if name in VARIANTS else []))
        for name, case in CASES.items()
        if included(case)
    ]
