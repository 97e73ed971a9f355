"""Does a server do what `treeopt simulate` says?  Texts that arrive at random, at the real decoder and at llama-server.

    python benchmarks/arrivals.py --seconds 60
    python benchmarks/arrivals.py --seconds 60 --target build/real-model --draft examples/smollm2/draft

The pair, by default the bundled one, is profiled, and llama-server with four slots probed, on this machine and now.
Then texts arrive for so many seconds at each of three rates, plain decoding, fixed trees and the schedule in turn, the same texts for each; what
the simulation says of these texts stands beside what was seen.  `whole` is from a text's arrival to its last token.
Rates are shares of what the slowest setting can do, so that all keep up; fixed trees are those that the simulation
finds the fastest at the lowest and at the highest.  Texts begin as the prompts of tools/held_out_prompts.py do, those of
another pair as treeopt's default prompts without a chat template, each cut to a length at random; the profile is of the
same prompts, because a few dozen others are easier or harder by more than is to be told.  What follows +- is the standard error, from shares of the time drawn anew (a bootstrap, Efron 1979, section 2).

A machine that others share changes its speed within minutes.  So the same few texts are decoded beside the profile,
plainly and with a chain, and before and after each setting's share of a minute as the setting does; what is simulated
is told at the pace of these, one, two and four texts at a time apart (`machine` is by how much longer they took than
with the profile, in the median share), and once more without (`as profiled`).
One start of llama-server may be half again as fast as another for as long as it runs: it is started anew for each
round of the probe, each time that the reference is taken beside it, and each share of a minute.
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

import click
import numpy as np
from arrival_pace import PROFILED, Pace, PacedTimes, Reference
from arrival_servers import AskedServer, DecoderServer, LlamaServer
from conditions import bar, conditions, say

from treeopt import bundled
from treeopt.engines.probes.client import EngineClient, Launch
from treeopt.engines.probes.named import engine_client
from treeopt.errors import TreeoptError
from treeopt.planner.request import PlanRequest
from treeopt.profiler.engine import Probe, ProbeSettings
from treeopt.profiler.engine_profile import engine_profile
from treeopt.profiler.journal import Journal
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
SHARES = (0.2, 0.45, 0.7)
"""Of what the slowest setting can do."""
PART_S = 9.0
"""Seconds at most that a setting serves before the next has its turn, so that drift of the machine hits all alike."""
PROMPTS, PROMPT_FILE = 128, "prompts.json"
DRAWS = 8
"""Simulations of each part: their texts are easier or harder at random."""
SLOTS, LENGTH = 4, 2
"""Texts that llama-server decodes at a time, and its draft tokens."""
THREADS = 1
"""Of llama-server, beside whoever asks."""
REFERENCE_LENGTH = 5
"""Draft tokens of treeopt's decoder for them, where it drafts."""
COLUMNS = ("tokens/s", "tokens/step", "first token, ms", "99 %", "whole text, ms", "99 %")
"""Of each: simulated, seen, and how far the first is off."""
MEDIAN = COLUMNS.index("whole text, ms")
"""Which of them is the median of whole texts."""
SHOWN: tuple[Callable[[float], str], ...] = ("{:.0f}".format, "{:.2f}".format, *[milliseconds] * 4)
"""How a number of each column is."""
TOOLS = Path(__file__).resolve().parents[1] / "tools"
MOST_TEXTS = 8
"""Texts that treeopt's decoder decodes at a time."""
PROFILE = (
    *("profile", "--max-prompts", f"{PROMPTS}"),
    *("--batch-sizes", "1,2,4,8", "--context-tokens", "64,192", "--max-tokens", "16"),
)
PROFILE_S = 150.0
"""Of measuring for the profile."""
ROUNDS, PAUSES = 6, 8
"""Of a probe, in each of which the engine starts anew, and how often it waits for the reference."""


@dataclass(frozen=True)
class Seen:
    """What some parts came to together."""

    tokens_per_s: float
    tokens_per_step: float
    """Of one text."""
    first: Percentiles
    whole: Percentiles
    whole_mean_s: float

    @classmethod
    def of(cls, parts: Sequence[Sequence[ServedSequence]]) -> "Seen":
        """Return that of parts, each from its first arrival to its last token."""
        texts = [each for part in parts for each in part]
        seconds = sum(
            max(each.finished_s for each in part) - min(each.request.arrival_s for each in part) for part in parts
        )
        return cls(
            sum(each.request.new_tokens for each in texts) / seconds,
            sum(each.step_tokens for each in texts) / sum(each.steps for each in texts),
            Percentiles.of([each.time_to_first_token_s for each in texts]),
            Percentiles.of([each.latency_s for each in texts]),
            float(np.mean([each.latency_s for each in texts])),
        )

    @property
    def numbers(self) -> tuple[float, ...]:
        """Tokens per second and per step, and seconds until the first token and the last, median and 99th percentile."""
        waits_s = (self.first.median_s, self.first.p99_s, self.whole.median_s, self.whole.p99_s)
        return (self.tokens_per_s, self.tokens_per_step, *waits_s)


WHOLE_TEXTS: dict[str, Callable[[Seen], float]] = {
    "median": lambda seen: seen.whole.median_s,
    "mean": lambda seen: seen.whole_mean_s,
}
"""Seconds of whole texts, by which the schedule stands beside the other settings."""
REDRAWN = 400
"""Times that shares of the time are drawn anew for a standard error."""


@dataclass(frozen=True)
class Part:
    """Texts that a setting served, and the machine meanwhile."""

    texts: Sequence[Request]
    served: Sequence[ServedSequence]
    pace: Pace


@dataclass(frozen=True)
class Comparison:
    """A server and the profile that says what it will do."""

    server: AskedServer
    times: StepTimes
    settings: Sequence[ServedSetting]
    most_texts: int
    reference: Reference

    def rates(self) -> list[float]:
        """Return texts a second: shares of those that the slowest setting has done when nobody ever waits for texts."""
        load = Load(rate_per_s=1000, prompt_tokens=PROMPT_TOKENS, new_tokens=NEW_TOKENS, duration_s=1)
        most = min(Seen.of(self.simulated(each, [arrivals(load)])).tokens_per_s for each in self.settings)
        return [share * most / NEW_TOKENS[0] for share in SHARES]

    def fastest_fixed(self, rate: float) -> ServedSetting:
        """Return the setting under which whole texts take the least time at a rate."""
        load = Load(rate_per_s=rate, prompt_tokens=PROMPT_TOKENS, new_tokens=NEW_TOKENS, duration_s=20)
        texts = [arrivals(load)]
        return min(self.settings, key=lambda each: Seen.of(self.simulated(each, texts)).whole.median_s)

    def simulated(
        self, setting: ServedSetting, parts: Sequence[Sequence[Request]], paces: Sequence[Pace] = ()
    ) -> list[list[ServedSequence]]:
        """Return what the profile says of the texts of each part, by default at its own pace."""
        deployments = [
            Deployment(
                times=PacedTimes(self.times.profile, self.times.acceptance, pace=pace), batch_size=self.most_texts
            )
            for pace in paces or [PROFILED] * len(parts)
        ]
        return [
            deployment.serve(setting, texts, draw)
            for texts, deployment in zip(parts, deployments, strict=True)
            for draw in range(DRAWS)
        ]

    def race(self, seconds: float) -> None:
        """Print a line for each rate and setting, and at each rate how the schedule does beside the best fixed setting."""
        columns = "".join(f"{name:>21}" for name in COLUMNS)
        say(f"\n{'texts/s':>8}  {'':<25}{columns}{'machine: 1 text':>17}{'2':>7}{'4':>7}{'as profiled':>13}")
        count = max(2, round(seconds / PART_S))
        for rate in self.rates():
            load = Load(rate_per_s=rate, prompt_tokens=PROMPT_TOKENS, new_tokens=NEW_TOKENS, duration_s=seconds / count)
            parts = [arrivals(replace(load, seed=part)) for part in range(count)]
            served: dict[str, list[Part]] = {each.name: [] for each in self.settings}
            for texts, setting in bar(list(product(parts, self.settings)), f"{rate:.1f} texts/s"):
                self.server.restart()
                before = self.reference.slower(setting)
                found = self.server.serve(setting, texts)
                pace = Pace.of([before, self.reference.slower(setting)])
                served[setting.name].append(Part(texts, found, pace))
            for setting in self.settings:
                say(f"{rate:>8.1f}  {setting.name:<25}{self._line(setting, served[setting.name])}")
            self._schedule_beside({name: [each.served for each in found] for name, found in served.items()})

    def _line(self, setting: ServedSetting, found: Sequence[Part]) -> str:
        """Return what was simulated of a setting and seen, the machine's pace, and the median at that of the profile."""
        texts, paces = [each.texts for each in found], [each.pace for each in found]
        seen = Seen.of([each.served for each in found]).numbers
        simulated = Seen.of(self.simulated(setting, texts, paces)).numbers
        profiled = Seen.of(self.simulated(setting, texts)).numbers[MEDIAN] / seen[MEDIAN] - 1
        columns = (
            f"{shown(a):>8}{shown(b):>7}{a / b - 1:>+6.0%}" for shown, a, b in zip(SHOWN, simulated, seen, strict=True)
        )
        one, two, four = np.median([each.slower for each in paces], 0) - 1
        return f"{''.join(columns)}{one:>+17.0%}{two:>+7.0%}{four:>+7.0%}{profiled:>+13.0%}"

    def _schedule_beside(self, served: dict[str, list[Sequence[ServedSequence]]]) -> None:
        """Print how the schedule does beside the best other setting, and the standard error of that."""
        if SCHEDULE not in served:
            return
        for number, taken_s in WHOLE_TEXTS.items():
            others = {name: taken_s(Seen.of(parts)) for name, parts in served.items() if name != SCHEDULE}
            best = min(others, key=lambda name: others[name])
            longer, error = longer_by(served[SCHEDULE], served[best], taken_s)
            say(f"{'':>10}schedule: {longer:+.1%} +- {error:.1%} in the {number} of whole texts beside {best}")


def longer_by(
    these: Sequence[Sequence[ServedSequence]],
    those: Sequence[Sequence[ServedSequence]],
    taken_s: Callable[[Seen], float],
) -> tuple[float, float]:
    """Return by what share these parts take longer than those, which had the same texts, and the standard error of it."""

    def ratio(parts: Sequence[int]) -> float:
        one, other = (taken_s(Seen.of([served[part] for part in parts])) for served in (these, those))
        return one / other

    count = len(these)
    redrawn = np.random.default_rng(0).integers(count, size=(REDRAWN, count)).tolist()
    return ratio(range(count)) - 1, float(np.std([ratio(parts) for parts in redrawn]))


def profiled(reference: Reference, folder: Path, models: ModelFolders, seconds: float) -> tuple[Profile, Reference]:
    """Return a profile of treeopt's decoder, measured for so many seconds, and the reference before and after it."""
    reference.both_s()  # the first texts are slower
    path, before = folder / "profile.yaml", reference.both_s()
    command = [sys.executable, "-m", "treeopt", *PROFILE, "--prompts", str(folder / PROMPT_FILE), "--no-chat"]
    named = [] if models is None else ["--target", str(models[0]), "--draft", str(models[1])]
    subprocess.run([*command, *named, "--time-budget", f"{seconds:g}s", "-o", str(path)], check=True)
    return Profile.load(path), reference.beside([before, reference.both_s()])


def probed(
    reference: Reference, client: EngineClient, launch: Launch, prompts: Sequence[str]
) -> tuple[Profile, Reference]:
    """Return a profile of an engine, and the reference before, in pauses of the probe and after it.

    A probe times steps at the context lengths of its prompts and texts: they are as long as those that arrive.
    """
    settings = ProbeSettings(
        lengths=(0, LENGTH),
        batch_sizes=(1, 2, SLOTS),
        prompts=tuple(probe_prompts(prompts)),
        prompts_from=f"{PROMPT_FILE}, cut",
        rounds=ROUNDS,
        max_new_tokens=NEW_TOKENS[1],
    )
    reference.both_s()  # the first texts are slower
    probe, beside = Probe(client, launch, settings, Journal(None, "arrivals")), [reference.both_s()]
    waves = iter(bar(range(settings.waves), "probe"))
    pauses = cycle([*[False] * (settings.waves // PAUSES - 1), True])

    def tick() -> None:
        next(waves)
        if next(pauses):
            beside.append(reference.both_s())

    probe.measure(tick)
    return engine_profile(client, launch, settings, probe), reference.beside([*beside, reference.both_s()])


def decoder_comparison(folder: Path, models: ModelFolders, profile_s: float) -> Comparison:
    """Profile a pair, and return the decoder beside what the profile says of it."""
    pair = load_pair(*models or (None, None))
    server = DecoderServer(
        target=pair.target,
        draft=pair.draft_model,
        prompts=long_enough([pair.tokenizer.encode(text) for text in load_prompts(folder / PROMPT_FILE)]),
        temperature=0.0,
        most_texts=MOST_TEXTS,
        longest=PROMPT_TOKENS[1] + NEW_TOKENS[1],
    )
    profile, reference = profiled(Reference(server, REFERENCE_LENGTH), folder, models, profile_s)
    times = StepTimes(profile, profile.acceptance())
    plain, *fixed, schedule = served_settings(times, PlanRequest())
    found = Comparison(server, times, [plain, *fixed], MOST_TEXTS, reference)
    rates = found.rates()
    chosen = {found.fastest_fixed(rate).name for rate in (rates[0], rates[-1])}
    return replace(found, settings=[plain, *(each for each in fixed if each.name in chosen), schedule])


def llama_comparison(server: LlamaServer, prompts: Sequence[str]) -> Comparison:
    """Probe llama-server, and return it beside what the profile says of it."""
    profile, reference = probed(Reference(server, LENGTH), server.client, server.launch, prompts)
    say(probe_summary(profile))
    times = StepTimes(profile, profile.acceptance())
    found = served_settings(times, PlanRequest())
    settings = [each for each in found[:-1] if each.draft_tokens in (0, LENGTH)]
    return Comparison(server, times, settings, SLOTS, reference)


def long_enough(prompts: Sequence[list[int]]) -> list[list[int]]:
    """Return the prompts that can be cut to any length that arrives."""
    return [each for each in prompts if len(each) >= PROMPT_TOKENS[1]]


def probe_prompts(prompts: Sequence[str]) -> list[str]:
    """Return how prompts begin: cut to lengths from the least to the most that arrive, a token a byte."""
    lengths = np.linspace(*PROMPT_TOKENS, len(prompts)).astype(int).tolist()
    return [text.encode()[:length].decode(errors="ignore") for text, length in zip(prompts, lengths, strict=True)]


def gguf_models(folder: Path) -> list[str]:
    """Return target and draft of the bundled pair as GGUF files."""
    found = []
    for source in (bundled.TARGET, bundled.DRAFT):
        path = folder / f"{source.name}.gguf"
        subprocess.run([sys.executable, TOOLS / "make_gguf.py", source, "--type", "f16", "-o", path], check=True)
        found.append(str(path))
    return found


@click.command()
@click.option("--seconds", default=6.0, show_default=True, help="For which texts arrive at each setting and rate.")
@click.option("--only", type=click.Choice(["decoder", "llama-server"]), help="One of the servers.")
@click.option("--folder", type=Path, help="Where models and profiles are kept.")
@click.option("--target", type=Path, help="Model folder; by default the bundled pair.")
@click.option("--draft", type=Path, help="Folder of its draft model.")
@click.option("--profile-seconds", "profile_s", default=PROFILE_S, show_default=True, help="Of measuring the profile.")
def main(
    seconds: float, only: str | None, folder: Path | None, target: Path | None, draft: Path | None, profile_s: float
) -> None:
    """Measure, simulate and serve; print a line for each rate and setting."""
    models = None if target is None or draft is None else (target, draft)
    if (target is None) != (draft is None):
        raise click.UsageError("--target, --draft: expected both, or neither for the bundled pair.")
    if models is not None and only != "decoder":
        raise click.UsageError("--target: expected with --only decoder, because llama-server runs the bundled pair.")
    runs = len(SHARES) * (4 * (only != "llama-server") + 2 * (only != "decoder"))
    minutes = 6 + runs * (seconds / 60 + 0.06 * max(2, round(seconds / PART_S)))
    print(f"{conditions()}, processors {sorted(os.sched_getaffinity(0))}")
    pair = "the bundled pair" if models is None else f"{target} + {draft}"
    print(
        f"{pair}, temperature 0, prompts of {PROMPT_TOKENS[0]} to {PROMPT_TOKENS[1]} tokens, texts of {NEW_TOKENS[0]}; "
        f"takes about {minutes:.0f} minutes",
        flush=True,
    )
    with TemporaryDirectory() as name:
        folder = folder or Path(name)
        if models is None:
            tool = [sys.executable, str(TOOLS / "held_out_prompts.py"), "--count", f"{PROMPTS}"]
            subprocess.run([*tool, "--output", str(folder / PROMPT_FILE)], check=True)
        else:
            (folder / PROMPT_FILE).write_text(json.dumps(load_prompts(DEFAULT_PROMPTS)), "utf-8")
        if only != "llama-server":
            found = decoder_comparison(folder, models, profile_s)
            say(f"\ntreeopt's decoder, at most {found.most_texts} texts at a time, float32")
            found.race(seconds)
        if only != "decoder":
            try:
                client = engine_client("llama-server", url=None, threads=THREADS, timeout_s=600)
            except TreeoptError as error:
                say(f"\nllama-server: not run. {error}")
                return
            files = gguf_models(folder)
            prompts = load_prompts(folder / PROMPT_FILE)
            launch = Launch(
                target=files[0], draft=files[1], draft_tokens=0, slots=SLOTS, threads=THREADS, timeout_s=600
            )
            server = LlamaServer(
                client=client, launch=launch, prompts=long_enough([list(text.encode()) for text in prompts])
            )
            with closing(server):
                found = llama_comparison(server, prompts)
                say(f"\nllama-server ({client.version}), {SLOTS} slots, f16, {THREADS} thread, chains of {LENGTH}")
                found.race(seconds)


if __name__ == "__main__":
    main()
