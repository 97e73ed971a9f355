"""`treeopt bench`: whether the prediction comes true."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from treeopt.cli.options import PairOptions, file, load_profile, output, pair_options, profile_options
from treeopt.cli.text import milliseconds
from treeopt.errors import TreeoptError
from treeopt.files import STANDARD_STREAM, check_writable, write_text

if TYPE_CHECKING:
    from treeopt.planner import Candidate
    from treeopt.profiler import Measured


@click.command()
@click.argument("tree", type=file)
@profile_options
@click.option("--max-new-tokens", type=click.IntRange(min=1), default=256, show_default=True, help="Tokens per prompt.")
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
    tree: Path,
    profile_path: Path,
    max_new_tokens: int,
    repeats: int,
    rule: str | None,
    temperature: float | None,
    path: Path | None,
    pair: PairOptions,
) -> None:
    """Decode held-out prompts with TREE and plainly, in turn, and put the result beside the prediction."""
    if path is not None:
        check_writable(path)
    from treeopt.planner import step_model
    from treeopt.profiler import bench as measure
    from treeopt.runtime.pair import bench_prompts, load_prompts
    from treeopt.trees import load

    shape = load(tree)
    model = step_model(load_profile(profile_path), rule=rule, temperature=temperature)
    predicted = model.predict("tree", shape)
    models = pair.load()
    prompts = [models.tokenizer.encode(text) for text in bench_prompts(load_prompts())]
    measured = measure(
        models.target,
        models.draft,
        shape,
        prompts,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        rule=model.acceptance.rule,
        temperature=model.acceptance.temperature,
        top_p=model.acceptance.top_p,
    )
    only_json = path is not None and str(path) == STANDARD_STREAM
    click.echo(table(predicted, measured), err=only_json)
    if path is not None:
        write_text(path, json.dumps(report(predicted, measured), indent=2) + "\n")
    if measured.prompts < len(prompts):
        raise TreeoptError(
            f"interrupted after {measured.prompts} of {len(prompts)} prompts; the numbers are from those. "
            "Run it again for the rest."
        )


def report(predicted: "Candidate", measured: "Measured") -> dict[str, Any]:
    """Return prediction and measurement as one flat JSON object, seconds and tokens."""
    return {
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
        "tokens": measured.tokens,
    }


def table(predicted: "Candidate", measured: "Measured") -> str:
    """Return prediction beside measurement, in a few lines."""
    rows = [
        ("tokens per step", f"{predicted.tokens_per_step.value:.2f}", f"{measured.tokens_per_step:.2f}"),
        ("step, ms", milliseconds(predicted.step_s.value), milliseconds(measured.step_s)),
        ("speedup", f"{predicted.speedup.value:.2f}", f"{measured.speedup.value:.2f}"),
    ]
    lines = [f"{'':<18}{'predicted':>10}{'measured':>10}"]
    lines += [f"{name:<18}{left:>10}{right:>10}" for name, left, right in rows]
    same = {
        True: "the text is plain decoding's, token by token",
        False: "the text DIFFERS from plain decoding's",
        None: "above temperature 0 texts are not compared",
    }
    lines.append(f"\n{measured.tokens} tokens decoded; {same[measured.identical]}.")
    return "\n".join(lines)
