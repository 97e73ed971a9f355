"""The report page: its content, no external resources, and escaped text."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.invented import STEEP, TABLE, invented
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
from treeopt.report.html.contents import Contents, LabelledBench, LabelledTree
from treeopt.report.html.page import in_script, page
from treeopt.report.html.page_warnings import page_warnings
from treeopt.report.html.sections import MAX_NODES, sections
from treeopt.trees import Provenance, TokenTree, TreeFile, chain

ROOT = Path(__file__).parents[3]
MOST_BYTES = 300_000
SCRIPT = "<script>document.title='gone'</script>"
HOSTILE = {
    "markup": f'{SCRIPT}" onmouseover="alert(1)" x=\'&lt;b&gt; & </title></svg><img src=x onerror=alert(1)>{{{{ 7 }}}}{{% raw %}}',
    "long": "n" * 10_000,
    "formula, right to left": "=HYPERLINK(0) מודל עברי \u05d0\u05d1",
}


@pytest.fixture(scope="module")
def whole_text() -> str:
    return page(everything())


@pytest.fixture(scope="module")
def whole(whole_text: str) -> Page:
    return Page(whole_text)


def test_every_input_has_its_section(whole: Page) -> None:
    sections = [found["id"] for tag, found, _ in whole.elements if tag == "section"]
    assert sections == [
        *("warnings", "speed", "times", "acceptance", "schedule", "trees", "measured", "batches", "facts"),
    ]
    figures = whole.attributes("figure", "id")
    ids = [found["id"] for _, found, _ in whole.elements if "id" in found]
    assert len(ids) == len(set(ids))
    wanted = {
        "answer",
        "map",
        "verification",
        "drafting",
        "steps",
        "acceptance-0",
        "acceptance-2",
        "strips-0",
        "strips-1",
    }
    wanted |= {"tree-0", "benches", "grid-0", "engine-0", "methods-0", "batch-0", "batch-0-1"}
    assert wanted <= set(figures)
    assert all(link[1:] in sections for link in whole.attributes("a", "href") if link.startswith("#"))


def test_page_loads_nothing_else(whole: Page) -> None:
    for tag, found, _ in whole.elements:
        assert not {"src", "srcset", "action", "style", "background", "poster"} & set(found), tag
        assert not [name for name in found if name.startswith("on")], tag
        for name in ("href", "xlink:href"):
            assert str(found.get(name, "#")).startswith(("#", "data:")), found
    (style,) = whole.texts("style")
    assert "url(" not in style
    assert "@import" not in style
    (policy,) = [
        found["content"]
        for tag, found, _ in whole.elements
        if "content-security-policy" in str(found.get("http-equiv")).lower()
    ]
    assert str(policy).startswith("default-src 'none'; img-src data:; ")
    for kind, text in (("style", style), ("script", whole.texts("script")[-1])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in str(policy)


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
    assert (row["length"], row["chosen"], row["predicted_speedup"], row["speedup"]) == ("2", "True", "1.4", "1.5")
    tree = dict(zip(*whole.file("benches.csv"), strict=True))
    assert (tree["file"], tree["measured speedup"], tree["measured speedup low"]) == ("bench.json", "1.9", "1.8")


def test_tooltips_work_without_javascript(whole: Page) -> None:
    said = whole.texts("title")
    assert "node 4, depth 2, ranks 0, 1: reached by 10 %" in said
    assert "2 draft tokens: measured 1.50, predicted 1.40" in said
    assert any(re.fullmatch(r"1 token: [\d.]+ ms \([\d.]+ to [\d.]+\), 15 samples; .*", each) for each in said)
    assert any(re.fullmatch(r"tokens of context \d+ to \d+: .*x plain decoding", each) for each in said)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"predicted": 2.07, "measured": 2.03},
            "Fastest on this machine: a tree of 8 nodes, 2.03x plain decoding measured (2.07x predicted).",
        ),
        ({"predicted": 2.07}, "Fastest on this machine: a tree of 8 nodes, 2.07x plain decoding predicted."),
        ({"measured": 2.03}, "Fastest on this machine: a tree of 8 nodes, 2.03x plain decoding measured."),
        ({}, "Fastest on this machine: a tree of 8 nodes."),
        (
            {"predicted": 2.0, "measured": 1.9, "engine": "vllm"},
            "Fastest in vllm on this machine: a tree of 8 nodes, 1.90x plain decoding measured (2.00x predicted).",
        ),
    ],
)
def test_the_answer_is_one_sentence(given: dict[str, Any], sentence: str) -> None:
    assert Answer(shape="a tree of 8 nodes", nodes=8, depth=6, **given).sentence == sentence


def test_answer_uses_the_bench_of_the_choice_only() -> None:
    found = planned()
    predicted = found.plan.choice.speedup.value
    own = bench_of(found, 1.234)
    others = [
        replace(own, nodes=own.nodes + 1),
        replace(own, depth=own.depth + 1),
        replace(own, temperature=0.9),
        replace(own, drafter="medusa"),
    ]
    for bench, measured in ((own, 1.234), *((each, None) for each in others)):
        told = answer(Contents(planned=found, benches=(LabelledBench("b", bench, HEADING),)))
        assert told is not None
        assert (told.measured, told.predicted) == (measured, predicted)
    seen = Page(page(Contents(planned=found, benches=(LabelledBench("b", own, HEADING),))))
    assert "1.23x plain decoding measured" in seen.texts("bdi")[1]


def test_answer_uses_a_grid_for_its_trees() -> None:
    found = planned()
    tree = replace(GRID.trees[0], tree=found.plan.choice.tree)
    grid = replace(GRID, rule=found.plan.rule, temperature=found.plan.temperature, trees=(tree,))
    for bench, measured in ((grid, 1.6), (replace(grid, rule="other"), None), (GRID, None)):
        told = answer(Contents(planned=found, benches=(LabelledBench("g", bench, HEADING),)))
        assert told is not None
        assert told.measured == (None if measured is None else pytest.approx(measured))


def test_answer_ignores_other_machines_with_a_warning() -> None:
    found = planned()
    own, machine, pair = bench_of(found, 1.234), found.profile.machine, found.profile.pair
    for heading, said in (
        (HEADING, None),
        (replace(HEADING, machine=replace(machine, system="newer", python="3.13")), None),
        (replace(HEADING, machine=replace(machine, processor="an abacus")), "an abacus, not invented"),
        (replace(HEADING, machine=replace(machine, threads=1)), "1 thread, not 2 threads"),
        (replace(HEADING, pair=replace(pair, dtype="float16")), "float16, not float32"),
        (replace(HEADING, pair=replace(pair, draft="other")), "big + other, not big + small"),
    ):
        contents = Contents(planned=found, benches=(LabelledBench("b.json", own, heading),))
        told = answer(contents)
        assert told is not None
        assert told.measured == (1.234 if said is None else None), said
        warned = [each for each in page_warnings(contents) if "was measured with" in each]
        assert [f"was measured with {said}: the answer" in each for each in warned] == [True] * (said is not None)


def test_models_of_equal_names_are_distinguished() -> None:
    found = planned()
    digests = replace(found.profile.pair, target_digest="1", draft_digest="2")
    found = replace(found, profile=replace(found.profile, pair=digests))
    other = replace(HEADING, pair=replace(digests, draft_digest="3"))
    contents = Contents(planned=found, benches=(LabelledBench("b.json", bench_of(found, 1.5), other),))
    assert answer(contents).measured is None  # type: ignore[union-attr]
    assert any("b.json was measured with other models of these names" in each for each in page_warnings(contents))


def test_bench_figures_name_their_bench() -> None:
    found = planned()
    elsewhere = replace(HEADING, machine=replace(found.profile.machine, processor="an abacus"))
    benches = (
        LabelledBench("a.json", GRID, elsewhere),
        LabelledBench("b.json", BATCHES, HEADING),
    )
    where = {
        figure.name: figure.conditions
        for section in sections(Contents(planned=found, benches=benches))
        for figure in section.figures
    }
    abacus = "big + small on an abacus (2 threads), float32, measured 2026-11-23"
    assert where["grid-0"] == abacus
    assert where["batch-0"] == where["batch-0-1"] == abacus.replace("an abacus", "invented")
    assert where["map"] == ""  # those of the section
    seen = Page(page(Contents(benches=benches)))
    assert seen.texts("bdi")[0] == "big + small on an abacus (2 threads)"
    assert f"{abacus}, by treeopt 9, Python 3.12, torch 2.8" in seen.texts("bdi")
    two = (LabelledBench("a", bench_of(found, 1.5), HEADING), LabelledBench("b", bench_of(found, 1.4), elsewhere))
    (figure,) = sections(Contents(benches=two))[0].figures
    assert figure.conditions == f"{abacus.replace('an abacus', 'invented')}; {abacus}"


def test_answer_of_a_drafter_uses_the_bench_of_its_setting() -> None:
    found = planned(Profile.load(ROOT / "tests/data/profile-drafters.yaml"))
    choice = next(each for each in found.drafters if each.option.drafter.builds_own_trees)
    option = replace(choice.option, prediction=replace(choice.option.prediction, speedup=Estimate(9.0, 8.0, 10.0)))
    found = replace(found, drafters=(replace(choice, option=option),))
    heading = replace(HEADING, pair=found.profile.pair, machine=found.profile.machine)
    unknown = TreePrediction(tokens_per_step=None, step_s=None, speedup=None)
    own = bench_of(found, 1.234, drafter=option.drafter.description, rule=option.rule, predicted=unknown)
    for bench, measured in ((own, 1.234), (replace(own, drafter="model"), None), (replace(own, temperature=0.9), None)):
        told = answer(Contents(planned=found, benches=(LabelledBench("b", bench, heading),)))
        assert told is not None
        assert (told.measured, told.predicted) == (measured, 9.0)
    point = replace(found.plan.model.point, batch_size=4)
    several = replace(found, plan=replace(found.plan, model=replace(found.plan.model, point=point)))
    told = answer(Contents(planned=several, benches=(LabelledBench("b", own, HEADING),)))
    assert told is not None
    assert told.measured is None  # the bench is of one sequence


def test_answer_without_a_profile() -> None:
    known = Provenance(pair="a + b", rule="sequoia", temperature=0.0, speedup=1.5)
    tree = LabelledTree("t", TreeFile(tree=TokenTree([-1, 0, 0]), provenance=known))
    assert answer(Contents(trees=(tree,))) == Answer(
        shape="a tree of 3 nodes, depth 1", nodes=3, depth=1, predicted=1.5
    )
    engine = answer(Contents(benches=(LabelledBench("e", ENGINE, HEADING),)))
    assert engine is not None
    assert engine.sentence == (
        "Fastest in llama-server on this machine: 2 draft tokens, 1.50x plain decoding measured (1.40x predicted)."
    )
    slow = answer(Contents(planned=planned(invented(draft=lambda *_: 1.0))))
    assert slow is not None
    assert slow.sentence == "Fastest on this machine: plain decoding. No draft pays for itself."
    assert answer(Contents(benches=(LabelledBench("g", GRID, HEADING),))) is None


def test_the_first_figure_compares_the_candidates_and_marks_the_choice() -> None:
    found = planned(invented(tables=[TABLE, TABLE], others={"target": TABLE}))
    plan = found.plan
    own = bench_of(found, 1.234)
    figure = answer_figure(Contents(planned=found, benches=(LabelledBench("b", own, HEADING),)))
    assert figure is not None
    said = re.findall(r">([^<>]+)</t(?:ext|itle)>", figure.svg)
    assert f"★ {plan.choice.shape}" in said
    assert {plan.plain.shape, plan.chain.shape} <= set(said)
    assert any("rule target" in each for each in said)
    assert "1.23" in said
    assert sum(each.startswith("★") for each in said) == 1
    assert answer_figure(Contents(trees=(LabelledTree("t", TreeFile(tree=chain(1))),))) is None


def test_next_commands_depend_on_the_inputs() -> None:
    found = planned()
    tree = LabelledTree("my tree.json", TreeFile(tree=found.plan.choice.tree))
    bench = LabelledBench("b", bench_of(found, 1.5), HEADING)
    for contents, expected in (
        (
            Contents(planned=found, profile_name="p.yaml"),
            ["solve --profile p.yaml", "bench tree tree.json", "run tree"],
        ),
        (Contents(planned=found, trees=(tree,)), ["bench tree 'my tree.json'", "run 'my tree.json'"]),
        (Contents(planned=found, trees=(tree,), benches=(bench,)), ["run 'my tree.json'"]),
        (Contents(trees=(tree,)), ["profile", "bench tree 'my tree.json'"]),
        (Contents(planned=planned(invented(draft=lambda *_: 1.0))), ["profile --drafter prompt-lookup"]),
        (Contents(planned=planned(Profile.load(ROOT / "tests/data/profile-engine.yaml"))), ["bench engine"]),
    ):
        texts = [each.text for each in commands(contents) if "export" not in each.text]
        assert len(texts) == len(expected), texts
        for text, start in zip(texts, expected, strict=True):
            assert text.startswith(f"treeopt {start}")
    seen = Page(page(contents))
    assert texts == [each for each in seen.texts("code") if "export" not in each]


def test_commands_repeat_the_options_of_the_plan() -> None:
    profile = Profile.load(ROOT / "docs/profiles/bundled-2-cores-surface.yaml")
    found = planned(profile, temperature=0.6, context_tokens=64, batch_size=4)
    solve, _, run, _ = (each.text for each in commands(Contents(planned=found, profile_name="p.yaml")))
    assert "--temperature 0.6 --context-tokens 64 --batch-size 4" in solve
    assert "--temperature 0.6" in run


def test_commands_allow_the_lossy_rule_of_a_plan() -> None:
    profile = Profile.load(ROOT / "tests/data/profile-golden.yaml")
    found = planned(profile, rule="typical", lossy=True, max_nodes=8)
    assert found.plan.lossy
    solve, bench, run, _ = (each.text for each in commands(Contents(planned=found, profile_name="p.yaml")))
    assert "--rule typical --budget 8 --lossy" in solve
    assert "--lossy" in bench
    assert "--lossy" in run


@pytest.mark.parametrize("name", ["engine", "drafters", "golden"])
def test_profiles_of_engines_and_of_drafters_have_a_page(name: str) -> None:
    found = planned(Profile.load(ROOT / f"tests/data/profile-{name}.yaml"))
    seen = Page(page(Contents(planned=found)))
    assert found.profile.pair.label in seen.texts("bdi")[0]
    assert ("drafting" in seen.attributes("figure", "id")) == (name != "engine")
    assert ("drafters.csv" in seen.attributes("a", "download")) == (name == "drafters")


def page_with_names(name: str) -> Page:
    """Return the page of files that contain one text wherever a file contains text."""
    profile = invented(others={"target": TABLE})
    pair = replace(profile.pair, target=name, draft=name, dtype=name)
    machine = replace(profile.machine, processor=name, device=name, system=name)
    contents = planned(replace(profile, pair=pair, machine=machine, tool=name, created=name))
    heading = BenchHeading(tool=name, created=name, pair=replace(pair, draft=f"other {name}"), machine=machine)
    provenance = Provenance(pair=name, machine=name, rule=name, source=name, created=name, temperature=0.0)
    tree = LabelledTree(name, TreeFile(tree=TokenTree([-1, 0, 0]), provenance=provenance))
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


def test_json_cannot_end_its_script_element(whole: Page) -> None:
    assert "</" not in in_script({"a": SCRIPT, "b": "\u2028"})
    assert json.loads(in_script({"a": SCRIPT})) == {"a": SCRIPT}
    (text,) = whole.texts("script", type="application/json", id="summary")
    assert json.loads(text)["measured_speedup"] == 1.9


def test_a_large_tree_stays_below_the_limit() -> None:
    rng = np.random.default_rng(0)
    parents = np.sort(np.concatenate([[-1], rng.integers(0, np.arange(1, 65_536) // 2 + 1)]))
    tree = TokenTree.ordered(parents.tolist())
    reach = np.ones(tree.nodes)
    for level in tree.levels[1:]:
        reach[level] = reach[tree.parents[level]] * 0.9 / (1 + tree.rank[level])
    text = page(Contents(trees=(LabelledTree("large", TreeFile(tree=tree, reach=reach)),)))
    assert len(text.encode()) < MOST_BYTES
    seen = Page(text)
    assert any(f"the CSV file contains {65_536 - MAX_NODES} more" in each for each in seen.texts("bdi"))
    assert "rows are left out" in text


def test_drawn_nodes_of_a_large_tree_are_the_most_reached_ones() -> None:
    tree = TokenTree([-1, 0, 0, *[1] * 400, *[2] * 400])
    reach = np.array([1.0, 0.9, 0.8, *[0.1] * 400, *np.linspace(0.7, 0.2, 400)])
    (section,) = sections(Contents(trees=(LabelledTree("t", TreeFile(tree=tree, reach=reach)),)))
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
    assert len(page(Contents(planned=planned(profile))).encode()) < MOST_BYTES


def test_page_of_all_inputs_stays_below_the_limit(whole_text: str) -> None:
    assert len(whole_text.encode()) < MOST_BYTES


def test_warnings_say_what_to_do() -> None:
    found = planned(invented(verify_noise=0.5, draft_noise=0.5))
    own = replace(bench_of(found, 1.5), measured=replace(MEASURED, divergences=(DIVERGENCE,)))
    other = TreeFile(tree=chain(2), provenance=Provenance(pair="x + y"))
    seen = Page(
        page(
            Contents(
                planned=found, trees=(LabelledTree("t.json", other),), benches=(LabelledBench("b.json", own, HEADING),)
            )
        )
    )
    place = next(i for i, (tag, at, _) in enumerate(seen.elements) if tag == "section" and at["id"] == "warnings")
    texts = "\n".join("".join(text) for tag, _, text in seen.elements[place : place + 40] if tag == "bdi")
    assert "b.json: the output DIFFERS from plain decoding. Report it" in texts
    assert "t.json was planned for x + y, and this is big + small" in texts
    assert "vary by" in texts
    assert "Measure the choice" not in texts
    alone = Page(page(Contents(planned=planned())))
    assert any("Measure the choice with treeopt bench tree tree.json" in each for each in alone.texts("bdi"))


def test_both_themes_have_all_colours(whole: Page) -> None:
    (style,) = whole.texts("style")
    used, blocks = set(re.findall(r"var\(--(\w+)\)", style)), re.findall(r"--paper:[^}]*", style)
    used |= {
        name
        for found in (each for _, each, _ in whole.elements)
        for value in found.values()
        for name in re.findall(r"var\(--(\w+)\)", str(value))
    }
    assert len(blocks) == 5  # light, dark as asked by the system, either as chosen, and print
    for block in blocks:
        assert used <= set(re.findall(r"--(\w+):#[0-9a-f]{6};", block))
    assert blocks[0] == blocks[2] == blocks[4] != blocks[1] == blocks[3]


def test_equal_contents_give_equal_pages() -> None:
    assert page(Contents(planned=planned(invented(tables=[STEEP])))) == page(
        Contents(planned=planned(invented(tables=[STEEP])))
    )
