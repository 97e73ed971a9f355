"""`treeopt run`: generate text with a tree."""

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.adapt import adapted_rule, adapting
from treeopt.cli.command import Command
from treeopt.cli.identity import load_models
from treeopt.cli.learning import LearnOptions
from treeopt.cli.options.adapt import AdaptOptions
from treeopt.cli.options.drafter import PLANNED_DRAFTER, PLANNED_EAGLE_LAYERS
from treeopt.cli.options.inputs import FORCE_ALL, file, read_any_tree
from treeopt.cli.options.pair import PairOptions
from treeopt.cli.options.prompts import CHAT, prompt_tokens, uses_chat
from treeopt.cli.options.record import Heading, argument, group, option, options
from treeopt.cli.options.rule import LOSSY, checked_rule, planned_rule
from treeopt.cli.options.sampling import SamplingOptions
from treeopt.cli.options.values import COUNT, RULE, SEED, TEXT
from treeopt.cli.planned import load_drafter_of, with_drafter
from treeopt.cli.run_prompts import NEW_TOKENS, PromptsRequest, SeveralOptions, run_prompts
from treeopt.cli.waiting import patience
from treeopt.errors import TreeoptError
from treeopt.records.rules import LOSSY_RULES
from treeopt.report.text import counted
from treeopt.trees.drafter_setting import DrafterSetting
from treeopt.trees.tree_schedule import TreeSchedule, is_schedule, load_schedule

if TYPE_CHECKING:
    from treeopt.runtime import Decoder
    from treeopt.runtime.decoding.observer import Observer
    from treeopt.runtime.models.pair import ModelPair
    from treeopt.trees import TreeFile


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What is generated, with which tree, how, and by which pair."""

    tree: Path | None = field(metadata=argument(type=file, required=False))
    prompt: str | None = field(metadata=option("--prompt", type=TEXT, help="Text to continue."))
    several: SeveralOptions = field(metadata=group(SeveralOptions))
    schedule: bool = field(
        metadata=option(
            "--schedule",
            is_flag=True,
            help="TREE is a schedule of treeopt schedule: a tree for every number of texts. Files tell that themselves, "
            "pipes do not.",
        )
    )
    chat: bool | None = field(metadata=CHAT)
    max_new_tokens: int | None = field(
        metadata=option(
            "--max-new-tokens",
            type=COUNT,
            help=f"Most tokens to generate; by default {NEW_TOKENS}, or as many as the models' longest text leaves room for.",
        )
    )
    rule: str | None = field(
        metadata=option(
            "--rule",
            heading=Heading.SAMPLING,
            type=RULE,
            help="Verification rule; by default the one that the tree was planned for.",
        )
    )
    lossy: bool = field(metadata=LOSSY)
    drafter: DrafterSetting | None = field(metadata=PLANNED_DRAFTER)
    eagle_layers: tuple[int, ...] = field(metadata=PLANNED_EAGLE_LAYERS)
    stop: tuple[str, ...] = field(
        metadata=option(
            "--stop", type=TEXT, multiple=True, help="Text that ends the continuation; may be given more than once."
        )
    )
    adapt: AdaptOptions = field(metadata=group(AdaptOptions))
    learning: LearnOptions = field(metadata=group(LearnOptions))
    how: SamplingOptions = field(metadata=group(SamplingOptions))
    seed: int = field(
        metadata=option(
            "--seed",
            heading=Heading.SAMPLING,
            type=SEED,
            default=0,
            show_default=True,
            help="Of all randomness: above temperature 0 it makes the text.",
        )
    )
    force: bool = field(metadata=FORCE_ALL)
    pair: PairOptions = field(metadata=group(PairOptions))


@click.command(cls=Command)
@options(RunOptions)
def run(asked: RunOptions) -> None:
    """Generate a text, or many, with the tree, the drafter and the models that TREE names; without TREE plainly.

    It is printed as it is generated: the prompt and its continuation.  If the model has a chat template, the prompt is a
    user's message and only the answer is printed; --no-chat continues the prompt as it is.
    The text is what the target alone would write: at temperature 0 the same, above it of the same distribution.  Only
    with --lossy, and a lossy rule, it is not.

    With --prompts, one line of JSON is written for each prompt of a file, in its order: `text`, how the prompt goes on,
    and the number of its `tokens` and `steps`.  --batch-size texts are decoded at a time, none of which changes another.

    With --adapt the tree is changed while it decodes, where another, or prompt lookup, would be faster by more than noise.
    """
    asked.several.check(prompt=asked.prompt, force=asked.force)
    asked.learning.check(force=asked.force)
    if "" in asked.stop:
        raise click.UsageError("--stop: expected a text. Got an empty one.")
    schedule, planned = _planned(asked)
    adapted = adapted_rule(asked.adapt, planned, asked.how.sampling.temperature)
    rule = checked_rule(asked.rule or adapted or planned_rule(planned), lossy=asked.lossy)
    models = _models(asked, planned)
    if schedule is not None and asked.prompt is not None:
        planned = replace(planned, tree=schedule.tree(1))
    batch_size = asked.several.texts
    with (
        adapting(asked.adapt, models, planned, batch_size=batch_size) as steering,
        asked.learning.observer(models, planned) as learner,
    ):
        from treeopt.runtime.decoding.observer import observers

        request = _request(asked, models, planned, rule, schedule, observers(steering, learner))
        if asked.prompt is None:
            run_prompts(request)
        else:
            _run_prompt(asked, asked.prompt, request)
        if rule in LOSSY_RULES and not asked.how.sampling.greedy:
            click.echo(f"Rule {rule} is lossy: this text does not follow the target's distribution.", err=True)


def _planned(asked: RunOptions) -> "tuple[TreeSchedule | None, TreeFile]":
    """Return the schedule of the file, if it is one, and what is to be decoded with; plain decoding without a file."""
    tree = asked.tree
    if tree is None:
        return None, _plain(asked)
    scheduled = asked.schedule or is_schedule(tree)
    asked.adapt.check(scheduled=scheduled)
    schedule = load_schedule(tree) if scheduled else None
    read = read_any_tree(tree) if schedule is None else _largest(schedule)
    return schedule, with_drafter(tree, read, asked.drafter, asked.eagle_layers)


def _plain(asked: RunOptions) -> "TreeFile":
    """Return plain decoding; click.UsageError for options that need a tree file."""
    from treeopt.trees import TreeFile, chain

    only = {
        "--schedule": asked.schedule,
        "--adapt": asked.adapt.adapt,
        "--learn": asked.learning.learn,
        "--drafter": asked.drafter is not None,
        "--eagle-layers": bool(asked.eagle_layers),
        "--draft": asked.pair.draft is not None,
    }
    for name, there in only.items():
        if there:
            raise click.UsageError(
                f"{name}: expected TREE, a file of treeopt solve. Got none: name it, or leave {name} out."
            )
    asked.adapt.check(scheduled=False)
    return TreeFile(tree=chain(0))


def _models(asked: RunOptions, planned: "TreeFile") -> "ModelPair":
    """Load the models that the tree file names; its draft model only where something expands it."""
    from treeopt.records.identity import Identity

    if asked.tree is None:
        return asked.pair.load()
    expanded = planned.tree.nodes > 1 if planned.drafter is None else planned.drafter.expands_draft_model
    draft = expanded or asked.adapt.adapt or asked.learning.learn
    identity = Identity.planned_for(planned.provenance)
    return load_models(asked.pair, asked.tree, identity, draft=draft, force=asked.force)


def _run_prompt(asked: RunOptions, prompt: str, request: PromptsRequest) -> None:
    """Continue one prompt, and print the text as it comes."""
    models = request.models
    tokens = prompt_tokens(models.tokenizer, prompt, chat=request.chat)
    limit = _new_tokens(models, len(tokens), asked.max_new_tokens)
    with patience("preparing"):
        decoder = request.new_decoder(len(tokens) + limit)
    steps = decoder.steps(tokens, limit, stop=request.stop)
    if not request.chat:
        click.echo(prompt, nl=False)
    click.echo(_print_text(models, steps, after=tokens), err=True)


def _largest(schedule: TreeSchedule) -> "TreeFile":
    """Return the schedule's largest tree, for which a decoder has room, as a tree file."""
    from treeopt.trees import TreeFile

    largest = max((each.tree for each in schedule.trees), key=lambda tree: tree.nodes)
    return TreeFile(tree=largest, provenance=schedule.provenance)


def _request(
    asked: RunOptions,
    models: "ModelPair",
    planned: "TreeFile",
    rule: str,
    schedule: TreeSchedule | None,
    observer: "Observer | None",
) -> PromptsRequest:
    """Return what is asked of a prompt, or of all prompts of a file."""
    stop, chat = [models.tokenizer.encode_inner(text) for text in asked.stop], uses_chat(models.tokenizer, asked.chat)
    conditions = {
        "pair": {name: value for name, value in asdict(models.described).items() if not name.endswith("_source")},
        "device": str(models.target.device),
        "tree": planned.tree.parents.tolist() if schedule is None else schedule.to_json(),
        "drafter": repr(planned.drafter),
        "rule": rule,
        "sampling": repr((asked.how.sampling, asked.how.draft_sampling)),
        "seed": asked.seed,
        "max_new_tokens": asked.max_new_tokens,
        "stop": stop,
        "chat": chat,
    }
    return PromptsRequest(
        options=asked.several,
        models=models,
        new_decoder=partial(_decoder, asked, models, planned, rule, observer),
        stop=stop,
        chat=chat,
        max_new_tokens=asked.max_new_tokens,
        conditions=conditions,
        schedule=schedule,
    )


def _decoder(
    asked: RunOptions,
    models: "ModelPair",
    planned: "TreeFile",
    rule: str,
    observer: "Observer | None",
    text_tokens: int,
) -> "Decoder":
    from treeopt.methods.make_drafter import planned_decoder
    from treeopt.profiler.decoding import Decoding

    loaded = None if asked.tree is None else load_drafter_of(asked.tree, planned, models, capacity=text_tokens)
    how = asked.how
    decoding = Decoding(
        rule=rule,
        sampling=how.sampling,
        draft_sampling=how.draft_sampling,
        lossy=asked.lossy,
    )
    return planned_decoder(
        models,
        planned,
        decoding,
        loaded=loaded,
        seed=asked.seed,
        text_tokens=text_tokens,
        on_step=observer,
    )


def _new_tokens(models: "ModelPair", prompt_tokens: int, asked: int | None) -> int:
    """Return how many tokens to generate: as asked, or the default where the models' longest text has room for it.

    Raises TreeoptError where a prompt leaves no room, or less than was asked for.
    """
    from treeopt.runtime.models.model import length_limit

    longest, reason = models.target.config.max_positions, length_limit(models.target)
    room = longest - prompt_tokens
    if room < 1:
        raise TreeoptError(
            f"--prompt: expected at most {longest - 1} tokens, because {reason}. "
            f"Got {prompt_tokens}: give a shorter one."
        )
    if asked is not None and asked > room:
        raise TreeoptError(
            f"--max-new-tokens: expected at most {room} after a prompt of {prompt_tokens} tokens, because "
            f"{reason}. Got {asked}: ask for fewer, or give a shorter prompt."
        )
    return asked or min(NEW_TOKENS, room)


def _print_text(models: "ModelPair", steps: Iterable[list[int]], *, after: list[int]) -> str:
    """Print the text of some steps as it comes, and return in one line how many and how fast they were."""
    counts: list[int] = []
    start_s = time.perf_counter()
    ends = models.target.config.end_tokens
    for piece in models.tokenizer.stream(_counted(steps, counts, ends), after=after):
        click.echo(piece, nl=False)
    seconds = time.perf_counter() - start_s
    click.echo()
    count = sum(counts)
    per_step = count / max(1, len(counts))
    rate = count / seconds
    shown = f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"
    return f"{counted(count, 'token')} in {counted(len(counts), 'step')}, {per_step:.2f} per step, {shown} per second"


def _counted(steps: Iterable[list[int]], counts: list[int], ends: Collection[int]) -> Iterator[int]:
    """Yield the tokens of all steps, but for those that end a text, and note how many each had with them."""
    for tokens in steps:
        counts.append(len(tokens))
        yield from (token for token in tokens if token not in ends)
