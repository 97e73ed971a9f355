"""Profile files of engines, with several drafters, with acceptance by context length, and with categories."""

import copy
from dataclasses import replace

import pytest

from tests.planner.test_categories import NAMES, ROWS, UNLIKE, counted, with_lookup
from tests.records.profile_contents import (
    DATA,
    ENGINE_VALIDATOR,
    VALIDATOR,
    changed,
    read_content,
    repeat_first,
    write_content,
)
from treeopt.adaptation.profile_update import replace_acceptance
from treeopt.errors import FormatError, InfeasibleError
from treeopt.planner import plan, step_model
from treeopt.planner.request import PlanRequest
from treeopt.records.measured_acceptance import select_categories
from treeopt.records.measured_drafter import ReplayedSequences
from treeopt.records.profile import Profile
from treeopt.trees import chain, k_ary
from treeopt.trees.drafter_setting import drafter_setting

ENGINE, DRAFTERS, CONTEXTS = (
    read_content(DATA / f"profile-{name}.yaml") for name in ("engine", "drafters", "contexts")
)


@pytest.fixture
def load(tmp_path):
    def load(content):
        (tmp_path / "p.yaml").write_bytes(write_content(content))
        return Profile.load(tmp_path / "p.yaml")

    return load


@pytest.fixture(scope="module")
def categories(tmp_path_factory):
    """Return the content of a profile with categories at every place of the file."""
    path = tmp_path_factory.mktemp("categories") / "p.yaml"
    with_categories().save(path)
    return read_content(path)


def with_categories():
    decodes = counted(UNLIKE, NAMES, ROWS)
    (setting,) = decodes.settings
    replayed = ReplayedSequences(
        tokens=(30, 10),
        pass_tokens=(1, 4),
        passes=((1, 9), (10, 0)),
        categories=("copy", ""),
    )
    return with_lookup(UNLIKE, replace(decodes, settings=(replace(setting, replayed=replayed),)))


def drop_last(items):
    return items[:-1]


def turn(items):
    return items[::-1]


def as_eagle(**fields):
    return lambda drafter: {**drafter, "name": "eagle", **fields}


def as_block(drafter, size):
    return {**copy.deepcopy(drafter), "name": "dflash", "block_draft_tokens": size}


def measure_more_contexts(content):
    """Return the drafters' content with measurements at two more contexts."""
    for path in ("drafters[0].trees", "drafters[1].decodes"):
        content = changed(
            content, (path, lambda items: [*items, *(changed(items[0], ("context_tokens", n)) for n in (900, 64))])
        )
    return content


def check_wrong(load, content, cases):
    """Check that the content loads, and that it is refused with each change, for a reason."""
    assert load(content)
    for *changes, reason in cases:
        pairs = list(zip(changes[::2], changes[1::2], strict=True))
        with pytest.raises(FormatError, match=reason):
            load(changed(content, *pairs))


@pytest.mark.source
def test_contents_follow_the_schema(categories):
    ENGINE_VALIDATOR.validate(ENGINE)
    for content in (DRAFTERS, CONTEXTS, categories, measure_more_contexts(DRAFTERS)):
        VALIDATOR.validate(content)
    for content, path, value in (
        *((CONTEXTS, "acceptance[0].context_tokens", value) for value in (-1, 1.5, "256", True)),
        *((categories, "acceptance[0].categories", value) for value in ("copy", [], [1] * 16)),
        (DRAFTERS, "drafters[0].trees", ...),
        (DRAFTERS, "drafters[1].name", "medusa"),
        (DRAFTERS, "drafters[0].name", "model"),
        (DRAFTERS, "drafters[0].layers", [2]),
        (DRAFTERS, "drafters[0]", as_eagle(layers=[])),
        (DRAFTERS, "drafters[0]", as_eagle(layers=[2, 2])),
    ):
        assert not VALIDATOR.is_valid(changed(content, (path, value))), (path, value)


class TestEngine:
    def test_inconsistent_content_raises(self, load):
        chains, counts = "chain_latency[0].chains", "acceptance[0].chains"
        check_wrong(
            load,
            ENGINE,
            [
                (chains, lambda items: items[1:], r"chain_latency\[0\].chains: expected increasing lengths from 0"),
                (chains, turn, r"chain_latency\[0\].chains: expected increasing lengths"),
                (f"{chains}[1].samples_s", [0.0], r"chains\[1\].samples_s: samples_s: expected seconds above 0"),
                (f"{counts}[0].tokens[0]", 10**6, r"chains\[0\].tokens: expected 1 to 2"),
                (f"{counts}[0].tokens[0]", 1, r"chains\[0\].tokens: expected 1 to 2"),
                (f"{counts}[0].steps", drop_last, r"chains\[0\].steps: expected as many"),
                (f"{counts}[1].length", 1, r"acceptance\[0\].chains: expected increasing lengths|tokens: expected"),
                ("chain_latency", repeat_first, "expected each condition once"),
                ("engine", ..., "engine: .*expected with chain_latency"),
            ],
        )

    def test_plans_are_chains_or_plain_decoding(self, load):
        result = plan(load(ENGINE), max_nodes=8)
        assert result.choice.tree.nodes == result.choice.tree.max_depth + 1

    def test_lengths_beyond_the_probed_ones_raise(self, load):
        with pytest.raises(InfeasibleError, match="probe with larger --lengths"):
            step_model(load(ENGINE)).step_s(k_ary(2, 5))

    def test_passes_are_not_padded_to_longer_chains(self, load):
        """Steps with fewer draft tokens are never assumed to be as fast as steps with more."""
        model = step_model(load(changed(ENGINE, ("chain_latency[0].chains[1].samples_s", [1.0]))))
        assert model.step_s(chain(1)) > model.step_s(chain(3))


class TestDrafterFiles:
    def test_file_content(self, load):
        medusa, lookup = load(DRAFTERS).drafters
        assert medusa.setting == drafter_setting("medusa", source="heads/medusa", digest="0123456789abcdef")
        (trees,) = medusa.trees_at(0.0)
        (drafting,) = medusa.latencies
        assert [timed.tree.nodes for timed in drafting.steps] == [2, 4]
        assert (drafting.per_block, drafting.draft.max_tokens, drafting.host) == (True, 4, None)
        assert trees.root_ranks.rows == [[[0, 0], [1], [], []], [[0, 1], [0], [], [0], []]]
        assert medusa.trees_at(0.6) == ()
        (sampled,) = lookup.decodes_at(0.6)
        assert (sampled.sampling.top_p, sampled.sampling.top_k) == (0.9, 50)
        assert lookup.setting_with(sampled.settings[0].values).description == "prompt-lookup: length 2, ngram 2"
        tokens_per_step = sampled.settings[0].decoded.tokens_per_step
        assert tokens_per_step == sampled.settings[0].sequences.tokens_per_step == pytest.approx(26 / 17)
        replayed = lookup.decodes_at(0.0)[0].settings[0]
        assert (replayed.decoded.tokens_per_step, replayed.sequences.tokens_per_step) == pytest.approx(
            (26 / 12, 67 / 42)
        )

    def test_layers_of_an_eagle_head_are_kept(self, load, tmp_path):
        assert load(DRAFTERS).drafters[0].setting.layers == ()
        load(changed(DRAFTERS, ("drafters[0]", as_eagle(layers=[9, 2, 6])))).save(tmp_path / "again.yaml")
        assert read_content(tmp_path / "again.yaml")["drafters"][0]["layers"] == [9, 2, 6]
        assert Profile.load(tmp_path / "again.yaml").drafters[0].setting.layers == (9, 2, 6)

    def test_block_sizes_are_kept_and_tell_drafters_apart(self, load, tmp_path):
        blocks = [as_block(DRAFTERS["drafters"][0], size) for size in (3, 7)]
        content = changed(DRAFTERS, ("drafters", blocks))
        VALIDATOR.validate(content)
        load(content).save(tmp_path / "again.yaml")
        drafters = Profile.load(tmp_path / "again.yaml").drafters
        assert [drafter.setting.block_draft_tokens for drafter in drafters] == [3, 7]
        check_wrong(
            load,
            content,
            [
                ("drafters[1].block_draft_tokens", 3, "Got dflash, blocks of 3 twice"),
                ("drafters[1].name", "medusa", "block_draft_tokens: expected none, because medusa"),
                ("drafters[1].block_draft_tokens", 0, "expected a whole number of at least 1"),
            ],
        )

    def test_measurements_are_sorted_by_context(self, load, tmp_path):
        profile = load(measure_more_contexts(DRAFTERS))
        medusa, lookup = profile.drafters
        assert [trees.context_tokens for trees in medusa.trees_at(0.0)] == [64, 300, 900]
        assert [decodes.context_tokens for decodes in lookup.decodes_at(0.0)] == [64, 310, 900]
        profile.save(tmp_path / "again.yaml")
        assert Profile.load(tmp_path / "again.yaml") == profile

    def test_inconsistent_content_raises(self, load):
        trees, drafting = "drafters[0].trees[0]", "drafters[0].latency[0]"
        decodes, setting = "drafters[1].decodes[0]", "drafters[1].decodes[0].settings[0]"
        of_engine = [pair for name in ("engine", "chain_latency", "acceptance") for pair in (name, ENGINE[name])]
        check_wrong(
            load,
            DRAFTERS,
            [
                ("latency", ..., *of_engine, "drafters: expected with latency"),
                ("drafters", repeat_first, "drafters: expected each once. Got medusa"),
                ("drafters[0].name", "oracle", r"drafters\[0\].name: expected a drafter"),
                ("drafters[0].name", "model", r"drafters\[0\].name: expected another drafter"),
                ("drafters[1].source", "x", r"drafters\[1\].source: expected none"),
                ("drafters[1].values", {"length": 2, "ngram": 2}, r"drafters\[1\].values: expected none"),
                ("drafters[1].name", "redrafter", r"drafters\[1\].values: expected the numbers"),
                ("drafters[0].trees", ..., r"drafters\[0\].trees: expected trees of medusa"),
                (
                    "drafters[1].trees",
                    DRAFTERS["drafters"][0]["trees"],
                    r"decodes: expected decodes of prompt-lookup, and",
                ),
                ("drafters[1].decodes", repeat_first, r"drafters\[1\].decodes: expected each temperature once"),
                (f"{trees}.acceptance.rule", "sequoia", r"trees\[0\].acceptance: expected rule target"),
                (f"{trees}.acceptance.context_tokens", 5, "acceptance: expected context_tokens beside it"),
                (f"{drafting}.steps", repeat_first, r"latency\[0\].steps: expected one or more trees, each once"),
                (f"{drafting}.steps[0].parents", [-1], r"latency\[0\].steps: expected trees of 2 nodes or more"),
                ("drafters[0].latency", repeat_first, r"drafters\[0\].latency: .* there, each condition once"),
                ("drafters[0].latency", ..., r"drafters\[0\].latency: expected with trees, and only there"),
                (f"{trees}.root_ranks", drop_last, r"trees\[0\].root_ranks: expected those of as many"),
                (f"{trees}.root_ranks[0].roots[0]", [-2, 0], r"trees\[0\].root_ranks: ranks: expected rows"),
                (f"{decodes}.plain.passes", drop_last, r"decodes\[0\].plain.passes: expected a row for each of 2"),
                (f"{decodes}.plain.samples_s", drop_last, r"decodes\[0\].plain.samples_s: expected as many as tokens"),
                (
                    *(f"{decodes}.plain.tokens", [1, 1, 1]),
                    *(f"{decodes}.plain.passes", [[1], [1], [1]]),
                    *(f"{decodes}.plain.samples_s", [1, 1, 1]),
                    r"decodes\[0\].settings: expected decodes of 3 sequences",
                ),
                (f"{decodes}.plain.tokens[0]", 11, r"decodes\[0\].plain: expected a token of each step"),
                (f"{decodes}.plain.pass_tokens", [2], r"decodes\[0\].plain: expected a token of each step, and passes"),
                (f"{decodes}.settings", repeat_first, r"decodes\[0\].settings: expected one or more, each once"),
                (f"{setting}.values.ngram", ..., r"drafters\[1\].values: expected the numbers"),
                (f"{setting}.decoded.pass_tokens", turn, r"decoded.pass_tokens: expected increasing sizes"),
                (
                    f"{setting}.decoded.pass_tokens",
                    [0, 5],
                    r"decoded.pass_tokens: expected increasing sizes of at least 1",
                ),
                (f"{setting}.max_tokens", 4, r"settings\[0\].decoded.pass_tokens: expected at most 4"),
                (f"{setting}.replayed.pass_tokens[1]", 6, r"settings\[0\].replayed.pass_tokens: expected at most 5"),
                (f"{setting}.decoded.passes", [[6, 0], [6, 0]], r"decoded.passes: expected at least 1 of every size"),
                (f"{setting}.decoded.passes[0]", [4, 20], r"decoded.tokens: expected a step .* token of every step"),
                (f"{setting}.replayed.passes", drop_last, r"replayed.passes: expected a row for each of 3 sequences"),
                (f"{setting}.replayed.passes[0]", [0, 0], r"replayed.tokens: expected a step of every sequence"),
                (f"{setting}.replayed.passes[0]", [-1, 13], r"replayed.passes: expected .* numbers of at least 0"),
            ],
        )
        check_wrong(
            load,
            measure_more_contexts(DRAFTERS),
            [
                (f"{trees}.context_tokens", 900, r"drafters\[0\].trees: .* Got 0 twice at 900 tokens: remove one"),
                (f"{decodes}.top_p", 0.5, r"drafters\[1\].decodes: expected one top-p and top-k at each temperature"),
                (f"{setting}.values.ngram", 3, r"drafters\[1\].decodes: expected the same settings at every context"),
                (f"{decodes}.plain.passes[0]", [0], r"decodes\[0\].plain.tokens: expected a step of every sequence"),
            ],
        )


class TestContexts:
    def test_file_content(self, load):
        profile = load(CONTEXTS)
        first, second, alone = profile.acceptances
        assert [item.context_tokens for item in profile.acceptances] == [256, 4096, None]
        assert (first.prompts, second.prompts) == (3, 2)
        assert profile.acceptances_by_context(second) == (first, second)
        assert profile.acceptances_by_context(alone) == (alone,)
        assert second.accepted_ranks.ranks[2].tolist() == []
        tokens = [
            step_model(profile, PlanRequest(context_tokens=context, raw=True)).tokens_per_step(chain(1))
            for context in (256, 2176, 4096)
        ]
        assert tokens[1] == pytest.approx((tokens[0] + tokens[2]) / 2)
        assert tokens[0] > tokens[2]

    def test_inconsistent_content_raises(self, load):
        check_wrong(
            load,
            CONTEXTS,
            [
                ("acceptance[1].context_tokens", 256, "once. Got 'sequoia' at temperature 0 and 256 tokens of context"),
                (
                    "acceptance[1].context_tokens",
                    ...,
                    "acceptance: expected context_tokens in all of 'sequoia' at temp",
                ),
                ("acceptance[0].context_tokens", -1, "context_tokens"),
            ],
        )

    def test_replaced_acceptance_keeps_other_contexts(self, load):
        profile = load(CONTEXTS)
        before, *others = profile.acceptances
        updated = replace_acceptance(profile, replace(before, positions=7), before)
        assert updated.acceptances == (replace(before, positions=7), *others)


class TestCategories:
    def test_profile_round_trip(self, categories, load, tmp_path):
        profile = load(categories)
        assert profile.acceptances[0].categories == ("copy", "new") * 8
        (decodes,) = profile.drafters[0].decodes
        assert decodes.categories == NAMES
        (setting,), (expected,) = decodes.settings, with_categories().drafters[0].decodes[0].settings
        assert (setting.decoded.passes, setting.replayed) == (expected.decoded.passes, expected.replayed)
        profile.save(tmp_path / "again.yaml")
        assert read_content(tmp_path / "again.yaml") == categories

    def test_inconsistent_content_raises(self, categories, load):
        decodes = "drafters[0].decodes[0]"
        rows, replayed = f"{decodes}.settings[0].decoded.passes", f"{decodes}.settings[0].replayed"
        check_wrong(
            load,
            categories,
            [
                (
                    "acceptance[0].categories",
                    drop_last,
                    r"acceptance\[0\].categories: .* each of 16 sequences. Got 15.",
                ),
                ("acceptance[0].sequences", ..., "acceptance[0].accepted_ranks", ..., "categories: .* of 0 sequences"),
                ("acceptance[0].categories", [1] * 16, "categories: expected a list of printable texts"),
                (f"{decodes}.categories", ["copy"], "categories: expected one for each of 4 sequences. Got 1."),
                (rows, ..., r"decoded\.passes: is missing"),
                (rows, drop_last, r"decoded\.passes: expected a row for each of 4 sequences"),
                (f"{replayed}.passes[0]", [1, 9, 0], r"replayed\.passes: .* with 2 numbers"),
                (f"{replayed}.passes", ..., r"replayed\.passes: is missing"),
                (f"{replayed}.categories", ["copy"], "categories: expected one for each of 2 sequences"),
            ],
        )

    def test_profile_without_categories_omits_the_field(self, tmp_path):
        (acceptance,) = UNLIKE.acceptances
        replace(UNLIKE, acceptances=(replace(acceptance, categories=()),)).save(tmp_path / "p.yaml")
        assert "categories" not in (tmp_path / "p.yaml").read_text()

    def test_select_categories(self):
        assert select_categories(("a", "", "b", "a"), [0, 1, 3]) == ("a", "", "a")
        assert select_categories(("", ""), [1]) == select_categories((), [1]) == ()
