"""Profiles with prompt lookup, measured along outputs on invented machines."""

import itertools
from dataclasses import replace

from tests.support.simulated_decoding import TextDecoder
from treeopt.records.latency import Timing
from treeopt.records.measured_drafter import DecodedSequences, MeasuredDrafter, MeasuredSetting, MeasuredSettings
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.trees import chain
from treeopt.trees.drafter_parameters import PromptLookupSetting
from treeopt.trees.drafter_setting import drafter_setting


def decode(text, setting, machine, *, max_nodes, steps, overhead_s):
    """Return the tokens and the seconds of some steps along a text, and the sizes of the passes."""
    decoder = TextDecoder(chain(0), text, [[0.0]], machine, max_nodes=max_nodes, overhead_s=overhead_s)
    if setting is not None:
        decoder.change_drafter(PromptLookupDrafter(setting.ngram, setting.length))
    sizes = []
    decoder.decode(lambda event: sizes.append(event.proposal.tree.nodes), steps)
    return decoder.tokens, decoder.now_s, sizes


def with_lookups(profile, settings, outputs, machine, *, max_nodes, steps=60, overhead_s=0.01):
    """Return a profile with settings of prompt lookup, each decoded along some outputs."""

    def decode_all(setting):
        runs = [
            decode(text, setting, machine, max_nodes=max_nodes, steps=steps, overhead_s=overhead_s) for text in outputs
        ]
        tokens, seconds, sizes = zip(*runs, strict=True)
        pass_tokens = tuple(sorted({*itertools.chain(*sizes)}))
        return DecodedSequences(
            tokens=tokens,
            pass_tokens=pass_tokens,
            passes=tuple(tuple(row.count(size) for size in pass_tokens) for row in sizes),
            seconds=Timing(list(seconds)),
        )

    measured = [
        MeasuredSetting(
            values=drafter_setting("prompt-lookup", ngram=setting.ngram, length=setting.length).values,
            max_tokens=setting.max_nodes,
            decoded=decode_all(setting),
        )
        for setting in settings
    ]
    decodes = MeasuredSettings(
        sampling=profile.acceptances[0].sampling,
        context_tokens=256,
        plain=decode_all(None),
        settings=tuple(measured),
    )
    return replace(profile, drafters=(MeasuredDrafter(setting=drafter_setting("prompt-lookup"), decodes=(decodes,)),))


SETTINGS = tuple(PromptLookupSetting(*values) for values in ((2, 2), (2, 8), (4, 4), (4, 8)))
