"""Compare `treeopt simulate` with real servers: requests at random times, at treeopt's decoder and at llama-server.

    python benchmarks/arrivals.py --seconds 60
    python benchmarks/arrivals.py --seconds 60 --only decoder --target build/real-model --draft examples/smollm2/draft

The pair, by default the bundled one, is profiled first, and llama-server with four slots is probed. Then requests arrive at
three rates. Every setting (plain decoding, fixed trees, the schedule) serves the same requests, in interleaved parts of a few
seconds. A cell contains the simulated value, the measured one, and the error. Latency is from arrival to the last token.
The rates are fractions of the capacity of the slowest setting. The fixed trees are those with the lowest simulated latency at
the lowest and at the highest rate. Prompts are those of tools/held_out_prompts.py, or for another pair treeopt's default
prompts without a chat template, cut to random lengths; the profile is measured on the same prompts. Numbers after +- are standard errors, from a bootstrap over parts (Efron 1979, section 2).

The speed of a shared machine changes within minutes. So reference requests are served during profiling, and before and after
every part; simulated latencies are scaled by the change at batch sizes 1, 2 and 4. The columns `slowdown` contain its median,
`unscaled` the error of the median latency without it. Starts of llama-server differ in speed by up to a half: it is restarted
for each round of the probe, each reference measurement and each part.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import cycle, product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from arrival_servers import (
    NO_SLOWDOWN,
    BenchmarkServer,
    DecoderServer,
    LlamaServer,
    Reference,
    Slowdown,
    SlowedTimes,
)
from common import TOOLS, describe_environment, progress, script_parser, write_gguf
from tqdm import tqdm

from treeopt import bundled
from treeopt.engines.clients.client import EngineClient, EngineConfig
from treeopt.engines.clients.registry import create_client
from treeopt.errors import TreeoptError
from treeopt.planner.request import PlanRequest
from treeopt.profiler.checkpoint import Checkpoint
from treeopt.profiler.engine import Probe, ProbeSettings
from treeopt.profiler.engine_profile import engine_profile
from treeopt.records.profile import Profile
from treeopt.report.probe_text import probe_summary
from treeopt.report.text import milliseconds
from treeopt.runtime.models.pair import load_pair
from treeopt.simulation.arrivals import Load, Request, arrivals
from treeopt.simulation.outcome import Percentiles
from treeopt.simulation.serving import ServedSequence
from treeopt.simulation.settings import SCHEDULE, ServedSetting, served_settings
from treeopt.simulation.simulate import Deployment
from treeopt.simulation.step_times import StepTimes
from treeopt.texts.prompts import DEFAULT_PROMPTS, load_prompts

ModelFolders = tuple[Path, Path] | None
"""Target and draft model; None for the bundled pair."""
PROMPT_TOKENS, NEW_TOKENS = (32, 128), (64, 64)
RATES = (0.2, 0.45, 0.7)
"""Fractions of the capacity of the slowest setting."""
MAX_PART_S = 9.0
"""Longest part that a setting serves before the next setting, so that drift of the machine affects all alike."""
PROMPTS, PROMPT_FILE = 128, "prompts.json"
SIMULATIONS = 8
"""Simulations of each part, with different random acceptance."""
SLOTS, DRAFT_TOKENS = 4, 2
"""Of llama-server."""
THREADS = 1
"""Of llama-server; the client needs the other core."""
REFERENCE_DRAFT_TOKENS = 5
"""Of treeopt's decoder in reference requests."""
COLUMNS = ("tokens/s", "tokens/step", "first token, ms", "99 %", "latency, ms", "99 %")
"""Each contains the simulated value, the measured one and the error."""
MEDIAN_LATENCY = COLUMNS.index("latency, ms")
FORMATS: tuple[Callable[[float], str], ...] = ("{:.0f}".format, "{:.2f}".format, *[milliseconds] * 4)
"""By column."""
BATCH_SIZE = 8
"""Largest batch of treeopt's decoder."""
PROFILE = (
    *("profile", "--max-prompts", f"{PROMPTS}", "--time-budget", "150s"),
    *("--batch-sizes", "1,2,4,8", "--context-tokens", "64,192", "--max-tokens", "16"),
)
PROBE_ROUNDS, PROBE_REFERENCES = 6, 8
"""Rounds of a probe, each with a new start of the engine, and reference measurements during it."""
BOOTSTRAP_SAMPLES = 400


@dataclass(frozen=True)
class Summary:
    """Throughput and latency over several parts."""

    tokens_per_s: float
    tokens_per_step: float
    """Of one sequence."""
    first_token: Percentiles
    latency: Percentiles

    @classmethod
    def of(cls, parts: Sequence[Sequence[ServedSequence]]) -> "Summary":
        """Summarize parts; each lasts from its first arrival to its last token."""
        sequences = [sequence for part in parts for sequence in part]
        seconds = sum(
            max(sequence.finished_s for sequence in part) - min(sequence.request.arrival_s for sequence in part)
            for part in parts
        )
        return cls(
            sum(sequence.request.new_tokens for sequence in sequences) / seconds,
            sum(sequence.step_tokens for sequence in sequences) / sum(sequence.steps for sequence in sequences),
            Percentiles.of([sequence.time_to_first_token_s for sequence in sequences]),
            Percentiles.of([sequence.latency_s for sequence in sequences]),
        )

    @property
    def values(self) -> tuple[float, ...]:
        """In the order of `COLUMNS`; latencies in seconds."""
        latencies_s = (self.first_token.median_s, self.first_token.p99_s, self.latency.median_s, self.latency.p99_s)
        return (self.tokens_per_s, self.tokens_per_step, *latencies_s)


@dataclass(frozen=True)
class Part:
    """Requests that a setting served, and the slowdown of the machine meanwhile."""

    requests: Sequence[Request]
    served: Sequence[ServedSequence]
    slowdown: Slowdown


@dataclass(frozen=True)
class Comparison:
    """A server, and the profile from which it is simulated."""

    server: BenchmarkServer
    times: StepTimes
    settings: Sequence[ServedSetting]
    batch_size: int
    reference: Reference

    def rates(self) -> list[float]:
        """Return requests per second: fractions of the simulated capacity of the slowest setting."""
        load = Load(rate_per_s=1000, prompt_tokens=PROMPT_TOKENS, new_tokens=NEW_TOKENS, duration_s=1)
        saturating = [arrivals(load)]
        capacity = min(Summary.of(self.simulate(setting, saturating)).tokens_per_s for setting in self.settings)
        return [fraction * capacity / NEW_TOKENS[0] for fraction in RATES]

    def fastest_fixed(self, rate: float) -> ServedSetting:
        """Return the setting with the lowest simulated median latency at a rate."""
        load = Load(rate_per_s=rate, prompt_tokens=PROMPT_TOKENS, new_tokens=NEW_TOKENS, duration_s=20)
        requests = [arrivals(load)]
        return min(self.settings, key=lambda setting: median_latency_s(self.simulate(setting, requests)))

    def simulate(
        self, setting: ServedSetting, parts: Sequence[Sequence[Request]], slowdowns: Sequence[Slowdown] = ()
    ) -> list[list[ServedSequence]]:
        """Simulate the requests of each part, by default without slowdown."""
        deployments = [
            Deployment(
                times=SlowedTimes(self.times.profile, self.times.acceptance, slowdown=slowdown),
                batch_size=self.batch_size,
            )
            for slowdown in slowdowns or [NO_SLOWDOWN] * len(parts)
        ]
        return [
            deployment.serve(setting, requests, seed)
            for requests, deployment in zip(parts, deployments, strict=True)
            for seed in range(SIMULATIONS)
        ]

    def run(self, seconds: float) -> None:
        """Print a line for each rate and setting, and at each rate compare the schedule with the best fixed setting."""
        columns = "".join(f"{name:>21}" for name in COLUMNS)
        header = f"{'requests/s':>10}  {'':<25}{columns}{'slowdown: batch 1':>19}{'2':>7}{'4':>7}{'unscaled':>10}"
        tqdm.write(f"\n{header}")
        count = max(2, round(seconds / MAX_PART_S))
        for rate in self.rates():
            load = Load(rate_per_s=rate, prompt_tokens=PROMPT_TOKENS, new_tokens=NEW_TOKENS, duration_s=seconds / count)
            loads = [arrivals(replace(load, seed=seed)) for seed in range(count)]
            parts: dict[str, list[Part]] = {setting.name: [] for setting in self.settings}
            for requests, setting in progress(list(product(loads, self.settings)), f"{rate:.1f} requests/s"):
                self.server.restart()
                before = self.reference.slowdown(setting)
                served = self.server.serve(setting, requests)
                slowdown = Slowdown.of([before, self.reference.slowdown(setting)])
                parts[setting.name].append(Part(requests, served, slowdown))
            for setting in self.settings:
                tqdm.write(f"{rate:>10.1f}  {setting.name:<25}{self._line(setting, parts[setting.name])}")
            self._compare_schedule({name: [part.served for part in served] for name, served in parts.items()})

    def _line(self, setting: ServedSetting, parts: Sequence[Part]) -> str:
        requests, slowdowns = [part.requests for part in parts], [part.slowdown for part in parts]
        measured = Summary.of([part.served for part in parts]).values
        simulated = Summary.of(self.simulate(setting, requests, slowdowns)).values
        unscaled = Summary.of(self.simulate(setting, requests)).values[MEDIAN_LATENCY] / measured[MEDIAN_LATENCY] - 1
        columns = (
            f"{format_value(a):>8}{format_value(b):>7}{a / b - 1:>+6.0%}"
            for format_value, a, b in zip(FORMATS, simulated, measured, strict=True)
        )
        one, two, four = np.median([slowdown.factors for slowdown in slowdowns], 0) - 1
        return f"{''.join(columns)}{one:>+19.0%}{two:>+7.0%}{four:>+7.0%}{unscaled:>+10.0%}"

    def _compare_schedule(self, served: dict[str, list[Sequence[ServedSequence]]]) -> None:
        """Print the median latency of the schedule over that of the best other setting."""
        if SCHEDULE not in served:
            return
        others = {other: median_latency_s(parts) for other, parts in served.items() if other != SCHEDULE}
        best = min(others, key=lambda other: others[other])
        change, error = relative_latency(served[SCHEDULE], served[best])
        tqdm.write(f"{'':>12}schedule: median latency {change:+.1%} +- {error:.1%} compared with {best}")


def median_latency_s(parts: Sequence[Sequence[ServedSequence]]) -> float:
    return Summary.of(parts).latency.median_s


def relative_latency(
    parts: Sequence[Sequence[ServedSequence]], other_parts: Sequence[Sequence[ServedSequence]]
) -> tuple[float, float]:
    """Return by which fraction the median latency exceeds that of other parts with the same requests, and its standard error."""

    def ratio(numbers: Sequence[int]) -> float:
        one, other = (median_latency_s([served[number] for number in numbers]) for served in (parts, other_parts))
        return one / other

    count = len(parts)
    samples = np.random.default_rng(0).integers(count, size=(BOOTSTRAP_SAMPLES, count)).tolist()
    return ratio(range(count)) - 1, float(np.std([ratio(numbers) for numbers in samples]))


def profile_decoder(reference: Reference, folder: Path, models: ModelFolders) -> tuple[Profile, Reference]:
    """Profile treeopt's decoder, and measure the reference before and after."""
    reference.measure()  # warm-up
    path, before = folder / "profile.yaml", reference.measure()
    command = [sys.executable, "-m", "treeopt", *PROFILE, "--prompts", str(folder / PROMPT_FILE), "--no-chat"]
    model_options = [] if models is None else ["--target", str(models[0]), "--draft", str(models[1])]
    subprocess.run([*command, *model_options, "-o", str(path)], check=True)
    return Profile.load(path), reference.with_profiled([before, reference.measure()])


def probe_engine(
    reference: Reference, client: EngineClient, config: EngineConfig, prompts: Sequence[str]
) -> tuple[Profile, Reference]:
    """Probe an engine, and measure the reference before, between batches of the probe and after.

    Steps are timed at the context lengths of the prompts and outputs, so these are as long as in the benchmark.
    """
    settings = ProbeSettings(
        lengths=(0, DRAFT_TOKENS),
        batch_sizes=(1, 2, SLOTS),
        prompts=tuple(probe_prompts(prompts)),
        prompts_from=f"{PROMPT_FILE}, cut",
        rounds=PROBE_ROUNDS,
        max_new_tokens=NEW_TOKENS[1],
    )
    reference.measure()  # warm-up
    probe, measurements = Probe(client, config, settings, Checkpoint(None, "arrivals")), [reference.measure()]
    batches = iter(progress(range(settings.batches), "probe"))
    measures_reference = cycle([*[False] * (settings.batches // PROBE_REFERENCES - 1), True])

    def tick() -> None:
        next(batches)
        if next(measures_reference):
            measurements.append(reference.measure())

    probe.measure(tick)
    profile = engine_profile(client, config, settings, probe)
    return profile, reference.with_profiled([*measurements, reference.measure()])


def decoder_comparison(folder: Path, models: ModelFolders) -> Comparison:
    """Profile a pair, and return the comparison of treeopt's decoder."""
    pair = load_pair(*models or (None, None))
    server = DecoderServer(
        target=pair.target,
        draft=pair.draft_model,
        prompts=select_long([pair.tokenizer.encode(text) for text in load_prompts(folder / PROMPT_FILE)]),
        temperature=0.0,
        batch_size=BATCH_SIZE,
        max_tokens=PROMPT_TOKENS[1] + NEW_TOKENS[1],
    )
    profile, reference = profile_decoder(Reference(server, REFERENCE_DRAFT_TOKENS), folder, models)
    times = StepTimes(profile, profile.acceptance())
    plain, *fixed, schedule = served_settings(times, PlanRequest())
    comparison = Comparison(server, times, [plain, *fixed], BATCH_SIZE, reference)
    rates = comparison.rates()
    best_names = {comparison.fastest_fixed(rate).name for rate in (rates[0], rates[-1])}
    best_fixed = [setting for setting in fixed if setting.name in best_names]
    return replace(comparison, settings=[plain, *best_fixed, schedule])


def llama_comparison(server: LlamaServer, prompts: Sequence[str]) -> Comparison:
    """Probe llama-server, and return its comparison."""
    profile, reference = probe_engine(Reference(server, DRAFT_TOKENS), server.client, server.config, prompts)
    tqdm.write(probe_summary(profile))
    times = StepTimes(profile, profile.acceptance())
    *fixed, _ = served_settings(times, PlanRequest())
    settings = [setting for setting in fixed if setting.draft_tokens in (0, DRAFT_TOKENS)]
    return Comparison(server, times, settings, SLOTS, reference)


def select_long(prompts: Sequence[list[int]]) -> list[list[int]]:
    """Return the prompts that are at least as long as the longest of a request."""
    return [prompt for prompt in prompts if len(prompt) >= PROMPT_TOKENS[1]]


def probe_prompts(prompts: Sequence[str]) -> list[str]:
    """Cut prompts to evenly spaced lengths over `PROMPT_TOKENS`; a token is a byte."""
    lengths = np.linspace(*PROMPT_TOKENS, len(prompts)).astype(int).tolist()
    return [text.encode()[:length].decode(errors="ignore") for text, length in zip(prompts, lengths, strict=True)]


def main() -> None:
    parser = script_parser(__doc__, pair=True)
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="of each setting at each rate (default: %(default)s)"
    )
    parser.add_argument("--only", choices=("decoder", "llama-server"), help="run one server only")
    parser.add_argument("--folder", type=Path, help="for models and profiles; by default a temporary one")
    args = parser.parse_args()
    seconds, only = args.seconds, args.only
    models = None if args.target is None or args.draft is None else (args.target, args.draft)
    if (args.target is None) != (args.draft is None):
        parser.error("--target, --draft: expected both, or neither for the bundled pair.")
    if models is not None and only != "decoder":
        parser.error("--target: expected with --only decoder, because llama-server runs the bundled pair.")
    runs = len(RATES) * (4 * (only != "llama-server") + 2 * (only != "decoder"))
    profile_minutes, reference_minutes = (6, 0.06) if models is None else (12, 0.6)  # for a target of 135 M parameters
    minutes = profile_minutes + runs * (seconds / 60 + reference_minutes * max(2, round(seconds / MAX_PART_S)))
    print(f"{describe_environment()}, processors {sorted(os.sched_getaffinity(0))}")
    pair = "the bundled pair" if models is None else f"{args.target} + {args.draft}"
    print(
        f"{pair}, temperature 0, prompts of {PROMPT_TOKENS[0]} to {PROMPT_TOKENS[1]} tokens, outputs of {NEW_TOKENS[0]}; "
        f"takes about {minutes:.0f} minutes",
        flush=True,
    )
    with TemporaryDirectory() as name:
        folder = args.folder or Path(name)
        if models is None:
            tool = [sys.executable, str(TOOLS / "held_out_prompts.py"), "--count", f"{PROMPTS}"]
            subprocess.run([*tool, "--output", str(folder / PROMPT_FILE)], check=True)
        else:
            (folder / PROMPT_FILE).write_text(json.dumps(load_prompts(DEFAULT_PROMPTS)), "utf-8")
        if only != "llama-server":
            comparison = decoder_comparison(folder, models)
            tqdm.write(f"\ntreeopt's decoder, batches of at most {BATCH_SIZE}, float32")
            comparison.run(seconds)
        if only != "decoder":
            try:
                client = create_client("llama-server", url=None, timeout_s=600)
            except TreeoptError as error:
                tqdm.write(f"\nllama-server was not run: {error}")
                return
            target_file, draft_file = map(str, write_gguf((bundled.TARGET, bundled.DRAFT), folder, "f16"))
            prompts = load_prompts(folder / PROMPT_FILE)
            config = EngineConfig(
                target=target_file, draft=draft_file, draft_tokens=0, slots=SLOTS, threads=THREADS, timeout_s=600
            )
            server = LlamaServer(
                client=client, config=config, prompts=select_long([list(text.encode()) for text in prompts])
            )
            with closing(server):
                comparison = llama_comparison(server, prompts)
                tqdm.write(
                    f"\nllama-server ({client.version}), {SLOTS} slots, f16, {THREADS} thread, chains of {DRAFT_TOKENS}"
                )
                comparison.run(seconds)


if __name__ == "__main__":
    main()
