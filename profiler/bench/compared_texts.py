"""Texts of a race beside plain decoding's, and plain decoding asked why they part."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

from treeopt.engines.probes.client import EngineClient, TellsLogprobs
from treeopt.errors import EngineError
from treeopt.profiler.bench.text_divergence import Ask, Decoded, common_length, text_divergence
from treeopt.profiler.engine import Probe, ProbeSettings
from treeopt.records.results import TextDivergence


class _Pair(NamedTuple):
    """A text that is not plain decoding's, and that of plain decoding which is most like it."""

    prompt: int
    plain: Decoded
    other: Decoded


def compare_texts(
    probe: Probe, client: EngineClient, settings: ProbeSettings, tolerance_nats: float
) -> tuple[dict[int, tuple[TextDivergence, ...]], str | None]:
    """Return where texts part from plain decoding's, by draft length, and why that could not be checked, if so.

    The engine is started again as plain decoding where texts differ, and asked for log-probabilities.

    Args:
        probe: what has decoded all prompts with all lengths, greedily.
        client: the engine.
        settings: lengths and prompts.
        tolerance_nats: largest gap of a near-tie.
    """
    pairs = {length: list(_different(probe, length, len(settings.prompts))) for length in settings.lengths}
    if not any(pairs.values()):
        return dict.fromkeys(pairs, ()), None
    try:
        with _asked(probe, client) as ask:
            return _found(pairs, settings, ask, tolerance_nats), None
    except EngineError as error:
        return _found(pairs, settings, None, tolerance_nats), str(error)


def _found(
    pairs: Mapping[int, list[_Pair]], settings: ProbeSettings, ask: Ask | None, tolerance_nats: float
) -> dict[int, tuple[TextDivergence, ...]]:
    return {
        length: tuple(
            text_divergence(each.prompt, settings.prompts[each.prompt], each.plain, each.other, ask, tolerance_nats)
            for each in found
        )
        for length, found in pairs.items()
    }


def _different(probe: Probe, length: int, prompts: int) -> Iterator[_Pair]:
    """Yield the texts of a length that plain decoding has not written, and those of its own that repeats change."""
    for prompt in range(prompts):
        plain = [Decoded(*each) for each in probe.texts(0, prompt).items()]
        known = plain if length else plain[:1]
        for text, tokens in probe.texts(length, prompt).items():
            if all(text != each.text for each in known):
                nearest = max(known, key=lambda each: common_length(each.text, text))
                yield _Pair(prompt, nearest, Decoded(text, tokens))


@contextmanager
def _asked(probe: Probe, client: EngineClient) -> Iterator[Ask]:
    """Start plain decoding, and offer its log-probabilities; raises EngineError where it tells none."""
    running = client.start(probe.launch(0))
    try:
        if not isinstance(running, TellsLogprobs):
            raise EngineError(
                f"{client.name}: expected log-probabilities. It does not tell them here: check the texts by hand."
            )
        yield cache(running.next_logprobs)
    finally:
        running.close()
