"""An engine that does what it is told to: steps of known seconds, drafts accepted at known positions, and faults."""

from dataclasses import dataclass, field

from treeopt.engines.clients.client import Completion, Counters, EngineConfig, RunningEngine
from treeopt.errors import EngineError


def accepted_of(prompt, length, tokens):
    """Return the accepted draft tokens of each step of a text: 0, 1, 2, … in turn, beginning at one of the prompt's own."""
    found, done, turn = [], 0, len(prompt)
    while done < tokens:
        now = min(turn % (length + 1), tokens - done - 1)
        found.append(now)
        done += now + 1
        turn += 1
    return found


@dataclass
class FakeEngine:
    """`step_s(length, batch)` seconds of a step; `fault(place, answers)` may change what is answered."""

    step_s: object = lambda length, batch: 0.001 * (1 + length) * batch
    tells_positions: bool = True
    tells_steps: bool = True
    others: int = 0
    """Steps of another client, with one accepted token each, that are counted with each text."""
    dies_after: int | None = None
    token_s: float | None = None
    """Of each token of a prompt; None where it does not tell how long prompts take."""
    name: str = "fake"
    version: str = "1"
    settings: tuple = ()
    device: str = "cpu"
    concurrent: bool = False
    steps_per_chunk: int = 1
    """Steps that it sends together, so that fewer seem to be taken."""
    ends_at_once: frozenset = frozenset()
    """Prompts whose text is one token."""
    started: list = field(default_factory=list)
    closed: int = 0
    most_open: int = 0
    asked: int = 0

    def start(self, config: EngineConfig):
        self.started.append(config)
        self.most_open = max(self.most_open, len(self.started) - self.closed)
        return FakeRunning(self, config)


class FakeRunning(RunningEngine):
    def __init__(self, engine, config):
        super().__init__(engine.name, config)
        self.engine, self.config = engine, config
        self.counted = [0, 0, 0, [0] * config.draft_tokens]

    def complete(self, requests):
        return [self._answer(request, len(requests)) for request in requests]

    def counters(self):
        drafts, drafted, accepted, positions = self.counted
        if not self.engine.tells_positions:
            return None
        return Counters(drafts, drafted, accepted, tuple(positions))

    def close(self):
        self.engine.closed += 1

    def _answer(self, request, batch):
        engine, length = self.engine, self.config.draft_tokens
        engine.asked += 1
        if engine.dies_after is not None and engine.asked > engine.dies_after:
            raise EngineError("fake: it is gone.")
        new_tokens = 1 if request.prompt in engine.ends_at_once else request.max_new_tokens
        steps = accepted_of(request.prompt, length, new_tokens - 1)
        if length:
            self.counted[0] += len(steps) + engine.others
            self.counted[1] += length * (len(steps) + engine.others)
            self.counted[2] += sum(steps) + engine.others
            for place in range(length):
                self.counted[3][place] += sum(each > place for each in steps)
            if engine.others:
                self.counted[3][0] += engine.others
        return Completion(
            text=request.prompt + "!" * new_tokens,
            tokens=new_tokens,
            decode_s=engine.step_s(length, batch) * len(steps),
            steps=-(-len(steps) // engine.steps_per_chunk) if engine.tells_steps else None,
            prompt_tokens=len(request.prompt),
            prefill_s=None if engine.token_s is None else engine.token_s * len(request.prompt),
            prefill_tokens=len(request.prompt),
        )
