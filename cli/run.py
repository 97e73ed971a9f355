"""`treeopt run`: generate text with a tree."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.adapt import AdaptOptions, adapt_while_decoding, rule_after_prompt_lookup
from treeopt.cli.command import Command
from treeopt.cli.identity import load_models
from treeopt.cli.learning import LearnOptions, learn_while_decoding
from treeopt.cli.options.drafter import eagle_layers_option, load_planned_drafter, move_drafter, moved_drafter_option
from treeopt.cli.options.inputs import OTHER_MODELS, REPLACE_FILES, file, force_option, read_any_tree
from treeopt.cli.options.pair import PairOptions
from treeopt.cli.options.prompts import chat_option, tokenize_prompt, use_chat_template
from treeopt.cli.options.record import Heading, argument, group, option, refuse_options
from treeopt.cli.options.sampling import DRAFT_SAMPLING, SamplingOptions, lossy_option, planned_rule
from treeopt.cli.options.values import COUNT, SEED, TEXT, OneOf
from treeopt.cli.run_prompts import NEW_TOKENS, Generation, PromptsOptions, run_prompts
from treeopt.cli.terminal import progress
from treeopt.errors import TreeoptError
from treeopt.records.identity import Identity
from treeopt.records.rules import LOSSY_RULES, RULES, check_rule
from treeopt.report.text import counted
from treeopt.trees import TreeFile, chain
from treeopt.trees.drafter_setting import DrafterSetting
from treeopt.trees.tree_schedule import TreeSchedule, is_schedule, load_schedule

if TYPE_CHECKING:
    from treeopt.runtime import Decoder
    from treeopt.runtime.decoding.observer import Observer
    from treeopt.runtime.models.pair import ModelPair

OF_TREE = (*DRAFT_SAMPLING, "adapt", "learn", "drafter", "eagle_layers", "draft", "rule", "lossy")
"""Options that need a tree file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    tree: Path | None = argument(type=file, required=False)
    prompt: str | None = option("--prompt", type=TEXT, help="Text to continue.")
    several: PromptsOptions = group(PromptsOptions)
    chat: bool | None = chat_option()
    max_new_tokens: int | None = option(
        "--max-new-tokens",
        type=COUNT,
        help=f"Maximum number of tokens to generate; by default {NEW_TOKENS}, or fewer if the models' context is full.",
    )
    rule: str | None = Heading.SAMPLING.option(
        "--rule",
        type=OneOf("rule", lambda: RULES),
        help=f"Verification rule, by default the planned one: {', '.join(RULES)}.",
    )
    lossy: bool = lossy_option()
    drafter: DrafterSetting | None = moved_drafter_option()
    eagle_layers: tuple[int, ...] = eagle_layers_option("the planned ones")
    stop: tuple[str, ...] = option(
        "--stop", type=TEXT, multiple=True, help="Text that ends the output. Repeat the option for several."
    )
    adapt: AdaptOptions = group(AdaptOptions, Heading.ADAPTATION)
    learning: LearnOptions = group(LearnOptions, Heading.ADAPTATION)
    sampling: SamplingOptions = group(SamplingOptions, Heading.SAMPLING)
    seed: int = Heading.SAMPLING.option(
        "--seed", type=SEED, default=0, help="Random seed, which determines the output above temperature 0."
    )
    force: bool = force_option(OTHER_MODELS, REPLACE_FILES)
    pair: PairOptions = group(PairOptions)


@click.command(cls=Command, record=RunOptions)
def run(args: RunOptions) -> None:
    """Generate text with the tree, drafter and models of TREE; without TREE, decode plainly.

    TREE may also be a schedule, whose trees depend on the batch size.

    Prints the prompt and its continuation as it is generated.  If the model has a chat template, the prompt is a user
    message, and only the answer is printed (--no-chat switches that off).  The output has the target's own distribution,
    and at temperature 0 it is exactly the target's output.  Only a lossy rule (--lossy) changes that.

    With --prompts, writes one line of JSON for each prompt of a file, in order: the generated `text`, and the number of
    its `tokens` and `steps`.  Sequences are decoded together in batches (--batch-size), which does not change them.

    With --adapt, switches to a faster tree, or to prompt lookup, while decoding.
    """
    args.several.check(prompt=args.prompt, force=args.force)
    args.learning.check(force=args.force)
    if "" in args.stop:
        raise click.UsageError("--stop: expected a text. Got an empty one.")
    schedule, planned = _load_plan(args)
    adapted = rule_after_prompt_lookup(args.adapt, planned, args.sampling.sampling.temperature)
    rule = args.rule or adapted or planned_rule(planned)
    check_rule(rule, lossy=args.lossy)
    models = _load_models(args, planned)
    if schedule is not None and args.prompt is not None:
        planned = replace(planned, tree=schedule.tree(1))
    batch_size = 1 if args.several.prompts is None else args.several.batch_size
    with (
        adapt_while_decoding(args.adapt, models, planned, batch_size=batch_size, force=args.force) as controller,
        learn_while_decoding(args.learning, models, planned) as learner,
    ):
        from treeopt.runtime.decoding.observer import combine_observers

        generation = _generation(args, models, planned, rule, schedule, combine_observers(controller, learner))
        if args.prompt is None:
            run_prompts(generation)
        else:
            _run_prompt(args.prompt, generation)
        if rule in LOSSY_RULES and not args.sampling.sampling.greedy:
            click.echo(f"Rule {rule} is lossy: this text does not follow the target's distribution.", err=True)


def _load_plan(args: RunOptions) -> tuple[TreeSchedule | None, TreeFile]:
    """Return the schedule of the file, if it is one, and the tree to decode with: a single root without a file.

    Raises click.UsageError for options that need a tree file.
    """
    tree = args.tree
    if tree is None:
        reason = "expected TREE, a file of treeopt solve. Got none: name it, or leave the option out."
        refuse_options(OF_TREE, reason)
    scheduled = tree is not None and is_schedule(tree)
    args.adapt.check(scheduled=scheduled)
    if tree is None:
        return None, TreeFile(tree=chain(0))
    if not scheduled:
        return None, move_drafter(tree, read_any_tree(tree), args.drafter, args.eagle_layers)
    schedule = load_schedule(tree)
    largest = max((entry.tree for entry in schedule.trees), key=lambda tree: tree.nodes)  # sizes the decoder
    planned = TreeFile(tree=largest, provenance=schedule.provenance)
    return schedule, move_drafter(tree, planned, args.drafter, args.eagle_layers)


def _load_models(args: RunOptions, planned: TreeFile) -> "ModelPair":
    """Load the models of the tree file; its draft model only if something uses it."""
    if args.tree is None:
        return args.pair.load()
    expanded = planned.tree.nodes > 1 if planned.drafter is None else planned.drafter.expands_draft_model
    draft = expanded or args.adapt.adapt or args.learning.learn
    identity = Identity.from_provenance(planned.provenance)
    return load_models(args.pair, args.tree, identity, draft=draft, force=args.force)


def _generation(
    args: RunOptions,
    models: "ModelPair",
    planned: TreeFile,
    rule: str,
    schedule: TreeSchedule | None,
    observer: "Observer | None",
) -> Generation:
    stop = [models.tokenizer.encode_without_special(text) for text in args.stop]
    chat, sampling = use_chat_template(models.tokenizer, args.chat), args.sampling
    conditions = {
        "pair": {name: value for name, value in asdict(models.described).items() if not name.endswith("_source")},
        "device": str(models.target.device),
        "tree": planned.tree.parents.tolist() if schedule is None else schedule.to_json(),
        "drafter": repr(planned.drafter),
        "rule": rule,
        "sampling": repr((sampling.sampling, sampling.draft_sampling)),
        "seed": args.seed,
        "max_new_tokens": args.max_new_tokens,
        "stop": stop,
        "chat": chat,
    }
    return Generation(
        options=args.several,
        models=models,
        new_decoder=partial(_new_decoder, args, models, planned, rule, observer),
        stop=stop,
        chat=chat,
        max_new_tokens=args.max_new_tokens,
        conditions=conditions,
        schedule=schedule,
    )


def _new_decoder(
    args: RunOptions, models: "ModelPair", planned: TreeFile, rule: str, observer: "Observer | None", capacity: int
) -> "Decoder":
    from treeopt.methods.build import build_decoder
    from treeopt.profiler.decoding import Decoding

    sampling = args.sampling
    return build_decoder(
        models,
        planned,
        Decoding(rule=rule, sampling=sampling.sampling, draft_sampling=sampling.draft_sampling, lossy=args.lossy),
        loaded=None if args.tree is None else load_planned_drafter(args.tree, planned, models, capacity=capacity),
        seed=args.seed,
        sequence_tokens=capacity,
        on_step=observer,
    )


def _run_prompt(prompt: str, generation: Generation) -> None:
    """Continue one prompt, and print the output as it is generated."""
    models = generation.models
    tokens = tokenize_prompt(models.tokenizer, prompt, chat=generation.chat)
    new_tokens = _count_new_tokens(models, len(tokens), generation.max_new_tokens)
    with progress("preparing"):
        decoder = generation.new_decoder(len(tokens) + new_tokens)
    steps = decoder.stream(tokens, new_tokens, stop=generation.stop)
    if not generation.chat:
        click.echo(prompt, nl=False)
    click.echo(_print_output(models, steps, after=tokens), err=True)


def _count_new_tokens(models: "ModelPair", prompt_tokens: int, max_new_tokens: int | None) -> int:
    """Return how many tokens to generate, by default as many as fit, at most `NEW_TOKENS`.

    Raises TreeoptError if the models' context has no room for them.
    """
    from treeopt.runtime.models.model import describe_length_limit

    longest, reason = models.target.config.max_positions, describe_length_limit(models.target)
    room = longest - prompt_tokens
    if room < 1:
        raise TreeoptError(
            f"--prompt: expected at most {longest - 1} tokens, because {reason}. "
            f"Got {prompt_tokens}: give a shorter one."
        )
    if max_new_tokens is not None and max_new_tokens > room:
        raise TreeoptError(
            f"--max-new-tokens: expected at most {room} after a prompt of {prompt_tokens} tokens, because "
            f"{reason}. Got {max_new_tokens}: ask for fewer, or give a shorter prompt."
        )
    return max_new_tokens or min(NEW_TOKENS, room)


def _print_output(models: "ModelPair", steps: Iterable[list[int]], *, after: list[int]) -> str:
    """Print the text of steps as they are decoded, and return a line about their number and speed."""
    counts: list[int] = []
    ends = models.target.config.end_tokens

    def tokens() -> Iterator[int]:
        for step in steps:
            counts.append(len(step))
            yield from (token for token in step if token not in ends)

    start_s = time.perf_counter()
    for piece in models.tokenizer.stream(tokens(), after=after):
        click.echo(piece, nl=False)
    seconds = time.perf_counter() - start_s
    click.echo()
    count = sum(counts)
    rate = count / seconds
    rate_text = f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"
    return (
        f"{counted(count, 'token')} in {counted(len(counts), 'step')}, {count / max(1, len(counts)):.2f} per step, "
        f"{rate_text} per second"
    )
