"""`treeopt export` and `treeopt import`: every name, the files beside, what is said, and what is refused."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.invented import COUNTS, TABLE, call, draft_s, invented, saved, verify_s
from tests.engines.exporters import published_rules as rules
from tests.support.invented_drafts import InventedDraft, invented_text, recorded
from treeopt import Profile
from treeopt.engines import ENGINES
from treeopt.engines.importers import IMPORTERS, read_acceptance
from treeopt.planner import plan, step_model
from treeopt.planner.dynamic import fastest_dynamic_tree
from treeopt.planner.replay import Replay
from treeopt.planner.segments import chain_schedule, fastest_length
from treeopt.records.acceptance import AcceptanceTable
from treeopt.trees import TokenTree, TreeFile, chain, load, load_file
from treeopt.trees.drafter_setting import drafter_setting
from treeopt.trees.formats import FORMATS

NAMES = [
    *("sequoia", "umbrella", "medusa", "nxdi", "npz", "safetensors"),
    *("vllm", "sglang", "tensorrt-llm", "hf", "llama-cpp", "lmdeploy", "mlx-lm", "exllamav3", "openvino", "eagle"),
]
BATCHES = [(256, batch) for batch in (1, 16, 64)]
CROWDED = {"verify": lambda n, c, b: verify_s(n, c, b) + 1e-3 * n * (b - 1)}
NEVER = AcceptanceTable([[0.01, 0.005]] * 4)
"""A draft that is nearly always wrong."""


@pytest.fixture
def files(folder: Path) -> Path:
    saved(folder, invented(conditions=BATCHES, **CROWDED))
    TokenTree([-1, 0, 0, 1, 1, 2, 2]).save("tree.json")
    chain(2).save("chain.json")
    return folder


def ran(*arguments: object):
    """Run a command; an export replaces the side files of an earlier one."""
    result = call(*arguments, *(["--force"] if arguments[0] == "export" else []))
    assert result.exit_code == 0, result.output
    return result


def test_every_name_is_one_of_a_format_or_an_engine():
    assert [each.name for each in (*FORMATS, *ENGINES)] == NAMES


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("source", ["tree.json", "chain.json", "profile.yaml"])
def test_every_name_is_written_from_a_tree_and_from_a_profile(name, source):
    Path("out").mkdir()
    ran("export", source, "--to", name, "-o", f"out/of.{name}")
    written = Path(f"out/of.{name}")
    assert written.stat().st_size > 0
    sidecar = json.loads(Path(f"out/of.{name}.provenance.json").read_text("utf-8"))
    kind = "profile" if source == "profile.yaml" else "tree"
    assert sidecar["inputs"][kind]["sha256"] == hashlib.sha256(Path(source).read_bytes()).hexdigest()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("name", [each.name for each in FORMATS])
def test_there_and_back(name):
    ran("export", "tree.json", "--to", name, "-o", "there.misleading")
    ran("import", "there.misleading", "-o", "back.json")
    assert load("back.json") == load("tree.json")
    assert ran("show", "there.misleading").stdout == ran("show", "back.json").stdout


@pytest.mark.usefixtures("files")
def test_a_chain_is_kept_and_a_tree_becomes_the_fastest_chain():
    fastest = fastest_length(step_model(Profile.load("profile.yaml")))
    assert fastest > 2
    for source, length in [("chain.json", 2), ("tree.json", fastest), ("profile.yaml", fastest)]:
        ran("export", source, "--to", "mlx-lm", "-o", "out.txt")
        assert rules.mlx_lm(Path("out.txt").read_text("utf-8")) == length


@pytest.mark.usefixtures("files")
def test_the_schedule_is_the_planned_one():
    ran("export", "profile.yaml", "--to", "vllm", "-o", "vllm.json")
    planned = {
        batch: segment.option.tree.max_depth
        for segment in chain_schedule(Profile.load("profile.yaml"))
        for batch in range(segment.batch_sizes[0], segment.batch_sizes[1] + 1)
    }
    found = rules.vllm_lengths(Path("vllm.json").read_text("utf-8"))
    assert {batch: found[batch] for batch in planned} == planned
    assert len(set(planned.values())) > 2


def test_costs_are_counted_over_all_sequences_of_a_batch(folder: Path):
    saved(folder, invented(conditions=[(256, 4)]))
    chain(2).save("chain.json")
    ran("export", "chain.json", "--to", "sglang", "-o", "flags.txt")
    costs = rules.sglang_costs(Path("flags.txt.sps.json").read_text("utf-8"))
    assert costs == pytest.approx({4 * tokens: verify_s(tokens, 256, 4) for tokens in COUNTS}, rel=1e-5)


@pytest.mark.usefixtures("files")
def test_the_replay_is_the_acceptance_of_the_profile():
    ran("export", "chain.json", "--to", "vllm", "-o", "vllm.json")
    rates = json.loads(Path("vllm.json.synthetic.json").read_text("utf-8"))["synthetic_acceptance_rates"]
    assert rates == pytest.approx([TABLE.p[0, 0], TABLE.p[0, 0] * TABLE.p[1, 0]])


@pytest.mark.usefixtures("files")
def test_the_prediction_stands_beside_the_default_and_plain_decoding():
    said = ran("export", "chain.json", "--to", "llama-cpp", "-o", "flags.txt").stdout
    model = step_model(Profile.load("profile.yaml"))
    for label, tree in [("* chain of 2 draft tokens", chain(2)), ("  llama.cpp's default, chain of 3", chain(3))]:
        (line,) = (line for line in said.splitlines() if line.startswith(label))
        assert f"{model.speedup(tree):.2f} (" in line
    assert "  plain decoding" in said
    assert "llama-server -m TARGET" in said
    sidecar = json.loads(Path("flags.txt.provenance.json").read_text("utf-8"))
    assert sidecar["predictions"][0]["speedup"]["value"] == pytest.approx(model.speedup(chain(2)))
    assert sidecar["setting"] == {"top_k": 1, "depth": 2, "nodes": 3, "root_counted": True}


@pytest.mark.usefixtures("files")
def test_nothing_but_the_file_is_on_standard_output():
    result = ran("export", "chain.json", "--to", "vllm")
    assert rules.vllm(result.stdout) == 2
    assert "chain of 2 draft tokens" in result.stderr
    assert sorted(path.name for path in Path().iterdir()) == ["chain.json", "profile.yaml", "tree.json"]


def test_without_a_profile_only_the_length_is_carried_over(folder: Path):
    del folder
    chain(4).save("chain.json")
    TokenTree([-1, 0, 0, 1]).save("tree.json")
    for source, length in [("chain.json", 4), ("tree.json", 2)]:
        result = ran("export", source, "--to", "sglang", "-o", "flags.txt")
        assert rules.sglang(Path("flags.txt").read_text("utf-8")) == rules.Triple(1, length, length)
        assert "without a profile nothing is predicted" in result.stderr
    assert ran("export", "tree.json", "--to", "nxdi").stdout == '{"0": [1, 2], "1": [3]}\n'


def test_where_plain_decoding_wins_every_engine_is_set_to_it(folder: Path):
    saved(folder, invented(tables=[NEVER]))
    model = step_model(Profile.load("profile.yaml"))
    best = max(model.speedup(chain(length)) for length in range(1, 5))
    assert best < 1
    for engine in ENGINES:
        result = ran("export", "profile.yaml", "--to", engine.name, "-o", "out")
        assert Path("out").read_text("utf-8") == engine.off.files["FILE"]
        assert result.stdout.startswith(f"{engine.title} ({engine.versions}): no speculation\n")
        assert "\n* plain decoding" in result.stdout
        (lost,) = (line for line in result.stderr.splitlines() if "speculation loses" in line)
        assert f"a chain of 1 draft token, is {best:.2f} times as fast as plain decoding" in lost
        sidecar = json.loads(Path("out.provenance.json").read_text("utf-8"))
        assert sidecar["setting"] == {"nodes": 1, "depth": 0, "root_counted": True}
        assert sidecar["predictions"][0]["speedup"]["value"] == 1


def test_the_batch_size_that_is_served_decides(folder: Path):
    """An engine of one length is told to export for it; plain decoding may win there, though not at every batch size."""
    saved(folder, invented(conditions=BATCHES, verify=lambda n, c, b: verify_s(n, c, b) + 2e-3 * n * (b - 1)))
    profile = Profile.load("profile.yaml")
    lengths = [fastest_length(step_model(profile, batch_size=batch)) for _, batch in BATCHES]
    assert lengths == [4, 1, 0]
    for (_, batch), length in zip(BATCHES, lengths, strict=True):
        ran("export", "profile.yaml", "--to", "mlx-lm", "-o", "out.txt", "--batch-size", batch)
        written = Path("out.txt").read_text("utf-8").split()
        assert written == (["--draft-model", "small", "--num-draft-tokens", str(length)] if length else [])


def test_the_root_alone_is_plain_decoding(folder: Path):
    chain(0).save("root.json")
    alone = ran("export", "root.json", "--to", "llama-cpp", "-o", "flags.txt")
    assert "set to decode plainly, because no draft was measured" in alone.stderr
    assert Path("flags.txt").read_text("utf-8") == "\n"
    saved(folder, invented())
    best = max(step_model(Profile.load("profile.yaml")).speedup(chain(length)) for length in range(1, 5))
    beside = ran("export", "root.json", "--to", "llama-cpp", "-o", "flags.txt")
    assert best > 1
    assert "as asked, although a chain of" in beside.stderr
    assert f"is {best:.2f} times as fast" in beside.stderr


def test_the_fastest_tree_of_a_profile(folder: Path):
    saved(folder, invented(draft=lambda n, c, b: 0.02 * draft_s(n, c, b)))
    ran("export", "profile.yaml", "--to", "umbrella", "-o", "growmap.json")
    named = load_file("growmap.json")
    assert named.tree == plan(Profile.load("profile.yaml"), 32).choice.tree
    assert named.tree.max_depth < named.tree.nodes - 1


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("tree.json",), 2, "--to"),
        (("tree.json", "--to", "gguf"), 2, "expected one of sequoia, umbrella"),
        (("tree.json", "--to", "npz"), 2, "Name a file with -o"),
        (("nothing.json", "--to", "nxdi"), 1, "no such file"),
        (("tree.json", "--to", "nxdi", "-o", "tree.json"), 2, "would be overwritten"),
        (("tree.json", "--to", "vllm", "-o", "profile.yaml"), 2, "would be overwritten"),
        (("tree.json", "--to", "nxdi", "-o", "no/such/folder"), 1, "folder does not exist"),
        (("tree.json", "--to", "vllm", "--profile", "nothing.yaml"), 1, "Run treeopt profile first"),
        (("tree.json", "--to", "sglang", "--record", "nothing.npz"), 1, "no such file"),
        (("tree.json", "--to", "vllm", "--method", "medusa"), 1, "--method: expected"),
        (("tree.json", "--to", "vllm", "--engine-version", "new"), 1, "--engine-version: expected"),
        (("tree.json", "--to", "vllm-tree"), 2, "expected one of sequoia, umbrella"),
        (("tree.json", "--to", "medusa", "--heads", "1"), 1, "depth"),
        (("tree.json", "--to", "nxdi", "--budget", "3"), 2, "choose a tree"),
    ],
)
def test_what_is_wrong_is_one_line(arguments, code, said):
    before = {path: path.read_bytes() for path in Path().iterdir()}
    result = call("export", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("command", "rows"), [("export", (*FORMATS, *ENGINES)), ("import", (*FORMATS, *IMPORTERS))])
def test_the_list_shows_every_name_and_need(command, rows):
    printed = ran(command, "--list").stdout
    for each in rows:
        assert re.search(rf"\n  {re.escape(each.name)} +{re.escape(each.title)} \(", printed), each.name
        assert each.needs.split()[0] in printed
    assert max(map(len, printed.splitlines())) <= 120


class TestDynamicTrees:
    @pytest.fixture
    def recorded_pair(self, folder: Path) -> Replay:
        """Write a profile and the draft record beside it, of a machine where drafts cost little."""
        saved(folder, invented(draft=lambda n, c, b: 0.1 * draft_s(n, c, b)))
        draft = InventedDraft(4)
        record = recorded(draft, [invented_text(draft, seed, 30) for seed in range(3)], 24, 3, 4)
        record.save("profile.record.npz")
        return Replay(record)

    def test_the_fastest_of_the_record_is_exported(self, recorded_pair):
        ran("export", "profile.yaml", "--to", "sglang", "-o", "flags.txt")
        best = fastest_dynamic_tree(recorded_pair, step_model(Profile.load("profile.yaml")), max_nodes=32)[0]
        assert not best.is_chain
        found = rules.sglang(Path("flags.txt").read_text("utf-8"))
        assert found == rules.Triple(best.top_k, best.depth, best.nodes - 1)
        sidecar = json.loads(Path("flags.txt.provenance.json").read_text("utf-8"))
        assert set(sidecar["inputs"]) == {"profile", "record"}

    def test_an_engine_with_a_smaller_pool_gets_the_fastest_that_it_takes(self, recorded_pair):
        ran("export", "profile.yaml", "--to", "tensorrt-llm", "-o", "config.yaml")
        model = step_model(Profile.load("profile.yaml"))
        best = fastest_dynamic_tree(
            recorded_pair,
            model,
            max_nodes=32,
            limits=lambda tree: None if tree.depth < tree.nodes <= 1 + tree.top_k * tree.depth else "too large",
        )[0]
        found = rules.tensorrt_llm(Path("config.yaml").read_text("utf-8"))
        assert found == rules.Triple(best.top_k, best.depth, best.nodes - 1)

    @pytest.mark.usefixtures("recorded_pair")
    def test_the_default_stands_beside_it(self):
        said = ran("export", "profile.yaml", "--to", "openvino", "-o", "out.json").stdout
        assert "OpenVINO GenAI's default, chain of 5 draft tokens: not predicted" in said
        said = ran("export", "profile.yaml", "--to", "sglang", "-o", "out.txt").stdout
        assert "SGLang's default, chain of 3 draft tokens  " in said

    @pytest.mark.usefixtures("recorded_pair")
    def test_chains_only_where_the_record_is_left_out(self):
        result = ran("export", "profile.yaml", "--to", "sglang", "-o", "flags.txt", "--no-record")
        assert rules.sglang(Path("flags.txt").read_text("utf-8")).k == 1
        assert "Run treeopt profile --record" in result.stderr

    @pytest.mark.usefixtures("recorded_pair")
    def test_limits_hold(self):
        ran("export", "profile.yaml", "--to", "eagle", "-o", "flags.txt", "--depth", 2, "--budget", 5)
        found = rules.eagle(Path("flags.txt").read_text("utf-8"))
        assert found.levels <= 2
        assert found.drafts <= 4
        ran("export", "profile.yaml", "--to", "mlx-lm", "-o", "flags.txt", "--depth", 2)
        assert rules.mlx_lm(Path("flags.txt").read_text("utf-8")) == 2
        ran("export", "profile.yaml", "--to", "mlx-lm", "-o", "flags.txt", "--budget", 2)
        assert rules.mlx_lm(Path("flags.txt").read_text("utf-8")) == 1

    def test_an_engine_of_chains_does_not_look_at_the_record(self, recorded_pair):
        replace(recorded_pair.record, temperature=0.7).save("profile.record.npz")
        ran("export", "profile.yaml", "--to", "vllm", "-o", "vllm.json")

    @pytest.mark.usefixtures("recorded_pair")
    def test_a_chain_is_kept(self):
        chain(2).save("chain.json")
        ran("export", "chain.json", "--to", "eagle", "-o", "flags.txt")
        assert rules.eagle(Path("flags.txt").read_text("utf-8")) == rules.Triple(1, 2, 2)

    @pytest.mark.parametrize(
        ("change", "said"),
        [({"temperature": 0.7}, "record at that temperature"), ({"pair": "other + small"}, "record that pair")],
    )
    def test_a_record_of_something_else_is_refused(self, recorded_pair, change, said):
        replace(recorded_pair.record, **change).save("other.npz")
        result = call("export", "profile.yaml", "--to", "sglang", "--record", "other.npz")
        assert (result.exit_code, result.stdout) == (1, "")
        assert said in result.stderr


class TestImport:
    @pytest.mark.usefixtures("folder")
    def test_of_several_trees_one_is_chosen(self):
        Path("two.py").write_text("narrow = [[0], [0, 0]]\nwide = [[0], [1]]\n", "utf-8")
        result = call("import", "two.py")
        assert result.exit_code == 1
        assert "narrow, wide" in result.stderr.replace("'", "")
        assert not Path("tree.json").exists()
        ran("import", "two.py", "--name", "wide")
        assert load("tree.json") == TokenTree([-1, 0, 0])

    @pytest.mark.usefixtures("files")
    def test_a_tree_out_of_a_solution(self):
        ran("solve", "--budget", 8, "-o", "other.json", "--save", "solution.npz")
        ran("import", "solution.npz", "--budget", 5, "-o", "small.json")
        assert load("small.json").nodes == 5

    @pytest.mark.usefixtures("files")
    def test_to_standard_output(self):
        ran("export", "tree.json", "--to", "umbrella", "-o", "growmap")
        assert json.loads(ran("import", "growmap", "-o", "-").stdout)["parents"] == [-1, 0, 0, 1, 1, 2, 2]

    @pytest.mark.usefixtures("files")
    def test_other_files_are_refused_and_nothing_is_written(self):
        Path("code.py").write_text("import os\nos.mkdir('made')\n", "utf-8")
        for name in ("profile.yaml", "code.py"):
            result = call("import", name, "-o", "new.json")
            assert result.exit_code == 1
            assert result.stderr.startswith(f"Error: {name}: ")
        assert not Path("made").exists()
        assert not Path("new.json").exists()


class TestAcceptance:
    @pytest.mark.usefixtures("files")
    def test_the_acceptance_of_a_profile_comes_back(self):
        ran("export", "profile.yaml", "--to", "speculation-profile", "-o", "rates.json")
        profile = Profile.load("profile.yaml")
        found = read_acceptance("rates.json", temperature=0.0, rule="sequoia").table
        measured = profile.acceptance().table
        assert found.p.ravel().tolist() == measured.rows(measured.max_depth)[:, 0, 0].tolist()
        sidecar = json.loads(Path("rates.json.provenance.json").read_text("utf-8"))
        assert sidecar["inputs"]["profile"]["sha256"] == hashlib.sha256(Path("profile.yaml").read_bytes()).hexdigest()
        Path("bench.csv").write_text("tokens,ms\n1,10\n4,11\n8,12\n", "utf-8")
        times = ("--latency", "bench.csv", "--draft-latency", "bench.csv", "--acceptance", "rates.json")
        ran("profile", *times, "-o", "imported.yaml")
        (imported,) = Profile.load("imported.yaml").acceptances[0].imported
        assert imported.source == "rates.json (speculation profile)"

    @pytest.mark.usefixtures("files")
    def test_what_has_no_acceptance_is_refused_and_nothing_is_written(self):
        for arguments, reason in (
            (("tree.json",), "tree.json: expected a profile"),
            (("profile.yaml", "--depth", 99), "--depth: the acceptance table was measured to depth"),
            (("profile.yaml", "--rule", "traversal"), "traversal"),
        ):
            result = call("export", *arguments, "--to", "speculation-profile", "-o", "rates.json")
            assert result.exit_code == 1
            assert reason in result.stderr
            assert result.stderr.count("\n") == 1
            assert not Path("rates.json").exists()


@pytest.mark.usefixtures("files")
class TestOptionsWithoutEffect:
    @pytest.mark.parametrize(
        ("arguments", "option"),
        [
            (("tree.json", "--to", "vllm", "--heads", 3), "--heads"),
            (("tree.json", "--to", "vllm", "--list-name", "z"), "--list-name"),
            (("tree.json", "--to", "sequoia", "--list-name", "z"), "--list-name"),
            (("tree.json", "--to", "sequoia", "--engine-version", "3"), "--engine-version"),
            (("tree.json", "--to", "medusa", "--draft-model", "d"), "--draft-model"),
            (("tree.json", "--to", "medusa", "--method", "m"), "--method"),
            (("tree.json", "--to", "nxdi", "--profile", "profile.yaml"), "--profile"),
            (("tree.json", "--to", "nxdi", "--rule", "target"), "--rule"),
            (("tree.json", "--to", "nxdi", "--batch-size", 1), "--batch-size"),
            (("profile.yaml", "--to", "medusa", "--name", "mytree"), "--name"),
            (("profile.yaml", "--to", "vllm", "--name", "mytree"), "--name"),
            (("profile.yaml", "--to", "vllm", "--profile", "other.yaml"), "--profile"),
            (("profile.yaml", "--to", "medusa", "--record", "r.npz"), "--record"),
            (("profile.yaml", "--to", "medusa", "--no-record"), "--no-record"),
            (("profile.yaml", "--to", "vllm", "--record", "r.npz"), "--record"),
            (("profile.yaml", "--to", "exllamav3", "--draft-model", "d"), "--draft-model"),
            (("profile.yaml", "--to", "mlx-lm", "--method", "eagle3"), "--method"),
            *(
                (("profile.yaml", "--to", "speculation-profile", *words), words[0])
                for words in (
                    ("--engine-version", "3"),
                    ("--budget", 4),
                    ("--draft-model", "d"),
                    ("--batch-size", 1),
                    ("--profile", "profile.yaml"),
                    ("--name", "n"),
                    ("--heads", 3),
                    ("--no-record",),
                )
            ),
        ],
        ids=lambda each: " ".join(map(str, each)) if isinstance(each, tuple) else None,
    )
    def test_they_are_refused_by_name_with_what_the_format_takes(self, arguments, option):
        before = sorted(Path().iterdir())
        result = call("export", *arguments, "-o", "out.json")
        assert (result.exit_code, result.stdout) == (2, "")
        (line,) = (line for line in result.stderr.splitlines() if line.startswith("Error: "))
        taken = line.partition("takes ")[2]
        assert line.startswith(f"Error: {option}: {arguments[2]} ")
        assert "--" in taken
        assert option not in taken.partition(". ")[0].split(", ")
        assert sorted(Path().iterdir()) == before

    @pytest.mark.parametrize("option", [("--rule", "target"), ("--temperature", 0.5), ("--batch-size", 4)])
    def test_conditions_of_a_plan_need_a_profile(self, option):
        Path("profile.yaml").unlink()
        result = call("export", "chain.json", "--to", "vllm", *option)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{option[0]}: vllm from a tree without a profile takes --profile, " in result.stderr

    def test_a_tree_of_another_drafter_is_not_planned(self):
        TreeFile(tree=chain(0), drafter=drafter_setting("prompt-lookup", length=5, ngram=2)).save("lookup.json")
        result = call("export", "lookup.json", "--to", "vllm", "--batch-size", 4)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--batch-size: vllm from a tree takes" in result.stderr
        ran("export", "lookup.json", "--to", "vllm", "--method", "ngram")  # negative control

    @pytest.mark.parametrize(("name", "method"), [("vllm", "ngram"), ("sglang", "NEXTN"), ("lmdeploy", None)])
    def test_a_draft_model_that_the_method_does_not_load_is_refused(self, name, method):
        options = () if method is None else ("--method", method)
        result = call("export", "chain.json", "--to", name, "--draft-model", "d", *options)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"--draft-model: {name} loads none by this method" in result.stderr
        ran("export", "chain.json", "--to", name, *options)  # negative control

    def test_the_list_is_named_by_list_name(self):
        ran("export", "profile.yaml", "--to", "medusa", "--list-name", "mytree", "--heads", 4, "-o", "choices.py")
        assert Path("choices.py").read_text().startswith("mytree = [")

    def test_an_engine_that_loads_no_draft_by_itself_is_not_told_to_name_one(self):
        """`--draft-model` is offered only where it is taken."""
        for name, offered in (("vllm", True), ("exllamav3", False), ("openvino", False), ("hf", False)):
            assert ("--draft-model" in call("export", "profile.yaml", "--to", name).stderr) == offered, name
