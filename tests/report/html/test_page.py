"""The report page: its content, no external resources, and escaped text."""

import base64
import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.invented import TABLE, invented
from tests.support.pages import (
    BATCHES,
    DIVERGENCE,
    ENGINE,
    GRID,
    HEADING,
    MEASURED,
    Page,
    bench_of,
    everything,
    planned,
)
from treeopt.records.bench_file import BenchHeading
from treeopt.records.latency import Estimate
from treeopt.records.profile import Profile
from treeopt.records.results import TreePrediction
from treeopt.report.html.answer import Answer, answer, answer_figure, commands
from treeopt.report.html.contents import Contents, LabelledBench
from treeopt.report.html.page import facts, page
from treeopt.report.html.page_warnings import page_warnings
from treeopt.report.html.sections import MAX_NODES, sections
from treeopt.trees import Provenance, TokenTree, TreeFile, chain

ROOT = Path(__file__).parents[3]
MAX_BYTES = 300_000
SCRIPT = "<script>document.title='gone'</script>"
HOSTILE = {
    "markup": f'{SCRIPT}" onmouseover="alert(1)" x=\'&lt;b&gt; & </title></svg><img src=x onerror=alert(1)>{{{{ 7 }}}}{{% raw %}}',
    "long formula, right to left": "=HYPERLINK(0) מודל עברי \u05d0\u05d1" + "n" * 10_000,
}


def with_bench(found: Any, bench: Any, heading: BenchHeading = HEADING) -> Contents:
    return Contents(planned=found, benches=(LabelledBench("b.json", bench, heading),))


@pytest.fixture(scope="module")
def whole_text() -> str:
    return page(everything())


@pytest.fixture(scope="module")
def whole(whole_text: str) -> Page:
    return Page(whole_text)


def test_every_input_has_its_section(whole: Page, whole_text: str) -> None:
    names = [attributes["id"] for tag, attributes, _ in whole.elements if tag == "section"]
    assert names == ["warnings", "speed", "times", "acceptance", "schedule", "trees", "measured", "batches", "facts"]
    ids = [attributes["id"] for _, attributes, _ in whole.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    figures = "answer map verification drafting steps acceptance-0 acceptance-2 strips-0 strips-1 tree-0 benches grid-0"
    assert {*figures.split(), "engine-0", "methods-0", "batch-0", "batch-0-1"} <= set(whole.attributes("figure", "id"))
    assert all(link[1:] in names for link in whole.attributes("a", "href") if link.startswith("#"))
    assert len(whole_text.encode()) < MAX_BYTES


def test_sentences_name_the_width_limit() -> None:
    (speed, *_) = sections(Contents(planned=planned(level_widths=2)))
    assert any(", 2 to a level, and depth 4 " in sentence for sentence in speed.sentences)


def test_page_loads_nothing_else(whole: Page) -> None:
    for tag, attributes, _ in whole.elements:
        assert not {"src", "srcset", "action", "style", "background", "poster"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("href", "xlink:href"):
            assert str(attributes.get(name, "#")).startswith(("#", "data:")), attributes
    (style,) = whole.texts("style")
    assert "url(" not in style
    assert "@import" not in style
    (policy,) = [
        str(attributes["content"])
        for _, attributes, _ in whole.elements
        if "content-security-policy" in str(attributes.get("http-equiv")).lower()
    ]
    assert policy.startswith("default-src 'none'; img-src data:; ")
    for kind, text in (("style", style), ("script", whole.texts("script")[-1])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_csv_files_contain_the_rows_of_their_tables(whole: Page) -> None:
    names = whole.attributes("a", "download")
    assert len(names) == len(set(names)) == len(whole.texts("table")) > 10
    for name in names:
        rows = whole.file(name)
        assert len(rows) > 1
        assert {len(row) for row in rows} == {len(rows[0])}
    nodes = whole.file("nodes-0.csv")
    assert nodes[0] == ["node", "parent", "depth", "rank", "reach", "path"]
    assert nodes[5] == ["4", "1", "2", "1", "0.1", "0 1"]
    engine = whole.file("engine-0.csv")
    row = dict(zip(engine[0], engine[3], strict=True))
    assert (row["length"], row["chosen"], row["predicted speedup"], row["speedup"]) == ("2", "True", "1.4", "1.5")
    tree = dict(zip(*whole.file("benches.csv"), strict=True))
    assert (tree["file"], tree["measured speedup"], tree["measured speedup low"]) == ("bench.json", "1.9", "1.8")


def test_tooltips_work_without_javascript(whole: Page) -> None:
    tooltips = whole.texts("title")
    assert "node 4, depth 2, ranks 0, 1: reached by 10 %" in tooltips
    assert "2 draft tokens: measured 1.50, predicted 1.40" in tooltips
    assert any(re.fullmatch(r"1 token: [\d.]+ ms \([\d.]+ to [\d.]+\), 15 samples; .*", text) for text in tooltips)
    assert any(re.fullmatch(r"tokens of context \d+ to \d+: .*x plain decoding", text) for text in tooltips)


class TestAnswer:
    @pytest.mark.parametrize(
        ("values", "end"),
        [
            ({"predicted": 2.07, "measured": 2.03}, ", 2.03x plain decoding measured (2.07x predicted)."),
            ({"predicted": 2.07}, ", 2.07x plain decoding predicted."),
            ({"measured": 2.03}, ", 2.03x plain decoding measured."),
            ({}, "."),
        ],
    )
    def test_sentence_contains_what_is_known(self, values: dict[str, Any], end: str) -> None:
        result = Answer(shape="a tree of 8 nodes", nodes=8, **values)
        assert result.sentence == f"Fastest on this machine: a tree of 8 nodes{end}"

    def test_measurement_is_of_the_choice(self) -> None:
        found = planned()
        own = bench_of(found, 1.234)
        tree = replace(GRID.trees[0], tree=found.plan.choice.tree)
        grid = replace(GRID, rule=found.plan.rule, temperature=found.plan.temperature, trees=(tree,))
        for bench, measured in (
            (own, 1.234),
            (replace(own, nodes=own.nodes + 1), None),
            (replace(own, depth=own.depth + 1), None),
            (replace(own, temperature=0.9), None),
            (replace(own, drafter="medusa"), None),
            (grid, pytest.approx(1.6)),
            (replace(grid, rule="other"), None),
            (GRID, None),
        ):
            result = answer(with_bench(found, bench))
            assert result is not None
            assert result.measured == measured
        result = answer(with_bench(found, own))
        assert result is not None
        assert result.predicted == found.plan.choice.speedup.value

    def test_measurements_on_other_machines_are_ignored_with_a_warning(self) -> None:
        found = planned()
        pair = replace(found.profile.pair, target_digest="1", draft_digest="2")
        found = replace(found, profile=replace(found.profile, pair=pair))
        heading, machine = replace(HEADING, pair=pair), found.profile.machine
        for other, reason in (
            (heading, None),
            (replace(heading, machine=replace(machine, system="newer", python="3.13")), None),
            (replace(heading, machine=replace(machine, processor="an abacus")), "an abacus, not invented"),
            (replace(heading, machine=replace(machine, threads=1)), "1 thread, not 2 threads"),
            (replace(heading, pair=replace(pair, dtype="float16")), "float16, not float32"),
            (replace(heading, pair=replace(pair, draft="other", draft_digest="3")), "big + other, not big + small"),
            (replace(heading, pair=replace(pair, draft_digest="3")), "other models of these names"),
        ):
            contents = with_bench(found, bench_of(found, 1.234), other)
            result = answer(contents)
            assert result is not None
            assert result.measured == (1.234 if reason is None else None), reason
            warnings = [warning for warning in page_warnings(contents) if "was measured with" in warning]
            assert [f"was measured with {reason}: the answer" in warning for warning in warnings] == [True] * bool(
                reason
            )

    def test_measurement_of_a_drafter_is_of_its_setting(self) -> None:
        found = planned(Profile.load(ROOT / "tests/data/profile-drafters.yaml"))
        choice = next(choice for choice in found.drafters if choice.option.drafter.builds_own_trees)
        option = replace(choice.option, prediction=replace(choice.option.prediction, speedup=Estimate(9.0, 8.0, 10.0)))
        found = replace(found, drafters=(replace(choice, option=option),))
        heading = replace(HEADING, pair=found.profile.pair, machine=found.profile.machine)
        unknown = TreePrediction(tokens_per_step=None, step_s=None, speedup=None)
        own = bench_of(found, 1.234, drafter=option.drafter.description, rule=option.rule, predicted=unknown)
        point = replace(found.plan.model.point, batch_size=4)
        batch = replace(found, plan=replace(found.plan, model=replace(found.plan.model, point=point)))
        for plan, bench, measured in (
            (found, own, 1.234),
            (found, replace(own, drafter="model"), None),
            (found, replace(own, temperature=0.9), None),
            (batch, own, None),  # the bench is of one sequence
        ):
            result = answer(with_bench(plan, bench, heading))
            assert result is not None
            assert (result.measured, result.predicted) == (measured, 9.0)

    def test_figure_names_the_parameters_of_a_drafter_once(self) -> None:
        found = planned(Profile.load(ROOT / "tests/data/profile-drafters.yaml"))
        figure = answer_figure(Contents(planned=found))
        assert figure is not None
        names = {choice.option.drafter.parameters_text for choice in found.drafters if choice.option.drafter.values}
        assert names
        texts = re.findall(r">([^<>]+)</t(?:ext|itle)>", figure.svg)
        for name in names:
            labels = [text for text in texts if name.split(", ")[0] in text]
            assert labels
            assert all(text.count(name.split(", ")[0]) == 1 for text in labels)

    def test_trees_and_benches_have_an_answer_without_a_profile(self) -> None:
        provenance = Provenance(pair="a + b", rule="sequoia", temperature=0.0, speedup=1.5)
        tree = ("t", TreeFile(tree=TokenTree([-1, 0, 0]), provenance=provenance))
        expected = Answer(shape="a tree of 3 nodes, depth 1", nodes=3, predicted=1.5)
        assert answer(Contents(trees=(tree,))) == expected
        engine = answer(with_bench(None, ENGINE))
        assert engine is not None
        assert engine.sentence == (
            "Fastest in llama-server on this machine: 2 draft tokens, 1.50x plain decoding measured (1.40x predicted)."
        )
        assert answer(with_bench(None, GRID)) is None

    def test_plain_decoding_may_be_the_answer(self) -> None:
        slow = answer(Contents(planned=planned(invented(draft=lambda *_: 1.0))))
        assert slow is not None
        assert slow.sentence == "Fastest on this machine: plain decoding. No draft pays for itself."

    def test_figure_compares_the_candidates_and_marks_the_choice(self) -> None:
        found = planned(invented(tables=[TABLE, TABLE], others={"target": TABLE}), max_nodes=8)
        figure = answer_figure(with_bench(found, bench_of(found, 1.234)))
        assert figure is not None
        texts = re.findall(r">([^<>]+)</t(?:ext|itle)>", figure.svg)
        assert {f"★ {found.plan.choice.shape}", found.plan.plain.shape, found.plan.chain.shape, "1.23"} <= set(texts)
        assert any("rule target" in text for text in texts)
        assert sum(text.startswith("★") for text in texts) == 1
        assert answer_figure(Contents(trees=(("t", TreeFile(tree=chain(1))),))) is None


def test_figures_of_benches_have_their_own_conditions() -> None:
    found = planned(max_nodes=8)
    elsewhere = replace(HEADING, machine=replace(found.profile.machine, processor="an abacus"))
    benches = (LabelledBench("a.json", GRID, elsewhere), LabelledBench("b.json", BATCHES, HEADING))
    conditions = {
        figure.name: figure.conditions
        for section in sections(Contents(planned=found, benches=benches))
        for figure in section.figures
    }
    abacus = "big + small on an abacus (2 threads), float32, measured 2026-11-23"
    assert conditions["grid-0"] == abacus
    assert conditions["batch-0"] == conditions["batch-0-1"] == abacus.replace("an abacus", "invented")
    assert conditions["map"] == ""  # those of the section
    versions = dict(facts(Contents(benches=benches)))
    assert versions["a.json"] == f"{abacus}, by treeopt 9, Python 3.12, torch 2.8"
    two = (LabelledBench("a", bench_of(found, 1.5), HEADING), LabelledBench("b", bench_of(found, 1.4), elsewhere))
    (figure,) = sections(Contents(benches=two))[0].figures
    assert figure.conditions == f"{abacus.replace('an abacus', 'invented')}; {abacus}"


class TestCommands:
    def test_they_depend_on_the_inputs(self) -> None:
        found, slow = planned(), invented(draft=lambda *_: 1.0)
        slow = replace(slow, pair=replace(slow.pair, target_source="t", draft_source="d"))
        tree, other = ("my tree.json", TreeFile(tree=found.plan.choice.tree)), ("other.json", TreeFile(tree=chain(1)))
        assert other[1].tree != tree[1].tree
        bench = LabelledBench("b", bench_of(found, 1.5), HEADING)
        for contents, expected in (
            (
                Contents(planned=found, profile_name="p.yaml"),
                ["solve --profile p.yaml", "bench tree tree.json", "run tree"],
            ),
            (Contents(planned=found, trees=(tree,)), ["bench tree 'my tree.json'", "run 'my tree.json'"]),
            (Contents(planned=found, trees=(other, tree)), ["bench tree 'my tree.json'", "run 'my tree.json'"]),
            (Contents(planned=found, trees=(other,)), ["solve", "bench tree tree.json", "run tree.json"]),
            (Contents(planned=found, trees=(tree,), benches=(bench,)), ["run 'my tree.json'"]),
            (Contents(trees=(tree,)), ["profile", "bench tree 'my tree.json'"]),
            (with_bench(None, GRID), ["profile"]),
            (Contents(planned=planned(slow)), ["profile --target t --draft d --drafter prompt-lookup"]),
        ):
            texts = [command.text for command in commands(contents) if "export" not in command.text]
            assert len(texts) == len(expected), texts
            for text, start in zip(texts, expected, strict=True):
                assert text.startswith(f"treeopt {start}")

    def test_they_depend_on_the_engine(self) -> None:
        probed = Profile.load(ROOT / "tests/data/profile-engine.yaml")
        solve, bench = "treeopt solve --profile p.yaml --output tree.json", "treeopt bench engine llama-server"
        for profile, expected, unmeasured in (
            (probed, [f"{bench} --profile p.yaml --output bench.json"], True),
            (
                replace(probed, pair=replace(probed.pair, target_source=None)),
                [f"{bench} --profile p.yaml --url 0=URL,1=URL,3=URL,7=URL --output bench.json"],
                True,
            ),
            (
                replace(probed, engine=replace(probed.engine, name="imported")),
                [solve, "treeopt export tree.json --profile p.yaml --to vllm"],
                False,
            ),
        ):
            contents = Contents(planned=planned(profile), profile_name="p.yaml")
            assert [command.text for command in commands(contents)] == expected
            assert any(f"Measure the choice with {bench}" in text for text in page_warnings(contents)) == unmeasured

    @pytest.mark.parametrize(
        ("path", "request_options", "words"),
        [
            (
                "docs/profiles/bundled-2-cores-surface.yaml",
                {"temperature": 0.6, "context_tokens": 64, "batch_size": 4, "max_nodes": 8},
                {
                    "solve": "--temperature 0.6 --context-tokens 64 --batch-size 4",
                    "bench": "batches tree.json --batch-sizes 4",
                    "run": "--temperature 0.6",
                },
            ),
            (
                "tests/data/profile-golden.yaml",
                {"rule": "typical", "lossy": True, "max_nodes": 8},
                {"solve": "--rule typical --budget 8 --lossy", "bench": "--lossy", "run": "--lossy"},
            ),
        ],
        ids=["operating point", "lossy"],
    )
    def test_they_repeat_the_options_of_the_plan(
        self, path: str, request_options: dict[str, Any], words: dict[str, str]
    ) -> None:
        found = planned(Profile.load(ROOT / path), **request_options)
        texts = {command.text.split()[1]: command.text for command in commands(Contents(planned=found))}
        for name, options in words.items():
            assert options in texts[name]


@pytest.mark.parametrize("name", ["engine", "drafters"])
def test_profiles_of_engines_and_of_drafters_have_a_page(name: str) -> None:
    found = planned(Profile.load(ROOT / f"tests/data/profile-{name}.yaml"))
    result = Page(page(Contents(planned=found)))
    assert found.profile.pair.label in result.texts("bdi")[0]
    assert ("drafting" in result.attributes("figure", "id")) == (name != "engine")
    assert ("drafters.csv" in result.attributes("a", "download")) == (name == "drafters")


def page_with_names(name: str) -> Page:
    """Return the page of files that contain one text wherever a file contains text."""
    profile = invented(others={"target": TABLE})
    pair = replace(profile.pair, target=name, draft=name, dtype=name)
    machine = replace(profile.machine, processor=name, device=name, system=name)
    contents = planned(replace(profile, pair=pair, machine=machine, tool=name, created=name), max_nodes=8)
    heading = BenchHeading(tool=name, created=name, pair=replace(pair, draft=f"other {name}"), machine=machine)
    provenance = Provenance(pair=name, machine=name, rule=name, source=name, created=name, temperature=0.0)
    tree = (name, TreeFile(tree=TokenTree([-1, 0, 0]), provenance=provenance))
    benches = (
        bench_of(contents, 1.5),
        replace(GRID, rule=name),
        replace(ENGINE, engine=name, version=name),
        replace(BATCHES, rule=name),
    )
    labelled = tuple(LabelledBench(name, bench, heading) for bench in benches)
    return Page(page(Contents(planned=contents, trees=(tree,), benches=labelled)))


@pytest.fixture(scope="module")
def innocent() -> Page:
    return page_with_names("model")


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_text_from_files_is_escaped(innocent: Page, text: str) -> None:
    hostile = page_with_names(text)
    assert hostile.skeleton == innocent.skeleton
    assert hostile.texts("script")[-1] == innocent.texts("script")[-1]
    assert text in hostile.texts("bdi")  # whole, as text
    assert text not in " ".join(hostile.texts("h1") + hostile.texts("h3")) or len(text) <= 200
    rows = [cell for name in hostile.attributes("a", "download") for row in hostile.file(name) for cell in row]
    assert not [cell for cell in rows if cell.startswith("=")]


def test_page_of_a_large_tree_stays_below_the_limit() -> None:
    nodes, rng = 20_000, np.random.default_rng(0)
    parents = np.sort(np.concatenate([[-1], rng.integers(0, np.arange(1, nodes) // 2 + 1)]))
    tree = TokenTree.ordered(parents.tolist())
    reach = np.ones(tree.nodes)
    for level in tree.levels[1:]:
        reach[level] = reach[tree.parents[level]] * 0.9 / (1 + tree.rank[level])
    text = page(Contents(trees=(("large", TreeFile(tree=tree, reach=reach)),)))
    assert len(text.encode()) < MAX_BYTES
    assert f"the CSV file contains {nodes - MAX_NODES} more" in text
    assert "rows are left out" in text


def test_most_reached_nodes_of_a_large_tree_are_drawn() -> None:
    tree = TokenTree([-1, 0, 0, *[1] * 400, *[2] * 400])
    reach = np.array([1.0, 0.9, 0.8, *[0.1] * 400, *np.linspace(0.7, 0.2, 400)])
    (section,) = sections(Contents(trees=(("t", TreeFile(tree=tree, reach=reach)),)))
    drawn = sorted(map(int, re.findall(r"<title>node (\d+),", section.figures[0].svg)))
    assert len(drawn) == MAX_NODES
    assert drawn == [*range(3 + MAX_NODES - 403), *range(403, 803)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "bundled-2-cores-surface",  # of twelve conditions
        "nvidia-h100-80gb-hbm3-13b-68m-bfloat16-graphs",  # of the largest trees
        "nvidia-h200-smollm2-135m-bfloat16",  # of several drafters and categories
    ],
)
def test_pages_of_real_profiles_stay_below_the_limit(name: str) -> None:
    profile = Profile.load(ROOT / f"docs/profiles/{name}.yaml")
    assert len(page(Contents(planned=planned(profile))).encode()) < MAX_BYTES


class TestWarnings:
    def test_they_name_a_remedy(self, whole: Page) -> None:
        found = planned(invented(verify_noise=0.5, draft_noise=0.5), max_nodes=8)
        own = replace(bench_of(found, 1.5), measured=replace(MEASURED, divergences=(DIVERGENCE,)))
        other = TreeFile(tree=chain(2), provenance=Provenance(pair="x + y"))
        contents = replace(with_bench(found, own), trees=(("t.json", other),))
        warnings = "\n".join(page_warnings(contents))
        assert "b.json: the output DIFFERS from plain decoding. Report it" in warnings
        assert "t.json was planned for x + y, and this is big + small" in warnings
        assert "vary by" in warnings
        assert "Measure the choice" not in warnings
        unmeasured = page_warnings(Contents(planned=planned()))
        assert any("Measure the choice with treeopt bench tree tree.json" in warning for warning in unmeasured)
        assert set(page_warnings(everything())) <= set(whole.texts("bdi"))

    def test_they_are_of_the_choice_among_drafters(self) -> None:
        found = planned(Profile.load(ROOT / "tests/data/profile-drafters.yaml"))
        assert len(found.drafters) > 1
        warnings = page_warnings(Contents(planned=found))
        assert any("within 1 % of the fastest of all drafters is only" in warning for warning in warnings)
        assert not any("within 1 % of the fastest is only" in warning for warning in warnings)


def test_both_themes_have_all_colours(whole: Page) -> None:
    (style,) = whole.texts("style")
    used, blocks = set(re.findall(r"var\(--(\w+)\)", style)), re.findall(r"--paper:[^}]*", style)
    values = [str(value) for _, attributes, _ in whole.elements for value in attributes.values()]
    used |= {name for value in values for name in re.findall(r"var\(--(\w+)\)", value)}
    assert len(blocks) == 5  # light, dark of the system, each as chosen, and print
    for block in blocks:
        assert used <= set(re.findall(r"--(\w+):#[0-9a-f]{6};", block))
    assert blocks[0] == blocks[2] == blocks[4] != blocks[1] == blocks[3]
