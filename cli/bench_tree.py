"""`treeopt bench tree`: one tree's measurement next to its prediction."""

from dataclasses import dataclass, replace
from pathlib import Path

import click

from treeopt.cli.bench_common import (
    BenchOptions,
    ResultOptions,
    bench_heading,
    check_complete,
    load_bench_models,
    load_bench_profile,
)
from treeopt.cli.command import Command
from treeopt.cli.options.drafter import eagle_layers_option, load_planned_drafter, move_drafter, moved_drafter_option
from treeopt.cli.options.inputs import file, read_any_tree
from treeopt.cli.options.record import argument, group
from treeopt.cli.options.sampling import planned_rule
from treeopt.cli.terminal import warn
from treeopt.planner import StepModel, step_model
from treeopt.planner.benchmarks import predict_at_pace, tree_prediction
from treeopt.planner.drafter_costs import tree_model
from treeopt.planner.request import PlanRequest
from treeopt.records.bench_file import TreeBench
from treeopt.records.measured_acceptance import MeasuredAcceptance
from treeopt.records.profile import Profile
from treeopt.records.results import TreePrediction
from treeopt.records.rules import check_rule
from treeopt.report.bench_text import pace_warning, tree_bench_table
from treeopt.report.figures.benches import trees_panel
from treeopt.report.profile_text import measured_today
from treeopt.report.text import subject
from treeopt.texts.prompts import bench_prompts
from treeopt.trees import Provenance, TreeFile
from treeopt.trees.drafter_setting import DrafterSetting


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTreeOptions(BenchOptions):
    tree: Path = argument(type=file)
    drafter: DrafterSetting | None = moved_drafter_option()
    eagle_layers: tuple[int, ...] = eagle_layers_option("the planned ones")
    results: ResultOptions = group(ResultOptions)


@click.command("tree", cls=Command, record=BenchTreeOptions)
def bench_tree(args: BenchTreeOptions) -> None:
    """Decode with TREE and plainly, next to the prediction.

    TREE is a tree in any known format, decoded with the drafter that its file names.  At temperature 0, outputs are
    compared token by token.
    """
    tree = args.tree
    planned = move_drafter(tree, read_any_tree(tree), args.drafter, args.eagle_layers)
    profile = load_bench_profile(args)
    model, acceptance, rule, predicted = _predict(profile, planned, args)
    models = load_bench_models(args.pair, args.profile_path, profile, force=args.force, tree=tree, planned=planned)
    loaded = load_planned_drafter(tree, planned, models)
    from treeopt.methods.build import bench_tree_file
    from treeopt.profiler.bench.compare import Workload, text_tokens
    from treeopt.profiler.bench.reference_passes import reference_passes
    from treeopt.profiler.decoding import Decoding

    prompts = bench_prompts(args.prompts.load(models))
    new_tokens = args.max_new_tokens or text_tokens(acceptance)
    workload = Workload(prompts=prompts, max_new_tokens=new_tokens, repeats=args.repeats)
    decoding = Decoding(
        rule=rule,
        sampling=acceptance.sampling,
        draft_sampling=acceptance.draft_sampling if loaded is None else None,
        lossy=args.lossy,
    )
    draft = models.draft if planned.drafter is None else None  # reference passes are those of a step
    references = reference_passes(model, models.target, draft, [planned.tree], workload.prompts)
    measured = bench_tree_file(models, planned, workload, decoding, loaded=loaded, references=references)
    drafter = "model" if planned.drafter is None else planned.drafter.name
    at_pace = predict_at_pace(model, planned.tree, measured.pace) if model.drafter.name == drafter else None
    bench = TreeBench(
        drafter="model" if planned.drafter is None else planned.drafter.description,
        rule=rule,
        temperature=acceptance.temperature,
        nodes=planned.tree.nodes,
        depth=planned.tree.max_depth,
        predicted=replace(predicted, at_pace=at_pace),
        measured=measured,
    )
    args.results.publish(
        tree_bench_table(bench),
        bench_heading(models),
        bench,
        [trees_panel([bench])],
        title=subject(profile),
        subtitle=measured_today(),
    )
    if (warning := pace_warning(measured.pace)) is not None:
        warn(warning)
    check_complete(measured.rounds, workload.rounds)


def _predict(
    profile: Profile, planned: TreeFile, args: BenchOptions
) -> tuple[StepModel, MeasuredAcceptance, str, TreePrediction]:
    """Return the step model, the acceptance whose sampling is used, the rule, and the prediction."""
    if planned.drafter is None:
        model = draft_model_steps(profile, planned, args)
        return model, model.acceptance, model.acceptance.rule, tree_prediction(model.predict(planned.tree))
    rule = args.rule or planned_rule(planned)
    check_rule(rule, lossy=args.lossy)
    planned_temperature = planned.provenance.temperature if planned.provenance else None
    acceptance = profile.acceptance(temperature=planned_temperature if args.temperature is None else args.temperature)
    model = step_model(profile, PlanRequest(temperature=acceptance.temperature))
    for drafter in profile.drafters:
        trees = drafter.trees_at(acceptance.temperature)
        if drafter.label == planned.drafter.label and trees:
            model = tree_model(drafter, trees, model.point) or model
    return model, acceptance, rule, _recorded_prediction(planned, rule, acceptance.temperature)


def _recorded_prediction(planned: TreeFile, rule: str, temperature: float) -> TreePrediction:
    """Return the prediction in a tree file; empty at another rule or temperature than its own."""
    provenance = planned.provenance or Provenance()
    if provenance.temperature != temperature or (temperature != 0 and provenance.rule != rule):
        provenance = Provenance()
    return TreePrediction(
        tokens_per_step=provenance.tokens_per_step, step_s=provenance.step_s, speedup=provenance.speedup
    )


def draft_model_steps(profile: Profile, planned: TreeFile, args: BenchOptions) -> StepModel:
    """Return the step model for rule and temperature of the options, otherwise the tree's if measured, otherwise the first."""
    rule, temperature = args.rule, args.temperature
    planned_temperature = planned.provenance.temperature if planned.provenance else None
    if temperature is None and profile.acceptances_of(rule=rule, temperature=planned_temperature):
        temperature = planned_temperature
    if rule is None and profile.acceptances_of(rule=planned_rule(planned), temperature=temperature):
        rule = planned_rule(planned)
    model = step_model(profile, PlanRequest(rule=rule, temperature=temperature))
    check_rule(model.acceptance.rule, lossy=args.lossy)
    return model
