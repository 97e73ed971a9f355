"""Methods that draft with something else than static trees of the draft model: measured, planned and made as elsewhere."""

from dataclasses import replace

from treeopt.errors import InfeasibleError
from treeopt.methods.make_drafter import load_planned
from treeopt.methods.method import Inputs, Method
from treeopt.planner import drafter_choices
from treeopt.planner.drafter_costs import tree_models
from treeopt.profiler import Journal, Settings, clock_for
from treeopt.profiler.acceptance.contexts import BehindPrompts
from treeopt.profiler.drafters.measuring import DrafterMeasurement
from treeopt.profiler.recorder import Recorder
from treeopt.records.measured_drafter import MeasuredDrafter
from treeopt.runtime.drafters.loaded import LoadedDrafter
from treeopt.trees.drafter_setting import DrafterSetting


def drafted(name: str, inputs: Inputs) -> Method:
    """Return a drafter with its fastest setting, or its fastest tree.

    What the profile does not contain of it at the temperature is measured on the inputs' prompts.

    Args:
        name: of the drafter; its heads are those that the profile was measured with, or the bundled ones.
        inputs: the pair, and what it is planned from.

    Raises TreeoptError if the pair has no such heads, InfeasibleError if no setting fits what was timed.
    """
    known = next((drafter for drafter in inputs.profile.drafters if drafter.name == name), None)
    heads = (
        DrafterSetting(name=name)
        if known is None
        else DrafterSetting(name=name, source=known.source, layers=known.layers)
    )
    loaded = load_planned(heads, inputs.pair)
    temperature = inputs.sampling.temperature
    if known is None or not (known.trees_at(temperature) or known.decodes_at(temperature)):
        known = _measure(loaded, inputs)
    for choice in drafter_choices(replace(inputs.profile, drafters=(known,)), inputs.request, plan=inputs.plan):
        if choice.option.drafter.name == name:
            trees = known.trees_at(temperature)
            model = tree_models(known, trees)(inputs.plan.model.point) if trees else None
            return inputs.method(name, choice.option, model=model, loaded=loaded)
    raise InfeasibleError(
        f"{name}: no setting of it verifies {inputs.plan.solution.max_nodes} tokens at most, the largest pass that was "
        "timed. Profile with a larger --max-tokens."
    )


def _measure(loaded: LoadedDrafter, inputs: Inputs) -> MeasuredDrafter:
    """Return what is measured of a drafter, as in a profile."""
    room = loaded.capacity - max(map(len, inputs.prompts))
    positions = max(1, min(inputs.positions, room))
    measurement = DrafterMeasurement(
        places=(BehindPrompts(inputs.prompts),),
        texts=len(inputs.prompts),
        text=[token for prompt in inputs.prompts for token in prompt],
        settings=Settings(
            samplings=(inputs.sampling,),
            positions=positions * len(inputs.prompts),
            max_tokens=min(each.verify.max_tokens for each in inputs.profile.latencies),
        ),
        positions=positions,
        recorder=Recorder(clock_for(loaded.target.device), Journal(None, "")),
    )
    (measured,) = measurement.measure([loaded], inputs.profile, hidden=True).drafters
    return measured
