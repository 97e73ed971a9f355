"""`treeopt bench tree`: the prediction of one tree next to its measurement."""

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from treeopt.cli.bench_pair import check_whole, heading_here, load_fitting, profile_of_texts
from treeopt.cli.command import Command
from treeopt.cli.options.bench import BenchOptions, BenchTreeOptions
from treeopt.cli.options.inputs import read_any_tree
from treeopt.cli.options.record import options
from treeopt.cli.options.rule import checked_rule, planned_rule
from treeopt.cli.planned import load_drafter_of, with_drafter
from treeopt.report.text import quoted
from treeopt.trees.tree_schedule import is_schedule

if TYPE_CHECKING:
    from treeopt.planner import StepModel
    from treeopt.records.measured_acceptance import MeasuredAcceptance
    from treeopt.records.profile import Profile
    from treeopt.records.results import TreePrediction
    from treeopt.trees import TreeFile


@click.command("tree", cls=Command)
@options(BenchTreeOptions)
def bench_tree(asked: BenchTreeOptions) -> None:
    """Decode with TREE and plainly, next to the prediction.

    TREE is a tree in any format, drafted as the file says. Outputs are compared token by token at temperature 0.
    """
    tree = asked.tree
    if is_schedule(tree):
        raise click.UsageError(
            f"{tree}: expected one tree. Got a schedule: treeopt bench batches {quoted(tree)} --batch-sizes 1,2,4,8."
        )
    planned = with_drafter(tree, read_any_tree(tree), asked.drafter, asked.eagle_layers)
    profile = profile_of_texts(asked)
    model, acceptance, rule, predicted = _prediction(profile, planned, asked)
    models = load_fitting(asked, profile, tree=tree, planned=planned)
    loaded = load_drafter_of(tree, planned, models)
    from treeopt.methods.make_drafter import bench_planned
    from treeopt.planner.pace import predict_at_pace
    from treeopt.profiler.bench.compare import workload_as_measured
    from treeopt.profiler.bench.reference_passes import reference_passes
    from treeopt.profiler.decoding import Decoding
    from treeopt.records.bench_file import TreeBench
    from treeopt.report.tree_bench import tree_bench_table
    from treeopt.texts.prompts import bench_prompts

    held_out = bench_prompts(asked.prompts.load(models))
    workload = workload_as_measured(held_out, acceptance, max_new_tokens=asked.max_new_tokens, repeats=asked.repeats)
    decoding = Decoding(
        rule=rule,
        sampling=acceptance.sampling,
        draft_sampling=acceptance.draft_sampling if loaded is None else None,
        lossy=asked.lossy,
    )
    draft = models.draft if planned.drafter is None else None  # whose passes the steps consist of
    references = reference_passes(model, models.target, draft, [planned.tree], workload.prompts)
    measured = bench_planned(models, planned, workload, decoding, loaded=loaded, references=references)
    name = "model" if planned.drafter is None else planned.drafter.name
    bench = TreeBench(
        drafter="model" if planned.drafter is None else planned.drafter.words,
        rule=rule,
        temperature=acceptance.temperature,
        nodes=planned.tree.nodes,
        depth=planned.tree.max_depth,
        predicted=replace(
            predicted,
            at_pace=predict_at_pace(model, planned.tree, measured.pace) if model.drafter.name == name else None,
        ),
        measured=measured,
    )
    asked.results.publish(tree_bench_table(bench), heading_here(models), bench)
    check_whole(measured.rounds, workload.rounds)


def _prediction(
    profile: "Profile", planned: "TreeFile", asked: BenchOptions
) -> "tuple[StepModel, MeasuredAcceptance, str, TreePrediction]":
    """Return the model of the passes, the acceptance whose sampling is used, the rule, and the prediction."""
    from treeopt.planner import step_model
    from treeopt.planner.drafter_costs import tree_models
    from treeopt.report.bench_records import file_prediction, prediction

    if planned.drafter is None:
        model = promised_model(profile, planned, asked)
        return model, model.acceptance, model.acceptance.rule, prediction(model.predict(planned.tree))
    rule = checked_rule(asked.rule or planned_rule(planned), lossy=asked.lossy)
    made_at = planned.provenance.temperature if planned.provenance else None
    acceptance = profile.acceptance(temperature=made_at if asked.temperature is None else asked.temperature)
    model = step_model(profile, temperature=acceptance.temperature)
    for drafter in profile.drafters:
        trees = drafter.trees_at(acceptance.temperature)
        if drafter.name == planned.drafter.name and trees and drafter.timed_at(model.point):
            model = tree_models(drafter, trees)(model.point)
    return model, acceptance, rule, file_prediction(planned, rule=rule, temperature=acceptance.temperature)


def promised_model(profile: "Profile", planned: "TreeFile", asked: BenchOptions) -> "StepModel":
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
