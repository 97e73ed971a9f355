"""Measuring a running engine from outside: settings in turn, many short rounds, every answer kept at once.

Each answer tells seconds and steps of one text.  What the engine counts meanwhile says which draft tokens were
accepted, and both have to agree: counters that grow by more than was asked for count other clients too.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple
from zlib import crc32

from treeopt.engines.probes.client import (
    Answer,
    Counters,
    EngineClient,
    Launch,
    PassTimes,
    Question,
    Running,
    TellsPasses,
)
from treeopt.errors import EngineError, InvalidValueError
from treeopt.profiler.bench.interleave import order
from treeopt.profiler.journal import Journal

SEED = 0
LEAST_TOKENS = 8
"""A text of fewer tokens tells hardly anything of steps."""
SPECIAL_TOKENS = 8
"""Room for what an engine puts at the start of a prompt."""
PASS_SAMPLES = 9
"""Times that an engine is asked for its passes with each length, where it tells them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """What an engine is asked, and how often.

    Raises InvalidValueError for lengths that do not rise, and for fewer than two prompts.
    """

    lengths: tuple[int, ...]
    """Draft tokens, rising; a profile wants 0, plain decoding, and another, in one run or in several."""
    batch_sizes: tuple[int, ...] = (1,)
    prompts: tuple[str, ...]
    categories: tuple[str, ...] = ()
    """One for each prompt, `""` for none; empty where no prompt has one."""
    prompts_from: str = "unnamed"
    """Their name, see `treeopt.texts.prompts.prompts_name`."""
    chat_template: str | None = None
    """Model folder whose chat template the prompts are in."""
    rounds: int = 3
    """Times that every prompt is decoded with every length."""
    max_new_tokens: int = 96
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
        if self.max_new_tokens < LEAST_TOKENS:
            raise InvalidValueError(
                f"max_new_tokens: expected at least {LEAST_TOKENS}. Got {self.max_new_tokens}.", field="max_new_tokens"
            )

    @property
    def longest_text_tokens(self) -> int:
        """Upper bound of a text's tokens: a token of a prompt stands for at least one byte, special tokens are few."""
        return max(len(prompt.encode()) for prompt in self.prompts) + SPECIAL_TOKENS + self.max_new_tokens

    @property
    def waves(self) -> int:
        """How often the engine is asked."""
        return self.rounds * len(self.lengths) * sum(-(-len(self.prompts) // size) for size in self.batch_sizes)


class Sample(NamedTuple):
    """One text decoded with one length."""

    prompt: int
    """Its number."""
    tokens: int
    """That steps committed, the first of the text not counted."""
    steps: int
    """0 if the text ended at once."""
    decode_s: float
    prompt_tokens: int
    checksum: int
    """Of the text, so that texts can be told apart."""
    accepted: tuple[int, ...]
    """How often the 1st, 2nd, … draft token was accepted; empty where it is not told."""


class Probe:
    """An engine under several draft lengths.

    Args:
        client: the engine.
        launch: how it is started, whatever the length and the batch.
        settings: what it is asked.
        journal: where every sample is kept at once; those that are there already are not asked for again.
    """

    def __init__(self, client: EngineClient, launch: Launch, settings: ProbeSettings, journal: Journal) -> None:
        self._client = client
        self._launch = launch
        self._settings = settings
        self._journal = journal
        self._texts: dict[tuple[int, int], dict[str, int]] = {}

    def measure(self, tick: Callable[[], object] = lambda: None, *, budget_s: float | None = None) -> None:
        """Ask everything that is not in the journal yet; raises EngineError, what was answered before stays there.

        Args:
            tick: called after every answer.
            budget_s: seconds for all batch sizes together, after which no further round begins.
        """
        share_s = None if budget_s is None else budget_s / len(self._settings.batch_sizes)
        for batch in self._settings.batch_sizes:
            self._batch(batch, tick, None if share_s is None else time.monotonic() + share_s)
            for length in self._settings.lengths:
                if not any(each.steps for each in self.samples(length, batch)):
                    raise EngineError(
                        f"{self._client.name}: expected texts of several tokens. All end at once with {length} draft tokens: "
                        "give other --prompts."
                    )

    def samples(self, length: int, batch: int) -> list[Sample]:
        """Return what was measured with a length at a batch size."""
        return [
            Sample(
                entry.key,
                int(tokens),
                int(steps),
                decode_s,
                int(prompt_tokens),
                int(checksum),
                tuple(map(int, accepted)),
            )
            for entry in self._journal.entries(_kind(length, batch))
            for tokens, steps, decode_s, prompt_tokens, checksum, *accepted in [entry.values]
        ]

    def texts(self, length: int, prompt: int) -> dict[str, int]:
        """Return the different texts that this run has decoded of a prompt with a length, with their tokens."""
        return self._texts.get((length, prompt), {})

    def measured(self) -> tuple[int, ...]:
        """Return the lengths with which every prompt was decoded at every batch size, in this run or in those before."""
        texts, sizes = len(self._settings.prompts), self._settings.batch_sizes
        known = sorted({_length(kind) for kind in self._journal.kinds()})
        return tuple(each for each in known if all(len(self.samples(each, size)) >= texts for size in sizes))

    def ended_at_once(self) -> int:
        """Return the number of measured texts that ended at once, of which no step can be timed."""
        sizes = self._settings.batch_sizes
        return sum(
            not each.steps for length in self.measured() for size in sizes for each in self.samples(length, size)
        )

    def passes(self, length: int, batch: int) -> list[PassTimes]:
        """Return what the engine told of its passes; nothing where it does not tell."""
        return [PassTimes(*entry.values) for entry in self._journal.entries(_passes_kind(length, batch))]

    def prefill(self, length: int) -> dict[int, list[float]]:
        """Return the seconds until the first token by the tokens of the prompt that were read, of texts asked for alone."""
        return self._journal.samples(_prefill_kind(length))

    def _batch(self, batch: int, tick: Callable[[], object], until_s: float | None) -> None:
        texts, lengths = len(self._settings.prompts), self._settings.lengths
        round_samples = -(-texts // batch) * batch  # the last wave of a round begins with the first prompts again
        known = {length: len(self.samples(length, batch)) for length in lengths}
        for number in range(self._settings.rounds):
            if number and until_s is not None and time.monotonic() > until_s:
                return
            for group in self._groups(number):
                if all(known[length] >= (number + 1) * round_samples for length in group):
                    continue
                with self._running(group, batch) as running:  # restart: one start may be slower than another for good
                    self._ask_passes(running, batch)
                    for wave, first in enumerate(range(0, texts, batch)):
                        chosen = [(first + each) % texts for each in range(batch)]
                        for place in order(len(group), number * -(-texts // batch) + wave):
                            length = group[place]
                            if known[length] <= number * round_samples + first:
                                self._ask(running[length], length, batch, chosen, number)
                            tick()

    def _groups(self, number: int) -> list[tuple[int, ...]]:
        """Return the lengths that run at the same time, in the order of a round, which begins with another each time."""
        lengths = self._settings.lengths
        if self._settings.together or self._client.concurrent:
            return [lengths]
        start = number % len(lengths)
        return [(length,) for length in (*lengths[start:], *lengths[:start])]

    def launch(self, length: int, slots: int = 1) -> Launch:
        """Return how the engine is started with a length."""
        context = max(self._launch.context_tokens, self._settings.longest_text_tokens + length)
        return replace(self._launch, draft_tokens=length, slots=slots, context_tokens=context)

    @contextmanager
    def _running(self, lengths: Sequence[int], batch: int) -> Iterator[dict[int, Running]]:
        """Start the engine with each of these lengths."""
        with ExitStack() as stack:
            found = {}
            for length in lengths:
                running = self._client.start(self.launch(length, batch))
                stack.callback(running.close)
                found[length] = running
            for running in found.values():  # the first passes set up what later ones have
                running.answers([Question(self._settings.prompts[0], LEAST_TOKENS, self._settings.temperature)])
            yield found

    def _ask(self, running: Running, length: int, batch: int, prompts: Sequence[int], number: int) -> None:
        asked = self._settings
        before = running.counters()
        answers = running.answers(
            [Question(asked.prompts[each], asked.max_new_tokens, asked.temperature, SEED + number) for each in prompts]
        )
        after = running.counters()
        counted = None if before is None or after is None else after.since(before)
        if counted is not None and len(answers) == 1:
            answers = [_with_steps(answers[0], counted, length)]
        steps = [self._steps(each, length) for each in answers]
        if counted is not None and length:
            tokens = sum(each.after_first for each in answers)
            _check_counters(self._client.name, counted, sum(steps), tokens, length, texts=len(answers))
        for prompt, answer, own in zip(prompts, answers, steps, strict=True):
            accepted = answer.accepted
            if counted is not None and length and len(answers) == 1:
                accepted = counted.accepted_per_position[:length]
            values = (
                max(0, answer.after_first),
                own,
                answer.decode_s,
                answer.prompt_tokens,
                crc32(answer.text.encode()),
                *accepted,
            )
            self._journal.append(_kind(length, batch), prompt, values)
            self._texts.setdefault((length, prompt), {}).setdefault(answer.text, answer.tokens)
        if len(answers) == 1 and answers[0].prefill_s and answers[0].prefill_tokens:
            self._journal.append(_prefill_kind(length), answers[0].prefill_tokens, (answers[0].prefill_s,))

    def _ask_passes(self, running: dict[int, Running], batch: int) -> None:
        asked = self._settings
        for number in range(PASS_SAMPLES):
            for length, each in running.items():
                if isinstance(each, TellsPasses) and len(self.passes(length, batch)) <= number:
                    chosen = [asked.prompts[(number * batch + place) % len(asked.prompts)] for place in range(batch)]
                    told = each.passes([Question(text, asked.max_new_tokens, asked.temperature) for text in chosen])
                    if told.verify_s > 0 and (told.draft_s > 0 or not length):  # noise of short texts
                        self._journal.append(_passes_kind(length, batch), number, told)

    def _steps(self, answer: Answer, length: int) -> int:
        """Return the steps of a text, 0 if it ends at once; raises EngineError if its tokens, steps and seconds are contradictory."""
        name, tokens, steps = self._client.name, answer.after_first, answer.steps
        if steps is None and answer.coalesced:
            raise EngineError(
                f"{name}: expected chunks of at most {1 + length} tokens, a step with {length} draft tokens. Got larger ones: it "
                "sends several steps at once. Start it so that it streams every step (SGLang: --stream-interval 1), or with "
                "counters of drafts in /metrics."
            )
        if steps is None:
            raise EngineError(
                f"{name}: expected to be told how many steps a text took. It does not tell: does it draft? Else probe another "
                "engine."
            )
        if tokens < 1:
            return 0
        if answer.decode_s <= 0:
            raise EngineError(
                f"{name}: expected a time above 0 s from the first token to the last. Got {answer.decode_s:g} s for {tokens} "
                "tokens: does something between hold tokens back? Probe the engine directly."
            )
        if not steps <= tokens <= steps * (1 + length):
            expected = f"1 to {1 + length} tokens a step with {length} draft tokens" if length else "1 token a step"
            raise EngineError(
                f"{name}: expected {expected}. Got {tokens} in {steps} steps: does it run with another length?"
            )
        return steps


def _check_counters(name: str, counted: Counters, steps: int, tokens: int, length: int, texts: int = 1) -> None:
    """Raise EngineError unless the counters grew by what the answers told, steps and tokens behind the first.

    The last step of a text may accept more than there was room for, which some engines, vLLM among them, count.
    """
    accepted = tokens - steps
    numbers = (counted.drafts, counted.draft_tokens, counted.accepted_tokens, *counted.accepted_per_position)
    if min(numbers) < 0:
        raise EngineError(
            f"{name}: expected counters that grow. Got {min(numbers)}: was it restarted? Go on with --resume."
        )
    if counted.accepted_tokens > counted.draft_tokens or counted.draft_tokens > length * counted.drafts:
        raise EngineError(
            f"{name}: expected at most {length} draft tokens in a step, and no more accepted. Got {counted.draft_tokens} drafted in "
            f"{counted.drafts} steps, {counted.accepted_tokens} accepted: does it run with another length?"
        )
    if counted.drafts > steps or counted.accepted_tokens > accepted + texts * length:
        raise EngineError(
            f"{name}: expected counters of {steps} steps and {accepted} accepted tokens. Got {counted.drafts} and "
            f"{counted.accepted_tokens}: do other clients use it? Probe it when they do not, and go on with --resume."
        )
    if counted.accepted_per_position and sum(counted.accepted_per_position) != counted.accepted_tokens:
        raise EngineError(
            f"{name}: expected accepted tokens by position to sum to {counted.accepted_tokens}. Got "
            f"{sum(counted.accepted_per_position)}: update the engine."
        )


def _with_steps(answer: Answer, counted: Counters, length: int) -> Answer:
    """Return an answer with the steps that follow from the counters, where it does not tell them, or tells fewer.

    A server may send several steps in one chunk. Its counters are believed where they come to the answer's tokens, so
    that no other client can have been counted.
    """
    tokens = answer.after_first
    steps = max(counted.drafts, tokens - counted.accepted_tokens)
    agree = (
        abs(steps + counted.accepted_tokens - tokens) <= length
    )  # the last step may accept more than there was room for
    if answer.steps is None or (agree and answer.steps < steps):
        return answer._replace(steps=steps, coalesced=answer.steps is not None)
    return answer


def _kind(length: int, batch: int) -> str:
    return f"chain {length} x {batch}"


def _prefill_kind(length: int) -> str:
    return f"prefill {length}"


def _length(kind: str) -> int:
    return int(kind.split()[1])


def _passes_kind(length: int, batch: int) -> str:
    return f"passes {length} x {batch}"
