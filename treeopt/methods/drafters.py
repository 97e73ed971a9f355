"""Methods with other drafters than static trees of the draft model."""

from dataclasses import replace

from treeopt.errors import InfeasibleError
from treeopt.methods.method import Inputs, Method
from treeopt.planner import drafter_choices
from treeopt.planner.drafter_costs import tree_model
from treeopt.profiler import Checkpoint, Settings, clock_for
from treeopt.profiler.acceptance.contexts import WholePrompts
from treeopt.profiler.drafters.measuring import DrafterMeasurement
from treeopt.profiler.latency.rounds import Recorder
from treeopt.records.measured_drafter import MeasuredDrafter
from treeopt.runtime.drafters.registry import LoadedDrafter, load_drafter
from treeopt.trees.drafter_setting import DrafterSetting


def plan_drafter(name: str, inputs: Inputs) -> Method:
    """Return the method of a drafter with its fastest setting or tree.

    A drafter that the profile does not contain at the temperature is measured on the inputs' prompts.

    Args:
        name: of the drafter; its heads are those of the profile, else the bundled ones.
        inputs: the pair and the profile.

    Raises TreeoptError if the pair has no such heads, InfeasibleError if no setting is within the timed passes.
    """
    measured = next((drafter for drafter in inputs.profile.drafters if drafter.name == name), None)
    setting = DrafterSetting(name=name) if measured is None else measured.setting
    loaded = load_drafter(setting, inputs.pair)
    temperature = inputs.sampling.temperature
    if measured is None or not (measured.trees_at(temperature) or measured.decodes_at(temperature)):
        measured = _measure(loaded, inputs)
    for choice in drafter_choices(replace(inputs.profile, drafters=(measured,)), inputs.request, plan=inputs.plan):
        if choice.option.drafter.name == name:
            trees = measured.trees_at(temperature)
            model = tree_model(measured, trees, inputs.plan.model.point) if trees else None
            return inputs.build_method(name, choice.option, model=model, loaded=loaded)
    raise InfeasibleError(
        f"{name}: expected a setting that verifies at most {inputs.plan.solution.max_nodes} tokens, the largest timed pass. Got "
        "none: profile with a larger --max-tokens."
    )


def _measure(loaded: LoadedDrafter, inputs: Inputs) -> MeasuredDrafter:
    max_positions = loaded.capacity - max(map(len, inputs.prompts))
    positions = max(1, min(inputs.positions, max_positions))
    measurement = DrafterMeasurement(
        drafters=[loaded],
        profile=inputs.profile,
        sources=(WholePrompts(inputs.prompts),),
        tokens=[token for prompt in inputs.prompts for token in prompt],
        settings=Settings(
            samplings=(inputs.sampling,),
            positions=positions * len(inputs.prompts),
            rounds=inputs.rounds,
            max_tokens=min(latency.verify.max_tokens for latency in inputs.profile.latencies),
        ),
        positions=positions,
        recorder=Recorder(clock_for(loaded.target.device), Checkpoint(None, "")),
    )
    (drafter,) = measurement.measure().drafters
    return drafter
