"""`treeopt bench`: whether the prediction comes true."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.command import Command
from treeopt.cli.grid import bench_grid, text_tokens
from treeopt.cli.inputs import read_any_tree
from treeopt.cli.options import (
    PairOptions,
    PromptOptions,
    checked_rule,
    file,
    load_profile,
    lossy_option,
    output,
    output_file,
    pair_options,
    planned_rule,
    profile_options,
    prompt_options,
)
from treeopt.cli.outputs import write_json
from treeopt.cli.systems import bench_all
from treeopt.cli.text import milliseconds
from treeopt.errors import InterruptionError
from treeopt.files import STANDARD_STREAM
from treeopt.rules import LOSSY_RULES

if TYPE_CHECKING:
    from treeopt.planner import Candidate
    from treeopt.profile import MeasuredAcceptance
    from treeopt.profiler import Measured


@click.command(cls=Command)
@click.argument("tree", type=file, required=False)
@click.option(
    "--systems", metavar="NAMES", help="Instead of TREE: all ways of speculating, or some, with commas between."
)
@click.option(
    "--temperatures", default="0,0.6", show_default=True, help="With --systems: temperatures, with commas between."
)
@click.option(
    "--grid", is_flag=True, help="Instead of TREE: chains, trees of several sizes and depths, and the plan's choice."
)
@click.option(
    "--same-prompts",
    is_flag=True,
    help="With --grid: decode the prompts that profiles are measured on, which leaves only the model's own errors.",
)
@click.option("--plot", type=output_file, help="With --systems or --grid: picture to write too, .svg, .png or .pdf.")
@prompt_options
@profile_options
@lossy_option
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1),
    help="Tokens per prompt; by default as many as the profile measured.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    help="Times each prompt is decoded; the median counts.",
)
@click.option("-o", "--output", "path", type=output, help="JSON file to write as well; - is standard output.")
@pair_options
def bench(
    tree: Path | None,
    systems: str | None,
    temperatures: str,
    grid: bool,
    same_prompts: bool,
    plot: Path | None,
    prompts: PromptOptions,
    profile_path: Path,
    max_new_tokens: int | None,
    repeats: int,
    rule: str | None,
    temperature: float | None,
    lossy: bool,
    path: Path | None,
    pair: PairOptions,
) -> None:
    """Check whether a prediction comes true.

    Held-out prompts are decoded with TREE and plainly, in turn, and the result stands beside the prediction.

    With --grid many trees are decoded with, to see where predictions come true.

    With --systems all ways of speculating are profiled, planned and decoded with, on the same prompts: plain,
    prompt-lookup, chain, k-sequences, top-k-tree, medusa, redrafter, lookahead, specexec, eagle2, sequoia, treeopt.
    """
    if [tree is not None, systems is not None, grid].count(True) != 1:
        raise click.UsageError("TREE, --systems, --grid: expected one of them.")
    if systems is not None:
        bench_all(systems, temperatures, pair, path, plot)
        return
    if grid:
        bench_grid(
            profile_path,
            pair,
            prompts,
            rule=rule,
            temperature=temperature,
            lossy=lossy,
            same_prompts=same_prompts,
            max_new_tokens=max_new_tokens,
            repeats=repeats,
            path=path,
            plot=plot,
        )
        return
    assert tree is not None
    from treeopt.planner import step_model
    from treeopt.profiler import bench as measure
    from treeopt.runtime.prompts import bench_prompts

    planned, profile = read_any_tree(tree), load_profile(profile_path)
    if rule is None and profile.acceptances_of(rule=planned_rule(planned), temperature=temperature):
        rule = planned_rule(planned)
    model = step_model(profile, rule=rule, temperature=temperature)
    asked = model.acceptance
    checked_rule(asked.rule, lossy=lossy)
    predicted = model.predict("tree", planned.tree)
    models = pair.load()
    held_out = bench_prompts(prompts.load(models.tokenizer))
    measured = measure(
        models.target,
        models.draft,
        planned.tree,
        held_out,
        max_new_tokens=max_new_tokens or text_tokens(asked),
        repeats=repeats,
        rule=asked.rule,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        draft_sampling=asked.draft_sampling,
        lossy=lossy,
    )
    only_json = path is not None and str(path) == STANDARD_STREAM
    click.echo(table(predicted, measured, asked), err=only_json)
    if path is not None:
        write_json(path, report(predicted, measured, asked))
    if measured.prompts < len(held_out):
        raise InterruptionError(
            f"interrupted after {measured.prompts} of {len(held_out)} prompts; the numbers are from those. "
            "Run it again for the rest."
        )


def report(predicted: "Candidate", measured: "Measured", asked: "MeasuredAcceptance") -> dict[str, Any]:
    """Return prediction and measurement as one flat JSON object, seconds and tokens."""
    return {
        "rule": asked.rule,
        "temperature": asked.temperature,
        "lossy": asked.rule in LOSSY_RULES,
        "nodes": predicted.tree.nodes,
        "depth": predicted.tree.max_depth,
        "predicted_speedup": predicted.speedup.value,
        "predicted_speedup_interval": [predicted.speedup.low, predicted.speedup.high],
        "measured_speedup": measured.speedup.value,
        "measured_speedup_interval": [measured.speedup.low, measured.speedup.high],
        "predicted_tokens_per_step": predicted.tokens_per_step.value,
        "measured_tokens_per_step": measured.tokens_per_step,
        "predicted_step_s": predicted.step_s.value,
        "measured_step_s": measured.step_s,
        "measured_plain_step_s": measured.plain_step_s,
        "identical_to_plain_decoding": measured.identical,
        "divergences": None if measured.divergences is None else [asdict(each) for each in measured.divergences],
        "tokens": measured.tokens,
    }


def table(predicted: "Candidate", measured: "Measured", asked: "MeasuredAcceptance") -> str:
    """Return prediction beside measurement, in a few lines."""
    rows = [
        ("tokens per step", f"{predicted.tokens_per_step.value:.2f}", f"{measured.tokens_per_step:.2f}"),
        ("step, ms", milliseconds(predicted.step_s.value), milliseconds(measured.step_s)),
        ("speedup", f"{predicted.speedup.value:.2f}", f"{measured.speedup.value:.2f}"),
    ]
    lines = [f"{'':<18}{'predicted':>10}{'measured':>10}"]
    lines += [f"{name:<18}{left:>10}{right:>10}" for name, left, right in rows]
    lines.append(f"\n{measured.tokens} tokens decoded; {verdict(measured, asked.rule)}.")
    return "\n".join(lines)


def verdict(measured: "Measured", rule: str) -> str:
    """Return in words whether the text is plain decoding's."""
    if measured.divergences is None:
        lossy = f"; rule {rule} is lossy: they do not follow the target's law" if rule in LOSSY_RULES else ""
        return f"above temperature 0 texts are not compared{lossy}"
    if not measured.divergences:
        return "the text is plain decoding's, token by token"
    count = len(measured.divergences)
    if all(each.near_tie for each in measured.divergences):
        return (
            f"{count} of {measured.prompts} texts part from plain decoding's, each at a near-tie of the two top logits"
        )
    return "the text DIFFERS from plain decoding's. Report it, with --output"
