"""Methods that draft by something else than static trees of the draft model: measured, planned and made as anywhere else."""

from dataclasses import replace
from functools import partial

from treeopt.errors import InfeasibleError
from treeopt.methods.make_drafter import load_named, planned_decoder
from treeopt.methods.method import Inputs, Method
from treeopt.planner import Option, Plan, PlanRequest, drafter_choices
from treeopt.profiler import Journal, Settings, clock_for
from treeopt.profiler.acceptance.contexts import BehindPrompts
from treeopt.profiler.decoding import Decoding
from treeopt.profiler.drafters.measuring import DrafterMeasurement
from treeopt.profiler.recorder import Recorder
from treeopt.records.measured_drafter import MeasuredDrafter
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.loaded import LoadedDrafter
from treeopt.trees import TreeFile


def drafted(name: str, inputs: Inputs, plan: Plan) -> Method:
    """Return a drafter with its fastest setting, or its fastest tree.

    What the profile does not hold of it at the temperature is measured on the inputs' prompts.

    Args:
        name: of the drafter; its heads are those that the profile was measured with, or those that ship.
        inputs: the pair, and what it is planned from.
        plan: that of the draft model under the same conditions.

    Raises TreeoptError where the pair has no such heads, InfeasibleError where nothing of it fits into what was timed.
    """
    known = next((each for each in inputs.profile.drafters if each.name == name), None)
    source, layers = (known.source, known.layers) if known else (None, ())
    loaded = load_named(name, inputs.pair, source=source, layers=layers)
    temperature = inputs.sampling.temperature
    if known is None or not (known.trees_at(temperature) or known.decodes_at(temperature)):
        known = _measured(loaded, inputs)
    option = _option(known, inputs, plan)
    return Method(
        name=name,
        rule=option.rule,
        setting=option.shape,
        predicted=option.speedup,
        make=partial(_decoder, inputs, loaded, option),
    )


def _measured(loaded: LoadedDrafter, inputs: Inputs) -> MeasuredDrafter:
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
    (found,) = measurement.measure([loaded], inputs.profile, hidden=True).drafters
    return found


def _option(known: MeasuredDrafter, inputs: Inputs, plan: Plan) -> Option:
    request = PlanRequest(temperature=inputs.sampling.temperature)
    choices = drafter_choices(replace(inputs.profile, drafters=(known,)), request, plan=plan)
    for each in choices:
        if each.option.drafter.name == known.name:
            return each.option
    raise InfeasibleError(
        f"{known.name}: no setting of it verifies {plan.solution.max_nodes} tokens at most, the largest pass that was "
        "timed. Profile with a larger --max-tokens."
    )


def _decoder(inputs: Inputs, loaded: LoadedDrafter, option: Option, seed: int) -> Decoder:
    planned = TreeFile(tree=option.tree, drafter=option.drafter)
    decoding = Decoding(rule=option.rule, sampling=inputs.sampling)
    return planned_decoder(inputs.pair, planned, decoding, loaded=loaded, seed=seed)
