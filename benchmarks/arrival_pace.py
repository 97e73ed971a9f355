"""How fast the machine of benchmarks/arrivals.py is just now: the same few texts, decoded again and again.

Everything that a profile says is told at the pace of these, one, two and four texts at a time apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from arrival_servers import AskedServer
from conditions import say

from treeopt.arrays import Float64
from treeopt.simulation.arrivals import Request
from treeopt.simulation.settings import ServedSetting
from treeopt.simulation.step_times import StepTimes
from treeopt.trees import TokenTree, chain

REFERENCE = {1: (0, 0.2, 0.4, 0.6, 0.8, 1.0), 2: (1.2, 1.5, 1.8), 4: (2.1, 2.6)}
"""When texts are asked for that tell how fast the machine is just now, by how many come at the same time."""


@dataclass(frozen=True)
class Pace:
    """How many times as long as with the profile everything takes."""

    slower: tuple[float, ...]
    """With as many texts at a time as `REFERENCE` has."""

    @classmethod
    def of(cls, ratios: Sequence[Float64]) -> "Pace":
        """Return that of the reference's texts, each beside the profile, taken several times."""
        numbers = np.array([count for count, times_s in REFERENCE.items() for _ in range(count * len(times_s))])
        return cls(tuple(float(np.mean([each[numbers == count] for each in ratios])) for count in REFERENCE))

    def at(self, texts: int) -> float:
        """Return that of so many texts, between those of the reference on a straight line."""
        return float(np.interp(texts, list(REFERENCE), self.slower))


PROFILED = Pace((1.0,) * len(REFERENCE))
"""That of the profile itself."""


@dataclass(frozen=True)
class PacedTimes(StepTimes):
    """What a profile says of a machine that has a pace of its own."""

    pace: Pace = PROFILED

    def step_s(self, tree: TokenTree, context_tokens: Sequence[int]) -> float:
        return self.pace.at(len(context_tokens)) * super().step_s(tree, context_tokens)

    def prefill_s(self, prompt_tokens: int, draft_tokens: int) -> float:
        return self.pace.at(1) * super().prefill_s(prompt_tokens, draft_tokens)


@dataclass(frozen=True)
class Reference:
    """A few texts that tell how fast the machine is: plainly, and with a chain, of which it may feel another share."""

    server: AskedServer
    draft_tokens: int
    """Of its chain."""
    profiled_s: tuple[Float64, Float64] = (np.ones(1), np.ones(1))
    """Seconds of each of its texts beside the profile, the median as in a profile: plainly, and with the chain."""

    def both_s(self) -> tuple[Float64, Float64]:
        """Return the seconds of each of its texts just now, plainly and with the chain, of a server that starts anew."""
        self.server.restart()
        return self._seconds(0), self._seconds(self.draft_tokens)

    def slower(self, setting: ServedSetting) -> Float64:
        """Return how many times as long each of its texts takes as in the median beside the profile, as a setting does."""
        drafting = setting.draft_tokens > 0
        return self._seconds(self.draft_tokens if drafting else 0) / self.profiled_s[drafting]

    def beside(self, both_s: Sequence[tuple[Float64, Float64]]) -> "Reference":
        """Return the reference of a profile beside which its texts took so many seconds, from first to last."""
        plain, drafting = (np.array(each) for each in zip(*both_s, strict=True))
        spread = [(each / np.median(each, 0)).mean(1) for each in (plain, drafting)]
        ranges = " and ".join(f"{each.min():.2f} to {each.max():.2f}" for each in spread)
        say(f"beside the profile the machine took, plainly and with a chain, {ranges} times as long")
        return replace(self, profiled_s=(np.median(plain, 0), np.median(drafting, 0)))

    def _seconds(self, draft_tokens: int) -> Float64:
        setting = ServedSetting.fixed(f"reference {draft_tokens}", chain(draft_tokens), batch_size=1)
        asked = [
            Request(at_s, 64, 64) for count, times_s in REFERENCE.items() for at_s in times_s for _ in range(count)
        ]
        served = sorted(self.server.serve(setting, asked), key=lambda each: each.request.arrival_s)
        return np.array([each.latency_s for each in served])
