"""OpenVINO GenAI in this process: continuous batching, stepped here so that the tokens of each step are seen.

One pipeline decodes plainly and one drafts with every length, because each request names its length.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from treeopt.engines.clients.client import (
    Completion,
    CompletionRequest,
    EngineClient,
    EngineConfig,
    EngineInfo,
    PassTimes,
    RunningEngine,
    engine_errors,
    installed_version,
)
from treeopt.errors import EngineError

NAME = "openvino"
PACKAGE = "openvino-genai"
DEVICE = "CPU"
MODEL_FILE = "openvino_model.xml"
MICROSECONDS = 1e6
ERRORS = (RuntimeError,)
THREADS = "INFERENCE_NUM_THREADS"
"""OpenVINO's property for the number of threads, of target and draft."""
SHORT_TOKENS = 4
"""New tokens of the completions whose passes are subtracted, so that the prefill does not count."""
MAX_BATCHED_TOKENS = 1 << 20
"""Large enough that prompts are not split and mixed with other sequences' steps."""


def describe_engine() -> EngineInfo:
    return EngineInfo(
        name=NAME,
        title="OpenVINO GenAI",
        version=installed_version(PACKAGE),
        started="in this process, once plain and once with the draft model",
        reports="seconds, tokens and steps of each sequence, accepted tokens by position",
        install=f"pip install {PACKAGE}",
    )


class OpenVino(EngineClient):
    """OpenVINO GenAI with a pair of IR folders; each of the two pipelines is loaded once.

    Raises EngineError if the package is not installed.
    """

    name = NAME
    device = DEVICE.lower()

    def __init__(self) -> None:
        self.version = describe_engine().require_version()
        self._pipelines: dict[bool, Any] = {}

    def start(self, config: EngineConfig) -> RunningEngine:
        """Load the pipeline once; raises EngineError for models that do not load."""
        drafts = config.draft_tokens > 0
        target, draft = config.model_pair(NAME)
        if drafts not in self._pipelines:
            self._pipelines[drafts] = _load_pipeline(target, draft if drafts else None, config.threads)
        return RunningOpenVino(self._pipelines[drafts], config)


def _load_pipeline(target: str, draft: str | None, threads: int | None) -> Any:
    for folder in (target, *([] if draft is None else [draft])):
        if not (Path(folder) / MODEL_FILE).is_file():
            raise EngineError(
                f"{NAME}: expected a folder with {MODEL_FILE}. Got {folder!r:.200}: make one with optimum-cli export openvino."
            )
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = MAX_BATCHED_TOKENS
    each_model = {} if threads is None else {THREADS: threads}
    properties: dict[str, Any] = dict(each_model)
    with engine_errors(NAME, "models that it can load", ERRORS):
        if draft is not None:
            properties["draft_model"] = openvino_genai.draft_model(draft, DEVICE, **each_model)
        return openvino_genai.ContinuousBatchingPipeline(target, scheduler, DEVICE, properties)


class RunningOpenVino(RunningEngine):
    """A pipeline with one draft length."""

    def __init__(self, pipeline: Any, config: EngineConfig) -> None:
        super().__init__(NAME, config)
        self._pipeline = pipeline
        self._tokenizer = pipeline.get_tokenizer()

    def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """Complete prompts as one batch; the time limit is checked between steps."""
        with engine_errors(NAME, "answers", ERRORS):
            sequences = [self._add_sequence(number, request) for number, request in enumerate(requests)]
            try:
                self._decode(sequences)
            except BaseException:
                self._cancel(sequences)
                raise
            return [
                self._count_steps(
                    self._tokenizer.decode(sequence.tokens),
                    sequence.step_tokens,
                    sequence.step_ends_s,
                    prompt_tokens=sequence.prompt_tokens,
                    requested_s=sequence.requested_s,
                )
                for sequence in sequences
            ]

    def measure_passes(self, requests: Sequence[CompletionRequest]) -> PassTimes:
        """Return the pass times of whole completions less those of short ones, which leaves the prefill out."""
        with engine_errors(NAME, "answers", ERRORS):
            short = self._sum_passes([request._replace(max_new_tokens=SHORT_TOKENS) for request in requests])
            whole = self._sum_passes(requests)
        steps = whole.verify_passes - short.verify_passes
        if steps < 1:
            raise EngineError(
                f"{NAME}: expected completions of several steps. Got {steps}: give more --max-new-tokens."
            )
        return PassTimes((whole.verify_s - short.verify_s) / steps, (whole.draft_s - short.draft_s) / steps)

    def _sum_passes(self, requests: Sequence[CompletionRequest]) -> "_PassTotals":
        prompts = [request.prompt for request in requests]
        result = self._pipeline.generate(prompts, [self._generation_config(request) for request in requests])[0]
        by_model = result.extended_perf_metrics
        target = result.perf_metrics if by_model is None else by_model.main_model_metrics
        draft_times = [] if by_model is None else by_model.draft_model_metrics.raw_metrics.inference_durations
        return _PassTotals(
            len(target.raw_metrics.m_batch_sizes),
            sum(target.raw_metrics.inference_durations) / MICROSECONDS,
            sum(draft_times) / MICROSECONDS,
        )

    def _add_sequence(self, number: int, request: CompletionRequest) -> "_Sequence":
        prompt = self._tokenizer.encode(request.prompt).input_ids
        handle = self._pipeline.add_request(number, prompt, self._generation_config(request))
        return _Sequence(handle, int(prompt.shape[-1]))

    def _generation_config(self, request: CompletionRequest) -> Any:
        import openvino_genai

        generation = openvino_genai.GenerationConfig()
        generation.max_new_tokens = request.max_new_tokens
        generation.ignore_eos = True
        generation.apply_chat_template = False
        if request.temperature > 0:
            generation.do_sample = True
            generation.temperature = request.temperature
            generation.rng_seed = request.seed
        if self._config.draft_tokens:
            generation.num_assistant_tokens = self._config.draft_tokens
        return generation

    def _decode(self, sequences: "Sequence[_Sequence]") -> None:
        deadline_s = time.perf_counter() + self._config.timeout_s
        now_s = 0.0
        while self._pipeline.has_non_finished_requests():
            if now_s > deadline_s:
                raise EngineError(
                    f"{NAME}: expected an answer within {self._config.timeout_s:g} s. Got none: give more --timeout."
                )
            self._pipeline.step()
            now_s = time.perf_counter()
            for sequence in sequences:
                sequence.read_step(now_s)

    def _cancel(self, sequences: "Sequence[_Sequence]") -> None:
        """Cancel all sequences, so that they are not decoded together with the next batch."""
        for sequence in sequences:
            sequence.handle.cancel()
        self._pipeline.step()


class _PassTotals(NamedTuple):
    verify_passes: int
    verify_s: float
    draft_s: float


class _Sequence:
    """A sequence that is decoded, with the tokens and the end of each step."""

    def __init__(self, handle: Any, prompt_tokens: int) -> None:
        self.handle, self.prompt_tokens = handle, prompt_tokens
        self.requested_s = time.perf_counter()
        self.tokens: list[int] = []
        self.step_tokens: list[int] = []
        self.step_ends_s: list[float] = []

    def read_step(self, now_s: float) -> None:
        if not self.handle.can_read():
            return
        (output,) = self.handle.read().values()  # one sequence: there is no beam search
        self.tokens += output.generated_ids
        self.step_tokens.append(len(output.generated_ids))
        self.step_ends_s.append(now_s)
