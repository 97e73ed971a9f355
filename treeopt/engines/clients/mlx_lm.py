"""mlx-lm in this process: one loaded pair for all draft lengths; it reports of every token whether it was drafted."""

import time
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from treeopt.engines.clients.client import (
    Completion,
    CompletionRequest,
    EngineClient,
    EngineConfig,
    EngineInfo,
    RunningEngine,
    engine_errors,
    installed_version,
)
from treeopt.errors import EngineError
from treeopt.records.engine import EngineSetting
from treeopt.texts.shared_tokens import compare_tokens

NAME = "mlx-lm"
INSTALL = "pip install 'mlx-lm[cpu]', or make engines-mlx"


def describe_engine() -> EngineInfo:
    version, backend = installed_version("mlx-lm"), installed_version("mlx")
    return EngineInfo(
        name=NAME,
        title="Apple's mlx-lm, on any processor that mlx runs on",
        version=None if version is None or backend is None else f"{version} on mlx {backend}",
        started="in this process, batch 1, with Hugging Face folders",
        reports="seconds, tokens and steps of each sequence, accepted tokens by position",
        install=INSTALL,
    )


class MlxLm(EngineClient):
    """`mlx_lm.stream_generate` with a pair of Hugging Face folders, which are loaded once.

    Raises EngineError if mlx-lm is not installed, or mlx has no backend.
    """

    name = NAME

    def __init__(self) -> None:
        self.version = describe_engine().require_version()
        with engine_errors(NAME, f"mlx with a backend ({INSTALL})", (ImportError,)):
            import mlx.core as mx  # on Linux the package mlx comes without a backend
        device = str(mx.default_device())
        self.device = "cpu" if "cpu" in device.lower() else "gpu"
        self.settings = (EngineSetting(name="device", value=device),)
        self._models: _Models | None = None

    def start(self, config: EngineConfig) -> RunningEngine:
        """Load the models once; raises EngineError for threads, a batch above 1, and models that do not load."""
        if config.threads is not None:
            raise EngineError(f"{NAME}: expected no --threads, because mlx takes no number of them. Leave it out.")
        if config.slots > 1:
            raise EngineError(
                f"{NAME}: expected a batch of 1, since it drafts for one sequence only. Got {config.slots}: probe batch 1."
            )
        folders = config.model_pair(NAME)
        if self._models is None:
            self._models = _load_models(*folders)
        return RunningMlxLm(self._models, config)


class _Models(NamedTuple):
    tokenizer: Any
    target: Any
    draft: Any


def _load_models(target_folder: str, draft_folder: str) -> _Models:
    """Load both models.

    Raises EngineError unless both are folders that mlx-lm can load, InvalidValueError if the tokenizers differ.
    """
    import mlx_lm

    from treeopt.texts.tokenizer import Tokenizer

    for folder in (target_folder, draft_folder):
        if not Path(folder).is_dir():
            raise EngineError(
                f"{NAME}: expected folders in Hugging Face's layout. Got {folder!r:.80}: download it first."
            )
    compare_tokens(Tokenizer(target_folder), Tokenizer(draft_folder))
    with engine_errors(NAME, "models that it can load", (OSError, ValueError, RuntimeError, LookupError, TypeError)):
        target, tokenizer = mlx_lm.load(target_folder)
        draft, _ = mlx_lm.load(draft_folder)
    tokenizer.eos_token_ids = set()  # like other engines, decode as many tokens as requested
    return _Models(tokenizer, target, draft)


class _Token(NamedTuple):
    text: str
    drafted: bool
    """Whether the draft model proposed it."""
    prompt_tokens: int
    arrived_s: float


class RunningMlxLm(RunningEngine):
    """A pair with one draft length."""

    def __init__(self, models: _Models, config: EngineConfig) -> None:
        super().__init__(NAME, config)
        self._models = models

    def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        return [self._complete_one(request) for request in requests]

    def _complete_one(self, request: CompletionRequest) -> Completion:
        tokens = list(self._stream_tokens(request))
        steps = split_steps([token.drafted for token in tokens])
        accepted = [step.accepted for step in steps]
        if max(accepted) > self._config.draft_tokens:
            raise EngineError(
                f"{NAME}: expected at most {self._config.draft_tokens} drafted tokens in a step. Got {max(accepted)}: update it."
            )
        ends = accumulate(step.tokens for step in steps)
        return self._count_steps(
            "".join(token.text for token in tokens),
            [step.tokens for step in steps],
            [tokens[end - 1].arrived_s for end in ends],
            prompt_tokens=tokens[0].prompt_tokens,
            step_accepted=accepted,
        )

    def _stream_tokens(self, request: CompletionRequest) -> Iterator[_Token]:
        import mlx.core as mx
        import mlx_lm
        from mlx_lm.sample_utils import make_sampler

        mx.random.seed(request.seed)
        deadline_s = time.perf_counter() + self._config.timeout_s
        drafting = {"draft_model": self._models.draft, "num_draft_tokens": self._config.draft_tokens}
        stream = mlx_lm.stream_generate(
            self._models.target,
            self._models.tokenizer,
            request.prompt,
            max_tokens=request.max_new_tokens,
            sampler=make_sampler(temp=request.temperature),
            **(drafting if self._config.draft_tokens else {}),
        )
        # such as a cache that cannot be trimmed
        with engine_errors(NAME, "models that it can decode with", (ValueError, RuntimeError)):
            for response in stream:
                arrived_s = time.perf_counter()
                if arrived_s > deadline_s:
                    raise EngineError(
                        f"{NAME}: expected an answer within {self._config.timeout_s:g} s. It goes on: give it longer with --timeout."
                    )
                yield _Token(response.text, response.from_draft, response.prompt_tokens, arrived_s)


class Step(NamedTuple):
    """The tokens that one pass of the target committed."""

    tokens: int
    accepted: int
    """Draft tokens among them."""


def split_steps(drafted: Sequence[bool]) -> list[Step]:
    """Return the steps of a sequence, from whether each token was drafted.

    A step ends with a token of the target; the last step may be cut off before it.

    >>> split_steps([False, True, True, False, True])
    [Step(tokens=1, accepted=0), Step(tokens=3, accepted=2), Step(tokens=1, accepted=1)]
    """
    ends = [end for end, from_draft in enumerate(drafted, 1) if not from_draft or end == len(drafted)]
    return [Step(end - begin, sum(drafted[begin:end])) for begin, end in pairwise([0, *ends])]
