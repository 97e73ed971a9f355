"""Compare plain and tree decoding with transformers' generation and with the prediction.

    python benchmarks/decoding.py

At each temperature a profile is measured, unless `--profile` names one, and the tree of `treeopt.plan` is decoded. All methods
decode the same held-out prompts in interleaved runs; the median of the repeats of a prompt counts. Tokens per second include
prefill. Predictions exclude it, so they are compared with measurements of `treeopt.profiler.bench`. Assisted generation of
transformers uses the number of draft tokens that is fastest on the first of the prompts.

The parts of a step are measured in separate runs, by timing each model's `forward`. On a GPU they are timed with CUDA events,
which include the gaps between the kernels of a pass, and without CUDA graphs, whose replay does not call `forward`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import numpy as np
import torch
import transformers
from common import default_prompts, describe_environment, measure_profile, progress

import treeopt
from treeopt import bundled as bundle
from treeopt.cli.options.inputs import file, load_profile
from treeopt.cli.options.pair import PairOptions, pair_options
from treeopt.planner import Option
from treeopt.profiler import Decoding, Settings, Workload, bench_trees
from treeopt.profiler.bench.divergence import divergence
from treeopt.profiler.bench.interleave import collect_rounds, interleave, repeated
from treeopt.profiler.machine import describe_machine
from treeopt.records.profile import Profile
from treeopt.records.results import TreeMeasurement
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.models.pair import ModelPair, describe_pair
from treeopt.texts.prompts import bench_prompts
from treeopt.trees import TokenTree, chain

DRAFT_TOKENS, FEW_PROMPTS = range(1, 9), 2
"""Numbers of draft tokens to try for assisted generation, and the prompts to try them on."""
Milliseconds = tuple[float, float, float]
OVERHEAD_GOAL = {"cpu": 10.0, "cuda": 5.0}
"""Host overhead in percent of a step, by type of device."""


@dataclass(frozen=True, slots=True)
class Method:
    """A decoding method; `generate` returns the new tokens of a prompt, up to a number of tokens."""

    name: str
    generate: Callable[[Sequence[int], int], list[int]]


@dataclass(frozen=True, slots=True)
class MethodResult:
    """A method's rate over all prompts, and the outputs of its first repeat."""

    name: str
    tokens_per_s: float
    outputs: list[list[int]]


class Transformers:
    """The pair in transformers."""

    def __init__(self, target: Path, draft: Path, *, dtype: torch.dtype, device: torch.device) -> None:
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()  # assisted generation warns about its own calls
        load: Any = transformers.AutoModelForCausalLM.from_pretrained  # its own types refuse their own models
        self._target, self._draft = (load(folder, dtype=dtype).to(device).eval() for folder in (target, draft))
        self._target.generation_config = transformers.GenerationConfig()  # ignore the folder's defaults
        self._draft.generation_config = transformers.GenerationConfig(
            num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
        )

    def method(self, temperature: float, draft_tokens: int = 0, *, lookup: bool = False) -> Method:
        """Return plain generation or, with `draft_tokens`, assisted generation or prompt lookup with that many."""
        sampling = {"do_sample": True, "top_k": 0} if temperature > 0 else {}
        config = transformers.GenerationConfig(eos_token_id=self._target.config.eos_token_id, **sampling)
        # a temperature in the config would be applied twice to draft tokens, and fewer would be accepted
        distribution = transformers.LogitsProcessorList(
            [transformers.TemperatureLogitsWarper(temperature)] if sampling else []
        )

        def generate(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
            config.max_new_tokens = max_new_tokens
            config.prompt_lookup_num_tokens = draft_tokens if lookup else None
            self._draft.generation_config.num_assistant_tokens = draft_tokens
            tokens = torch.tensor([list(prompt)], device=self._target.device)
            options = {
                "generation_config": config,
                "logits_processor": distribution,
                "attention_mask": torch.ones_like(tokens),
            }
            assistant = self._draft if draft_tokens and not lookup else None
            generated = self._target.generate(tokens, assistant_model=assistant, **options)
            return list(generated[0, len(prompt) :].tolist())

        label = f"{draft_tokens} {'looked up' if lookup else 'drafted'}" if draft_tokens else "plain"
        return Method(f"transformers, {label}", generate)


@dataclass(frozen=True, slots=True)
class Setup:
    """The pair in treeopt and in transformers, and the workload."""

    models: ModelPair
    transformers: Transformers
    prompts: list[list[int]]
    max_new_tokens: int
    repeats: int
    positions: int

    def treeopt_method(self, name: str, tree: TokenTree, rule: str, temperature: float) -> Method:
        decoder = Decoder(self.models.target, self.models.draft_model, tree, rule=rule, temperature=temperature)
        return Method(f"treeopt, {name}", lambda prompt, tokens: list(decoder.generate(prompt, tokens)))

    def plan(self, profile: Profile | None, rule: str, temperature: float) -> Option:
        """Return the fastest option of a profile; measure one if there is none."""
        if profile is None:
            settings = Settings(rules=(rule,), samplings=(Sampling(temperature),), positions=self.positions)
            profile = measure_profile(self.models, settings)
        return treeopt.plan(profile, rule=rule, temperature=temperature).choice


class Stopwatch:
    """Times calls on the clock of their device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._intervals: list[tuple[Any, Any]] = []

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = self._mark()
            result = call(*args, **kwargs)
            self._intervals.append((start, self._mark()))
            return result

        return timed

    def take(self) -> tuple[int, float]:
        """Return the number of calls and their seconds since the last `take`."""
        intervals, self._intervals = self._intervals, []
        if not self._cuda:
            return len(intervals), sum(end - start for start, end in intervals)
        torch.cuda.synchronize(self._device)
        return len(intervals), sum(start.elapsed_time(end) for start, end in intervals) / 1000

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def run_interleaved(methods: Sequence[Method], setup: Setup) -> list[MethodResult]:
    """Decode every prompt `repeats` times with each method; the median of the repeats counts."""

    def decode(method: Method, prompt: int, _: int, new_tokens: int) -> tuple[list[int], float]:
        start_s = time.perf_counter()
        output = method.generate(setup.prompts[prompt], new_tokens)  # a list: the device has finished
        return output, time.perf_counter() - start_s

    prompts = range(len(setup.prompts))
    configurations = [partial(decode, method) for method in methods]
    rounds = collect_rounds(
        interleave(configurations, setup.max_new_tokens, repeated(len(prompts), setup.repeats)),
        len(prompts) * setup.repeats,
        show_progress=True,
    )
    results = []
    for number, method in enumerate(methods):
        runs = [[finished.runs[number] for finished in rounds if finished.prompt == prompt] for prompt in prompts]
        tokens = sum(np.mean([len(output) for output, _ in repeats]) for repeats in runs)
        seconds = sum(np.median([seconds for _, seconds in repeats]) for repeats in runs)
        results.append(MethodResult(method.name, float(tokens / seconds), [repeats[0][0] for repeats in runs]))
    return results


def time_step_parts(setup: Setup, tree: TokenTree, rule: str, temperature: float) -> Milliseconds:
    """Return milliseconds of draft passes, verification and host overhead per step: medians over prompts."""
    target, draft = setup.models.target, setup.models.draft_model
    verify_watch, draft_watch, step_watch = watches = [Stopwatch(target.device) for _ in range(3)]
    count_steps = step_watch.wrap(lambda steps: sum(1 for _ in steps))
    rows = []
    with (
        patch.object(target, "forward", verify_watch.wrap(target.forward)),
        patch.object(draft, "forward", draft_watch.wrap(draft.forward)),
    ):
        decoder = Decoder(target, draft, tree, rule=rule, temperature=temperature, cuda_graphs=False)
        for prompt in progress([setup.prompts[0], *setup.prompts * setup.repeats], "parts of a step"):
            stream = decoder.stream(prompt, setup.max_new_tokens)  # prefills
            for watch in watches:
                watch.take()
            steps = count_steps(stream)
            (verified, verify_s), (drafted, draft_s), (_, step_s) = (watch.take() for watch in watches)
            if verified != steps or drafted < steps * tree.max_depth:
                raise treeopt.TreeoptError(
                    "forward: expected a call for every pass of a step. Got fewer: this model cannot be timed."
                )
            rows.append(1000 / steps * np.array([draft_s, verify_s, step_s - draft_s - verify_s]))
    draft_ms, verify_ms, overhead_ms = np.median(rows[1:], axis=0).tolist()
    return draft_ms, verify_ms, overhead_ms


def best_length(setup: Setup, temperature: float) -> int:
    """Return the number of draft tokens with which assisted generation is fastest; print all rates."""
    few = replace(setup, prompts=setup.prompts[:FEW_PROMPTS])
    results = run_interleaved([setup.transformers.method(temperature, n) for n in DRAFT_TOKENS], few)
    rates = [result.tokens_per_s for result in results]
    row = ", ".join(f"{length}: {rate:.0f}" for length, rate in zip(DRAFT_TOKENS, rates, strict=True))
    print(f"  assisted generation, tokens drafted: tokens/s on {len(few.prompts)} prompts\n    {row}")
    return DRAFT_TOKENS[int(np.argmax(rates))]


def print_divergences(plain: MethodResult, other: MethodResult, setup: Setup) -> None:
    diverging = sum(a != b for a, b in zip(plain.outputs, other.outputs, strict=True))
    print(f"  {other.name}: {diverging} of {len(other.outputs)} outputs diverge from {plain.name}")
    rows = zip(setup.prompts, plain.outputs, other.outputs, strict=True)
    divergences = [divergence(setup.models.target, number, *row) for number, row in enumerate(rows)]
    for diverged in filter(None, divergences):
        kind = "a near-tie" if diverged.near_tie else "NOT a near-tie"
        print(
            f"    prompt {diverged.prompt}, token {diverged.position}: its logit is {diverged.gap:.2g} below the largest, {kind}"
        )


def format_goal(name: str, value: float, bound: float, *, below: bool = False) -> str:
    met = value < bound if below else value >= bound
    return f"  {name:<44}{value:>7.2f}  goal {'< ' if below else '>='} {bound:<5g} {'met' if met else 'NOT met'}"


def report(
    results: Sequence[MethodResult],
    predicted: Option,
    measured: TreeMeasurement,
    parts_ms: Milliseconds,
    *,
    overhead_goal: float,
) -> str:
    """Format the results under one rule at one temperature."""
    plain, tree, transformers_plain, assisted = (result.tokens_per_s for result in results)
    draft_ms, verify_ms, overhead_ms = parts_ms
    expected = predicted.tokens_per_step.value, predicted.step_s.value, predicted.speedup
    actual = measured.tokens_per_step, measured.step_s, measured.speedup
    lines = [
        *(f"  {result.name:<38}{result.tokens_per_s:>8.1f} tokens/s" for result in results),
        *(
            f"  {name:<10}{tokens:.2f} tokens a step of {1000 * step_s:.2f} ms, without prefill {speedup.value:.2f} "
            f"times plain ({speedup.low:.2f} to {speedup.high:.2f})"
            for name, (tokens, step_s, speedup) in (("predicted", expected), ("measured", actual))
        ),
        f"  a step, ms: draft passes {draft_ms:.2f}, verification {verify_ms:.2f}, host overhead {overhead_ms:.2f}",
        format_goal("speedup, measured / predicted", measured.speedup.value / predicted.speedup.value, 0.95),
        format_goal("tree / transformers' assisted generation", tree / assisted, 1.3),
        format_goal("plain / transformers' plain decoding", plain / transformers_plain, 1.0),
        format_goal("host overhead, % of a step", 100 * overhead_ms / sum(parts_ms), overhead_goal, below=True),
    ]
    return "\n".join(lines)


def compare(setup: Setup, profile: Profile | None, rule: str, temperature: float) -> str:
    """Measure all methods under one rule at one temperature, and return the report."""
    heading = f"temperature {temperature:g}, {rule}"
    print(f"\n{heading}", flush=True)
    choice = setup.plan(profile, rule, temperature)
    shapes = (("plain", chain(0)), (choice.shape, choice.tree))
    treeopt_methods = [setup.treeopt_method(name, tree, rule, temperature) for name, tree in shapes]
    lengths = (0, best_length(setup, temperature))
    results = run_interleaved(
        [*treeopt_methods, *(setup.transformers.method(temperature, length) for length in lengths)], setup
    )
    for other in results[1:] if temperature == 0 else []:
        print_divergences(results[0], other, setup)
    target, draft = setup.models.target, setup.models.draft_model
    workload = Workload(prompts=setup.prompts, max_new_tokens=setup.max_new_tokens, repeats=setup.repeats)
    decoding = Decoding(rule=rule, sampling=Sampling(temperature))
    (measured,) = bench_trees(target, draft, [choice.tree], workload, decoding)
    parts_ms = time_step_parts(setup, choice.tree, rule, temperature)
    return f"{heading}\n{report(results, choice, measured, parts_ms, overhead_goal=OVERHEAD_GOAL[target.device.type])}"


@click.command()
@click.option("--profile", "path", type=file, help="Plan with this profile; by default one is measured.")
@click.option("--rules", default="sequoia", show_default=True, help="Verification rules, comma-separated.")
@click.option("--temperatures", default="0,0.6", show_default=True, help="Comma-separated.")
@click.option("--prompts", "count", type=click.IntRange(min=1), default=4, show_default=True, help="Held-out prompts.")
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=96, show_default=True, help="Tokens per prompt.")
@click.option("--repeats", type=click.IntRange(min=1), default=2, show_default=True, help="Runs per prompt.")
@click.option("--positions", type=click.IntRange(min=1), default=1024, show_default=True, help="Positions per profile.")
@pair_options
def main(path: Path | None, rules: str, temperatures: str, count: int, pair: PairOptions, **amounts: int) -> None:
    """Compare plain, tree and transformers' decoding; at temperature 0 only under the first rule, because all rules agree."""
    torch.manual_seed(0)
    models = pair.load()
    if models.target.device.type == "cuda":
        torch.cuda.set_device(models.target.device)
    prompts = bench_prompts(default_prompts(models))[:count]
    transformers_pair = Transformers(
        Path(pair.target or bundle.TARGET),
        Path(pair.draft or bundle.DRAFT),
        dtype=models.target.dtype,
        device=models.target.device,
    )
    setup = Setup(models, transformers_pair, prompts, **amounts)
    pair_record, machine = describe_pair(models.target, models.draft_model), describe_machine(models.target.device)
    heading = (
        f"{describe_environment()}\ntransformers {transformers.__version__}; {pair_record.target} + {pair_record.draft}, {pair_record.dtype} on "
        f"{machine.device}, {machine.processor}; {len(prompts)} held-out prompts x {setup.max_new_tokens} tokens, "
        f"{setup.repeats} times each; {f'profile {path}' if path else 'profiles measured in this run'}"
    )
    print(heading)
    profile = load_profile(path) if path else None
    reports = [
        compare(setup, profile, rule, temperature)
        for temperature in map(float, temperatures.split(","))
        for rule in rules.split(",")[: None if temperature > 0 else 1]
    ]
    print("\n".join(["\n```", heading, *reports, "```"]))


if __name__ == "__main__":
    main()
