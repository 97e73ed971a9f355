"""OpenVINO GenAI, in this process: its continuous batching, one step at a time, each request's tokens read after each.

One pipeline decodes plainly and one drafts with every length, because a request names its own.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from treeopt.engines.probes.client import (
    Answer,
    Availability,
    EngineClient,
    Launch,
    PassTimes,
    Question,
    Running,
)
from treeopt.engines.probes.started import InProcess, both_models, installed_version, refuse_address, threads_setting
from treeopt.errors import EngineError, printable

NAME = "openvino"
PACKAGE = "openvino-genai"
DEVICE = "CPU"
MODEL_FILE = "openvino_model.xml"
MICROSECONDS = 1e6
THREADS = "INFERENCE_NUM_THREADS"
"""Its property of that name; it holds for the draft model too."""
FEW_TOKENS = 4
"""Of a text whose passes are taken away from those of a longer one, so that what reads the prompt does not count."""
MAX_BATCHED_TOKENS = 1 << 20
"""Prompts are read whole, before anything is decoded, and not in pieces beside other texts' steps."""


def client(name: str, *, url: str | None, threads: int | None, timeout_s: float) -> EngineClient:
    """Return OpenVINO GenAI; see `treeopt.engines.probes.named`.  It has no address."""
    del name, timeout_s
    refuse_address(NAME, url)
    return OpenVino(threads)


def available(name: str = NAME) -> Availability:
    """Return what is known of it here."""
    return Availability(
        name=name,
        title="OpenVINO GenAI",
        version=installed_version(PACKAGE),
        started="in this process, once plain and once with the draft model",
        tells="seconds, tokens and steps of each text, accepted tokens by position",
        install=f"pip install {PACKAGE}",
    )


class OpenVino:
    """OpenVINO GenAI with a pair of IR folders, of which each pipeline is loaded once.

    Raises EngineError where the package is not installed.
    """

    name = NAME
    device = DEVICE.lower()
    concurrent = True

    def __init__(self, threads: int | None) -> None:
        found = available()
        if found.version is None:
            raise EngineError(f"{NAME}: expected the package {PACKAGE}. It is not installed: {found.install}.")
        self.version = found.version
        self.settings = threads_setting(threads)
        self._properties = {} if threads is None else {THREADS: threads}
        self._pipelines: dict[bool, Any] = {}

    def start(self, launch: Launch) -> Running:
        """See `EngineClient`; raises EngineError for models that do not load."""
        drafts = launch.draft_tokens > 0
        target, draft = both_models(NAME, launch)
        if drafts not in self._pipelines:
            self._pipelines[drafts] = self._loaded(target, draft if drafts else None)
        return RunningOpenVino(self._pipelines[drafts], launch)

    def _loaded(self, target: str, draft: str | None) -> Any:
        for folder in (target, *([] if draft is None else [draft])):
            if not (Path(folder) / MODEL_FILE).is_file():
                raise EngineError(
                    f"{NAME}: expected a folder with {MODEL_FILE}. Got {folder!r:.200}: make one with optimum-cli export openvino."
                )
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = MAX_BATCHED_TOKENS
        properties = dict(self._properties)
        with _failures("models that it can load"):
            if draft is not None:
                properties["draft_model"] = openvino_genai.draft_model(draft, DEVICE, **self._properties)
            return openvino_genai.ContinuousBatchingPipeline(target, scheduler, DEVICE, properties)


class RunningOpenVino(InProcess):
    """A pipeline under one draft length."""

    def __init__(self, pipeline: Any, launch: Launch) -> None:
        self._pipeline, self._launch = pipeline, launch
        self._tokenizer = pipeline.get_tokenizer()

    def answers(self, questions: Sequence[Question]) -> list[Answer]:
        """See `Running`; the time limit is looked at between steps."""
        with _failures("answers"):
            texts = [self._asked(number, each) for number, each in enumerate(questions)]
            try:
                self._decode(texts)
            except BaseException:
                self._drop(texts)
                raise
            return [self._answer(each) for each in texts]

    def passes(self, questions: Sequence[Question]) -> PassTimes:
        """See `TellsPasses`; what the pipeline tells of whole texts, the prompt's passes taken away."""
        with _failures("answers"):
            few = self._totals([each._replace(max_new_tokens=FEW_TOKENS) for each in questions])
            all_ = self._totals(questions)
        steps = all_.verify_passes - few.verify_passes
        if steps < 1:
            raise EngineError(f"{NAME}: expected texts of several steps. Got {steps}: give more --max-new-tokens.")
        return PassTimes((all_.verify_s - few.verify_s) / steps, (all_.draft_s - few.draft_s) / steps)

    def _totals(self, questions: Sequence[Question]) -> "_Totals":
        prompts = [each.prompt for each in questions]
        found = self._pipeline.generate(prompts, [self._config(each) for each in questions])[0]
        apart = found.extended_perf_metrics
        target = found.perf_metrics if apart is None else apart.main_model_metrics
        return _Totals(
            len(target.raw_metrics.m_batch_sizes),
            sum(target.raw_metrics.inference_durations) / MICROSECONDS,
            0.0 if apart is None else sum(apart.draft_model_metrics.raw_metrics.inference_durations) / MICROSECONDS,
        )

    def _asked(self, number: int, question: Question) -> "_Text":
        prompt = self._tokenizer.encode(question.prompt).input_ids
        handle = self._pipeline.add_request(number, prompt, self._config(question))
        return _Text(handle, int(prompt.shape[-1]))

    def _config(self, question: Question) -> Any:
        import openvino_genai

        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = question.max_new_tokens
        config.ignore_eos = True
        config.apply_chat_template = False
        if question.temperature > 0:
            config.do_sample = True
            config.temperature = question.temperature
            config.rng_seed = question.seed
        if self._launch.draft_tokens:
            config.num_assistant_tokens = self._launch.draft_tokens
        return config

    def _decode(self, texts: "Sequence[_Text]") -> None:
        until_s = time.perf_counter() + self._launch.timeout_s
        now_s = 0.0
        while self._pipeline.has_non_finished_requests():
            if now_s > until_s:
                raise EngineError(
                    f"{NAME}: expected an answer within {self._launch.timeout_s:g} s. Got none: give more --timeout, "
                    "and go on with --resume."
                )
            self._pipeline.step()
            now_s = time.perf_counter()
            for each in texts:
                each.read(now_s)

    def _drop(self, texts: "Sequence[_Text]") -> None:
        """End what was asked, so that nothing is decoded beside what is asked next."""
        for each in texts:
            each.handle.cancel()
        self._pipeline.step()

    def _answer(self, text: "_Text") -> Answer:
        sizes = text.sizes[1:]  # the first step reads the prompt too
        return Answer(
            text=self._tokenizer.decode(text.tokens),
            tokens=1 + sum(sizes),
            decode_s=text.ends_s[-1] - text.ends_s[0] if text.ends_s else 0.0,
            steps=len(sizes),
            prompt_tokens=text.prompt_tokens,
            accepted=tuple(sum(size > place for size in sizes) for place in range(1, 1 + self._launch.draft_tokens)),
            prefill_s=text.ends_s[0] - text.asked_s if text.ends_s else None,
            prefill_tokens=text.prompt_tokens,
        )


class _Totals(NamedTuple):
    """What the pipeline tells of its passes."""

    verify_passes: int
    verify_s: float
    draft_s: float


class _Text:
    """A request, and how many tokens it got when."""

    def __init__(self, handle: Any, prompt_tokens: int) -> None:
        self.handle, self.prompt_tokens = handle, prompt_tokens
        self.asked_s = time.perf_counter()
        self.tokens: list[int] = []
        self.sizes: list[int] = []
        self.ends_s: list[float] = []

    def read(self, now_s: float) -> None:
        """Take the tokens of a step that ended now."""
        if not self.handle.can_read():
            return
        (output,) = self.handle.read().values()  # one sequence: nothing is searched with beams
        self.tokens += output.generated_ids
        self.sizes.append(len(output.generated_ids))
        self.ends_s.append(now_s)


@contextmanager
def _failures(expected: str) -> Iterator[None]:
    """Raise EngineError in place of its RuntimeError of many lines."""
    try:
        yield
    except RuntimeError as error:
        raise EngineError(
            f"{NAME}: expected {expected}. Got: {printable(' '.join(str(error).split()))[:300]}"
        ) from None
