"""`treeopt bench --grid`: many trees, predicted and decoded for real, as a table, a picture and JSON."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from treeopt.cli.bench_options import REPEATS, BenchOptions, check_whole, load_fitting
from treeopt.cli.options import checked_rule, load_profile
from treeopt.cli.outputs import TOOL
from treeopt.cli.plan_text import subject
from treeopt.cli.text import milliseconds

if TYPE_CHECKING:
    from treeopt.methods.grid import GridRow
    from treeopt.planner import Plan
    from treeopt.records.profile import MeasuredAcceptance, Profile

CHOSEN, OTHER = "* ", "  "
MUCH = 0.05
"""Plain decoding off by more than this says that the machine changed."""


def bench_grid(asked: BenchOptions, *, same_prompts: bool) -> None:
    """Plan, decode with every tree of the grid and plainly in turn, and put the results beside the predictions."""
    profile = load_profile(asked.profile_path)
    found = _plan(profile, asked)
    models = load_fitting(asked, profile)
    from treeopt.methods.grid import measured_grid
    from treeopt.texts.prompts import bench_prompts, profile_prompts

    prompts = (profile_prompts if same_prompts else bench_prompts)(asked.prompts.load(models.tokenizer))
    rows = measured_grid(
        found,
        models,
        prompts,
        max_new_tokens=asked.max_new_tokens,
        repeats=asked.repeats or REPEATS,
        lossy=asked.lossy,
    )
    plain_s = float(found.model.costs.verify_s[1])
    asked.publish(
        table(rows, plain_s, plain_is_fastest=found.choice.kind == "plain"),
        json.dumps(report(rows, plain_s, found.model.acceptance), indent=2) + "\n",
    )
    if asked.plot is not None:
        from treeopt.methods.grid_figure import save_grid_figure

        decoded = "the prompts of the profile" if same_prompts else "held-out prompts"
        save_grid_figure(rows, asked.plot, title=subject(profile), subtitle=f"{found.conditions}, {decoded}")
    check_whole(rows[0].measured.prompts, len(prompts))


def _plan(profile: "Profile", asked: BenchOptions) -> "Plan":
    """Return the plan over all nodes that were measured, under a rule that may be run."""
    from treeopt.planner import largest_pass, plan

    most = largest_pass(profile, rule=asked.rule, temperature=asked.temperature)
    found = plan(profile, most, rule=asked.rule, temperature=asked.temperature, lossy=asked.lossy)
    checked_rule(found.rule, lossy=asked.lossy)
    return found


def table(rows: "Sequence[GridRow]", plain_s: float, *, plain_is_fastest: bool = False) -> str:
    """Return prediction beside measurement for every tree, the first one marked, and what they come to.

    Args:
        rows: the grid; the first is the plan's choice, or its fastest tree where plain decoding is the choice.
        plain_s: seconds of a plain step, as predicted.
        plain_is_fastest: whether plain decoding is the choice.
    """
    from treeopt.methods.grid import summary

    width = max(len(row.predicted.shape) for row in rows)
    group = f"{'predicted':>10}{'measured':>10}{'error':>8}"
    lines = [
        f"{'':{width + 2}}{'tokens per step':>28}{'step, ms':>28}{'speedup':>28}",
        f"{'':{width + 2}}{group}{group}{group}",
    ]
    for number, row in enumerate(rows):
        one, other = row.predicted, row.measured
        tokens = f"{one.tokens_per_step.value:>10.2f}{other.tokens_per_step:>10.2f}{row.tokens_error:>+8.1%}"
        step = f"{milliseconds(one.step_s.value):>10}{milliseconds(other.step_s):>10}{row.step_error:>+8.1%}"
        speedup = f"{one.speedup.value:>10.2f}{other.speedup.value:>10.2f}{row.speedup_error:>+8.1%}"
        lines.append(f"{OTHER if number else CHOSEN}{one.shape:<{width}}{tokens}{step}{speedup}")
    found = summary(rows)
    marked = "fastest tree, beside which plain decoding was chosen," if plain_is_fastest else "chosen tree"
    plain = rows[0].measured.plain_step_s
    lines += [
        "",
        (
            f"plain decoding: predicted {milliseconds(plain_s)} ms a token, measured {milliseconds(plain)} "
            f"({plain_s / plain - 1:+.1%})"
        ),
        (
            f"mean error without sign: tokens per step {found.tokens_error:.1%}, step {found.step_error:.1%}, "
            f"speedup {found.speedup_error:.1%}"
        ),
        f"the {marked} (*) reaches {found.chosen_over_best:.1%} of the best measured speedup",
    ]
    if abs(plain_s / plain - 1) > MUCH:
        lines.append(
            "the machine's speed is not what it was when it was profiled: profile again right before this, or trust "
            "speedups more than times"
        )
    differing = sum(row.measured.identical is False for row in rows)
    if differing:
        lines.append(f"the text of {differing} trees DIFFERS from plain decoding's. Look with treeopt bench TREE")
    elif all(row.measured.identical for row in rows):
        lines.append("every text is plain decoding's, token by token")
    return "\n".join(lines)


def report(rows: "Sequence[GridRow]", plain_s: float, asked: "MeasuredAcceptance") -> dict[str, Any]:
    """Return the grid as a JSON object, seconds and tokens."""
    return {
        "tool": TOOL,
        "rule": asked.rule,
        "temperature": asked.temperature,
        "predicted_plain_step_s": plain_s,
        "measured_plain_step_s": rows[0].measured.plain_step_s,
        "trees": [
            {
                "kind": row.predicted.kind,
                "nodes": row.predicted.tree.nodes,
                "depth": row.predicted.tree.max_depth,
                "parents": row.predicted.tree.parents.tolist(),
                "predicted_tokens_per_step": row.predicted.tokens_per_step.value,
                "measured_tokens_per_step": row.measured.tokens_per_step,
                "predicted_step_s": row.predicted.step_s.value,
                "measured_step_s": row.measured.step_s,
                "predicted_speedup": row.predicted.speedup.value,
                "measured_speedup": row.measured.speedup.value,
                "measured_speedup_interval": [row.measured.speedup.low, row.measured.speedup.high],
                "identical_to_plain_decoding": row.measured.identical,
            }
            for row in rows
        ],
    }
