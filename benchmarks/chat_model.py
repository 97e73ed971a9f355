"""Compare every drafter's best chain, tree or setting on a real chat model with its prediction and with transformers.

    python benchmarks/chat_model.py build/real/profile.yaml

Every option decodes every held-out prompt in interleaved runs. Speedups exclude prefill, as predictions do; their intervals
are a bootstrap over prompts. Tokens per second include prefill. transformers uses the number of draft tokens that is fastest
on the first two prompts. At temperature 0 every output is compared with that of plain decoding; above it every token is
tested against the target's distribution.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from common import default_prompts, describe_environment, floats, script_parser

from treeopt.files.json_file import parse_json
from treeopt.methods.build import build_decoder
from treeopt.planner import Option as PlannedOption
from treeopt.planner import PlanRequest, drafter_choices, requested_plan
from treeopt.planner.drafters import drafter_plan
from treeopt.profiler import MonotonicClock
from treeopt.profiler.bench.compare import compare_runs, text_tokens
from treeopt.profiler.bench.interleave import Run, collect_rounds, decode_run
from treeopt.profiler.bench.losslessness import greedy_losslessness, sampled_losslessness
from treeopt.profiler.decoding import Decoding
from treeopt.records.latency import Estimate
from treeopt.records.profile import Profile
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.registry import load_drafter
from treeopt.runtime.models.pair import ModelPair, load_pair
from treeopt.texts.prompts import CATEGORY, DEFAULT_PROMPTS, MAX_PROMPTS, bench_prompts, load_prompts
from treeopt.trees import TreeFile
from treeopt.trees.drafter_setting import DrafterSetting

PROFILE = Path("build/real/profile.yaml")
DRAFT_TOKENS, FEW_PROMPTS = range(1, 9), 2
"""Numbers of draft tokens to try in transformers, and the prompts to try them on."""
Generate = Callable[[Sequence[int], int], list[int]]
"""Returns the new tokens of a prompt, up to a number of tokens."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A held-out prompt."""

    category: str
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class TimedCall(Run):
    """A prompt decoded once; `seconds` exclude prefill, NaN if it was not timed separately."""

    call_s: float
    """With prefill."""


@dataclass(slots=True)
class Option:
    """A configuration of decoding, its prediction and its runs."""

    name: str
    setting: str
    decode: Callable[[Sequence[int]], TimedCall]
    predicted: Estimate | None = None
    predicted_tokens: float = float("nan")
    runs: list[list[TimedCall]] = field(default_factory=list)
    """By prompt and repeat."""


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

    def generator(self, temperature: float, draft_tokens: int = 0, *, lookup: bool = False) -> Generate:
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

        return generate


def best_options(profile: Profile, temperature: float) -> Iterator[tuple[DrafterSetting, PlannedOption]]:
    """Yield every drafter's best chain and tree, or its best setting."""
    request = PlanRequest(temperature=temperature)
    plan = requested_plan(profile, request)
    plans = [(DrafterSetting(name="model"), plan)] + [
        (drafter.setting, drafter_tree)
        for drafter in profile.drafters
        if (trees := drafter.trees_at(temperature))
        and (drafter_tree := drafter_plan(drafter, trees, request, plan)) is not None
    ]
    for setting, setting_plan in plans:
        candidates = (setting_plan.chain, setting_plan.tree, *setting_plan.budgets)
        for kind in ("chain", "tree"):
            of_kind = [candidate for candidate in candidates if candidate.kind == kind]
            if of_kind:
                yield setting, max(of_kind, key=lambda candidate: candidate.speedup.value)
    for choice in drafter_choices(profile, request, plan=plan):
        if choice.option.drafter.builds_own_trees:
            yield choice.option.drafter, choice.option


def treeopt_options(
    models: ModelPair, profile: Profile, temperature: float, new_tokens: int, max_tokens: int
) -> list[Option]:
    """Return plain decoding, then every drafter's best options."""
    sampling = profile.acceptance(temperature=temperature).sampling
    plain = Decoder(models.target, None, sampling=sampling, max_sequence_tokens=max_tokens)
    options = [Option("plain", "", partial(decode_steps, plain, new_tokens))]
    loaded = {drafter.label: load_drafter(drafter.setting, models, capacity=max_tokens) for drafter in profile.drafters}
    for setting, best in best_options(profile, temperature):
        decoder = build_decoder(
            models,
            TreeFile(tree=best.tree, drafter=setting),
            Decoding(rule=best.rule, sampling=sampling),
            loaded=loaded.get(setting.label),
            sequence_tokens=max_tokens,
        )
        decode = partial(decode_steps, decoder, new_tokens)
        options.append(Option(setting.name, best.shape, decode, best.speedup, best.tokens_per_step.value))
    return options


def decode_steps(decoder: Decoder, new_tokens: int, prompt: Sequence[int]) -> TimedCall:
    """Decode whole steps up to at least `new_tokens` tokens or an end token."""
    start_s = time.perf_counter()
    run = decode_run(decoder, prompt, new_tokens, None, MonotonicClock())
    return TimedCall(run.tokens, run.seconds, run.passes, time.perf_counter() - start_s)


def transformers_options(
    pair: Transformers, temperature: float, prompts: Sequence[Prompt], new_tokens: int
) -> list[Option]:
    """Return transformers' plain decoding, assisted generation and prompt lookup."""

    def option(name: str, drafted: int, *, lookup: bool = False) -> Option:
        generate = pair.generator(temperature, drafted, lookup=lookup)

        def decode(prompt: Sequence[int]) -> TimedCall:
            start_s = time.perf_counter()
            tokens = generate(prompt, new_tokens)
            return TimedCall(tokens, float("nan"), {}, time.perf_counter() - start_s)

        return Option(f"transformers {name}", f"{drafted} tokens" if drafted else "", decode)

    def fastest(name: str, *, lookup: bool) -> Option:
        options = [option(name, drafted, lookup=lookup) for drafted in DRAFT_TOKENS]
        decode_options(options, prompts[:FEW_PROMPTS], 1)
        return max(options, key=tokens_per_s)

    options = [option("plain", 0), fastest("assisted", lookup=False), fastest("prompt lookup", lookup=True)]
    for measured in options:
        measured.runs.clear()
    return options


def decode_options(options: Sequence[Option], prompts: Sequence[Prompt], repeats: int) -> None:
    """Decode every prompt with each option in interleaved runs, after a warm-up call each."""

    def decode(option: Option, number: int, _: int) -> TimedCall:
        return option.decode(prompts[number % len(prompts)].tokens)

    for option in options:
        option.runs.extend([] for _ in prompts)
    configurations = [partial(decode, option) for option in options]
    rounds = collect_rounds(configurations, 1, len(prompts) * repeats)
    for number, runs in enumerate(rounds):
        for option, run in zip(options, runs, strict=True):
            option.runs[number % len(prompts)].append(run)


def tokens_per_s(option: Option) -> float:
    """Return tokens per second, prefill included."""
    return float(
        sum(len(run.tokens) for runs in option.runs for run in runs)
        / sum(run.call_s for runs in option.runs for run in runs)
    )


def speedup(option: Option, plain: Option, selected: Sequence[int]) -> Estimate:
    """Return the speedup over plain decoding on some prompts, without prefill; its interval is a bootstrap over prompts."""
    pairs = [list(zip(plain.runs[number], option.runs[number], strict=True)) for number in selected]
    return compare_runs(pairs, None).speedup


def format_interval(estimate: Estimate | None) -> str:
    return "" if estimate is None else f"{estimate.value:.2f} ({estimate.low:.2f}-{estimate.high:.2f})"


def print_results(
    models: ModelPair, options: Sequence[Option], prompts: Sequence[Prompt], profile: Profile, temperature: float
) -> None:
    """Print speedups, losslessness, and speedups by category."""
    plain, all_prompts = options[0], range(len(prompts))
    drafter_options = [option for option in options if not option.name.startswith("transformers")]
    print(f"\n{'drafter':<15}{'setting':<34}{'tokens/step':>14}{'predicted':>18}{'measured':>18}  outputs")
    for option in drafter_options[1:]:
        tokens = sum(len(run.tokens) for runs in option.runs for run in runs)
        steps = sum(run.steps for runs in option.runs for run in runs)
        both = f"{option.predicted_tokens:.2f} {tokens / steps:.2f}"
        print(
            f"{option.name:<15}{option.setting:<34}{both:>14}{format_interval(option.predicted):>18}"
            f"{format_interval(speedup(option, plain, all_prompts)):>18}  {check_losslessness(models, option, plain, prompts, profile, temperature)}"
        )
    print(f"\n{'tokens per second, prefill included':<49}")
    for option in options:
        print(f"{option.name:<25}{option.setting:<34}{tokens_per_s(option):>10.1f}")
    categories = sorted({prompt.category for prompt in prompts})
    print("\nmeasured speedup by category")
    print(f"{'':<15}{'':<34}" + "".join(f"{category:>19}" for category in categories))
    for option in drafter_options[1:]:
        selected = ([n for n in all_prompts if prompts[n].category == category] for category in categories)
        row = "".join(f"{format_interval(speedup(option, plain, numbers)):>19}" for numbers in selected)
        print(f"{option.name:<15}{option.setting:<34}{row}")


def check_losslessness(
    models: ModelPair, option: Option, plain: Option, prompts: Sequence[Prompt], profile: Profile, temperature: float
) -> str:
    """Test an option for losslessness, and return the evidence."""
    outputs, plain_outputs = ([runs[0].tokens for runs in compared.runs] for compared in (option, plain))
    tokens = [prompt.tokens for prompt in prompts]
    sampling = profile.acceptance(temperature=temperature).sampling
    result = (
        greedy_losslessness(models.target, tokens, plain_outputs, outputs)
        if sampling.greedy
        else sampled_losslessness(models.target, tokens, outputs, sampling)
    )
    return result.evidence if result.lossless else f"NOT LOSSLESS: {result.evidence}"


def held_out_prompts(models: ModelPair) -> list[Prompt]:
    """Return treeopt's default prompts that are not profiled, in the chat template."""
    categories = {}
    for line in DEFAULT_PROMPTS.read_text("utf-8").splitlines():
        row = parse_json(DEFAULT_PROMPTS, line)
        categories[row["prompt"]] = row[CATEGORY]
    texts = bench_prompts(load_prompts(DEFAULT_PROMPTS))
    tokens = bench_prompts(default_prompts(models))  # of the same rows
    return [Prompt(categories[text], prompt_tokens) for text, prompt_tokens in zip(texts, tokens, strict=True)]


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("profile", type=Path, nargs="?", default=PROFILE, help="default: %(default)s")
    parser.add_argument("--temperatures", type=floats, help="comma-separated; by default all of the profile")
    parser.add_argument("--max-prompts", type=int, default=MAX_PROMPTS, help="held-out prompts")
    parser.add_argument("--max-new-tokens", type=int, help="of every prompt; by default as many as in the profile")
    parser.add_argument("--repeats", type=int, default=1, help="runs per prompt (default: %(default)s)")
    parser.add_argument("--without-transformers", action="store_true", help="only treeopt")
    args = parser.parse_args()
    if not args.profile.exists():
        print(f"{args.profile}: expected a profile. Write it with `make real`.", file=sys.stderr)
        return
    torch.manual_seed(0)
    profile = Profile.load(args.profile)
    pair = profile.pair
    if pair.target_source is None or pair.draft_source is None:
        parser.error(
            f"{args.profile}: expected a target and a draft model with folders. Profile with --target and --draft."
        )
    models = load_pair(pair.target_source, pair.draft_source, dtype=pair.dtype, threads=profile.machine.threads)
    prompts = held_out_prompts(models)[: args.max_prompts]
    print(describe_environment())
    print(f"transformers {transformers.__version__}; {pair.label}; {len(prompts)} held-out prompts")
    transformers_pair = (
        None
        if args.without_transformers
        else Transformers(
            Path(pair.target_source), Path(pair.draft_source), dtype=models.target.dtype, device=models.target.device
        )
    )
    measured = (acceptance.temperature for acceptance in profile.acceptances)
    for temperature in dict.fromkeys(args.temperatures or measured):
        acceptance = profile.acceptance(temperature=temperature)
        new_tokens = args.max_new_tokens or text_tokens(acceptance)
        print(f"\ntemperature {temperature:g}, {new_tokens} new tokens for each prompt", flush=True)
        longest = max(len(prompt.tokens) for prompt in prompts) + 2 * new_tokens
        options = treeopt_options(models, profile, temperature, new_tokens, longest)
        if transformers_pair is not None:
            options += transformers_options(transformers_pair, temperature, prompts, new_tokens)
        decode_options(options, prompts, args.repeats)
        print_results(models, options, prompts, profile, temperature)


if __name__ == "__main__":
    main()
