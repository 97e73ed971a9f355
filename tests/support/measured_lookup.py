"""Prompt lookup as a profile holds it, measured along a text with invented machines."""

from dataclasses import replace

from tests.support.simulated_decoding import TextDecoder
from treeopt.records.latency import Timing
from treeopt.records.measured_drafter import DecodedSequences, MeasuredDrafter, MeasuredSetting, MeasuredSettings
from treeopt.runtime.drafters.prompt_lookup import PromptLookupDrafter
from treeopt.trees import chain
from treeopt.trees.drafter_parameters import PromptLookupSetting
from treeopt.trees.drafter_setting import drafter_setting


def decoded(decoder, steps):
    """Return the tokens, steps and seconds of so many steps, and the sizes of the passes."""
    before = decoder.tokens, decoder.now_s
    sizes = []
    decoder.decode(lambda told: sizes.append(told.proposal.tree.nodes), steps)
    return decoder.tokens - before[0], steps, decoder.now_s - before[1], sizes


def of_texts(found):
    tokens, steps, seconds, _ = zip(*found, strict=True)
    return DecodedSequences(tokens=tokens, steps=steps, seconds=Timing(list(seconds)))


def with_lookups(profile, settings, texts, machine, *, max_nodes, steps=60, beside_s=0.01):
    """Return a profile with settings of prompt lookup, each decoded with along some texts."""

    def along(text, setting):
        decoder = TextDecoder(chain(0), text, [[0.0]], machine, max_nodes=max_nodes, beside_s=beside_s)
        if setting is not None:
            decoder.change_drafter(PromptLookupDrafter(setting.ngram, setting.length))
        return decoded(decoder, steps)

    counted = []
    for setting in settings:
        found = [along(text, setting) for text in texts]
        sizes = [size for each in found for size in each[3]]
        counted.append(
            MeasuredSetting(
                values=drafter_setting("prompt-lookup", ngram=setting.ngram, length=setting.length).values,
                max_tokens=setting.max_nodes,
                decoded=of_texts(found),
                pass_tokens=tuple(sorted({*sizes})),
                passes=tuple(sizes.count(size) for size in sorted({*sizes})),
            )
        )
    how = profile.acceptances[0].sampling
    plain = of_texts([along(text, None) for text in texts])
    decodes = MeasuredSettings(
        temperature=how.temperature, top_p=how.top_p, context_tokens=256, plain=plain, settings=tuple(counted)
    )
    return replace(profile, drafters=(MeasuredDrafter(name="prompt-lookup", decodes=(decodes,)),))


SETTINGS = tuple(PromptLookupSetting(*each) for each in ((2, 2), (2, 8), (4, 4), (4, 8)))
