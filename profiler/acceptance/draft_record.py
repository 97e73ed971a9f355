"""Recording the draft model's distributions along sequences of the target, so that any dynamic tree can be replayed.

The target generates a sequence by plain decoding.  Below each position the draft model expands the nodes that any dynamic
tree up to a size would feed.  The beams of top-k 5 are not among those of top-k 6, so the beams of every top-k are found
together, and each node is fed once.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
from tqdm import tqdm

from treeopt.arrays import Int64
from treeopt.errors import TreeoptError
from treeopt.profiler.acceptance.expansion import Expander
from treeopt.profiler.budget import NO_DEADLINE, Deadline
from treeopt.profiler.settings import RecordSize, Settings
from treeopt.records.draft_record import DraftRecord
from treeopt.records.machine import now
from treeopt.runtime import Decoder
from treeopt.runtime.models.model import LanguageModel, max_sequence_tokens

MIN_SEQUENCES = 2
"""Sequences that are recorded even after the deadline."""


class RecordFiles:
    """A folder with the record of every finished sequence, so that an interrupted recording can be resumed.

    Args:
        folder: created when the first record is saved; None stores nothing.
        resume: keep the existing records instead of starting again.

    Every method raises TreeoptError if the folder or a file in it cannot be read or written.
    """

    def __init__(self, folder: Path | None, *, resume: bool = False) -> None:
        self._folder = folder
        if not resume:
            self.remove()

    def load(self, number: int) -> DraftRecord | None:
        """Return the record of one sequence, None if it is not finished."""
        path = None if self._folder is None else self._folder / f"{number}.npz"
        return DraftRecord.load(path) if path is not None and path.exists() else None

    def save(self, number: int, record: DraftRecord) -> None:
        if self._folder is None:
            return
        try:
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            raise _unwritable(self._folder, error) from None
        record.save(self._folder / f"{number}.npz")

    def remove(self) -> None:
        """Delete the folder, or a file in its place."""
        if self._folder is None or not self._folder.exists():
            return
        try:
            if self._folder.is_dir() and not self._folder.is_symlink():
                shutil.rmtree(self._folder)
            else:
                self._folder.unlink()
        except OSError as error:
            raise _unwritable(self._folder, error) from None


def _unwritable(folder: Path, error: OSError) -> TreeoptError:
    return TreeoptError(f"{folder}: cannot be written ({error.strerror}). Choose another output.")


class Recording:
    """Makes a draft record.

    Args:
        target: generates the sequences.
        draft: a model with the same vocabulary.
        prompts: token ids that the target continues.
        settings: what to record, and how the target samples.
        files: where the record of every finished sequence is stored.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel,
        prompts: Sequence[Sequence[int]],
        settings: Settings,
        *,
        files: RecordFiles,
    ) -> None:
        size = settings.record or RecordSize()
        self._size = replace(size, top_k=min(size.top_k, target.config.vocabulary))
        self._target, self._draft = target, draft
        self._expander = Expander(draft, self._size)
        self._prompts = prompts
        self._settings = settings
        self._files = files

    def record(self, *, show_progress: bool = True, deadline: Deadline = NO_DEADLINE) -> DraftRecord:
        """Record every sequence that is not finished yet.

        Args:
            show_progress: whether a bar goes to standard error.
            deadline: after which no sequence is started, the first two excepted.
        """
        hidden = None if show_progress else True  # None: hidden where standard error is not a terminal
        records = []
        for number in tqdm(range(len(self._prompts)), desc="record    ", unit="sequence", disable=hidden):
            record = self._files.load(number)
            if record is None:
                if deadline.over() and number >= MIN_SEQUENCES:
                    break
                record = self._record_prompt(number)
                self._files.save(number, record)
            records.append(record)
        return join_records(records)

    def record_sequence(self, prompt: Sequence[int], generated: Sequence[int], roots: int) -> DraftRecord:
        """Return the record of the first `roots` positions of an existing sequence.

        Args:
            prompt: token ids; its last token is the first root.
            generated: tokens after the prompt; those after the last root only determine accepted ranks.
            roots: number of positions.
        """
        expansions = self._expander.expand([*prompt, *generated[: roots - 1]], roots)
        accepted_ranks = [
            expansion.outcome(generated[root:], self._size.depth) for root, expansion in enumerate(expansions)
        ]
        sampling = self._settings.sampling
        return DraftRecord(
            pair=f"{self._target.name} + {self._draft.name}",
            created=now(),
            temperature=float(sampling.temperature),
            top_p=float(sampling.top_p),
            target_top_k=sampling.top_k,
            depth=self._size.depth,
            sequence_starts=_starts([roots]),
            node_starts=_starts([len(expansion.parent) for expansion in expansions]),
            parent=np.concatenate([expansion.parent for expansion in expansions]).astype(np.int32),
            rank=np.concatenate([expansion.rank for expansion in expansions]).astype(np.int32),
            log_probs=np.concatenate([expansion.log_probs for expansion in expansions]),
            accepted_ranks=np.array(accepted_ranks, np.int32),
        )

    @cached_property
    def _decoder(self) -> Decoder:
        """For all prompts: every decoder has caches."""
        longest = max(map(self._max_sequence_tokens, self._prompts))
        return Decoder(self._target, None, sampling=self._settings.sampling, max_sequence_tokens=longest)

    def _max_sequence_tokens(self, prompt: Sequence[int]) -> int:
        positions = self._settings.positions_per_prompt(len(self._prompts))
        return min(len(prompt) + positions + self._size.depth, max_sequence_tokens(self._target, self._draft))

    def _record_prompt(self, number: int) -> DraftRecord:
        settings, prompt = self._settings, self._prompts[number]
        positions = settings.positions_per_prompt(len(self._prompts))
        max_tokens = self._max_sequence_tokens(prompt)
        # a seed per prompt, so that resuming changes nothing
        generated = list(self._decoder.generate(prompt, max_tokens - len(prompt), seed=number))
        return self.record_sequence(prompt, generated, min(positions, len(generated)))


def join_records(records: Sequence[DraftRecord]) -> DraftRecord:
    """Return one record with the sequences of several."""
    return replace(
        records[0],
        created=now(),
        sequence_starts=_starts(np.concatenate([np.diff(record.sequence_starts) for record in records]).tolist()),
        node_starts=_starts(np.concatenate([np.diff(record.node_starts) for record in records]).tolist()),
        parent=np.concatenate([record.parent for record in records]),
        rank=np.concatenate([record.rank for record in records]),
        log_probs=np.concatenate([record.log_probs for record in records]),
        accepted_ranks=np.concatenate([record.accepted_ranks for record in records]),
    )


def _starts(counts: Sequence[int]) -> Int64:
    """Return the offset of each run of items, and the total."""
    return np.cumsum([0, *counts], dtype=np.int64)
