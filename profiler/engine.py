"""Measuring a running engine: several draft lengths in many short interleaved rounds.

Each completion has the seconds and steps of one sequence.  The engine's counters contain the accepted draft tokens.  Both
have to agree: counters that grow by more have counted other clients too.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from treeopt.engines.clients.client import (
    Completion,
    CompletionRequest,
    Counters,
    EngineClient,
    EngineConfig,
    PassTimes,
    RunningEngine,
)
from treeopt.errors import EngineError, InvalidValueError
from treeopt.profiler.bench.interleave import order
from treeopt.profiler.budget import NO_DEADLINE, Deadline
from treeopt.profiler.checkpoint import Checkpoint

SEED = 0
MIN_TOKENS = 8
"""Shorter sequences have too few steps."""
SPECIAL_TOKENS = 8
"""Room for tokens that an engine prepends to a prompt."""
PASS_SAMPLES = 9
"""Samples of an engine's passes with each length, if it reports them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """The prompts and draft lengths of a probe.

    Raises InvalidValueError for lengths that do not ascend, and for fewer than two prompts.
    """

    lengths: tuple[int, ...]
    """Draft tokens, ascending; a profile needs 0, plain decoding, and another, in one run or in several."""
    batch_sizes: tuple[int, ...] = (1,)
    prompts: tuple[str, ...]
    categories: tuple[str, ...] = ()
    """One for each prompt, `""` for none; empty if no prompt has one."""
    prompts_from: str = "unnamed"
    """Name of the prompts, see `treeopt.texts.prompts.prompts_name`."""
    chat_template: str | None = None
    """Model folder whose chat template the prompts are in."""
    rounds: int
    """How often every prompt is decoded with every length."""
    max_new_tokens: int
    temperature: float = 0.0
    together: bool = False
    """Whether engines with all lengths run at the same time, even if each loads the models again."""

    def __post_init__(self) -> None:
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)):
            raise InvalidValueError(
                f"lengths: expected numbers that rise, such as 0,1,3,7. Got {self.lengths}.", field="lengths"
            )
        if len(self.prompts) < 2:
            raise InvalidValueError(
                f"prompts: expected at least 2. Got {len(self.prompts)}: give more.", field="prompts"
            )
        if self.max_new_tokens < MIN_TOKENS:
            raise InvalidValueError(
                f"max_new_tokens: expected at least {MIN_TOKENS}. Got {self.max_new_tokens}.", field="max_new_tokens"
            )

    @property
    def max_sequence_tokens(self) -> int:
        """Upper bound of a sequence's tokens: every token of a prompt has at least one byte."""
        return max(len(prompt.encode()) for prompt in self.prompts) + SPECIAL_TOKENS + self.max_new_tokens

    @property
    def batches(self) -> int:
        """The number of batches sent to the engine."""
        return self.rounds * len(self.lengths) * sum(-(-len(self.prompts) // size) for size in self.batch_sizes)


class EngineSample(NamedTuple):
    """One sequence decoded with one draft length."""

    prompt: int
    """Prompt number."""
    tokens: int
    """Committed by steps, without the first new token."""
    steps: int
    """0 if the sequence ended at once."""
    decode_s: float
    prompt_tokens: int
    accepted: tuple[int, ...]
    """How often the 1st, 2nd, … draft token was accepted; empty if the engine does not report it."""


class Probe:
    """Measures an engine with several draft lengths.

    Args:
        client: the engine.
        config: how it is started; draft length and batch size are set by the probe.
        settings: prompts and draft lengths.
        checkpoint: where every sample is stored at once.
    """

    def __init__(
        self, client: EngineClient, config: EngineConfig, settings: ProbeSettings, checkpoint: Checkpoint
    ) -> None:
        self._client = client
        self._config = config
        self._settings = settings
        self._checkpoint = checkpoint
        self._outputs: dict[tuple[int, int], dict[str, int]] = {}

    def measure(self, tick: Callable[[], object] = lambda: None, *, budget_s: float | None = None) -> None:
        """Decode what the checkpoint lacks.

        Raises EngineError; earlier samples stay in the checkpoint, and the message names --resume if it is a file.

        Args:
            tick: called after every batch.
            budget_s: seconds for all batch sizes together, after which no round is started.
        """
        deadline = NO_DEADLINE if budget_s is None else Deadline(time.monotonic, time.monotonic() + budget_s)
        for batch_size, share in deadline.split(self._settings.batch_sizes):
            try:
                self._measure_batch_size(batch_size, tick, share)
            except EngineError as error:
                if not self._checkpoint.is_saved:
                    raise
                raise EngineError(f"{error} Go on with --resume.") from error
            for length in self._settings.lengths:
                if not any(sample.steps for sample in self.samples(length, batch_size)):
                    raise EngineError(
                        f"{self._client.name}: expected completions of several tokens. All end at once with {length} draft tokens: "
                        "give other --prompts."
                    )

    def samples(self, length: int, batch_size: int) -> list[EngineSample]:
        return [
            EngineSample(
                entry.key,
                int(tokens),
                int(steps),
                decode_s,
                int(prompt_tokens),
                tuple(map(int, accepted)),
            )
            for entry in self._checkpoint.entries(_kind(length, batch_size))
            for tokens, steps, decode_s, prompt_tokens, *accepted in [entry.values]
        ]

    def outputs(self, length: int, prompt: int) -> dict[str, int]:
        """Return the different completions of a prompt with a draft length, and their tokens."""
        return self._outputs.get((length, prompt), {})

    def measured(self) -> tuple[int, ...]:
        """Return the lengths with which every prompt was decoded at every batch size, in this run or earlier ones."""
        prompts, sizes = len(self._settings.prompts), self._settings.batch_sizes
        lengths = sorted({_length(kind) for kind in self._checkpoint.kinds()})
        return tuple(length for length in lengths if all(len(self.samples(length, size)) >= prompts for size in sizes))

    def ended_at_once(self) -> int:
        """Return the number of measured sequences without a step."""
        sizes = self._settings.batch_sizes
        return sum(
            not sample.steps for length in self.measured() for size in sizes for sample in self.samples(length, size)
        )

    def passes(self, length: int, batch_size: int) -> list[PassTimes]:
        """Return the pass times that the engine reported, if any."""
        return [PassTimes(*entry.values) for entry in self._checkpoint.entries(_passes_kind(length, batch_size))]

    def prefill(self, length: int) -> dict[int, list[float]]:
        """Return the seconds to the first token by prefilled tokens, at batch size 1."""
        return self._checkpoint.samples(_prefill_kind(length))

    def config(self, length: int, slots: int = 1) -> EngineConfig:
        """Return the configuration of the engine with a draft length."""
        context = max(self._config.context_tokens, self._settings.max_sequence_tokens + length)
        return replace(self._config, draft_tokens=length, slots=slots, context_tokens=context)

    def _measure_batch_size(self, batch_size: int, tick: Callable[[], object], deadline: Deadline) -> None:
        prompts, lengths = len(self._settings.prompts), self._settings.lengths
        batches = -(-prompts // batch_size)
        round_samples = batches * batch_size  # the last batch of a round is filled up with the first prompts
        recorded = {length: len(self.samples(length, batch_size)) for length in lengths}
        for number in range(self._settings.rounds):
            if number and deadline.over():
                return
            for group in self._groups(number):
                if all(recorded[length] >= (number + 1) * round_samples for length in group):
                    for _ in range(len(group) * batches):
                        tick()
                    continue
                with self._start_engines(group, batch_size) as engines:  # again, as starts differ in speed
                    self._measure_passes(engines, batch_size)
                    for batch, first in enumerate(range(0, prompts, batch_size)):
                        numbers = [(first + index) % prompts for index in range(batch_size)]
                        for index in order(len(group), number * batches + batch):
                            length = group[index]
                            # a full disk may have stored only the beginning of a batch
                            stored = recorded[length] - number * round_samples - first
                            if stored < batch_size:
                                self._decode(engines[length], length, batch_size, numbers, number, max(0, stored))
                            tick()

    def _groups(self, number: int) -> list[tuple[int, ...]]:
        """Return the lengths whose engines run at the same time; the order rotates from round to round."""
        lengths = self._settings.lengths
        if self._settings.together or self._client.concurrent:
            return [lengths]
        start = number % len(lengths)
        return [(length,) for length in (*lengths[start:], *lengths[:start])]

    @contextmanager
    def _start_engines(self, lengths: Sequence[int], batch_size: int) -> Iterator[dict[int, RunningEngine]]:
        with ExitStack() as stack:
            engines = {
                length: stack.enter_context(closing(self._client.start(self.config(length, batch_size))))
                for length in lengths
            }
            for engine in engines.values():  # warm-up
                engine.complete([self._request(0, max_new_tokens=MIN_TOKENS)])
            yield engines

    def _request(self, prompt: int, seed: int = 0, max_new_tokens: int | None = None) -> CompletionRequest:
        settings = self._settings
        return CompletionRequest(
            settings.prompts[prompt], max_new_tokens or settings.max_new_tokens, settings.temperature, seed
        )

    def _decode(
        self,
        engine: RunningEngine,
        length: int,
        batch_size: int,
        prompts: Sequence[int],
        round_number: int,
        stored: int,
    ) -> None:
        """Decode a batch and store its samples, the first `stored` excepted."""
        before = engine.counters()
        completions = engine.complete([self._request(prompt, SEED + round_number) for prompt in prompts])
        after = engine.counters()
        counters = None if before is None or after is None else after.since(before)
        if counters is not None and len(completions) == 1:
            completions = [_add_steps(completions[0], counters, length)]
        steps = [self._check_steps(completion, length) for completion in completions]
        if counters is not None and length:
            tokens = sum(completion.after_first for completion in completions)
            _check_counters(self._client.name, counters, sum(steps), tokens, length, batch_size=len(completions))
        for index, (prompt, completion, completion_steps) in enumerate(zip(prompts, completions, steps, strict=True)):
            accepted = completion.accepted
            if counters is not None and length and len(completions) == 1:
                accepted = counters.accepted_per_position[:length]
            values = (
                max(0, completion.after_first),
                completion_steps,
                completion.decode_s,
                completion.prompt_tokens,
                *accepted,
            )
            if index >= stored:
                self._checkpoint.append(_kind(length, batch_size), prompt, values)
            self._outputs.setdefault((length, prompt), {}).setdefault(completion.text, completion.tokens)
        if len(completions) == 1 and completions[0].prefill_s and completions[0].prefill_tokens:
            self._checkpoint.append(_prefill_kind(length), completions[0].prefill_tokens, (completions[0].prefill_s,))

    def _measure_passes(self, engines: dict[int, RunningEngine], batch_size: int) -> None:
        prompts = len(self._settings.prompts)
        for number in range(PASS_SAMPLES):
            for length, engine in engines.items():
                if len(self.passes(length, batch_size)) <= number:
                    numbers = [(number * batch_size + index) % prompts for index in range(batch_size)]
                    times = engine.measure_passes([self._request(prompt) for prompt in numbers])
                    if times is None or times.verify_s <= 0 or (length and times.draft_s <= 0):
                        continue  # not reported, or noise of short sequences
                    self._checkpoint.append(_passes_kind(length, batch_size), number, times)

    def _check_steps(self, completion: Completion, length: int) -> int:
        """Return the steps of a completion, 0 if it ends at once; raises EngineError if it contradicts itself."""
        name, tokens, steps = self._client.name, completion.after_first, completion.steps
        if steps is None and completion.coalesced:
            raise EngineError(
                f"{name}: expected chunks of at most {1 + length} tokens, a step with {length} draft tokens. Got larger ones: it "
                "sends several steps at once. Start it so that it streams every step (SGLang: --stream-interval 1), or with "
                "counters of drafts in /metrics."
            )
        if steps is None:
            raise EngineError(
                f"{name}: expected the number of steps of each sequence. It reports none: does it draft? Otherwise probe "
                "another engine."
            )
        if tokens < 1:
            return 0
        if completion.decode_s <= 0:
            raise EngineError(
                f"{name}: expected a time above 0 s from the first token to the last. Got {completion.decode_s:g} s for "
                f"{tokens} tokens: does something between hold tokens back? Probe the engine directly."
            )
        if not steps <= tokens <= steps * (1 + length):
            expected = f"1 to {1 + length} tokens a step with {length} draft tokens" if length else "1 token a step"
            raise EngineError(
                f"{name}: expected {expected}. Got {tokens} in {steps} steps: does it run with another length?"
            )
        return steps


def _check_counters(name: str, counters: Counters, steps: int, tokens: int, length: int, batch_size: int = 1) -> None:
    """Raise EngineError unless the growth of the counters matches the completions.

    Steps and tokens are those after the first new token.  The last step of a sequence may accept more tokens than it had
    room for; vLLM and others count them.
    """
    accepted = tokens - steps
    numbers = (counters.drafts, counters.draft_tokens, counters.accepted_tokens, *counters.accepted_per_position)
    if min(numbers) < 0:
        raise EngineError(f"{name}: expected counters that grow. Got {min(numbers)}: was it restarted?")
    if counters.accepted_tokens > counters.draft_tokens or counters.draft_tokens > length * counters.drafts:
        raise EngineError(
            f"{name}: expected at most {length} draft tokens in a step, and no more accepted. Got {counters.draft_tokens} drafted in "
            f"{counters.drafts} steps, {counters.accepted_tokens} accepted: does it run with another length?"
        )
    if counters.drafts > steps or counters.accepted_tokens > accepted + batch_size * length:
        raise EngineError(
            f"{name}: expected counters of {steps} steps and {accepted} accepted tokens. Got {counters.drafts} and "
            f"{counters.accepted_tokens}: do other clients use it? Probe it when they do not."
        )
    if counters.accepted_per_position and sum(counters.accepted_per_position) != counters.accepted_tokens:
        raise EngineError(
            f"{name}: expected accepted tokens by position to sum to {counters.accepted_tokens}. Got "
            f"{sum(counters.accepted_per_position)}: update the engine."
        )


def _add_steps(completion: Completion, counters: Counters, length: int) -> Completion:
    """Return a completion with the steps that follow from the counters, if it has none, or fewer.

    A server may send several steps in one chunk.  Its counters are used if they match the completion's tokens, which means
    that no other client was counted.
    """
    tokens = completion.after_first
    steps = max(counters.drafts, tokens - counters.accepted_tokens)
    # the last step may accept more than there was room for
    matches = abs(steps + counters.accepted_tokens - tokens) <= length
    if completion.steps is None or (matches and completion.steps < steps):
        return completion._replace(steps=steps)
    return completion


def _kind(length: int, batch_size: int) -> str:
    return f"chain {length} x {batch_size}"


def _prefill_kind(length: int) -> str:
    return f"prefill {length}"


def _length(kind: str) -> int:
    return int(kind.split()[1])


def _passes_kind(length: int, batch_size: int) -> str:
    return f"passes {length} x {batch_size}"
