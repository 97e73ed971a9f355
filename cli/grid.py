"""`treeopt bench --grid`: many trees, predicted and decoded for real, as a table, a picture and JSON."""

from typing import TYPE_CHECKING

from treeopt.cli.bench_options import REPEATS, BenchOptions, check_whole, load_fitting
from treeopt.cli.options import checked_rule, load_profile
from treeopt.report.plan_text import subject

if TYPE_CHECKING:
    from treeopt.planner import Plan
    from treeopt.profile import Profile


def bench_grid(asked: BenchOptions, *, same_prompts: bool) -> None:
    """Plan, decode with every tree of the grid and plainly in turn, and put the results beside the predictions."""
    profile = load_profile(asked.profile_path)
    found = _plan(profile, asked)
    models = load_fitting(asked, profile)
    from treeopt.report.grid_bench import GridReport, grid_table
    from treeopt.report.json_text import json_text
    from treeopt.runtime.prompts import bench_prompts, profile_prompts
    from treeopt.systems.grid import measured_grid

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
        grid_table(rows, plain_s, plain_is_fastest=found.choice.kind == "plain"),
        json_text(GridReport.of(rows, plain_s, found.model.acceptance)) + "\n",
    )
    if asked.plot is not None:
        from treeopt.report.grid_figure import save_grid_figure

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
