"""Systems with heads on the target's last hidden state: Medusa and ReDrafter."""

from dataclasses import replace
from functools import partial

from treeopt import pair as bundle
from treeopt.errors import InvalidValueError
from treeopt.latency import LatencyTable, Timing
from treeopt.planner import plan
from treeopt.profile import Profile
from treeopt.profiler.medusa import medusa_acceptance
from treeopt.profiler.trials import run_trial
from treeopt.runtime.drafters.medusa import MedusaDrafter, MedusaHeads, load_medusa
from treeopt.runtime.drafters.redrafter import REDRAFTER_SETTINGS, RedrafterDrafter, load_redrafter
from treeopt.runtime.transformer import Transformer
from treeopt.systems.system import Grounds, System
from treeopt.systems.tried import Choice, fastest_choice
from treeopt.trees import chain

NOTHING_S = 1e-9
"""What a further level costs: the heads run once, however deep the tree."""


def redrafter(grounds: Grounds) -> System:
    """Return the recurrent head with the fastest beam width and length (Zhang et al., 2024)."""
    head = load_redrafter(bundle.REDRAFTER, _target(grounds))
    choices = [
        Choice(f"{each.width} beams of {each.length} tokens", partial(RedrafterDrafter, head, each.width, each.length))
        for each in REDRAFTER_SETTINGS
    ]
    return fastest_choice("redrafter", grounds, choices)


def medusa(grounds: Grounds) -> System:
    """Return Medusa's heads with the fastest tree for them (Cai et al., 2024)."""
    heads = load_medusa(bundle.MEDUSA, _target(grounds))
    profile = medusa_profile(grounds, heads)
    found = plan(profile, profile.latency().verify.max_tokens, rule="target")
    candidate = found.tree
    return System(
        name="medusa",
        rule="target",
        setting=candidate.shape,
        predicted=candidate.speedup,
        make=lambda seed: grounds.decoder(MedusaDrafter(heads, candidate.tree), seed),
    )


def _target(grounds: Grounds) -> Transformer:
    """Return the target that the bundled heads were trained for."""
    target = grounds.pair.target
    if not isinstance(target, Transformer):
        raise InvalidValueError(f"systems: expected the bundled target for medusa and redrafter. Got {target.name}.")
    return target


def medusa_profile(grounds: Grounds, heads: MedusaHeads) -> Profile:
    """Return the grounds' profile with the heads in the draft model's place.

    Acceptance is counted head by head; drafting costs the same at any depth, so it belongs to the overhead.
    """
    acceptance = medusa_acceptance(
        _target(grounds),
        heads,
        grounds.prompts,
        sampling=grounds.sampling,
        positions=grounds.positions * len(grounds.prompts),
    )
    trial = run_trial(grounds.decoder(MedusaDrafter(heads, chain(1)), 0), grounds.prompts[:2], grounds.positions)
    latency = grounds.profile.latency()
    widest = latency.verify.max_tokens
    nothing = Timing([NOTHING_S])
    return replace(
        grounds.profile,
        latencies=(
            replace(
                latency,
                draft=LatencyTable([1, widest], [nothing, nothing]),
                overhead=Timing(latency.overhead_of("target").samples_s + trial.draft.median_s, allow_negative=True),
                rule_overheads=(),
                steps=(),
            ),
        ),
        acceptances=(acceptance,),
    )
