"""A whole profile: verification, draft and overhead times, then acceptance."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from zlib import crc32

import numpy as np
from tqdm import tqdm

from treeopt.errors import InvalidValueError
from treeopt.latency import LatencyTable, Timing
from treeopt.profile import MeasuredAcceptance, Profile, StepLatency
from treeopt.profiler.acceptance import AcceptanceText, TextCounts, text_sums
from treeopt.profiler.clock import Clock, Work
from treeopt.profiler.journal import Journal
from treeopt.profiler.machine import describe_machine, describe_pair, now, tool
from treeopt.profiler.passes import PROBE_TREES, StepProbe, draft_pass, filled_cache, verify_pass
from treeopt.profiler.sweep import Step, first_points, latency_table, sweep
from treeopt.runtime import Decoder, Transformer
from treeopt.runtime.sampling import check_rule, check_sampling

EXTRA_POINTS = 8
"""Token counts added where the curve bends."""
ROUNDS_PER_BLOCK = 5
STEP_ROOM_TOKENS = 64
"""Tokens that the timed steps may add to the context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to measure, and how much of it.

    Raises InvalidValueError for a value out of range.
    """

    rule: str = "sequoia"
    temperature: float = 0.0
    top_p: float = 1.0
    context_tokens: int = 256
    """Tokens in the cache while times are taken."""
    max_tokens: int = 512
    """Largest pass that is timed: no budget beyond it can be planned."""
    rounds: int = 25
    """Samples of every time."""
    positions: int = 4096
    """Generated positions whose acceptance is counted, over all prompts."""
    branching: int = 16
    """Children per position."""
    depth: int = 16
    """Depths of the acceptance table."""

    def __post_init__(self) -> None:
        check_rule(self.rule)
        check_sampling(self.temperature, self.top_p)
        least = {"context_tokens": 1, "max_tokens": 2, "rounds": 1, "positions": 1, "branching": 1, "depth": 1}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise InvalidValueError(f"{name}: expected at least {value}. Got {getattr(self, name)}.")

    def conditions(self, target: Transformer, draft: Transformer, prompts: Sequence[Sequence[int]]) -> str:
        """Return all that makes two profiles comparable, as one line."""
        checksum = crc32(repr([list(prompt) for prompt in prompts]).encode())
        parts = {**asdict(describe_machine(target.device)), **asdict(describe_pair(target, draft)), **asdict(self)}
        parts["prompts"] = f"{len(prompts)} of checksum {checksum:08x}"
        return ", ".join(f"{name} {value}" for name, value in parts.items())


class Measurement:
    """One profile in the making.

    Args:
        target, draft: models with one vocabulary, on the device to be measured.
        prompts: token ids that the target continues; at least two.
        settings: what to measure.
        clock: what times the calls.
        journal: where every measurement is kept at once.

    Raises InvalidValueError when prompts are missing or the context does not fit the models.
    """

    def __init__(
        self,
        target: Transformer,
        draft: Transformer,
        prompts: Sequence[Sequence[int]],
        settings: Settings,
        *,
        clock: Clock,
        journal: Journal,
    ) -> None:
        trained = min(target.config.max_positions, draft.config.max_positions)
        if len(prompts) < 2 or min(map(len, prompts)) == 0:
            raise InvalidValueError(f"prompts: expected at least two, none empty. Got {len(prompts)}.")
        if settings.context_tokens + STEP_ROOM_TOKENS > trained:
            raise InvalidValueError(
                f"context_tokens: expected at most {trained - STEP_ROOM_TOKENS}, since the models were trained on "
                f"{trained} tokens and the timed steps need {STEP_ROOM_TOKENS}. Got {settings.context_tokens}."
            )
        longest = max(map(len, prompts))
        if settings.positions > (trained - longest) * len(prompts):
            raise InvalidValueError(
                f"positions: expected at most {(trained - longest) * len(prompts)}, since {len(prompts)} prompts of up "
                f"to {longest} tokens are continued and the models were trained on {trained}. "
                f"Got {settings.positions}: ask for fewer, or give more prompts."
            )
        self._target, self._draft = target, draft
        self._prompts = prompts
        self._settings = settings
        self._clock = clock
        self._journal = journal
        text = np.concatenate([np.asarray(prompt) for prompt in prompts])
        self._context: list[int] = np.resize(text, settings.context_tokens).tolist()

    def profile(self, *, show_progress: bool = True) -> Profile:
        """Measure everything that the journal does not hold yet; bars go to standard error."""
        hidden = None if show_progress else True  # None: hidden where standard error is not a terminal
        with tqdm(total=self._timed_calls(), desc="times     ", unit="call", disable=hidden) as bar:
            latency = self._latency(bar.update)
        with tqdm(total=len(self._prompts), desc="acceptance", unit="text", disable=hidden) as bar:
            texts = self._texts(bar.update)
        sums = text_sums(texts)
        acceptance = MeasuredAcceptance(
            rule=self._settings.rule,
            temperature=self._settings.temperature,
            top_p=self._settings.top_p,
            prompts=len(texts),
            positions=int(sum(text.reached[0] for text in texts)),
            table=sums.table(),
            texts=sums,
        )
        return Profile(
            created=now(),
            tool=tool(),
            machine=describe_machine(self._target.device),
            pair=describe_pair(self._target, self._draft),
            latencies=(latency,),
            acceptances=(acceptance,),
        )

    def _latency(self, step: Step) -> StepLatency:
        settings = self._settings
        caches = [filled_cache(model, self._context, settings.max_tokens) for model in (self._target, self._draft)]

        @cache
        def verify_work(tokens: int) -> Work:
            return verify_pass(self._target, caches[0], tokens, settings.temperature, settings.top_p)

        @cache
        def draft_work(tokens: int) -> Work:
            return draft_pass(self._draft, caches[1], tokens, settings.temperature, settings.rule)

        probes = self._probes()
        for rounds in _blocks(settings.rounds):  # verify, draft and steps in turn, so that drift hits all three alike
            verify = self._table("verify", verify_work, rounds, step)
            drafted = self._table("draft", draft_work, rounds, step)
            self._time_steps(probes, rounds, step)
        return StepLatency(
            context_tokens=settings.context_tokens,
            batch_size=1,
            verify=verify,
            draft=drafted,
            overhead=self._overhead(probes, verify, drafted),
        )

    def _table(self, kind: str, make_work: Callable[[int], Work], rounds: int, step: Step) -> LatencyTable:
        return latency_table(
            kind,
            make_work,
            self._settings.max_tokens,
            rounds=rounds,
            extra_points=EXTRA_POINTS,
            clock=self._clock,
            journal=self._journal,
            step=step,
        )

    def _probes(self) -> dict[int, StepProbe]:
        """Return the probe trees that are no larger than the largest pass, by their numbers."""
        settings = self._settings
        return {
            number: StepProbe(
                Decoder(
                    self._target,
                    self._draft,
                    tree,
                    rule=settings.rule,
                    temperature=settings.temperature,
                    top_p=settings.top_p,
                    max_text_tokens=settings.context_tokens + STEP_ROOM_TOKENS,
                ),
                self._context,
            )
            for number, tree in enumerate(PROBE_TREES)
            if tree.nodes <= settings.max_tokens
        }

    def _time_steps(self, probes: dict[int, StepProbe], rounds: int, step: Step) -> None:
        works = {number: probe.step for number, probe in probes.items()}
        sweep("step", works, rounds, self._clock, self._journal, step, prepare=lambda n: probes[n].prepare())

    def _overhead(self, probes: dict[int, StepProbe], verify: LatencyTable, draft: LatencyTable) -> Timing:
        """Return what the passes of the probe trees' steps do not explain."""
        samples = [
            seconds - probes[number].passes_s(verify, draft)
            for number, steps in self._journal.samples("step").items()
            for seconds in steps
        ]
        return Timing(samples, allow_negative=True)

    def _texts(self, step: Step) -> list[TextCounts]:
        settings = self._settings
        done = {entry.key: entry.values for entry in self._journal.entries("acceptance")}
        positions = -(-settings.positions // len(self._prompts))
        for number, prompt in enumerate(self._prompts):
            if number not in done:
                done[number] = self._acceptance_text(number).count(prompt, positions).numbers
                self._journal.append("acceptance", number, done[number])
            step()
        return [TextCounts.from_numbers(np.array(values), settings.depth) for _, values in sorted(done.items())]

    def _acceptance_text(self, seed: int) -> AcceptanceText:
        """Return the generator of one text; each has its own seed, so that a resumed profile equals a whole one."""
        settings = self._settings
        return AcceptanceText(
            self._target,
            self._draft,
            rule=settings.rule,
            temperature=settings.temperature,
            top_p=settings.top_p,
            branching=min(settings.branching, self._target.config.vocabulary),
            depth=settings.depth,
            seed=seed,
        )

    def _timed_calls(self) -> int:
        points = len(first_points(self._settings.max_tokens)) + EXTRA_POINTS
        return self._settings.rounds * (2 * points + len(PROBE_TREES))


def _blocks(rounds: int) -> list[int]:
    """Return the rounds after which measuring moves on to the next kind: 5, 10, …, `rounds`."""
    return [*range(ROUNDS_PER_BLOCK, rounds, ROUNDS_PER_BLOCK), rounds]
