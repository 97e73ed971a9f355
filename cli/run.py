"""`treeopt run`: generate text with a tree."""

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import click

from treeopt.cli.inputs import read_any_tree
from treeopt.cli.options import (
    PairOptions,
    checked_rule,
    file,
    lossy_option,
    pair_options,
    planned_rule,
    sampling_options,
)
from treeopt.cli.text import patience
from treeopt.rules import LOSSY_RULES
from treeopt.sampling import Sampling


@click.command()
@click.argument("tree", type=file)
@click.option("--prompt", required=True, help="Text to continue.")
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--rule", help="Verification rule; by default the one that the tree was planned for.")
@lossy_option
@click.option("--stop", multiple=True, help="Text that ends the continuation; may be given more than once.")
@sampling_options
@click.option("--seed", type=int, default=0, show_default=True)
@pair_options
def run(
    tree: Path,
    prompt: str,
    max_new_tokens: int,
    rule: str | None,
    lossy: bool,
    stop: tuple[str, ...],
    sampling: Sampling,
    draft_sampling: Sampling | None,
    seed: int,
    pair: PairOptions,
) -> None:
    """Continue a text with TREE; it is printed as it is generated.

    The text is what the target alone would write: at temperature 0 the same, above it of the same law.  Only with
    --lossy, and a lossy rule, it is not.
    """
    if "" in stop:
        raise click.UsageError("--stop: expected a text. Got an empty one.")
    from treeopt.runtime import Decoder

    planned = read_any_tree(tree)
    rule = checked_rule(rule or planned_rule(planned), lossy=lossy)
    models = pair.load()
    with patience("preparing… (the first time after installation, the rule is compiled)"):
        decoder = Decoder(
            models.target,
            models.draft,
            planned.tree,
            rule=rule,
            **asdict(sampling),
            draft_sampling=draft_sampling,
            lossy=lossy,
            seed=seed,
        )
    counts: list[int] = []
    start_s = time.perf_counter()
    encode = models.tokenizer.encode
    steps = decoder.steps(encode(prompt), max_new_tokens, stop=[encode(text) for text in stop])
    click.echo(prompt, nl=False)
    for piece in models.tokenizer.stream(_counted(steps, counts)):
        click.echo(piece, nl=False)
        sys.stdout.flush()
    seconds = time.perf_counter() - start_s
    click.echo()
    tokens = sum(counts)
    if rule in LOSSY_RULES and not sampling.greedy:
        click.echo(f"Rule {rule} is lossy: this text does not follow the target's law.", err=True)
    click.echo(
        f"{tokens} tokens in {len(counts)} steps, {tokens / max(1, len(counts)):.2f} per step, {tokens / seconds:.0f} per second",
        err=True,
    )


def _counted(steps: Iterable[list[int]], counts: list[int]) -> Iterator[int]:
    """Yield the tokens of all steps and note how many each had."""
    for tokens in steps:
        counts.append(len(tokens))
        yield from tokens
