"""Decoders of every drafter that a tree file can name: lossless, and using the tree."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.methods.toys import pair_of
from tests.support import eagle_heads
from tests.support.dflash_heads import save_dspark_head
from treeopt import bundled
from treeopt.errors import InfeasibleError, InvalidValueError, TreeoptError
from treeopt.methods.build import bench_tree_file, build_decoder
from treeopt.profiler.bench.compare import Workload
from treeopt.profiler.decoding import Decoding
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime.drafters.registry import load_drafter
from treeopt.trees import TreeFile, chain, k_ary
from treeopt.trees.drafter_setting import DRAFTERS, drafter_setting

DECODING = Decoding(rule="target", sampling=GREEDY)
TREE = k_ary(2, 2)
SETTINGS = (
    drafter_setting("medusa"),
    drafter_setting("dflash"),
    drafter_setting("dspark", source="dspark"),
    drafter_setting("ddtree", budget=6),
    drafter_setting("redrafter", width=2, length=3),
    drafter_setting("eagle", source="head"),
    drafter_setting("p-eagle", source="p-eagle"),
    drafter_setting("eagle2", top_k=2, depth=3, nodes=6),
    drafter_setting("eagle2", source="head", top_k=2, depth=3, nodes=6),
    drafter_setting("specexec", budget=6, branching=2, batch=2, max_passes=3),
    drafter_setting("lookahead", window=2, ngram=3, candidates=2),
    drafter_setting("prompt-lookup", ngram=2, length=3),
)
DEEPEST = {
    "medusa": 2,
    "dflash": 2,
    "dspark": 2,
    "ddtree": 5,
    "redrafter": 3,
    "eagle": 2,
    "p-eagle": 2,
    "eagle2": 3,
    "specexec": 3,
    "lookahead": 2,
    "prompt-lookup": 3,
}
"""Most draft tokens that a step can accept."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory, bundled_pair) -> Path:
    """Return a folder with heads of the bundled target that do not ship."""
    folder, target = tmp_path_factory.mktemp("heads"), bundled_pair.target
    for name, layout in (("head", eagle_heads.specforge), ("p-eagle", eagle_heads.speculators_p_eagle)):
        head = eagle_heads.make_head(target, layer_ids=(1, 2, 3), seed=3, mask=name == "p-eagle")
        eagle_heads.save_head(layout, folder / name, head, target)
    save_dspark_head(folder / "dspark")
    return folder


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: f"{setting.description} {setting.source or ''}")
def test_output_is_lossless_and_steps_respect_the_setting(setting, folder, bundled_pair, bundled_outputs):
    placed = setting if setting.source is None else replace(setting, source=str(folder / setting.source))
    planned = TreeFile(tree=TREE, drafter=placed)
    decoder = build_decoder(bundled_pair, planned, DECODING, sequence_tokens=len(bundled_outputs[0][0]) + 24)
    prompt, text = bundled_outputs[0]
    steps = list(decoder.stream(prompt, 24))
    assert [token for tokens in steps for token in tokens] == text[:24]
    assert max(map(len, steps)) <= DEEPEST[setting.name] + 1
    if setting.source is None:
        assert len(steps) < 24, "nothing was ever accepted"


def test_placeholder_chain_has_the_longest_draft():
    for setting in SETTINGS:
        if setting.builds_own_trees:
            assert setting.longest_draft == DEEPEST[setting.name], setting
        else:
            with pytest.raises(InvalidValueError, match="expected one with trees of its own"):
                assert setting.longest_draft


def test_settings_cover_every_drafter():
    assert {setting.name for setting in SETTINGS} == {*DRAFTERS} - {"model"}


def test_file_without_drafter_uses_the_draft_model(bundled_pair, bundled_outputs):
    prompt, text = bundled_outputs[0]
    decoding = replace(DECODING, rule="sequoia")
    decoder = build_decoder(bundled_pair, TreeFile(tree=TREE), decoding, sequence_tokens=len(prompt) + 12)
    assert decoder.tree == TREE
    assert list(decoder.generate(prompt, 12)) == text[:12]


def test_static_trees_are_used_and_placeholders_ignored(bundled_pair):
    medusa, lookup = drafter_setting("medusa"), drafter_setting("prompt-lookup", ngram=2, length=5)
    for tree in (chain(2), TREE):
        nodes = [
            build_decoder(bundled_pair, TreeFile(tree=tree, drafter=drafter), DECODING).max_nodes
            for drafter in (medusa, lookup)
        ]
        assert nodes == [tree.nodes, 6]


def test_heads_of_another_target_a_missing_folder_and_too_deep_trees_are_refused(
    target, draft, bundled_pair, folder, tmp_path
):
    toys = pair_of(target, draft)
    for setting in (drafter_setting("medusa"), drafter_setting("redrafter", width=2, length=3)):
        with pytest.raises(InfeasibleError, match=r"those that ship are the bundled target's\. Got large: give heads"):
            load_drafter(setting, toys)
    for name, source in (("medusa", bundled.MEDUSA), ("redrafter", bundled.REDRAFTER), ("eagle", folder / "head")):
        values = {"width": 2, "length": 3} if name == "redrafter" else {}
        with pytest.raises(TreeoptError):
            load_drafter(drafter_setting(name, source=str(source), **values), toys)
        with pytest.raises(TreeoptError, match=r"no such file|no model\.safetensors"):
            load_drafter(drafter_setting(name, source=str(tmp_path / "nowhere"), **values), bundled_pair)
    with pytest.raises(InvalidValueError, match="head"):
        build_decoder(bundled_pair, TreeFile(tree=chain(9), drafter=drafter_setting("medusa")), DECODING)


def test_draft_distribution_needs_a_sampling_drafter(bundled_pair):
    planned = TreeFile(tree=TREE, drafter=drafter_setting("medusa"))
    decoding = Decoding(rule="target", sampling=Sampling(0.8), draft_sampling=Sampling(0.4))
    with pytest.raises(InvalidValueError, match="medusa does not sample what it drafts"):
        build_decoder(bundled_pair, planned, decoding)


def test_bench_of_each_drafter_is_lossless(bundled_pair, bundled_outputs):
    workload = Workload(prompts=[bundled_outputs[0][0]], max_new_tokens=12, repeats=1)
    for drafter in (None, drafter_setting("medusa"), drafter_setting("prompt-lookup", ngram=2, length=3)):
        planned = TreeFile(tree=TREE, drafter=drafter)
        measured = bench_tree_file(bundled_pair, planned, workload, DECODING)
        assert measured.identical is True
        assert measured.tokens >= 12
        assert measured.tokens_per_step > 1
