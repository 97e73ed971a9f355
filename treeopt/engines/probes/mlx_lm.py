"""mlx-lm, in this process: one pair for all draft lengths; of every token it tells whether it was drafted."""

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from treeopt.engines.probes.client import Answer, Availability, EngineClient, Launch, Question, Running
from treeopt.engines.probes.started import InProcess, both_models, installed_version, refuse_address
from treeopt.errors import EngineError
from treeopt.records.engine import EngineSetting
from treeopt.texts.shared_tokens import compare_tokens

NAME = "mlx-lm"
INSTALL = "pip install 'mlx-lm[cpu]', or make engines-mlx"


def client(name: str, *, url: str | None, threads: int | None, timeout_s: float) -> EngineClient:
    """Return mlx-lm; see `treeopt.engines.probes.named`.  It has no address, and no number of threads to be set."""
    del name, timeout_s
    refuse_address(NAME, url)
    if threads is not None:
        raise EngineError(f"{NAME}: expected no --threads, because mlx takes no number of them. Leave it out.")
    return MlxLm()


def available(name: str = NAME) -> Availability:
    """Return what is known of it here."""
    own, backend = installed_version("mlx-lm"), installed_version("mlx")
    return Availability(
        name=name,
        title="Apple's mlx-lm, on any processor that mlx runs on",
        version=None if own is None or backend is None else f"{own} on mlx {backend}",
        started="in this process, batch 1, with Hugging Face folders",
        tells="seconds, tokens and steps of each text, accepted tokens by position",
        install=INSTALL,
    )


class MlxLm:
    """`mlx_lm.stream_generate` with a pair of Hugging Face folders, which are loaded once.

    Raises EngineError where mlx-lm is not installed, or mlx finds nothing to compute with.
    """

    name = NAME
    concurrent = True

    def __init__(self) -> None:
        found = available()
        if found.version is None:
            raise EngineError(f"{NAME}: expected the packages mlx-lm and mlx. One is not installed: {found.install}.")
        self.version = found.version
        try:
            import mlx.core as mx
        except ImportError as error:  # on Linux mlx comes without what computes
            raise EngineError(f"{NAME}: expected mlx with a backend. Got: {_line(error)}: {found.install}.") from None
        device = str(mx.default_device())
        self.device = "cpu" if "cpu" in device.lower() else "gpu"
        self.settings: tuple[EngineSetting, ...] = (EngineSetting(name="device", value=device),)
        self._models: _Models | None = None

    def start(self, launch: Launch) -> Running:
        """See `EngineClient`; raises EngineError for several texts at once, and models that do not load."""
        if launch.slots > 1:
            raise EngineError(
                f"{NAME}: expected a batch of 1, since it does not draft for several texts. Got {launch.slots}: probe batch 1."
            )
        folders = both_models(NAME, launch)
        if self._models is None:
            self._models = _loaded(*folders)
        return RunningMlxLm(self._models, launch.draft_tokens, launch.timeout_s)


class _Models(NamedTuple):
    tokenizer: Any
    target: Any
    draft: Any


def _loaded(target_folder: str, draft_folder: str) -> _Models:
    """Load both models.

    Raises EngineError unless both are folders that mlx-lm can load, InvalidValueError if the tokenizers differ.
    """
    import mlx_lm

    from treeopt.texts.tokenizer import Tokenizer

    for each in (target_folder, draft_folder):
        if not Path(each).is_dir():
            raise EngineError(
                f"{NAME}: expected folders in Hugging Face's layout. Got {each!r:.80}: download it first."
            )
    compare_tokens(Tokenizer(target_folder), Tokenizer(draft_folder))
    try:
        target, tokenizer = mlx_lm.load(target_folder)
        draft, _ = mlx_lm.load(draft_folder)
    except (OSError, ValueError, RuntimeError, LookupError, TypeError) as error:
        raise EngineError(f"{NAME}: expected models that it can load. Got: {_line(error)}") from None
    tokenizer.eos_token_ids = set()  # like other engines, decode as many tokens as requested
    return _Models(tokenizer, target, draft)


class _Token(NamedTuple):
    text: str
    drafted: bool
    """Whether the draft model proposed it."""
    prompt_tokens: int
    arrived_s: float


class RunningMlxLm(InProcess):
    """A pair under one draft length."""

    def __init__(self, models: _Models, draft_tokens: int, timeout_s: float) -> None:
        self._models, self._draft_tokens, self._timeout_s = models, draft_tokens, timeout_s

    def answers(self, questions: Sequence[Question]) -> list[Answer]:
        """See `Running`; the time limit is looked at whenever a token comes."""
        return [self._answer(each) for each in questions]

    def _answer(self, question: Question) -> Answer:
        tokens = list(self._tokens(question))
        first, *counted = steps_of([each.drafted for each in tokens])  # the first reads the end of the prompt
        most = max(each.accepted for each in (first, *counted))
        if most > self._draft_tokens:
            raise EngineError(
                f"{NAME}: expected at most {self._draft_tokens} drafted tokens in a step. Got {most}: update it."
            )
        return Answer(
            text="".join(each.text for each in tokens),
            tokens=1 + sum(each.tokens for each in counted),
            decode_s=tokens[-1].arrived_s - tokens[first.tokens - 1].arrived_s,
            steps=len(counted),
            prompt_tokens=tokens[0].prompt_tokens,
            accepted=tuple(
                sum(each.accepted >= place for each in counted) for place in range(1, 1 + self._draft_tokens)
            ),
        )

    def _tokens(self, question: Question) -> Iterator[_Token]:
        import mlx.core as mx
        import mlx_lm
        from mlx_lm.sample_utils import make_sampler

        mx.random.seed(question.seed)
        until_s = time.perf_counter() + self._timeout_s
        drafting = {"draft_model": self._models.draft, "num_draft_tokens": self._draft_tokens}
        stream = mlx_lm.stream_generate(
            self._models.target,
            self._models.tokenizer,
            question.prompt,
            max_tokens=question.max_new_tokens,
            sampler=make_sampler(temp=question.temperature),
            **(drafting if self._draft_tokens else {}),
        )
        try:
            for each in stream:
                arrived_s = time.perf_counter()
                if arrived_s > until_s:
                    raise EngineError(
                        f"{NAME}: expected an answer within {self._timeout_s:g} s. It goes on: give it longer with --timeout."
                    )
                yield _Token(each.text, each.from_draft, each.prompt_tokens, arrived_s)
        except (ValueError, RuntimeError) as error:  # such as a cache from which drafts cannot be taken back
            raise EngineError(f"{NAME}: expected models that it can decode with. Got: {_line(error)}") from None


class Step(NamedTuple):
    """What one pass of the target came to."""

    tokens: int
    accepted: int
    """Drafted ones among them."""


def steps_of(drafted: Sequence[bool]) -> list[Step]:
    """Return the steps of a text, told of each token whether it was drafted.

    A step ends with a token of the target's own; the last of a text may end before it, where there is no more room.

    >>> steps_of([False, True, True, False, True])
    [Step(tokens=1, accepted=0), Step(tokens=3, accepted=2), Step(tokens=1, accepted=1)]
    """
    ends = [place for place, each in enumerate(drafted, 1) if not each or place == len(drafted)]
    return [Step(end - begin, sum(drafted[begin:end])) for begin, end in pairwise([0, *ends])]


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
