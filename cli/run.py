"""`treeopt run`: generate text with a tree."""

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from treeopt.cli.options import PairOptions, file, pair_options, sampling_options


@click.command()
@click.argument("tree", type=file)
@click.option("--prompt", required=True, help="Text to continue.")
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=256, show_default=True)
@click.option("--rule", default="sequoia", show_default=True, help="Verification rule.")
@sampling_options
@click.option("--seed", type=int, default=0, show_default=True)
@pair_options
def run(
    tree: Path,
    prompt: str,
    max_new_tokens: int,
    rule: str,
    temperature: float,
    top_p: float,
    seed: int,
    pair: PairOptions,
) -> None:
    """Continue a text with TREE; it is printed as it is generated.

    The text is what the target alone would write: at temperature 0 the same, above it of the same law.
    """
    from treeopt.runtime import Decoder
    from treeopt.trees import load

    shape = load(tree)
    models = pair.load()
    decoder = Decoder(models.target, models.draft, shape, rule=rule, temperature=temperature, top_p=top_p, seed=seed)
    counts: list[int] = []
    start_s = time.perf_counter()
    steps = decoder.steps(models.tokenizer.encode(prompt), max_new_tokens)
    click.echo(prompt, nl=False)
    for piece in models.tokenizer.stream(_counted(steps, counts)):
        click.echo(piece, nl=False)
        sys.stdout.flush()
    seconds = time.perf_counter() - start_s
    click.echo()
    tokens = sum(counts)
    click.echo(
        f"{tokens} tokens in {len(counts)} steps, {tokens / max(1, len(counts)):.2f} per step, {tokens / seconds:.0f} per second",
        err=True,
    )


def _counted(steps: Iterable[list[int]], counts: list[int]) -> Iterator[int]:
    """Yield the tokens of all steps and note how many each had."""
    for tokens in steps:
        counts.append(len(tokens))
        yield from tokens
