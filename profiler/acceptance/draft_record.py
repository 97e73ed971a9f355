"""Recording what the draft model thinks along texts of the target, so that any dynamic tree can be replayed on them.

The target generates a text by plain decoding.  Below each of its positions the draft model expands what any dynamic tree
up to a size would feed.  The beams of top-k 5 are not among those of top-k 6, so all of them are found side by side, and
each node is fed once.
"""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from treeopt.arrays import Int64
from treeopt.errors import TreeoptError
from treeopt.profiler.acceptance.expansion import Expander
from treeopt.profiler.budget import UNLIMITED, Slice
from treeopt.profiler.machine import now
from treeopt.profiler.settings import RecordSize, Settings
from treeopt.records.draft_record import DraftRecord
from treeopt.runtime import Decoder
from treeopt.runtime.models.model import LanguageModel, trained_tokens
from treeopt.trees import chain

LEAST_TEXTS = 2
"""That are recorded however little time there is."""


class TextFiles:
    """A folder with a record of every finished text, so that an interrupted recording can go on where it stopped.

    Args:
        folder: the folder, made when there is something to keep, or None to keep nothing.
        resume: keep what is there instead of starting anew.

    Every method raises TreeoptError where the folder or a file in it cannot be read or written.
    """

    def __init__(self, folder: Path | None, *, resume: bool = False) -> None:
        self._folder = folder
        if not resume:
            self.remove()

    def load(self, number: int) -> DraftRecord | None:
        """Return the record of one text, None where it is not finished."""
        path = None if self._folder is None else self._file(self._folder, number)
        return DraftRecord.load(path) if path is not None and path.exists() else None

    def save(self, number: int, record: DraftRecord) -> None:
        """Keep the record of one text."""
        if self._folder is None:
            return
        try:
            self._folder.mkdir(exist_ok=True)
        except OSError as error:
            raise _unwritable(self._folder, error) from None
        record.save(self._file(self._folder, number))

    def remove(self) -> None:
        """Delete the folder, or a file in its place: what it held has been written elsewhere, or is not wanted."""
        if self._folder is None or not self._folder.exists():
            return
        try:
            if self._folder.is_dir() and not self._folder.is_symlink():
                shutil.rmtree(self._folder)
            else:
                self._folder.unlink()
        except OSError as error:
            raise _unwritable(self._folder, error) from None

    @staticmethod
    def _file(folder: Path, number: int) -> Path:
        return folder / f"{number}.npz"


def _unwritable(folder: Path, error: OSError) -> TreeoptError:
    return TreeoptError(f"{folder}: cannot be written ({error.strerror}). Choose another output.")


class Recording:
    """One draft record in the making.

    Args:
        target: the model whose text it is.
        draft: one with the same vocabulary.
        prompts: token ids that the target continues.
        settings: what to record, and how the target samples.
        files: where every finished text is kept.
    """

    def __init__(
        self,
        target: LanguageModel,
        draft: LanguageModel,
        prompts: Sequence[Sequence[int]],
        settings: Settings,
        *,
        files: TextFiles,
    ) -> None:
        size = settings.record or RecordSize()
        self._size = replace(size, top_k=min(size.top_k, target.config.vocabulary))
        self._target, self._draft = target, draft
        self._expander = Expander(draft, self._size)
        self._prompts = prompts
        self._settings = settings
        self._files = files

    def record(self, *, show_progress: bool = True, time: Slice = UNLIMITED) -> DraftRecord:
        """Record every text that is not finished yet; a bar goes to standard error.

        Args:
            show_progress: whether the bar is drawn.
            time: after which no further text is begun, two excepted.
        """
        hidden = None if show_progress else True  # None: hidden where standard error is not a terminal
        texts = []
        for number in tqdm(range(len(self._prompts)), desc="record    ", unit="text", disable=hidden):
            text = self._files.load(number)
            if text is None:
                if time.over() and number >= LEAST_TEXTS:
                    break
                text = self._text(number)
                self._files.save(number, text)
            texts.append(text)
        return joined(texts)

    def along(self, prompt: Sequence[int], generated: Sequence[int], roots: int) -> DraftRecord:
        """Return the record of the first `roots` positions of a text that is there already.

        Args:
            prompt: token ids; its last token is the first root.
            generated: what follows; beyond `roots` tokens only accepted ranks are taken from it.
            roots: positions.
        """
        expansions = self._expander.expand([*prompt, *generated[: roots - 1]], roots)
        accepted_ranks = [each.outcome(generated[root:], self._size.depth) for root, each in enumerate(expansions)]
        sampling = self._settings.sampling
        return DraftRecord(
            pair=f"{self._target.name} + {self._draft.name}",
            created=now(),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            target_top_k=sampling.top_k,
            depth=self._size.depth,
            text_starts=_starts([roots]),
            node_starts=_starts([len(each.parent) for each in expansions]),
            parent=np.concatenate([each.parent for each in expansions]).astype(np.int32),
            rank=np.concatenate([each.rank for each in expansions]).astype(np.int32),
            log_probs=np.concatenate([each.log_probs for each in expansions]),
            outcome=np.array(accepted_ranks, np.int32),
        )

    def _text(self, number: int) -> DraftRecord:
        """Return the record of one text; each has its own seed, so that a resumed record equals a whole one."""
        settings, prompt = self._settings, self._prompts[number]
        positions = settings.text_positions(len(self._prompts))
        trained = trained_tokens(self._target, self._draft)
        longest = min(len(prompt) + positions + self._size.depth, trained)
        decoder = Decoder(
            self._target, None, chain(0), sampling=settings.sampling, seed=number, max_text_tokens=longest
        )
        generated = list(decoder.generate(prompt, longest - len(prompt)))
        return self.along(prompt, generated, min(positions, len(generated)))


def joined(records: Sequence[DraftRecord]) -> DraftRecord:
    """Return the record of the texts of several, one after the other."""
    return replace(
        records[0],
        created=now(),
        text_starts=_starts(np.concatenate([np.diff(each.text_starts) for each in records]).tolist()),
        node_starts=_starts(np.concatenate([np.diff(each.node_starts) for each in records]).tolist()),
        parent=np.concatenate([each.parent for each in records]),
        rank=np.concatenate([each.rank for each in records]),
        log_probs=np.concatenate([each.log_probs for each in records]),
        outcome=np.concatenate([each.outcome for each in records]),
    )


def _starts(counts: Sequence[int]) -> Int64:
    """Return where each of some runs of so many begins, and where the last ends."""
    return np.cumsum([0, *counts], dtype=np.int64)
