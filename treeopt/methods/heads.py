"""Methods with heads on the target's last hidden state: Medusa and ReDrafter."""

from functools import partial

from treeopt import bundled as bundle
from treeopt.errors import InfeasibleError
from treeopt.methods.fastest_setting import Choice, fastest_choice
from treeopt.methods.method import REST_ASSUMED, Inputs, Method
from treeopt.planner import StepModel, fastest_tree, kind_of
from treeopt.planner.condition import condition
from treeopt.planner.model import at_once_model
from treeopt.profiler.acceptance.heads import medusa_acceptance
from treeopt.profiler.bench.timed_steps import decode_stats
from treeopt.runtime.drafters.medusa import MedusaDrafter, MedusaHeads, load_medusa
from treeopt.runtime.drafters.redrafter import REDRAFTER_SETTINGS, RedrafterDrafter, load_redrafter
from treeopt.runtime.models.folder import ModelFolder
from treeopt.runtime.models.transformer import Transformer
from treeopt.solver import solve
from treeopt.trees import chain

TIMED_PROMPTS = 2
"""Prompts on which the heads' pass is timed."""


def redrafter(inputs: Inputs) -> Method:
    """Return the recurrent head with the fastest beam width and length (Zhang et al., 2024)."""
    head = load_redrafter(bundle.REDRAFTER, bundled_target(inputs))
    choices = [
        Choice(f"{each.width} beams of {each.length} tokens", partial(RedrafterDrafter, head, each.width, each.length))
        for each in REDRAFTER_SETTINGS
    ]
    return fastest_choice("redrafter", inputs, choices)


def medusa(inputs: Inputs) -> Method:
    """Return Medusa's heads with the fastest tree for them (Cai et al., 2024)."""
    target = bundled_target(inputs)
    heads = load_medusa(bundle.MEDUSA, target)
    model = medusa_model(inputs, target, heads)
    tree = fastest_tree(solve(model.acceptance.table, model.costs.max_nodes), model.costs).tree
    candidate = model.predict(kind_of(tree), tree)
    return Method(
        name="medusa",
        rule="target",
        setting=candidate.shape,
        predicted=candidate.speedup,
        make=lambda seed: inputs.decoder(MedusaDrafter(heads, tree), seed),
        assumed=(REST_ASSUMED, "the heads take as long for every tree as for one token"),
    )


def medusa_model(inputs: Inputs, target: Transformer, heads: MedusaHeads) -> StepModel:
    """Return the model of steps that heads draft: their acceptance counted, their pass timed, all levels in one."""
    acceptance = medusa_acceptance(
        target, heads, inputs.prompts, sampling=inputs.sampling, positions=inputs.positions * len(inputs.prompts)
    )
    timed = decode_stats(
        inputs.decoder(MedusaDrafter(heads, chain(1)), 0), inputs.prompts[:TIMED_PROMPTS], inputs.positions
    )
    where = condition(inputs.profile, temperature=inputs.sampling.temperature)
    return at_once_model(where, acceptance, timed.draft)


def bundled_target(inputs: Inputs) -> Transformer:
    """Return the target that the bundled heads were trained for; raises InfeasibleError where it is another."""
    target, digest = inputs.pair.target, inputs.pair.described.target_digest
    if not isinstance(target, Transformer) or digest != ModelFolder(bundle.TARGET).digest:
        raise InfeasibleError(
            f"heads: those that ship are the bundled target's. Got {target.name}: train heads on it, or do without."
        )
    return target
