"""`treeopt bench TREE`: one tree, as predicted and as decoded."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treeopt.cli.bench_options import REPEATS, BenchOptions, check_whole, load_fitting
from treeopt.cli.inputs import read_any_tree
from treeopt.cli.options import checked_rule, load_profile, planned_rule
from treeopt.cli.outputs import TOOL
from treeopt.cli.text import milliseconds
from treeopt.records.rules import LOSSY_RULES

if TYPE_CHECKING:
    from treeopt.planner import Candidate, StepModel
    from treeopt.profiler import Measured
    from treeopt.records.profile import MeasuredAcceptance, Profile
    from treeopt.trees import TreeFile


def bench_tree(tree: Path, asked: BenchOptions) -> None:
    """Decode with a tree and plainly in turn, and put the result beside the prediction."""
    planned, profile = read_any_tree(tree), load_profile(asked.profile_path)
    model = _model(profile, planned, asked)
    predicted = model.predict("tree", planned.tree)
    models = load_fitting(asked, profile, tree=tree, planned=planned)
    from treeopt.profiler.bench.compare import bench_as_measured
    from treeopt.texts.prompts import bench_prompts

    held_out = bench_prompts(asked.prompts.load(models.tokenizer))
    (measured,) = bench_as_measured(
        models,
        [planned.tree],
        held_out,
        model.acceptance,
        max_new_tokens=asked.max_new_tokens,
        repeats=asked.repeats or REPEATS,
        lossy=asked.lossy,
    )
    found = report(predicted, measured, model.acceptance)
    asked.publish(table(predicted, measured, model.acceptance), json.dumps(found, indent=2) + "\n")
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


def report(predicted: "Candidate", measured: "Measured", asked: "MeasuredAcceptance") -> dict[str, Any]:
    """Return prediction and measurement as one flat JSON object, seconds and tokens."""
    return {
        "tool": TOOL,
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
    lines.append(f"\n{measured.tokens} tokens decoded in whole steps; {verdict(measured, asked.rule)}.")
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
