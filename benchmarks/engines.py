"""Compare predicted and measured speed of every draft length from 0 to 8 in inference engines, three times.

Each engine is probed and planned for; then all lengths are measured on prompts that were not probed: parts of files of the
standard library that the bundled pair was not trained on. For an engine that is not installed or has no models, a line names
the next step. Arguments select engines. Results are stored in build/engines/NAME.json; `--plot FILE` draws the stored results
and measures nothing. Results with other options (`--type`, `--threads`, `--prose`, `--runs`) are not stored.

The engine computes with one thread. On a busy machine reserve a processor for it, with `taskset -c 0`; the first line contains
the processors.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from common import ROOT, TOOLS, describe_environment, progress, prose_prompts, script_parser, write_gguf
from tqdm import tqdm

from treeopt import bundled
from treeopt.engines import default_length
from treeopt.engines.clients.client import EngineClient, EngineConfig
from treeopt.engines.clients.registry import NAMES, create_client
from treeopt.errors import TreeoptError
from treeopt.files.figure_file import write_figure
from treeopt.planner import step_model
from treeopt.planner.segments import fastest_length
from treeopt.plotting.panels import compose
from treeopt.profiler import Checkpoint
from treeopt.profiler.bench.engine import bench_engine
from treeopt.profiler.engine import Probe, ProbeSettings
from treeopt.profiler.engine_profile import engine_profile, heading_of
from treeopt.records.bench_file import BenchFile, parse_benches
from treeopt.records.machine import read_processor_name
from treeopt.records.results import EngineBench
from treeopt.report.engine_bench import engine_bench_table
from treeopt.report.figures.benches import engine_panel

RESULTS = ROOT / "build" / "engines"
LENGTHS = tuple(range(9))
RUNS = 3
THREADS = 1
"""One: on two cores, a second thread competes with the client and other programs."""
PROMPTS = {"transformers": 128, "mlx-lm": 64}
MAX_PROMPTS = 192
"""Half are probed, half benchmarked; with fewer, tokens per step is not known to within 5 %."""
PROBE_ROUNDS, BENCH_ROUNDS = 2, 3
"""One fewer for the engines in `PROMPTS`, which run in this process."""
PROMPT_LINES, PROSE_CHARACTERS = 6, 300
NEW_TOKENS = 32
GGUF_ENGINE, GGUF_TYPE = "llama-server", "f16"
WITHOUT_THREADS = ("mlx-lm",)
"""Engines without an option for threads."""
SERVED = ("vllm", "openai")
"""Engines that need a running server."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The options of a run."""

    gguf_type: str
    threads: int
    prose: bool
    """Whether prompts are prose instead of source; the bundled pair was trained on source."""
    runs: int

    @property
    def default(self) -> bool:
        """Whether results are stored."""
        return self == Conditions(gguf_type=GGUF_TYPE, threads=THREADS, prose=False, runs=RUNS)


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument(
        "engines",
        nargs="*",
        default=[name for name in NAMES if name not in SERVED],
        help="by default all that start without a server",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the stored results")
    parser.add_argument("--type", default=GGUF_TYPE, help="type of GGUF files, f16 or q8_0")
    parser.add_argument("--threads", type=int, default=THREADS, help="of the engine (default: %(default)s)")
    parser.add_argument("--prose", action="store_true", help="prompts of prose instead of source")
    parser.add_argument("--runs", type=int, default=RUNS, help="default: %(default)s")
    args = parser.parse_args()
    if args.plot is not None:
        plot(args.plot)
        return
    print(f"{describe_environment()}, processors {sorted(os.sched_getaffinity(0))}")
    conditions = Conditions(gguf_type=args.type, threads=args.threads, prose=args.prose, runs=args.runs)
    with tempfile.TemporaryDirectory() as folder:
        for name in args.engines:
            try:
                compare_engine(name, Path(folder), conditions)
            except TreeoptError as error:
                print(f"\n{name} was not run: {error}")


def compare_engine(name: str, folder: Path, conditions: Conditions) -> None:
    """Print predictions and measurements of an engine; raises TreeoptError if it cannot run."""
    target, draft = prepare_models(name, folder, conditions.gguf_type)
    threads = None if name in WITHOUT_THREADS else conditions.threads
    config = EngineConfig(target=target, draft=draft, draft_tokens=0, threads=threads)
    client = create_client(name, url=None, timeout_s=config.timeout_s)
    prompts = tuple(
        islice(
            prose_prompts(PROSE_CHARACTERS) if conditions.prose else source_prompts(), PROMPTS.get(name, MAX_PROMPTS)
        )
    )
    print(
        f"\n{name} ({client.version}), bundled pair{f', {conditions.gguf_type}' * (name == GGUF_ENGINE)}, {len(prompts)} prompts of "
        f"{'prose' if conditions.prose else 'source'}, temperature 0, threads: {threads or 'default'}"
    )
    runs = []
    for _ in progress(range(conditions.runs), name):
        runs.append(run(client, config, prompts))
        print_bench(runs[-1])
    if conditions.default:
        RESULTS.mkdir(parents=True, exist_ok=True)
        (RESULTS / f"{name}.json").write_text(
            json.dumps([json.loads(BenchFile(heading_of(client, config), bench).text) for bench in runs])
        )


def plot(path: Path) -> None:
    """Draw the stored results of all engines."""
    files = [file for name in NAMES if (file := RESULTS / f"{name}.json").exists()]
    benches: dict[tuple[str, str], list[EngineBench]] = {}
    for bench in (stored.bench for file in files for stored in parse_benches(file, file.read_text())):
        assert isinstance(bench, EngineBench)
        benches.setdefault((bench.engine, bench.version), []).append(bench)
    subtitle = f"bundled pair, temperature 0, one thread of {read_processor_name()}; each engine probed and benchmarked on other prompts, {RUNS} times"
    title = "Predicted and measured, engine by engine"
    write_figure(compose([*map(engine_panel, benches.values())], title=title, subtitle=subtitle, columns=2), path)


def prepare_models(name: str, folder: Path, gguf_type: str) -> tuple[str, str]:
    """Return the bundled target and draft model in an engine's format; raises TreeoptError if a package is missing."""
    if name == "openvino":
        folders = [Path("build/engines/openvino") / role for role in ("target", "draft")]
        if not all(folder.is_dir() for folder in folders):
            raise TreeoptError(f"{folders[0]}: no such folder. Run make engines-openvino.")
        return str(folders[0]), str(folders[1])
    if name != GGUF_ENGINE:
        return str(bundled.TARGET), str(bundled.DRAFT)
    try:
        target, draft = map(str, write_gguf((bundled.TARGET, bundled.DRAFT), folder, gguf_type))
    except ImportError as error:
        raise TreeoptError(f"GGUF files cannot be written ({error}): pip install gguf.") from None
    return target, draft


def source_prompts() -> Iterator[str]:
    """Yield a few lines of every part of the held-out files."""
    sys.path.append(str(TOOLS))
    import corpus

    files = [text.splitlines() for path, text in corpus.source_files() if corpus.is_held_out(path)]
    for part in range(1000):
        for lines in files:
            prompt = "\n".join(lines[part * 3 * PROMPT_LINES :][:PROMPT_LINES])
            if len(prompt) > 10 * PROMPT_LINES:
                yield prompt


def run(client: EngineClient, config: EngineConfig, prompts: tuple[str, ...]) -> EngineBench:
    """Probe, plan and benchmark once."""
    fewer = client.name in PROMPTS
    settings = ProbeSettings(
        lengths=LENGTHS,
        prompts=prompts[::2],
        rounds=PROBE_ROUNDS - fewer,
        max_new_tokens=NEW_TOKENS,
        together=True,
    )
    start_s = time.perf_counter()
    probe = Probe(client, config, settings, Checkpoint(None, ""))
    probe.measure()
    tqdm.write(f"\nprobed in {time.perf_counter() - start_s:.0f} s")
    model = step_model(engine_profile(client, config, settings, probe))
    held_out = replace(settings, prompts=prompts[1::2], rounds=BENCH_ROUNDS - fewer)
    return bench_engine(client, config, held_out, model, fastest_length(model))


def print_bench(bench: EngineBench) -> None:
    """Print the table of `treeopt bench engine`, and the errors of the predictions."""
    tqdm.write(engine_bench_table(bench, default_length(bench.engine)))
    tokens = [
        abs(row.predicted.tokens_per_step / row.tokens_per_step - 1)
        for row in bench.rows
        if row.predicted.tokens_per_step
    ]
    speeds = [
        abs(row.predicted.tokens_per_s / row.tokens_per_s - 1) for row in bench.rows if row.predicted.tokens_per_s
    ]
    tqdm.write(
        f"errors: tokens per step at most {max(tokens):.1%}, tokens per second {statistics.median(speeds):.1%} (median) and at most "
        f"{max(speeds):.1%}; gap to best {bench.gap_to_best:.1%}"
    )


if __name__ == "__main__":
    main()
