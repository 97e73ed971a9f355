"""What a llama-server answers, however it was started: its own times and counts of each text."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

from treeopt.engines.probes.child import Child
from treeopt.engines.probes.client import NGRAM, UNREADABLE, Answer, Counters, Launch, Question, likeliest
from treeopt.engines.probes.http import HttpEngine, number
from treeopt.errors import EngineError

NAME = "llama-server"
MOST_LOGPROBS = 10
VOCABULARIES = "vocabs are not compatible"
"""Part of what llama.cpp logs about a draft model with another vocabulary."""


class RunningLlama:
    """A server that answers `/completion` with its own times and counts."""

    def __init__(self, url: str, launch: Launch, child: Child | None) -> None:
        self._http = HttpEngine(NAME, url, timeout_s=launch.timeout_s)
        self._child = child
        self._drafts = launch.draft_tokens > 0 and launch.method != NGRAM  # which finds nothing in many a text
        self._pool = ThreadPoolExecutor(launch.slots)
        self._takes_several = True

    def answers(self, questions: Sequence[Question]) -> list[Answer]:
        if len(questions) > 1 and self._takes_several:
            found = self._answers_together(questions)
            if found is not None:
                return found
            self._takes_several = False
        return list(self._pool.map(self._answer, questions))

    def counters(self) -> Counters | None:
        return self._http.counters()

    def next_logprobs(self, text: str) -> dict[str, float]:
        """See `TellsLogprobs`; prompts are read anew, so that no cache decides."""
        content = self._content(Question(text, 1, 0.0)) | {"n_probs": MOST_LOGPROBS, "cache_prompt": False}
        found = self._http.post("/completion", content)
        try:
            (first,) = found["completion_probabilities"]
            return likeliest(
                NAME,
                [
                    (each["token"] or (UNREADABLE if each.get("bytes") else ""), each["logprob"])
                    for each in first["top_logprobs"]
                ],
            )
        except (KeyError, ValueError, TypeError, AttributeError):
            raise EngineError(f"{NAME}: expected log-probabilities of the next token. Got none: update it.") from None

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._http.close()
        if self._child is not None:
            self._child.close()

    def _answers_together(self, questions: Sequence[Question]) -> list[Answer] | None:
        """Return the answers to one request of all prompts, so that no text's steps wait for another's prompt.

        None where the questions are not alike but for their prompts, or the server does not take several.
        """
        first = questions[0]
        if any(each._replace(prompt=first.prompt) != first for each in questions):
            return None
        content = {**self._content(first), "prompt": [each.prompt for each in questions]}
        found = self._http.post_for_list("/completion", content)
        if found is None or len(found) != len(questions):
            return None
        return [self._read(each) for each in sorted(found, key=lambda each: number(NAME, each, "index"))]

    def _not_drafting(self) -> EngineError:
        """Return the error for a server that was started to draft and does not."""
        lines = [] if self._child is None else self._child.errors()
        if any(VOCABULARIES in line for line in lines):
            return EngineError(
                f"{NAME}: expected a draft model with the target's vocabulary. llama.cpp reports that they are not "
                "compatible, and decodes without it: choose a draft of the same family."
            )
        if lines:
            return EngineError(f"{NAME}: expected a server that drafts. It does not: {' / '.join(lines)[:300]}")
        return EngineError(
            f"{NAME}: expected a server that drafts. It does not: start it with a draft model of the target's vocabulary, and "
            "read its log for why it uses none."
        )

    def _answer(self, question: Question) -> Answer:
        start_s = perf_counter()
        found = self._http.post("/completion", self._content(question))
        return self._read(found, perf_counter() - start_s)

    @staticmethod
    def _content(question: Question) -> dict[str, Any]:
        content = {
            "prompt": question.prompt,
            "n_predict": question.max_new_tokens,
            "temperature": question.temperature,
            "seed": question.seed,
            "ignore_eos": True,
            "cache_prompt": True,
        }
        if question.temperature > 0:  # the whole distribution: samplers that are on by default are not the model's
            content |= {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
        return content

    def _read(self, found: dict[str, Any], waited_s: float = 0.0) -> Answer:
        """Return an answer as it was told; whoever asks waits longer for the first token than its prompt is read."""
        timings = found.get("timings")
        if not isinstance(timings, dict) or not isinstance(found.get("content"), str):
            raise EngineError(f"{NAME}: expected content and timings in its answer. Got {sorted(found)!r:.80}.")
        tokens = int(number(NAME, timings, "predicted_n"))
        if self._drafts and "draft_n" not in timings:
            raise self._not_drafting()
        drafted, accepted = (
            int(number(NAME, timings, each)) if each in timings else 0 for each in ("draft_n", "draft_n_accepted")
        )
        if accepted > drafted:
            raise EngineError(
                f"{NAME}: expected at most {drafted} accepted tokens, as many as were drafted. Got {accepted}: update it."
            )
        decode_s, prefill_s = number(NAME, timings, "predicted_ms") / 1000, None
        if "prompt_ms" in timings:
            prefill_s = max(number(NAME, timings, "prompt_ms") / 1000, waited_s - decode_s)
        return Answer(
            text=found["content"],
            tokens=tokens,
            decode_s=decode_s,
            steps=tokens - 1 - accepted,
            prompt_tokens=int(number(NAME, found, "tokens_evaluated")),
            prefill_s=prefill_s,
            prefill_tokens=int(number(NAME, timings, "prompt_n")) if "prompt_n" in timings else 0,
        )
