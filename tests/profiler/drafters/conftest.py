"""Every drafter on a small target, with random heads."""

import pytest
import torch

from tests.support.dflash_heads import add_markov, make_oracle, save, z_lab
from tests.support.eagle_heads import make_head, save_head, speculators, speculators_p_eagle
from treeopt.profiler.drafters import decoded_settings
from treeopt.runtime.drafters.dflash import load_dflash
from treeopt.runtime.drafters.eagle import load_eagle, load_p_eagle
from treeopt.runtime.drafters.medusa import MedusaHeads
from treeopt.runtime.drafters.redrafter import RedrafterHead
from treeopt.runtime.drafters.registry import LoadedDrafter
from treeopt.runtime.models.linear import Linear
from treeopt.trees.drafter_setting import BLOCK_DRAFTERS, DrafterSetting


@pytest.fixture
def few_trials(monkeypatch):
    """Rank candidates on few tokens."""
    monkeypatch.setattr(decoded_settings, "TRIAL_PROMPTS", 1)
    monkeypatch.setattr(decoded_settings, "TRIAL_POSITIONS", 4)


@pytest.fixture(scope="session")
def heads(target, tmp_path_factory):
    """Return random heads on the target by the names of drafters."""
    size, noise = target.config.hidden, torch.Generator().manual_seed(0)

    def random(*shape):
        return 0.4 * torch.randn(shape, generator=noise)

    config, tensors = z_lab(make_oracle(target.config))
    config["dflash_config"]["target_layer_ids"] = [-1, 0]
    block = load_dflash(save(tmp_path_factory.mktemp("dflash") / "head", config, tensors), target)
    dspark = load_dflash(save(tmp_path_factory.mktemp("dspark") / "head", *add_markov(config, tensors)), target)
    folder = save_head(speculators, tmp_path_factory.mktemp("eagle"), make_head(target, (0, 1)), target)
    masked = make_head(target, (0, 1), layers=2, mask=True)
    parallel = save_head(speculators_p_eagle, tmp_path_factory.mktemp("p-eagle"), masked, target)
    return {
        "dflash": block,
        "ddtree": block,
        "dspark": dspark,
        "p-eagle": load_p_eagle(parallel, target),
        "medusa": MedusaHeads(target, random(3, size, size), torch.zeros(3, size)),
        "eagle": load_eagle(folder, target),
        "redrafter": RedrafterHead(
            target=target,
            recurrence=Linear(random(size, size), torch.zeros(size)),
            token=Linear(random(size, size)),
            from_hidden=Linear(random(size, size), torch.zeros(size)),
            from_state=Linear(random(size, size)),
            blocks=(),
        ),
    }


@pytest.fixture(scope="session")
def loaded(target, draft, heads):
    """Return a function that returns a drafter by its name; `eagle2` with the EAGLE head on request."""

    def loaded(name, *, with_head=False):
        own_heads = heads["eagle"] if with_head else heads.get(name)
        digest = None if own_heads is None else "0123456789abcdef"
        source = "heads" if own_heads is not None else None
        block = own_heads.levels if name in BLOCK_DRAFTERS else None
        setting = DrafterSetting(name=name, source=source, digest=digest, block_draft_tokens=block)
        return LoadedDrafter(setting=setting, target=target, draft=draft, heads=own_heads, capacity=128)

    return loaded
