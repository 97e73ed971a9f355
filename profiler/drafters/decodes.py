"""Prompts decoded by several decoders in interleaved runs, each timed as a whole and stored in the checkpoint."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

from treeopt.profiler.bench.interleave import decode_run, interleave
from treeopt.profiler.budget import Deadline
from treeopt.profiler.latency.rounds import Recorder
from treeopt.records.latency import Timing
from treeopt.records.measured_drafter import DecodedSequences
from treeopt.runtime import Decoder


class DecodedSequence(NamedTuple):
    """One decoded sequence, without its prompt."""

    tokens: int
    seconds: float
    passes: dict[int, int]
    """The number of the target's passes by their tokens."""

    @property
    def numbers(self) -> tuple[float, ...]:
        """One row for the checkpoint."""
        return (self.tokens, self.seconds, *(float(n) for item in self.passes.items() for n in item))

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> "DecodedSequence":
        tokens, seconds, *passes = numbers
        counts = {int(size): int(count) for size, count in zip(passes[::2], passes[1::2], strict=True)}
        return cls(int(tokens), seconds, counts)


def decode_prompts(
    decoders: Mapping[str, Callable[[], Decoder]],
    prompts: Mapping[int, Sequence[int]],
    positions: int,
    recorder: Recorder,
    deadline: Deadline,
    at_least: int,
) -> list[list[DecodedSequence]]:
    """Return what every decoder decoded, in interleaved runs, those in the checkpoint included.

    The prompt number is the seed, so resuming changes nothing.

    Args:
        decoders: by the kind of their entries in the checkpoint; each is made when it first decodes.
        prompts: token ids by their numbers.
        positions: new tokens of each, fewer if a sequence ends.
        recorder: times the runs; its `tick` is called once for each.
        deadline: no prompt is started that may end after it.
        at_least: prompts that are decoded however long they take.
    """
    kinds = list(decoders)
    recorded = [
        {number: DecodedSequence.from_numbers(row) for number, row in recorder.checkpoint.rows(kind).items()}
        for kind in kinds
    ]
    rounds: list[tuple[DecodedSequence, ...]] = []

    def affordable_prompts() -> Iterator[int]:
        for number in prompts:
            is_new = any(number not in sequences for sequences in recorded)
            longest_s = max((sum(run.seconds for run in runs) for runs in rounds), default=0.0)
            if len(rounds) >= at_least and is_new and deadline.left_s < longest_s:
                return
            yield number

    def decode(make: Callable[[], Decoder], number: int, new_tokens: int) -> DecodedSequence:
        run = decode_run(make(), prompts[number], new_tokens, number, recorder.clock)
        return DecodedSequence(len(run.tokens), run.seconds, run.passes)

    for runs in interleave(
        [partial(decode, cache(make)) for make in decoders.values()],
        positions,
        affordable_prompts(),
        recorded=lambda index, number: recorded[index].get(number),
        record=lambda index, number, run: recorder.checkpoint.append(kinds[index], number, run.numbers),
    ):
        for _ in kinds:
            recorder.tick()
        rounds.append(runs)
    return [[*sequences] for sequences in zip(*rounds, strict=True)]


def join_sequences(sequences: Sequence[DecodedSequence]) -> DecodedSequences:
    """Return the record of sequences decoded with one decoder."""
    sizes = sorted({size for sequence in sequences for size in sequence.passes})
    return DecodedSequences(
        tokens=tuple(sequence.tokens for sequence in sequences),
        pass_tokens=tuple(sizes),
        passes=tuple(tuple(sequence.passes.get(size, 0) for size in sizes) for sequence in sequences),
        seconds=Timing([sequence.seconds for sequence in sequences]),
    )
