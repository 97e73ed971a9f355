"""`treeopt bench TREE`: one tree, as predicted and as decoded."""

from pathlib import Path
from typing import TYPE_CHECKING

from treeopt.cli.bench_pair import check_whole, load_fitting
from treeopt.cli.options.bench import REPEATS, BenchOptions
from treeopt.cli.options.inputs import load_profile, read_any_tree
from treeopt.cli.options.rule import checked_rule, planned_rule

if TYPE_CHECKING:
    from treeopt.planner import StepModel
    from treeopt.records.profile import Profile
    from treeopt.trees import TreeFile


def bench_tree(tree: Path, asked: BenchOptions) -> None:
    """Decode with a tree and plainly in turn, and put the result beside the prediction."""
    planned, profile = read_any_tree(tree), load_profile(asked.profile_path)
    model = _model(profile, planned, asked)
    predicted = model.predict("tree", planned.tree)
    models = load_fitting(asked, profile, tree=tree, planned=planned)
    from treeopt.profiler.bench.compare import bench_as_measured, workload_as_measured
    from treeopt.report.tree_bench import tree_bench_json, tree_bench_table
    from treeopt.texts.prompts import bench_prompts

    held_out = bench_prompts(asked.prompts.load(models.tokenizer))
    acceptance, repeats = model.acceptance, asked.repeats or REPEATS
    workload = workload_as_measured(held_out, acceptance, max_new_tokens=asked.max_new_tokens, repeats=repeats)
    (measured,) = bench_as_measured(models, [planned.tree], workload, acceptance, lossy=asked.lossy)
    asked.publish(tree_bench_table(predicted, measured, acceptance), tree_bench_json(predicted, measured, acceptance))
    check_whole(measured.prompts, len(held_out))


def _model(profile: "Profile", planned: "TreeFile", asked: BenchOptions) -> "StepModel":
    """Return the model under the rule and temperature asked for, or the tree's where they were measured, or the first."""
    from treeopt.planner import step_model

    rule, temperature = asked.rule, asked.temperature
    made_at = planned.provenance.temperature if planned.provenance else None
    if temperature is None and profile.acceptances_of(rule=rule, temperature=made_at):
        temperature = made_at
    if rule is None and profile.acceptances_of(rule=planned_rule(planned), temperature=temperature):
        rule = planned_rule(planned)
    model = step_model(profile, rule=rule, temperature=temperature)
    checked_rule(model.acceptance.rule, lossy=asked.lossy)
    return model
