"""Commands that cannot run: one error line, no output, no changed file; usage errors come before models are loaded."""

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from tests.cli.invented import invented, refused, saved, succeed
from treeopt import bundled
from treeopt.cli.options.pair import PairOptions
from treeopt.trees import TokenTree, TreeFile, chain, k_ary
from treeopt.trees.drafter_setting import drafter_setting
from treeopt.trees.tree_schedule import ScheduledTree, TreeSchedule

DATA = Path(__file__).parents[1] / "data"
HUGE = 10**22
LOAD = "--rate 2/s --prompt-tokens 32-64 --new-tokens 16"
IMPORTS = "--latency v.csv --draft-latency v.csv --acceptance a.json"
EAGLE = "--eagle-layers: expected --drafter eagle, p-eagle=DIR or eagle2=DIR, whose head reads them. Got none"
NAMES = "expected one of model, medusa, dflash, dspark, ddtree, redrafter, eagle, p-eagle, eagle2, specexec, lookahead, prompt-lookup"
NOT_MEASURED = "expected a profile of treeopt's own decoder. Got one of llama-server: treeopt bench engine llama-server"

PROFILE = [
    ("--output missing/profile.yaml", 1, "missing"),
    ("--target missing", 1, "tokenizer.json"),
    ("--temperature nan", 2, "--temperature"),
    ("--context-tokens many", 2, "--context-tokens"),
    ("--context-tokens 64,64", 2, "each once"),
    ("--batch-sizes 2,4", 2, "--batch-sizes: expected 1 among them"),
    ("--time-budget 0s", 2, "--time-budget"),
    ("--rounds 9 --time-budget 9s", 2, "--time-budget: expected without --rounds and --positions"),
    ("--positions 9 --time-budget 9s", 2, "--time-budget: expected without --rounds and --positions"),
    ("--temperature 0.6,1 --draft-top-k 5", 2, "expected --draft-temperature with several"),
    ("--draft-temperature 0.6", 2, "at temperature 0 the draft takes its likeliest"),
    ("--draft-temperature 0 --temperature 1", 2, "expected a number of at least"),
    ("--top-p 0", 2, "expected a number above 0 and at most 1"),
    (f"--rounds {HUGE}", 2, "from 1 to 999999999. Got"),
    ("--wait soon", 2, "expected a time such as 90s"),
    ("--rules best", 2, "--rules: expected one of sequoia, "),
    ("--rules sequoia,,target --temperature 1", 2, "Got ''"),
    ("--rules sequoia,typical --temperature 1", 2, "--lossy"),
    ("--rules sequoia,target", 2, "--rules: expected one at temperature 0"),
    ("--rules target,target --temperature 1", 2, "each once"),
    ("--latency v.csv", 2, "--latency: expected --draft-latency too"),
    (f"{IMPORTS} --record", 2, "--record: expected a draft model"),
    (f"{IMPORTS} --max-tokens 8", 2, "--max-tokens: expected something to measure"),
    ("--sweep s.csv --rounds 9", 2, "--rounds: expected without --sweep, which measures nothing here."),
    (f"{IMPORTS} --wait 60s", 2, "--wait: expected times to measure"),
    ("--latency v.csv --draft-latency v.csv --acceptance v.csv", 1, "v.csv: content: expected acceptance. Got curves"),
    ("-o - --record", 2, "--record: expected a file, because the profile goes to standard output"),
    ("--record -", 2, "--record: expected a file of its own. Got -"),
    ("--record profile.yaml", 2, "--record: expected a file of its own. Got profile.yaml"),
    ("-o - --resume", 2, "--resume: expected -o FILE, next to which unfinished work is saved. Name it."),
    ("--record missing/rec.npz", 1, "missing"),
    ("--record .", 1, "folder"),
    ("--record a.npz b.npz", 2, "unexpected extra argument"),
    ("--drafter medsua", 2, NAMES),
    ("--drafter lookahead=heads", 2, "expected no folder, because lookahead reads none. Got 'heads': leave it out."),
    ("--drafter medusa=", 2, "expected a folder after medusa=. Got none"),
    (
        "--drafter lookahead --drafter medusa --drafter lookahead",
        2,
        "--drafter lookahead: expected once. Got it 2 times.",
    ),
    ("--drafter medusa=absent", 1, "absent/config.json: no such file"),
    (
        "--drafter medusa=heads --block-draft-tokens 3",
        2,
        "--block-draft-tokens: expected --drafter dflash, dspark, ddtree",
    ),
    (
        "--drafter dflash --block-draft-tokens 3,0",
        2,
        "expected whole numbers of at least 1, each once, such as 256,1024.",
    ),
    ("--eagle-layers 2,6,9", 2, EAGLE),
    ("--drafter medusa=heads --drafter eagle2 --eagle-layers 2,6,9", 2, EAGLE),
    ("--drafter eagle --eagle-layers 2,-6", 2, "expected layer ids of the target, whole numbers of at least 0"),
    (f"--target {bundled.TARGET} --drafter eagle2", 2, "--drafter eagle2: expected --draft MODEL"),
    (f"--target {bundled.TARGET} --eagle-layers 2,6,9", 2, EAGLE),
    (f"--target {bundled.TARGET} --block-draft-tokens 3", 2, "--block-draft-tokens: expected --drafter dflash"),
    (f"--target {bundled.TARGET} --rules sequoia", 2, "--rules: expected a draft model"),
    (f"--target {bundled.TARGET} --record", 2, "--record: expected a draft model"),
    (f"--target {bundled.TARGET} --latency v.csv", 2, "--latency: expected a draft model"),
    (f"--target {bundled.TARGET} --draft-latency v.csv", 2, "--draft-latency: expected a draft model"),
    (f"--target {bundled.TARGET} --acceptance a.json", 2, "--acceptance: expected a draft model"),
    *(
        (f"--target {bundled.TARGET} --temperature 1 {option} 1", 2, f"{option}: expected a draft model")
        for option in ("--draft-temperature", "--draft-top-p", "--draft-top-k")
    ),
]
SOLVE = [
    ("--budget many", 2, "--budget"),
    (f"--budget {HUGE}", 2, "from 1 to 999999999. Got"),
    ("--profile missing.yaml", 1, "Run treeopt profile first"),
    ("--profile /dev/zero", 1, "/dev/zero: "),
    ("--profile v.csv", 1, "Error: v.csv: "),
    ("--budget 65537 --extrapolate", 2, "--budget: expected at most 65536 nodes"),
    ("--batch-size 2", 1, "Measure there. Or allow it with --extrapolate."),
    ("--batch-size 0", 2, "--batch-size"),
    ("--temperature 0.7", 1, "temperature 0.7 was not measured. Measured: sequoia at 0."),
    ("--temperature nan", 2, "expected 0, which is greedy, or a number"),
    ("--rule foo", 1, "rule foo was not measured. Measured: sequoia at 0."),
    (
        "--rule typical",
        2,
        "--rule: expected a lossless one. Got 'typical', which changes the output's distribution: allow it with",
    ),
    ("--rule typical --lossy", 1, "rule typical was not measured. Measured: sequoia at 0."),
    ("--drafter medsua", 2, "--drafter"),
    ("--new-tokens 5", 1, "--new-tokens: acceptance of sequoia"),
    ("--new-tokens 5 --drafter medusa", 2, "--drafter model"),
    ("--objective beauty", 2, "--objective"),
    ("--json --output -", 2, "--json and --output -"),
    ("--save -", 2, "'--save': expected a file. Got -, standard output."),
    ("--plot -", 2, "'--plot': expected a file. Got -, standard output."),
    ("--plot plan.jpg", 2, "'--plot': plan.jpg: expected a file name ending in .svg, .png, .pdf. Got '.jpg'."),
    ("--save missing/solution.npz", 1, "missing"),
    ("--category code", 1, "--category: expected a profile of prompts that have a category"),
]
SCHEDULE = [
    ("-o mine.json", 1, "schedule: expected several batch sizes at 256 tokens of context"),
    ("--objective tokens", 2, "--objective tokens: schedules are for speed"),
]
SHOW = [
    ("missing.json", 1, "missing.json"),
    ("missing.yaml --acceptance", 1, "missing.yaml: no such file"),
    ("tree.json --budget 2", 2, "choose a tree"),
    ("tree.json --rows 9 -o tree.svg", 2, "--rows: expected a tree drawn as text"),
    (f"tree.json --rows {HUGE}", 2, "from 9 to 999999999. Got"),
    ("missing.json -o tree.jpg", 1, ".svg, .png, .pdf, .json"),
    ("tree.json --acceptance", 2, "is no profile"),
    ("schedule.json", 1, "treeopt bench batches schedule.json --batch-sizes 1,2,4,8 compares it"),
    ("profile.yaml --budget 4", 2, "is a profile, which has no tree"),
    ("profile.yaml -o a.json", 1, "expected a file name ending in .svg"),
    ("solution.npz --budget 33", 2, "--budget: solution.npz was solved up to 32. Got 33"),
    ("solution.npz --depth 5", 2, "--depth: solution.npz was solved up to 4. Got 5"),
    ("other.zip", 1, "Error: other.zip: "),
    ("broken.npz", 1, "broken.npz"),
]
COMPARE = [
    ("", 2, "Missing argument"),
    ("nothing.json", 1, "no such file"),
    ("tree.json --profile nothing.yaml", 1, "Run treeopt profile first"),
    ("profile.yaml", 1, "profile.yaml: expected a tree. Got a profile: treeopt solve --profile profile.yaml"),
    ("tree.json --rule typical", 1, "rule typical was not measured"),
    ("tree.json --rule foo", 1, "rule foo was not measured. Measured: sequoia at 0."),
    ("tree.json --batch-size 2", 1, "Measured: 256 tokens x 1. Measure there."),
    ("tree.json --rule target --temperature 0.7", 1, "rule target at temperature 0.7 was not measured"),
    ("medusa.json", 1, "compare drafters with treeopt solve"),
]
EXPORT = [
    ("tree.json", 2, "--to"),
    ("tree.json --to gguf", 2, "expected one of sequoia, umbrella"),
    ("tree.json --to npz", 2, "Name a file with -o"),
    ("nothing.json --to nxdi", 1, "no such file"),
    ("tree.json --to nxdi -o no/such/folder", 1, "folder does not exist"),
    ("tree.json --to vllm --profile nothing.yaml", 1, "Run treeopt profile first"),
    ("tree.json --to sglang --record nothing.npz", 1, "no such file"),
    ("tree.json --to sglang --record /dev/zero", 1, "/dev/zero: "),
    ("tree.json --to vllm --method medusa", 2, "--method: expected one of vLLM's"),
    ("tree.json --to vllm --engine-version new", 2, "--engine-version: expected numbers"),
    ("tree.json --to medusa --heads 1", 1, "depth"),
    (
        "tree.json --to medusa -o list.py --list-name 'a b'",
        2,
        "--list-name: expected a Python name such as treeopt_63.",
    ),
    ("tree.json --to medusa -o list.json --list-name mine", 2, "--list-name: expected a Python module"),
    ("tree.json --to nxdi --budget 3", 2, "choose a tree"),
    ("lookup.json --to medusa", 1, "builds its own trees"),
    ("medusa.json --to vllm", 1, "run it with treeopt run, or choose another engine"),
    ("lookup.json --to vllm --batch-size 4", 2, "--batch-size: vllm from a tree takes"),
    ("tree.json --to speculation-profile", 1, "tree.json: expected a profile"),
    ("profile.yaml --to speculation-profile --depth 99", 1, "--depth: the acceptance table was measured to depth"),
    ("profile.yaml --to speculation-profile --rule traversal", 1, "traversal"),
    ("chain.json --to vllm --draft-model d --method ngram", 2, "--draft-model: vllm loads none by this method"),
    ("chain.json --to lmdeploy --draft-model d", 2, "--draft-model: lmdeploy loads none by this method"),
]
IMPORT = [
    ("profile.yaml", 1, "profile.yaml: expected a tree. Got a profile: treeopt solve --profile profile.yaml"),
    ("code.py", 1, "Error: code.py: "),
    ("two.py", 1, "contains 2 trees, narrow, wide. Choose one with --name"),
    ("/dev/zero", 1, "/dev/zero: is a device. Expected a file, or a pipe."),
]
MODELS = "--target t.gguf --draft d.gguf"
PROBE = [
    ("", 2, "Missing argument 'ENGINE'"),
    (f"nothing {MODELS}", 2, "'ENGINE': expected one of llama-server"),
    ("llama-server", 2, "--target, --draft: expected both"),
    ("llama-server --url a:1", 2, "expected a server for each length"),
    ("llama-server --url http://a:1", 2, "--url: expected one length of one server"),
    ("llama-server --url http://a:1 --lengths 3 -o -", 2, "--output: expected a file"),
    ("vllm --url http://a:1 --lengths 3 --ngram-tokens 2", 2, "that treeopt starts"),
    ("vllm --url http://a:1 --lengths 3 --threads 1", 2, "--threads: expected with an engine that treeopt starts"),
    ("vllm --url 0=http://a:1,3=http://a:2 --together", 2, "--together: expected with an engine that treeopt starts"),
    (f"llama-server {MODELS} --lengths 1,3", 2, "--lengths: expected 0"),
    (f"llama-server {MODELS} --lengths 0,-1", 2, "whole numbers of at least 0"),
    (f"llama-server {MODELS} --method ngram", 2, "--method ngram: expected --target alone"),
    (f"llama-server {MODELS} --method mtp", 2, "expected ngram, eagle3, none with llama-server"),
    (f"mlx-lm {MODELS} --method eagle3", 2, "--method: expected none with mlx-lm that treeopt starts"),
    ("llama-server --target t.gguf --method eagle3", 2, "--target, --draft: expected both"),
    (f"llama-server {MODELS} --ngram-tokens 3", 2, "--ngram-tokens: it is for --method ngram"),
    (f"llama-server {MODELS} --device cpu", 2, "--device: expected with transformers alone"),
    (f"llama-server {MODELS} --dtype float32", 2, "--dtype: expected with transformers alone"),
    (
        f"transformers --target {bundled.TARGET} --draft {bundled.DRAFT} --device cuda:9",
        2,
        "--device: expected auto or",
    ),
]
RUN = [
    ("missing.json --prompt x", 1, "missing.json"),
    ("profile.yaml --prompt x", 1, "profile.yaml: expected a tree. Got a profile"),
    ("tree.json", 2, "--prompt, --prompts: expected one of the two. Got neither."),
    ("tree.json --prompt x --prompts prompts.txt", 2, "--prompt, --prompts: expected one of the two. Got both."),
    ("tree.json --prompt x --batch-size 2", 2, "--batch-size: expected --prompts with it. Got --prompt."),
    ("tree.json --prompt x -o outputs.jsonl", 2, "--output: expected --prompts with it. Got --prompt."),
    ("tree.json --prompt x --resume", 2, "--resume: expected --prompts with it. Got --prompt."),
    ("tree.json --prompts prompts.txt --batch-size 0", 2, "Invalid value for '--batch-size'"),
    ("tree.json --prompts prompts.txt --resume", 2, "--resume: expected -o FILE"),
    ("tree.json --prompts prompts.txt -o own.jsonl", 1, "own.jsonl.partial: exists, and holds what an interrupted run"),
    ("tree.json --prompts nothing.txt", 1, "nothing.txt: no such file"),
    ("tree.json --prompts empty.txt", 1, "empty.txt: content: expected at least one prompt. Got none."),
    ("tree.json --prompt x --stop ''", 2, "--stop: expected a text"),
    (f"tree.json --prompt {'x' * 6000}", 1, "--prompt: expected at most 1023 tokens, because"),
    (f"tree.json --prompt {'x' * 1000} --max-new-tokens 100", 1, "expected at most 24 after a prompt of 1000 tokens"),
    (f"tree.json --prompt x --seed {'9' * 5000}", 2, "--seed"),
    ("tree.json --prompt x --seed 1.0", 2, "expected a whole number"),
    ("tree.json --prompt x --seed -1", 2, "expected a whole number from 0 to 9223372036854775807. Got '-1'"),
    ("tree.json --prompt x --threads 1000000", 2, f"from 1 to {os.cpu_count()}, the processors of this machine"),
    (f"tree.json --prompt x --top-k {HUGE}", 2, "from 0 to 999999999. Got"),
    ("tree.json --prompt x --top-p nan", 2, "expected a number above 0 and at most 1"),
    ("tree.json --prompt x --temperature 0,1", 2, "expected 0, which is greedy, or a number"),
    ("tree.json --prompt x --draft-temperature 0.5", 2, "at temperature 0 the draft takes its likeliest"),
    ("tree.json --prompt x --rule best", 2, "'--rule': expected one of sequoia, "),
    ("typical.json --prompt x", 2, "--lossy"),
    ("medusa.json --prompt x --drafter redrafter", 2, "expected medusa, which medusa.json was planned"),
    ("tree.json --prompt x --drafter prompt-lookup", 2, "plan for it with treeopt profile --drafter"),
    ("medusa.json --prompt x --drafter jacobi", 2, "expected one of model, medusa"),
    (f"medusa.json --prompt x --drafter medusa={bundled.REDRAFTER}", 1, "expected 'medusa'"),
    (f"expanded.json --prompt x --drafter eagle2={bundled.EAGLE}", 2, "expected eagle2 without a folder"),
    ("tree.json --prompt x --eagle-layers 2,4,5", 2, "tree.json was planned for model: leave it out"),
    ("eagle.json --prompt x --eagle-layers 2,4,9", 1, "layers: expected 3 hidden-state layer ids from 0 to 8"),
    ("--prompt x --adapt", 2, "--adapt: expected TREE, a file of treeopt solve"),
    ("--prompt x --rule target", 2, "--rule: expected TREE, a file of treeopt solve"),
    ("--prompt x --temperature 1 --draft-top-k 5", 2, "--draft-top-k: expected TREE, a file of treeopt solve"),
    ("--prompt x --learn", 2, "--learn: expected TREE, a file of treeopt solve"),
    *(
        (f"--prompt x --temperature 1 {words}", 2, f"{words.split()[0]}: expected TREE, a file of treeopt solve")
        for words in (
            "--drafter medusa",
            "--eagle-layers 1",
            f"--draft {bundled.DRAFT}",
            "--lossy",
            "--draft-temperature 1",
            "--draft-top-p 1",
        )
    ),
    ("tree.json --prompt x --adapt-log log.jsonl", 2, "--adapt-log: expected --adapt with it"),
    ("tree.json --prompt x --save-profile new.yaml", 2, "--save-profile: expected --adapt with it"),
    ("tree.json --prompt x --profile profile.yaml", 2, "--profile: expected --adapt with it"),
    ("tree.json --prompt x --adapt --save-profile profile.yaml", 2, "profile.yaml is read, and would be overwritten"),
    ("schedule.json --prompt x --adapt", 2, "--adapt: expected one tree"),
    ("tree.json --prompt x --save-draft new", 2, "--save-draft: expected --learn with it"),
    ("tree.json --prompt x --learning-rate 0.1", 2, "--learning-rate: expected --learn with it"),
    ("tree.json --prompt x --learn --learning-rate 0", 2, "expected a number above 0 and at most 1"),
    ("tree.json --prompt x --learn --save-draft mine", 1, "mine/notes.txt: exists, and no option names it. Replace it"),
    ("tree.json --prompt x --learn --save-draft tree.json", 1, "tree.json: is a file"),
    ("tree.json --prompt x --learn --save-draft none/new", 1, "none/new: cannot be written"),
]
BENCH = [
    ("bananas", 2, "No such command 'bananas'."),
    ("tree missing.json", 1, "missing.json"),
    ("tree tree.json --profile missing.yaml", 1, "Run treeopt profile first"),
    ("tree tree.json -o missing/bench.json", 1, "missing"),
    ("tree tree.json --temperature 0,0.4", 2, "'--temperature': expected 0, which is greedy, or a number"),
    ("tree tree.json --profile engine.yaml", 2, f"{NOT_MEASURED} --profile engine.yaml"),
    ("tree tree.json --drafter medusa", 2, "expected model, which tree.json was planned for. Got medusa"),
    ("tree medusa.json --eagle-layers 2", 2, "expected a plan for an EAGLE head. medusa.json"),
    ("tree schedule.json", 1, "schedule.json: expected one tree. Got a schedule: treeopt run schedule.json"),
    ("tree tree.json --batch-sizes 1", 2, "No such option '--batch-sizes'"),
    ("grid tree.json", 2, "unexpected extra argument"),
    ("grid --plot grid.txt", 2, ".svg"),
    ("grid --plot -", 2, "expected a file. Got -, standard output."),
    ("grid --profile engine.yaml", 2, NOT_MEASURED),
    ("batches schedule.json", 2, "Missing option '--batch-sizes'"),
    ("batches tree.json --batch-sizes 2,2", 2, "expected whole numbers from 1 to 1024, each once, such as 1,4,16."),
    ("batches tree.json --batch-sizes 1,1025", 2, "expected whole numbers from 1 to 1024, each once, such as 1,4,16."),
    ("batches gaps.json --batch-sizes 2", 1, "gaps.json: trees: expected trees for batch sizes 1, 2, … without gaps"),
    ("batches medusa.json --batch-sizes 2", 2, "expected a tree of the draft model. Got one of medusa"),
    ("batches --batch-sizes 1,16", 1, "batch 16 was not measured"),
    ("batches --batch-sizes 1 --profile engine.yaml", 2, NOT_MEASURED),
    ("methods tree.json", 2, "unexpected extra argument"),
    ("methods --methods jacobi", 2, "Got 'jacobi'"),
    ("methods --temperature -1", 2, "expected temperatures of at least 0"),
    ("methods --methods chain --force", 2, "--force: expected --profile"),
    ("methods --profile engine.yaml", 2, NOT_MEASURED),
    ("engine nothing", 2, "'ENGINE': expected one of llama-server"),
    ("engine transformers --profile engine.yaml", 2, "expected a profile of transformers. Got one of llama-server"),
]
SIMULATE = [
    ("--rate 0", 2, "rates above 0"),
    ("--rate fast", 2, "rates above 0"),
    ("--new-tokens 0", 2, "a number of tokens, or a range"),
    ("--prompt-tokens 9-3", 2, "a number of tokens, or a range"),
    ("--replicas 0", 2, "1 to"),
    ("--replicas 1001", 2, "--replicas: expected at most 1000. Got 1001"),
    ("--new-tokens 1-1000001", 2, "--new-tokens: expected at most 1000000. Got 1000001"),
    ("--max-batch-size 5", 1, "expected at most 1, the largest measured. Got 5"),
    ("--rule nothing", 1, "nothing"),
    ("--plot load.txt", 2, ".svg"),
    ("--profile none.yaml", 1, "no such file"),
    ("--rate 1000000/s", 2, "at most 100000 requests"),
]
CASES = [
    *((f"{command} {options}", code, reason) for command, rows in {
        "profile": PROFILE, "solve": SOLVE, "schedule": SCHEDULE, "show": SHOW, "compare": COMPARE, "export": EXPORT,
        "import": IMPORT, "probe": PROBE, "run": RUN, "bench": BENCH, f"simulate {LOAD}": SIMULATE,
    }.items() for options, code, reason in rows),
    ("nonsense", 2, "No such command 'nonsense'."),
]  # fmt: skip

OF_MODELS = [
    ("profile --device cuda:99", "cuda:99"),
    ("profile --draft missing", "--target: expected a model with the draft model"),
    ("profile --context-tokens 64,999999", "takes 1024 tokens, its trained length"),
    ("run tree.json --prompt ''", "Error: --prompt: expected at least one token"),
    ("run medusa.json --prompt x --rule sequoia", "expected target or typical"),
    ("run medusa.json --prompt x --temperature 1 --draft-temperature 1", "medusa does not sample what it drafts"),
]
"""Usage errors that depend on the models."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with valid files of every kind, and with some that are not."""
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as inside:
        inside.chdir(folder)
        saved(folder, invented())
        shutil.copy(DATA / "profile-engine.yaml", "engine.yaml")
        TokenTree([-1, 0, 0, 1]).save("tree.json")
        chain(2).save("chain.json")
        succeed("solve", "-o", "solved.json", "--save", "solution.npz")
        for name, drafter in {
            "medusa": drafter_setting("medusa"),
            "eagle": drafter_setting("eagle"),
            "lookup": drafter_setting("prompt-lookup", ngram=3, length=8),
            "expanded": drafter_setting("eagle2", top_k=2, depth=2, nodes=4),
        }.items():
            TreeFile(tree=k_ary(2, 2), drafter=drafter).save(f"{name}.json")
        typical = {"format": "treeopt-tree", "version": 1, "parents": [-1, 0], "provenance": {"rule": "typical"}}
        Path("typical.json").write_text(json.dumps(typical))
        trees = (
            ScheduledTree(first_batch_size=1, last_batch_size=1, tree=chain(2)),
            ScheduledTree(first_batch_size=2, last_batch_size=4, tree=chain(1)),
        )
        TreeSchedule(trees=trees).save("schedule.json")
        schedule = Path("schedule.json").read_text()
        Path("gaps.json").write_text(schedule.replace('"first_batch_size": 2', '"first_batch_size": 3'))
        Path("mine").mkdir()
        for name, text in {
            "mine/notes.txt": "mine",
            "v.csv": "tokens,seconds\n1,0.010\n8,0.011\n64,0.030\n",
            "a.json": '{"conditional": [0.7, 0.6, 0.5]}',
            "code.py": "import os\nos.mkdir('made')\n",
            "two.py": "narrow = [[0], [0, 0]]\nwide = [[0], [1]]\n",
            "prompts.txt": "a\nb\n",
            "empty.txt": "",
            "own.jsonl.partial": "mine",
            "other.zip": "PK",
        }.items():
            Path(name).write_text(text)
        Path("broken.npz").write_bytes(Path("solution.npz").read_bytes()[:500])
    return folder


@pytest.mark.parametrize(("command", "code", "reason"), CASES, ids=[command[:60] for command, *_ in CASES])
def test_command_is_refused(files: Path, monkeypatch: pytest.MonkeyPatch, command: str, code: int, reason: str) -> None:
    monkeypatch.chdir(files)
    if code == 2:
        monkeypatch.setattr(PairOptions, "load", lambda *_, **__: pytest.fail("models were loaded"))
    line = refused(*shlex.split(command), code=code)
    assert reason in line
    assert "None" not in line


@pytest.mark.parametrize(("command", "reason"), OF_MODELS)
def test_option_that_does_not_fit_the_models_is_a_usage_error(
    files: Path, monkeypatch: pytest.MonkeyPatch, command: str, reason: str
) -> None:
    monkeypatch.chdir(files)
    assert reason in refused(*shlex.split(command), code=2)


def test_text_other_than_utf_8_is_refused(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    broken = os.fsdecode(b"a\xff")
    for command in (
        ("run", "tree.json", "--prompt", broken),
        ("run", "tree.json", "--prompt", "x", "--device", broken),
        ("export", "tree.json", "--to", "medusa", "--list-name", broken),
        ("show", "tree.json", "--name", broken),
        ("profile", "--rules", broken),
    ):
        assert "expected UTF-8 text. Got the byte 0xff after 1 characters." in refused(*command, code=2), command


class TestOptionsWithoutEffect:
    @pytest.mark.parametrize(
        "command",
        [
            "tree.json --to vllm --heads 3",
            "tree.json --to sequoia --list-name z",
            "tree.json --to sequoia --engine-version 3",
            "tree.json --to medusa --draft-model d",
            "tree.json --to nxdi --profile profile.yaml",
            "tree.json --to nxdi --batch-size 1",
            "profile.yaml --to medusa --name mytree",
            "profile.yaml --to vllm --profile other.yaml",
            "profile.yaml --to medusa --no-record",
            "profile.yaml --to vllm --record r.npz",
            "profile.yaml --to exllamav3 --draft-model d",
            "profile.yaml --to mlx-lm --method eagle3",
            "profile.yaml --to speculation-profile --budget 4",
            "profile.yaml --to speculation-profile --profile profile.yaml",
        ],
    )
    def test_export_refuses_them_with_those_that_it_takes(
        self, files: Path, monkeypatch: pytest.MonkeyPatch, command: str
    ) -> None:
        monkeypatch.chdir(files)
        _, _, name, option, *_ = words = command.split()
        line = refused("export", *words, "-o", "out.json", code=2)
        taken = line.partition("takes ")[2].partition(". ")[0].split(", ")
        assert line.startswith(f"Error: {option}: {name} ")
        assert taken[0].startswith("-")
        assert option not in taken

    def test_conditions_of_a_plan_need_a_profile(self, folder: Path) -> None:
        chain(2).save(folder / "chain.json")
        line = refused("export", "chain.json", "--to", "vllm", "--batch-size", 4, code=2)
        assert "--batch-size: vllm from a tree without a profile takes --profile, " in line
