"""`treeopt export` and `treeopt import`: every format and engine, side files, and predictions."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.invented import TABLE, call, draft_s, invented, saved, succeed, verify_s, warnings_of
from tests.engines.exporters import published_rules as rules
from tests.support.invented_drafts import InventedDraft, invented_text, recorded
from treeopt import Profile
from treeopt.engines import ENGINES
from treeopt.engines.importers import IMPORTERS, read_acceptance
from treeopt.planner import plan, step_model
from treeopt.planner.dynamic import fastest_dynamic_tree
from treeopt.planner.replay import Replay
from treeopt.planner.request import PlanRequest
from treeopt.planner.segments import fastest_length
from treeopt.records.acceptance import AcceptanceTable
from treeopt.records.sampling import Sampling
from treeopt.trees import TokenTree, TreeFile, chain, k_ary, load, load_file
from treeopt.trees.drafter_setting import drafter_setting
from treeopt.trees.formats import FORMATS

NAMES = [
    *("sequoia", "umbrella", "medusa", "nxdi", "npz", "safetensors"),
    *("vllm", "sglang", "tensorrt-llm", "hf", "llama-cpp", "lmdeploy", "mlx-lm", "exllamav3", "openvino", "eagle"),
]
BATCHES = [(256, batch) for batch in (1, 16, 64)]
NEVER = AcceptanceTable([[0.01, 0.005]] * 4)
"""Of a draft that is nearly always wrong."""


def crowded(seconds: float):
    """Return verification times that grow by `seconds` for each token of each further sequence."""
    return lambda tokens, context, batch: verify_s(tokens, context, batch) + seconds * tokens * (batch - 1)


@pytest.fixture
def files(folder: Path) -> Path:
    saved(folder, invented(conditions=BATCHES, verify=crowded(1e-3)))
    TokenTree([-1, 0, 0, 1, 1, 2, 2]).save("tree.json")
    chain(2).save("chain.json")
    return folder


def export(*arguments: object) -> Result:
    return succeed("export", *arguments, "--force")


def json_of(path: str):
    return json.loads(Path(path).read_text("utf-8"))


def test_names_are_those_of_formats_and_engines():
    assert [target.name for target in (*FORMATS, *ENGINES)] == NAMES


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("name", NAMES)
def test_every_format_is_written_from_trees_and_profiles(name):
    Path("out").mkdir()
    for source, kind in (("tree.json", "tree"), ("profile.yaml", "profile")):
        result = export(source, "--to", name, "-o", f"out/of.{name}")
        assert "no speculation" not in result.stdout
        assert len(warnings_of(result)) <= 2
        assert Path(f"out/of.{name}").stat().st_size > 0
        digest = json_of(f"out/of.{name}.provenance.json")["inputs"][kind]["sha256"]
        assert digest == hashlib.sha256(Path(source).read_bytes()).hexdigest()


def test_lossy_rules_are_exported_by_name_only(folder):
    profile = invented(others={"typical": TABLE})
    saved(folder, replace(profile, acceptances=profile.acceptances[::-1]))
    for options, rule in (((), "sequoia"), (("--rule", "typical"), "typical")):
        export("profile.yaml", "--to", "hf", "-o", "out", *options)
        code = Path("out.hf/custom_generate/generate.py").read_text("utf-8")
        assert f'rule="{rule}", lossy={rule == "typical"}' in code
        export("profile.yaml", "--to", "npz", "-o", "tree.npz", *options)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("name", [target.name for target in FORMATS])
def test_trees_are_imported_as_they_were_exported(name):
    export("tree.json", "--to", name, "-o", "exported.misleading")
    succeed("import", "exported.misleading", "-o", "back.json")
    assert load("back.json") == load("tree.json")
    assert succeed("show", "exported.misleading").stdout == succeed("show", "back.json").stdout


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("drafter", "name", "needed"),
    [
        ("medusa", "sequoia", "a draft model"),
        ("eagle", "umbrella", "a draft model"),
        ("dflash", "medusa", "medusa or eagle"),
        ("medusa", "medusa", None),
        ("medusa", "npz", None),
    ],
)
def test_a_format_without_the_drafter_of_the_tree_is_a_warning(drafter, name, needed):
    TreeFile(tree=k_ary(2, 2), drafter=drafter_setting(drafter)).save("tree.json")
    warnings = warnings_of(export("tree.json", "--to", name, "-o", "out"))
    assert len(warnings) == (needed is not None)
    assert all(f"planned for {drafter}, but" in line and f"drafts with {needed} only" in line for line in warnings)


@pytest.mark.usefixtures("files")
def test_a_chain_is_kept_and_a_tree_becomes_the_fastest_chain():
    fastest = fastest_length(step_model(Profile.load("profile.yaml")))
    assert fastest > 2
    for source, length in [("chain.json", 2), ("tree.json", fastest), ("profile.yaml", fastest)]:
        export(source, "--to", "mlx-lm", "-o", "out.txt")
        assert rules.mlx_lm(Path("out.txt").read_text("utf-8")) == length


@pytest.mark.usefixtures("files")
def test_the_default_and_plain_decoding_are_predicted_too():
    output = export("chain.json", "--to", "llama-cpp", "-o", "flags.txt").stdout
    model = step_model(Profile.load("profile.yaml"))
    for label, tree in [("* chain of 2 draft tokens", chain(2)), ("  llama.cpp's default, chain of 3", chain(3))]:
        (line,) = (line for line in output.splitlines() if line.startswith(label))
        assert f"{model.speedup(tree):.2f} (" in line
    assert "  plain decoding" in output
    assert "llama-server -m TARGET" in output
    sidecar = json_of("flags.txt.provenance.json")
    assert sidecar["predictions"][0]["speedup"]["value"] == pytest.approx(model.speedup(chain(2)))
    assert sidecar["setting"] == {"top_k": 1, "depth": 2, "nodes": 3, "root_counted": True}


@pytest.mark.usefixtures("files")
def test_standard_output_has_the_file_alone():
    result = export("chain.json", "--to", "vllm")
    assert rules.vllm(result.stdout) == 2
    assert "chain of 2 draft tokens" in result.stderr
    assert sorted(path.name for path in Path().iterdir()) == ["chain.json", "profile.yaml", "tree.json"]


@pytest.mark.usefixtures("folder")
def test_only_the_length_is_exported_without_a_profile():
    chain(4).save("chain.json")
    TokenTree([-1, 0, 0, 1]).save("tree.json")
    for source, length in [("chain.json", 4), ("tree.json", 2)]:
        result = export(source, "--to", "sglang", "-o", "flags.txt")
        assert rules.sglang(Path("flags.txt").read_text("utf-8")) == rules.Triple(1, length, length)
        assert "without a profile nothing is predicted" in result.stderr
    assert export("tree.json", "--to", "nxdi").stdout == '{"0": [1, 2], "1": [3]}\n'


def test_every_engine_is_set_to_plain_decoding_if_that_is_fastest(folder: Path):
    saved(folder, invented(tables=[NEVER]))
    model = step_model(Profile.load("profile.yaml"))
    best = max(model.speedup(chain(length)) for length in range(1, 5))
    assert best < 1
    for engine in ENGINES:
        result = export("profile.yaml", "--to", engine.name, "-o", "out")
        assert Path("out").read_text("utf-8") == engine.off.files["FILE"]
        assert result.stdout.startswith(f"{engine.title} ({engine.versions}): no speculation\n")
        assert "\n* plain decoding" in result.stdout
        (warning,) = (line for line in result.stderr.splitlines() if "speculation loses" in line)
        assert f"a chain of 1 draft token, is {best:.2f} times as fast as plain decoding" in warning
        sidecar = json_of("out.provenance.json")
        assert sidecar["setting"] == {"nodes": 1, "depth": 0, "root_counted": True}
        assert sidecar["predictions"][0]["speedup"]["value"] == 1


def test_the_batch_size_decides_the_length(folder: Path):
    saved(folder, invented(conditions=BATCHES, verify=crowded(2e-3)))
    profile = Profile.load("profile.yaml")
    lengths = [fastest_length(step_model(profile, PlanRequest(batch_size=batch))) for _, batch in BATCHES]
    assert lengths == [4, 1, 0]
    for (_, batch), length in zip(BATCHES, lengths, strict=True):
        export("profile.yaml", "--to", "mlx-lm", "-o", "out.txt", "--batch-size", batch)
        words = Path("out.txt").read_text("utf-8").split()
        assert words == (["--draft-model", "small", "--num-draft-tokens", str(length)] if length else [])


def test_the_root_alone_is_plain_decoding(folder: Path):
    chain(0).save("root.json")
    result = export("root.json", "--to", "llama-cpp", "-o", "flags.txt")
    assert "set to decode plainly, because no draft was measured" in result.stderr
    assert Path("flags.txt").read_text("utf-8") == "\n"
    saved(folder, invented())
    best = max(step_model(Profile.load("profile.yaml")).speedup(chain(length)) for length in range(1, 5))
    result = export("root.json", "--to", "llama-cpp", "-o", "flags.txt")
    assert best > 1
    assert "as asked, although a chain of" in result.stderr
    assert f"is {best:.2f} times as fast" in result.stderr


def test_a_format_gets_the_fastest_tree_of_a_profile(folder: Path):
    saved(folder, invented(draft=lambda n, c, b: 0.02 * draft_s(n, c, b)))
    export("profile.yaml", "--to", "umbrella", "-o", "growmap.json")
    tree = load_file("growmap.json").tree
    assert tree == plan(Profile.load("profile.yaml"), 32).choice.tree
    assert tree.max_depth < tree.nodes - 1


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("command", "rows"), [("export", (*FORMATS, *ENGINES)), ("import", (*FORMATS, *IMPORTERS))])
def test_list_contains_every_name_and_need(command, rows):
    printed = succeed(command, "--list").stdout
    for row in rows:
        assert re.search(rf"\n  {re.escape(row.name)} +{re.escape(row.title)} \(", printed), row.name
        assert row.needs.split()[0] in printed
    assert max(map(len, printed.splitlines())) <= 120


class TestDynamicTrees:
    @pytest.fixture
    def replay(self, folder: Path) -> Replay:
        """Write a profile of a machine on which drafts cost little, and its draft record."""
        saved(folder, invented(draft=lambda n, c, b: 0.1 * draft_s(n, c, b)))
        draft = InventedDraft(4)
        record = recorded(draft, [invented_text(draft, seed, 30) for seed in range(3)], 24, 3, 4)
        record.save("profile.record.npz")
        return Replay(record)

    def test_the_fastest_of_the_record_is_exported(self, replay):
        output = export("profile.yaml", "--to", "sglang", "-o", "flags.txt").stdout
        best = fastest_dynamic_tree(replay, step_model(Profile.load("profile.yaml")), max_nodes=32)[0]
        assert not best.is_chain
        setting = rules.sglang(Path("flags.txt").read_text("utf-8"))
        assert setting == rules.Triple(best.top_k, best.depth, best.nodes - 1)
        assert set(json_of("flags.txt.provenance.json")["inputs"]) == {"profile", "record"}
        assert "SGLang's default, chain of 3 draft tokens  " in output

    @pytest.mark.usefixtures("replay")
    def test_default_beyond_the_record_is_not_predicted(self):
        output = export("profile.yaml", "--to", "openvino", "-o", "out.json").stdout
        assert "OpenVINO GenAI's default, chain of 5 draft tokens: not predicted" in output

    @pytest.mark.usefixtures("replay")
    def test_without_the_record_chains_are_planned(self):
        result = export("profile.yaml", "--to", "sglang", "-o", "flags.txt", "--no-record")
        assert rules.sglang(Path("flags.txt").read_text("utf-8")).k == 1
        assert "Run treeopt profile --record" in result.stdout

    @pytest.mark.usefixtures("replay")
    def test_budget_and_depth_limit_trees_and_chains(self):
        export("profile.yaml", "--to", "eagle", "-o", "flags.txt", "--depth", 2, "--budget", 5)
        setting = rules.eagle(Path("flags.txt").read_text("utf-8"))
        assert (setting.levels <= 2, setting.drafts <= 4) == (True, True)
        for options, length in ((("--depth", 2), 2), (("--budget", 2), 1)):
            export("profile.yaml", "--to", "mlx-lm", "-o", "flags.txt", *options)
            assert rules.mlx_lm(Path("flags.txt").read_text("utf-8")) == length

    @pytest.mark.usefixtures("replay")
    def test_a_chain_is_kept(self):
        chain(2).save("chain.json")
        export("chain.json", "--to", "eagle", "-o", "flags.txt")
        assert rules.eagle(Path("flags.txt").read_text("utf-8")) == rules.Triple(1, 2, 2)


class TestImport:
    @pytest.mark.usefixtures("folder")
    def test_one_of_several_trees_is_chosen_by_name(self):
        Path("two.py").write_text("narrow = [[0], [0, 0]]\nwide = [[0], [1]]\n", "utf-8")
        succeed("import", "two.py", "--name", "wide")
        assert load("tree.json") == TokenTree([-1, 0, 0])

    @pytest.mark.usefixtures("files")
    def test_budget_chooses_a_tree_of_a_solution(self):
        succeed("solve", "--budget", 8, "-o", "other.json", "--save", "solution.npz")
        succeed("import", "solution.npz", "--budget", 5, "-o", "small.json")
        assert load("small.json").nodes == 5


@pytest.mark.usefixtures("files")
def test_acceptance_is_imported_as_it_was_exported():
    export("profile.yaml", "--to", "speculation-profile", "-o", "rates.json")
    measured = Profile.load("profile.yaml").acceptance().table
    table = read_acceptance("rates.json", sampling=Sampling(), rule="sequoia").table
    assert table.p.ravel().tolist() == measured.rows(measured.max_depth)[:, 0, 0].tolist()
    digest = json_of("rates.json.provenance.json")["inputs"]["profile"]["sha256"]
    assert digest == hashlib.sha256(Path("profile.yaml").read_bytes()).hexdigest()
    Path("bench.csv").write_text("tokens,ms\n1,10\n4,11\n8,12\n", "utf-8")
    times = ("--latency", "bench.csv", "--draft-latency", "bench.csv", "--acceptance", "rates.json")
    succeed("profile", *times, "-o", "imported.yaml")
    (imported,) = Profile.load("imported.yaml").acceptances[0].imported
    assert imported.source == "rates.json (speculation profile)"


@pytest.mark.usefixtures("files")
def test_list_name_names_the_list():
    export("profile.yaml", "--to", "medusa", "--list-name", "mytree", "--heads", 4, "-o", "choices.py")
    assert Path("choices.py").read_text().startswith("mytree = [")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("name", "offered"), [("vllm", True), ("exllamav3", False), ("openvino", False), ("hf", False)]
)
def test_draft_model_is_proposed_to_engines_that_load_one_by_name(name, offered):
    assert ("--draft-model" in call("export", "profile.yaml", "--to", name).stderr) == offered
