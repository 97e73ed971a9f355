"""A decoder decodes no longer sequences than the caches of its drafter have room for, and refuses to be made for them."""

import pytest

from tests.contracts import drafters
from tests.support import eagle_heads
from tests.support.decoded import PROMPT
from treeopt.errors import InvalidValueError
from treeopt.runtime import Decoder, ExpandingDrafter
from treeopt.runtime.drafters.dflash import DDTreeDrafter, DFlashDrafter
from treeopt.runtime.drafters.eagle import PEagleDrafter
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.runtime.drafters.static_tree import StaticTreeDrafter
from treeopt.trees import chain
from treeopt.trees.drafter_parameters import DDTreeSetting, DynamicTree, SpecExecSetting

CAPACITY = 40
"""Tokens, of the models' 128."""
TREE, DYNAMIC = drafters.TREE, DynamicTree(top_k=2, depth=3, nodes=6)
SPECEXEC = SpecExecSetting(budget=6, branching=2, batch=2, max_passes=3)
WITH_CACHES = {
    "dynamic tree": lambda _, draft: ExpandingDrafter(draft, DYNAMIC, capacity=CAPACITY),
    "specexec": lambda _, draft: ExpandingDrafter(draft, SPECEXEC, capacity=CAPACITY),
    "eagle": lambda target, _: StaticTreeDrafter(eagle(target), TREE, capacity=CAPACITY),
    "eagle, dynamic": lambda target, _: ExpandingDrafter(eagle(target), DYNAMIC, capacity=CAPACITY),
    "p-eagle": lambda target, _: PEagleDrafter(drafters.p_eagle(target, TREE).head, TREE, capacity=CAPACITY),
    "dflash": lambda target, _: DFlashDrafter(drafters.block_head(target), TREE, capacity=CAPACITY),
    "dspark": lambda target, _: DFlashDrafter(drafters.block_head(target, markov=True), TREE, capacity=CAPACITY),
    "ddtree": lambda target, _: DDTreeDrafter(drafters.block_head(target), DDTreeSetting(budget=9), capacity=CAPACITY),
}
WITHOUT_CACHES = {
    "medusa": lambda target: drafters.medusa(target, TREE),
    "redrafter": lambda target: drafters.redrafter(target, 2, 3),
    "prompt lookup": lambda _: PromptLookupDrafter(2, 3),
}
every_drafter = pytest.mark.parametrize("name", WITH_CACHES)


def eagle(target):
    return drafters.eagle(eagle_heads.safeailab, target)


@every_drafter
def test_a_decoder_of_longer_sequences_is_refused(target, draft, name):
    drafter = WITH_CACHES[name](target, draft)
    reason = (
        r"drafter: expected a capacity of at least 41 tokens, the decoder's max_sequence_tokens. Got 40: make the drafter "
        "with a larger capacity, or the decoder with max_sequence_tokens=40"
    )
    with pytest.raises(InvalidValueError, match=reason):
        Decoder(target, drafter, max_sequence_tokens=CAPACITY + 1)


@every_drafter
def test_the_longest_sequence_is_decoded_and_a_longer_one_is_refused(target, draft, greedy_text, name):
    decoder = Decoder(target, WITH_CACHES[name](target, draft), temperature=0.0)
    room = CAPACITY - len(PROMPT)
    with pytest.raises(
        InvalidValueError, match=rf"at most {room} after .* because the drafter was made with capacity 40"
    ):
        decoder.generate(PROMPT, room + 1)
    assert list(decoder.generate(PROMPT, room)) == greedy_text(target, PROMPT, room)


def test_a_drafter_of_shorter_sequences_cannot_take_over(target, draft):
    drafter = WITH_CACHES["dynamic tree"](target, draft)
    decoder = Decoder(target, draft, chain(2), max_nodes=8, max_sequence_tokens=CAPACITY + 1)
    with pytest.raises(InvalidValueError, match=r"drafter: expected a capacity of at least 41 tokens"):
        decoder.change_drafter(drafter)
    Decoder(target, draft, chain(2), max_nodes=8, max_sequence_tokens=CAPACITY).change_drafter(drafter)


@pytest.mark.parametrize("name", WITHOUT_CACHES)
def test_drafters_without_caches_have_room_for_any_sequence(target, name):
    assert Decoder(target, WITHOUT_CACHES[name](target)).max_sequence_tokens == target.config.max_positions
