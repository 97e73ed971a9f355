"""What treeopt asks of openvino_genai, without it: requests that get tokens step by step, a byte a token."""

from types import ModuleType, SimpleNamespace

import numpy as np

STEP_S = 0.001
PROMPT_S = 1.0
"""Seconds of a first step: in no answer, as the prompt is read in it."""
VERIFY_S, DRAFT_S = 0.004, 0.0005
"""Of a pass; the first ones read the prompt and take a second more."""


class Tokenizer:
    def encode(self, text):
        return SimpleNamespace(input_ids=np.frombuffer(text.encode(), np.uint8)[None])

    def decode(self, tokens):
        return bytes(tokens).decode()


class GenerationConfig:
    """Has its fields only, as the real one: any other is an AttributeError."""

    __slots__ = (
        "apply_chat_template",
        "do_sample",
        "ignore_eos",
        "max_new_tokens",
        "num_assistant_tokens",
        "rng_seed",
        "temperature",
    )

    def __init__(self):
        self.do_sample, self.num_assistant_tokens, self.ignore_eos = False, 0, False


class Handle:
    def __init__(self, config):
        self.config, self.left, self.unread = config, config.max_new_tokens, []

    def can_read(self):
        return bool(self.unread)

    def read(self):
        found, self.unread = self.unread, []
        return {0: SimpleNamespace(generated_ids=found)}

    def cancel(self):
        self.left = 0


class Pipeline:
    """Every step accepts what `fake.accepts` says: by step, then by draft length."""

    def __init__(self, fake, models):
        self.fake, self.models, self.handles, self.steps = fake, models, [], 0

    def get_tokenizer(self):
        return Tokenizer()

    def add_request(self, number, prompt, config):
        assert number == len(self.handles)
        assert (config.num_assistant_tokens > 0) == (len(self.models) == 2)
        self.handles.append(Handle(config))
        self.fake.asked.append((bytes(prompt[0]).decode(), config))
        return self.handles[-1]

    def generate(self, prompts, configs):
        """Every step but the first, which reads the prompts, accepts nothing."""
        length, steps = configs[0].num_assistant_tokens, configs[0].max_new_tokens - 1
        target = _metrics([PROMPT_S, *[VERIFY_S] * steps])
        if not length:
            return [SimpleNamespace(extended_perf_metrics=None, perf_metrics=target) for _ in prompts]
        draft = _metrics([PROMPT_S, *[DRAFT_S] * steps * length])
        apart = SimpleNamespace(main_model_metrics=target, draft_model_metrics=draft)
        return [SimpleNamespace(extended_perf_metrics=apart, perf_metrics=None) for _ in prompts]

    def has_non_finished_requests(self):
        return bool(self.handles)

    def step(self):
        self.fake.now_s += PROMPT_S if self.steps == 0 else STEP_S * (1 + self.handles[0].config.num_assistant_tokens)
        if self.fake.fault and self.steps == 3:
            raise RuntimeError(self.fake.fault)
        for number, each in enumerate(self.handles):
            length = each.config.num_assistant_tokens
            most = min(self.fake.accepts(self.steps + number, length), length)
            each.unread = [ord("x")] * min(1 + most, each.left)
            each.left -= len(each.unread)
        self.steps += 1
        self.handles = [each for each in self.handles if each.left]
        if not self.handles:
            self.steps = 0


def _metrics(passes_s):
    """In microseconds, their seconds as one sum."""
    raw = SimpleNamespace(m_batch_sizes=[1] * len(passes_s), inference_durations=[1e6 * sum(passes_s)])
    return SimpleNamespace(raw_metrics=raw)


class FakeOpenVino(ModuleType):
    """The module; `now_s` is its clock."""

    def __init__(self):
        super().__init__("openvino_genai")
        self.now_s, self.asked, self.loaded, self.fault = 0.0, [], [], None
        self.pipelines = []
        self.accepts = lambda step, length: step % (length + 1)
        self.GenerationConfig = GenerationConfig
        self.SchedulerConfig = SimpleNamespace

    def draft_model(self, folder, device, **properties):
        return folder, device, properties

    def ContinuousBatchingPipeline(self, folder, scheduler, device, properties):  # noqa: N802 - its name
        if "broken" in folder:
            raise RuntimeError("Exception from src/inference/core.cpp:95:\nCheck 'false' failed:\n\x1b[31mbroken\n")
        self.loaded.append((folder, device, scheduler.max_num_batched_tokens, properties))
        models = [folder, *([properties["draft_model"]] if "draft_model" in properties else [])]
        self.pipelines.append(Pipeline(self, models))
        return self.pipelines[-1]
