"""`treeopt solve`: the best tree for a profile."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from treeopt.cli.options import load_profile, output, profile_options
from treeopt.cli.text import patience, spread
from treeopt.files import STANDARD_STREAM, check_writable

if TYPE_CHECKING:
    from treeopt.planner import Candidate, Plan


@click.command()
@profile_options
@click.option(
    "--budget", type=click.IntRange(min=1), help="Most nodes, root included; by default all that was measured."
)
@click.option(
    "--depth", type=click.IntRange(min=0), help="Most levels below the root; by default all that was measured."
)
@click.option(
    "-o",
    "--output",
    "path",
    type=output,
    default=Path("tree.json"),
    show_default=True,
    help="Tree file to write; - is standard output.",
)
def solve(
    profile_path: Path,
    budget: int | None,
    depth: int | None,
    rule: str | None,
    temperature: float | None,
    path: Path,
) -> None:
    """Find the tree with the most tokens per second over every budget and depth.

    Prints the best tree of a row of budgets, the best chain and plain decoding, and writes the fastest.
    """
    check_writable(path)
    from treeopt.planner import plan, tree_file
    from treeopt.trees import draw_text

    profile = load_profile(profile_path)
    most = budget or profile.latency().verify.max_tokens
    with patience("compiling the solver, once per installation…"):
        result = plan(profile, most, max_depth=depth, rule=rule, temperature=temperature)
    written = tree_file(result, profile, source=str(profile_path))
    written.save(path)
    to_stderr = str(path) == STANDARD_STREAM
    machine = profile.machine
    click.echo(
        f"{profile.pair.target} + {profile.pair.draft} on {machine.processor} ({machine.threads} threads): "
        f"{result.rule} at temperature {result.temperature:g}, {result.context_tokens} tokens of context\n",
        err=to_stderr,
    )
    click.echo(table(result), err=to_stderr)
    click.echo("\n" + draw_text(written.tree, reach=written.reach, max_rows=32), err=to_stderr)
    if not to_stderr:
        click.echo(f"\nWritten to {path}. Next: treeopt show {path} -o tree.svg, treeopt run {path} --prompt TEXT")


def table(plan: "Plan") -> str:
    """Return the candidates as lines, the choice marked."""
    header = f"  {'':<8}{'nodes':>6}{'depth':>6}   {'tokens/step':<20}{'step, ms':<22}speedup"
    lines = [header, *(_line("", candidate) for candidate in plan.budgets), ""]
    for candidate in (plan.plain, plan.chain, plan.tree):
        mark = "*" if candidate is plan.choice else " "
        lines.append(mark + _line(candidate.kind, candidate)[1:])
    lines += ["", _verdict(plan)]
    return "\n".join(lines)


def _line(name: str, candidate: "Candidate") -> str:
    return (
        f"  {name:<8}{candidate.tree.nodes:>6}{candidate.tree.max_depth:>6}   {spread(candidate.tokens_per_step):<20}"
        f"{spread(candidate.step_s, 1000):<22}{spread(candidate.speedup)}"
    )


def _verdict(plan: "Plan") -> str:
    choice = plan.choice
    if choice.kind == "plain":
        return "Plain decoding wins: on this machine no draft of this pair pays for itself."
    shape = f"the {choice.kind} of {choice.tree.nodes} nodes and depth {choice.tree.max_depth}"
    return f"Fastest: {shape}, {choice.speedup.value:.2f} times plain decoding."
