"""Is decoding as fast as it should be?  Plain and tree decoding by this runtime beside transformers' own, in one run.

    python benchmarks/decoding.py

At each temperature a profile is measured first, unless a file is named, and the tree that `treeopt.plan` finds in it is
decoded.  All methods decode the same held-out prompts in turn; of the repeats of a prompt the median time counts.
Tokens per second are those of whole calls, prefill included, whoever decodes.  Predictions leave prefill out, so what
stands beside them is measured without it, by `treeopt.profiler.bench`.  transformers runs as it comes, its assisted
generation with the fixed number of drafted tokens that is fastest on the first of the prompts that are then measured.

Where a step's time goes is measured in other texts, by reading the clock before and after each model's `forward`.  On a
CPU that costs under a microsecond, and the passes are decoding's own, which passes repeated alone would not be.  On a
GPU the readings are CUDA events, gaps between a pass's kernels count as the pass, and graphs are off, since a replay
calls no `forward`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import numpy as np
import torch
import transformers
from conditions import bar, conditions, default_prompts

import treeopt
from treeopt import bundled as bundle
from treeopt.cli.options.inputs import file, load_profile
from treeopt.cli.options.pair import PairOptions, pair_options
from treeopt.planner import Option, fastest_drafted_tree
from treeopt.profiler import Decoding, Journal, Measured, Measurement, Settings, Workload, bench_trees, clock_for
from treeopt.profiler.bench.divergence import divergence
from treeopt.profiler.machine import describe_machine, describe_pair
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.models.pair import ModelPair
from treeopt.texts.prompts import bench_prompts, profile_prompts
from treeopt.trees import TokenTree, chain

DRAFT_TOKENS, FEW_PROMPTS = range(1, 9), 2
"""Numbers of tokens tried for assisted generation, and on how many prompts."""
Milliseconds = tuple[float, float, float]
REST_GOAL = {"cpu": 10.0, "cuda": 5.0}
"""Percent of a step, by type of device."""


@dataclass(frozen=True, slots=True)
class Method:
    """One way to decode: from a prompt and a number of tokens to the new tokens."""

    name: str
    generate: Callable[[Sequence[int], int], list[int]]


@dataclass(frozen=True, slots=True)
class Raced:
    """What a method did with all prompts; the texts are those of the first repeat."""

    name: str
    tokens_per_s: float
    texts: list[list[int]]


class Transformers:
    """The same pair, decoded by transformers."""

    def __init__(self, target: Path, draft: Path, *, dtype: torch.dtype, device: torch.device) -> None:
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()  # assisted generation warns of how it calls itself
        load: Any = transformers.AutoModelForCausalLM.from_pretrained  # its own types refuse their own models
        self._target, self._draft = (load(folder, dtype=dtype).to(device).eval() for folder in (target, draft))
        self._target.generation_config = transformers.GenerationConfig()  # nothing that a folder may ask for
        self._draft.generation_config = transformers.GenerationConfig(
            num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
        )

    def method(self, temperature: float, draft_tokens: int = 0, *, lookup: bool = False) -> Method:
        """Return plain generation or, with `draft_tokens`, assisted generation or prompt lookup with always so many."""
        sampling = {"do_sample": True, "top_k": 0} if temperature > 0 else {}
        config = transformers.GenerationConfig(eos_token_id=self._target.config.eos_token_id, **sampling)
        # a temperature in the config would be applied twice to what is drafted, and less of it accepted
        distribution = transformers.LogitsProcessorList(
            [transformers.TemperatureLogitsWarper(temperature)] if sampling else []
        )

        def generate(prompt: Sequence[int], max_new_tokens: int) -> list[int]:
            config.max_new_tokens = max_new_tokens
            config.prompt_lookup_num_tokens = draft_tokens if lookup else None
            self._draft.generation_config.num_assistant_tokens = draft_tokens
            tokens = torch.tensor([list(prompt)], device=self._target.device)
            how = {
                "generation_config": config,
                "logits_processor": distribution,
                "attention_mask": torch.ones_like(tokens),
            }
            assistant = self._draft if draft_tokens and not lookup else None
            text = self._target.generate(tokens, assistant_model=assistant, **how)
            return list(text[0, len(prompt) :].tolist())

        drafted = f"{draft_tokens} {'looked up' if lookup else 'drafted'}"
        return Method(f"transformers, {drafted if draft_tokens else 'plain'}", generate)


@dataclass(frozen=True, slots=True)
class Setup:
    """Both decoders of the pair, and what they decode."""

    models: ModelPair
    theirs: Transformers
    prompts: list[list[int]]
    max_new_tokens: int
    repeats: int
    positions: int

    def ours(self, name: str, tree: TokenTree, rule: str, temperature: float) -> Method:
        decoder = Decoder(self.models.target, self.models.draft_model, tree, rule=rule, temperature=temperature)
        return Method(f"treeopt, {name}", lambda prompt, tokens: list(decoder.generate(prompt, tokens)))

    def plan(self, profile: Profile | None, rule: str, temperature: float) -> Option:
        """Return what is fastest under a profile, measured now where none is given."""
        if profile is None:
            target, draft = self.models.target, self.models.draft_model
            prompts = profile_prompts(default_prompts(self.models))
            settings = Settings(rules=(rule,), samplings=(Sampling(temperature),), positions=self.positions)
            measurement = Measurement(
                target,
                draft,
                prompts,
                settings,
                clock=clock_for(target.device),
                journal=Journal(None, ""),
                fastest_tree=fastest_drafted_tree,
            )
            profile = measurement.profile()
        return treeopt.plan(profile, rule=rule, temperature=temperature).choice


class Stopwatch:
    """Times calls on the clock of their device; `take` returns their number and seconds, and forgets them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._spans: list[tuple[Any, Any]] = []

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = self._mark()
            result = call(*args, **kwargs)
            self._spans.append((start, self._mark()))
            return result

        return timed

    def take(self) -> tuple[int, float]:
        spans, self._spans = self._spans, []
        if not self._cuda:
            return len(spans), sum(end - start for start, end in spans)
        torch.cuda.synchronize(self._device)
        return len(spans), sum(start.elapsed_time(end) for start, end in spans) / 1000

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def race(methods: Sequence[Method], setup: Setup) -> list[Raced]:
    """Decode every prompt `repeats` times with each method in turn; the first text of each is not timed."""
    for method in methods:
        method.generate(setup.prompts[0], setup.max_new_tokens)
    seconds = np.zeros((len(methods), len(setup.prompts), setup.repeats))
    tokens = np.zeros_like(seconds)
    texts: list[list[list[int]]] = [[] for _ in methods]
    for place in bar(list(np.ndindex(seconds.shape[1:])), "race"):
        for number, method in enumerate(methods):
            start_s = time.perf_counter()
            text = method.generate(setup.prompts[place[0]], setup.max_new_tokens)  # on the host: the device is done
            seconds[number, *place], tokens[number, *place] = time.perf_counter() - start_s, len(text)
            if place[1] == 0:
                texts[number].append(text)
    rates = tokens.mean(-1).sum(-1) / np.median(seconds, axis=-1).sum(-1)
    return [Raced(*each) for each in zip([method.name for method in methods], rates.tolist(), texts, strict=True)]


def split(setup: Setup, tree: TokenTree, rule: str, temperature: float) -> Milliseconds:
    """Return what a step spends on draft passes, verification and the rest: medians over texts, one warming up."""
    target, draft = setup.models.target, setup.models.draft_model
    verifying, drafting, whole = watches = [Stopwatch(target.device) for _ in range(3)]
    count_steps = whole.around(lambda steps: sum(1 for _ in steps))
    rows = []
    timed = [patch.object(m, "forward", w.around(m.forward)) for m, w in ((target, verifying), (draft, drafting))]
    with timed[0], timed[1]:
        decoder = Decoder(target, draft, tree, rule=rule, temperature=temperature, cuda_graphs=False)
        for prompt in bar([setup.prompts[0], *setup.prompts * setup.repeats], "split"):
            text = decoder.steps(prompt, setup.max_new_tokens)  # fills the caches
            for watch in watches:
                watch.take()
            steps = count_steps(text)
            (verified, verify_s), (drafted, draft_s), (_, step_s) = (watch.take() for watch in watches)
            if verified != steps or drafted < steps * tree.max_depth:
                raise treeopt.TreeoptError("forward: expected every pass to run through it. Time the passes otherwise.")
            rows.append(1000 / steps * np.array([draft_s, verify_s, step_s - draft_s - verify_s]))
    draft_ms, verify_ms, rest_ms = np.median(rows[1:], axis=0).tolist()
    return draft_ms, verify_ms, rest_ms


def best_length(setup: Setup, temperature: float) -> int:
    """Return the draft tokens with which assisted generation is fastest; print what was tried."""
    few = replace(setup, prompts=setup.prompts[:FEW_PROMPTS])
    rates = [each.tokens_per_s for each in race([setup.theirs.method(temperature, n) for n in DRAFT_TOKENS], few)]
    row = ", ".join(f"{length}: {rate:.0f}" for length, rate in zip(DRAFT_TOKENS, rates, strict=True))
    print(f"  assisted generation, tokens drafted: tokens/s on {len(few.prompts)} prompts\n    {row}")
    return DRAFT_TOKENS[int(np.argmax(rates))]


def show_differences(plain: Raced, other: Raced, setup: Setup) -> None:
    differing = sum(ours != text for ours, text in zip(plain.texts, other.texts, strict=True))
    print(f"  {other.name}: {differing} of {len(other.texts)} texts differ from {plain.name}")
    texts = zip(setup.prompts, plain.texts, other.texts, strict=True)
    found = [divergence(setup.models.target, number, *each) for number, each in enumerate(texts)]
    for each in filter(None, found):
        kind = "a near-tie" if each.near_tie else "NOT a near-tie"
        print(f"    prompt {each.prompt}, token {each.place}: its logit is {each.gap:.2g} below the largest, {kind}")


def goal(name: str, value: float, bound: float, *, below: bool = False) -> str:
    met = value < bound if below else value >= bound
    return f"  {name:<44}{value:>7.2f}  goal {'< ' if below else '>='} {bound:<5g} {'met' if met else 'NOT met'}"


def report(
    raced: Sequence[Raced], predicted: Option, measured: Measured, parts_ms: Milliseconds, *, rest_goal: float
) -> str:
    """Return what came out under one rule at one temperature."""
    plain, tree, theirs, assisted = (each.tokens_per_s for each in raced)
    draft_ms, verify_ms, rest_ms = parts_ms
    expected = predicted.tokens_per_step.value, predicted.step_s.value, predicted.speedup
    found = measured.tokens_per_step, measured.step_s, measured.speedup
    lines = [
        *(f"  {each.name:<38}{each.tokens_per_s:>8.1f} tokens/s" for each in raced),
        *(
            f"  {name:<10}{tokens:.2f} tokens a step of {1000 * step_s:.2f} ms, without prefill {speedup.value:.2f} "
            f"times plain ({speedup.low:.2f} to {speedup.high:.2f})"
            for name, (tokens, step_s, speedup) in (("predicted", expected), ("measured", found))
        ),
        f"  a step, ms: draft passes {draft_ms:.2f}, verification {verify_ms:.2f}, rest {rest_ms:.2f}",
        goal("speedup, measured / predicted", measured.speedup.value / predicted.speedup.value, 0.95),
        goal("tree / transformers' assisted generation", tree / assisted, 1.3),
        goal("plain / transformers' plain decoding", plain / theirs, 1.0),
        goal("rest, % of a step", 100 * rest_ms / sum(parts_ms), rest_goal, below=True),
    ]
    return "\n".join(lines)


def compare(setup: Setup, profile: Profile | None, rule: str, temperature: float) -> str:
    """Measure everything under one rule at one temperature; print how, and return what came out."""
    heading = f"temperature {temperature:g}, {rule}"
    print(f"\n{heading}", flush=True)
    choice = setup.plan(profile, rule, temperature)
    shapes = (("plain", chain(0)), (choice.shape, choice.tree))
    ours = [setup.ours(name, tree, rule, temperature) for name, tree in shapes]
    lengths = (0, best_length(setup, temperature))
    raced = race([*ours, *(setup.theirs.method(temperature, length) for length in lengths)], setup)
    for other in raced[1:] if temperature == 0 else []:
        show_differences(raced[0], other, setup)
    target, draft = setup.models.target, setup.models.draft_model
    workload = Workload(prompts=setup.prompts, max_new_tokens=setup.max_new_tokens, repeats=setup.repeats)
    decoding = Decoding(rule=rule, sampling=Sampling(temperature))
    (measured,) = bench_trees(target, draft, [choice.tree], workload, decoding)
    parts_ms = split(setup, choice.tree, rule, temperature)
    return f"{heading}\n{report(raced, choice, measured, parts_ms, rest_goal=REST_GOAL[target.device.type])}"


@click.command()
@click.option("--profile", "path", type=file, help="Plan with this profile; by default one is measured.")
@click.option("--rules", default="sequoia", show_default=True, help="Verification rules, with commas between.")
@click.option("--temperatures", default="0,0.6", show_default=True, help="With commas between.")
@click.option("--prompts", "count", type=click.IntRange(min=1), default=4, show_default=True, help="Held-out prompts.")
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=96, show_default=True, help="Tokens per prompt.")
@click.option("--repeats", type=click.IntRange(min=1), default=2, show_default=True, help="Times each is decoded.")
@click.option("--positions", type=click.IntRange(min=1), default=1024, show_default=True, help="Counted by profiles.")
@pair_options
def main(path: Path | None, rules: str, temperatures: str, count: int, pair: PairOptions, **amounts: int) -> None:
    """Time plain, tree and transformers' decoding in turn; at temperature 0, where rules are one, under the first."""
    torch.manual_seed(0)
    models = pair.load()
    if models.target.device.type == "cuda":
        torch.cuda.set_device(models.target.device)
    prompts = bench_prompts(default_prompts(models))[:count]
    theirs = Transformers(
        Path(pair.target or bundle.TARGET),
        Path(pair.draft or bundle.DRAFT),
        dtype=models.target.dtype,
        device=models.target.device,
    )
    setup = Setup(models, theirs, prompts, **amounts)
    named, machine = describe_pair(models.target, models.draft_model), describe_machine(models.target.device)
    heading = (
        f"{conditions()}\ntransformers {transformers.__version__}; {named.target} + {named.draft}, {named.dtype} on "
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
