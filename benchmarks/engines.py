"""Whether plans come true in the engines that serve: every draft length from 0 to 8, promised and measured, three times.

Each engine is probed, planned for, and raced with all lengths on prompts that the probe has not seen: parts of files of
the standard library that the bundled pair has not read.  An engine that is not installed, or whose models are not
there, is a line that says what to do.  Names of engines as arguments run those alone.  Results are kept in
build/engines/NAME.json; `--plot FILE` draws all that are there, and runs nothing.  With `--type`, `--threads` and
`--prose` the same under other conditions, which are not kept.

The engine computes with one thread.  On a machine where other programs run, give it a processor of its own with
`taskset -c 0`: that is printed too.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from conditions import bar, conditions, say

from treeopt import bundled
from treeopt.engines.probes.client import EngineClient, Launch
from treeopt.engines.probes.named import NAMES, engine_client
from treeopt.errors import TreeoptError
from treeopt.files.picture_file import save_drawing
from treeopt.pictures.panels import compose
from treeopt.planner import step_model
from treeopt.planner.chains import fastest_length
from treeopt.profiler import Journal
from treeopt.profiler.bench.engine import bench_engine
from treeopt.profiler.engine import Probe, ProbeSettings
from treeopt.profiler.engine_profile import engine_profile, heading_of
from treeopt.profiler.machine import processor
from treeopt.records.bench_file import FiledBench, parse_benches
from treeopt.records.results import EngineBench, EngineRow
from treeopt.report.figures.benches import engine_panel

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "build" / "engines"
LENGTHS = tuple(range(9))
RUNS = 3
THREADS = 1
"""Threads of one engine wait for one another: on two cores a second one fights with whatever else runs there."""
PROMPTS = {"transformers": 128, "mlx-lm": 64}
MOST_PROMPTS = 192
"""Half of them are probed, half raced; texts differ so much that fewer do not tell tokens per step within 5 %."""
PROBE_ROUNDS, RACE_ROUNDS = 2, 3
"""One fewer of engines with fewer prompts, which need not be started."""
PROMPT_LINES = 6
NEW_TOKENS = 32
TOOL = ROOT / "tools" / "make_gguf.py"
GGUF_ENGINE, GGUF_TYPE = "llama-server", "f16"
OWN_THREADS = ("mlx-lm",)
"""Engines that take no number of them."""
SERVED = ("vllm", "openai")
"""Engines that nobody starts here."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What an engine is run under."""

    gguf_type: str
    threads: int
    prose: bool
    """Whether prompts are prose, which the bundled pair has not learnt, and not source."""
    runs: int

    @property
    def usual(self) -> bool:
        """Whether results are those to be kept."""
        return self == Case(gguf_type=GGUF_TYPE, threads=THREADS, prose=False, runs=RUNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", default=[each for each in NAMES if each not in SERVED])
    parser.add_argument("--plot", type=Path, metavar="FILE")
    parser.add_argument("--type", default=GGUF_TYPE, help="of GGUF files, f16 or q8_0")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--prose", action="store_true")
    parser.add_argument("--runs", type=int, default=RUNS)
    asked = parser.parse_args()
    if asked.plot is not None:
        plot(asked.plot)
        return
    print(f"{conditions()}, processors {sorted(os.sched_getaffinity(0))}")
    case = Case(gguf_type=asked.type, threads=asked.threads, prose=asked.prose, runs=asked.runs)
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.engines:
            try:
                race_engine(name, Path(folder), case)
            except TreeoptError as error:
                print(f"\n{name}: not run. {error}")


def race_engine(name: str, folder: Path, case: Case) -> None:
    """Print what came true of an engine's plans; raises TreeoptError where it cannot run."""
    target, draft = models(name, folder, case.gguf_type)
    threads = None if name in OWN_THREADS else case.threads
    launch = Launch(target=target, draft=draft, draft_tokens=0, threads=threads)
    client = engine_client(name, url=None, threads=threads, timeout_s=launch.timeout_s)
    texts = tuple(islice(prose_prompts() if case.prose else source_prompts(), PROMPTS.get(name, MOST_PROMPTS)))
    print(
        f"\n{name} ({client.version}), bundled pair{f', {case.gguf_type}' * (name == GGUF_ENGINE)}, {len(texts)} prompts of "
        f"{'prose' if case.prose else 'source'}, temperature 0, threads: {threads or 'its own'}"
    )
    runs = []
    for _ in bar(range(case.runs), name):
        runs.append(run(client, launch, texts))
        show(runs[-1])
    if case.usual:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{name}.json").write_text(
            json.dumps([json.loads(FiledBench(heading_of(client, launch), each).text) for each in runs])
        )


def plot(path: Path) -> None:
    """Draw what was measured of all engines."""
    files = [file for name in NAMES if (file := RESULTS / f"{name}.json").exists()]
    benches: dict[tuple[str, str], list[EngineBench]] = {}
    for bench in (each.bench for file in files for each in parse_benches(file, file.read_text())):
        assert isinstance(bench, EngineBench)
        benches.setdefault((bench.engine, bench.version), []).append(bench)
    subtitle = f"bundled pair, temperature 0, one thread of {processor()}; each engine probed and benchmarked on other prompts, {RUNS} times"
    title = "Predicted and measured, engine by engine"
    save_drawing(compose([*map(engine_panel, benches.values())], title=title, subtitle=subtitle, columns=2), path)


def models(name: str, folder: Path, gguf_type: str) -> tuple[str, str]:
    """Return target and draft of the bundled pair in the form that an engine takes; raises TreeoptError where it cannot be made."""
    if name == "openvino":
        made = [Path("build/engines/openvino") / role for role in ("target", "draft")]
        if not all(each.is_dir() for each in made):
            raise TreeoptError(f"{made[0]}: no such folder. make engines-openvino makes it.")
        return str(made[0]), str(made[1])
    if name != GGUF_ENGINE:
        return str(bundled.TARGET), str(bundled.DRAFT)
    found = []
    for role, source in (("target", bundled.TARGET), ("draft", bundled.DRAFT)):
        path = folder / f"{role}.gguf"
        done = subprocess.run(
            [sys.executable, TOOL, source, "--type", gguf_type, "-o", path], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise TreeoptError(f"GGUF files cannot be made ({done.stderr.strip()[-100:]}): pip install gguf.")
        found.append(str(path))
    return found[0], found[1]


def source_prompts() -> Iterator[str]:
    """Yield a few lines out of every part of files that the bundled pair was not trained on."""
    sys.path.append(str(ROOT / "tools"))
    import corpus

    files = [text.splitlines() for path, text in corpus.source_files() if corpus.is_held_out(path)]
    for part in range(1000):
        for lines in files:
            prompt = "\n".join(lines[part * 3 * PROMPT_LINES :][:PROMPT_LINES])
            if len(prompt) > 10 * PROMPT_LINES:
                yield prompt


def prose_prompts() -> Iterator[str]:
    """Yield paragraphs of treeopt's own pages."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for paragraph in page.read_text("utf-8").split("\n\n"):
            if len(paragraph) > 20 * PROMPT_LINES and not paragraph.startswith(("|", "`", "#")):
                yield paragraph[: 50 * PROMPT_LINES]


def run(client: EngineClient, launch: Launch, texts: tuple[str, ...]) -> EngineBench:
    """Probe, plan and race once."""
    fewer = client.name in PROMPTS
    settings = ProbeSettings(
        lengths=LENGTHS,
        prompts=texts[::2],
        rounds=PROBE_ROUNDS - fewer,
        max_new_tokens=NEW_TOKENS,
        together=True,
    )
    start_s = time.perf_counter()
    probe = Probe(client, launch, settings, Journal(None, ""))
    probe.measure()
    say(f"\nprobed in {time.perf_counter() - start_s:.0f} s")
    model = step_model(engine_profile(client, launch, settings, probe))
    held_out = replace(settings, prompts=texts[1::2], rounds=RACE_ROUNDS - fewer)
    return bench_engine(client, launch, held_out, model, fastest_length(model))


def show(found: EngineBench) -> None:
    """Print a line for each length, and what the promise says against what was measured."""
    say(
        f"\n{'length':>8}{'tokens/step':>13}{'promised':>10}{'tokens/s':>10}{'promised':>10}{'off':>7}{'repeats':>9}  text"
    )
    for row in found.rows:
        off = error(row)
        say(
            f"{'* ' if row.chosen else '  '}{row.length:>6}{row.tokens_per_step:>13.2f}{row.predicted_tokens_per_step or 0:>10.2f}"
            f"{row.tokens_per_s:>10.0f}{row.predicted_tokens_per_s or 0:>10.0f}{off:>7.1%}{row.spread:>9.1%}  "
            f"{'identical' if row.identical else 'DIFFERS'}"
        )
    tokens = [
        abs(row.predicted_tokens_per_step / row.tokens_per_step - 1)
        for row in found.rows
        if row.predicted_tokens_per_step
    ]
    speeds = [abs(error(row)) for row in found.rows]
    say(
        f"tokens per step off by at most {max(tokens):.1%}, tokens per second by {statistics.median(speeds):.1%} (median) and at most "
        f"{max(speeds):.1%}; regret {found.regret:.1%}"
    )


def error(row: EngineRow) -> float:
    """Return promised over measured tokens per second, less 1."""
    return (row.predicted_tokens_per_s or row.tokens_per_s) / row.tokens_per_s - 1


if __name__ == "__main__":
    main()
