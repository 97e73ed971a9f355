"""A DFlash head predicts, once saved and loaded, what it predicted in training."""

import pytest
import torch

from tests.scripts import together
from treeopt import bundled
from treeopt.runtime import load_model
from treeopt.runtime.drafters.dflash import load_dflash
from treeopt.runtime.models.model import RequestedStates

pytest.importorskip("transformers", reason="needs the hf extra")


@pytest.mark.parametrize("reduced", [False, True], ids=["all tokens", "reduced vocabulary"])
def test_a_saved_head_drafts_what_it_predicted_in_training(tmp_path, reduced):
    head_training, train_dflash = together("tools", "head_training", "train_dflash")
    target = load_model(bundled.TARGET)
    torch.manual_seed(1)
    output = target.weights.head.weight.detach().float()
    sizes = train_dflash.DflashSizes(layers=1, inner=96, block_tokens=5)
    draft_tokens = torch.arange(3, 250, 2) if reduced else None
    head = train_dflash.DflashHead(
        target, output if draft_tokens is None else output[draft_tokens], sizes, draft_tokens=draft_tokens
    )
    for layer in head.layers:
        for product in layer.values():
            torch.nn.init.normal_(product.weight, std=0.05)
    torch.nn.init.normal_(head.mask_embedding)
    train_dflash.save(head, 8, tmp_path / "head")
    train_dflash.load(head, tmp_path / "head")  # rounds the weights to float16, like the file
    loaded = load_dflash(tmp_path / "head", target)
    tokens = torch.randint(256, (1, 40), generator=torch.Generator().manual_seed(2))
    states = target.compute_states(tokens[0], RequestedStates(layer_ids=loaded.requested_states.layer_ids, last=True))
    batch = head_training.TargetStates(states.last[None], tokens, torch.cat(states.layers, -1)[None])
    roots = torch.tensor([3, 17, 30])
    with torch.no_grad():
        hidden = head.draft_blocks(batch.layers, batch.tokens, roots)[0]
    for root, expected in zip(roots.tolist(), hidden @ head.output.T, strict=True):
        (cache,) = loaded.new_caches(40, 1)
        loaded.read(target.compute_states(tokens[0, :root], loaded.requested_states), cache)
        logits = loaded.draft([int(tokens[0, root])], [cache])[0]
        if reduced:
            assert logits[:, 4].isneginf().all()  # outside the vocabulary
            logits = logits[:, head.draft_tokens]
        torch.testing.assert_close(logits, expected[1:], atol=2e-3, rtol=2e-3)
