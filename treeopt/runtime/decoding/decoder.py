"""The decode loop: draft a tree, verify it in one pass of the target, accept a path of it, commit the path."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from time import perf_counter

import torch
from torch import Tensor

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.records.sampling import Sampling, draft_sampling_of
from treeopt.runtime.decoding.acceptance import acceptance_by
from treeopt.runtime.decoding.batch import (
    Arriving,
    Batch,
    BatchText,
    TextRequest,
    TextStep,
    tokens_of,
    waiting_texts,
)
from treeopt.runtime.decoding.observer import Observer, Steering, observers
from treeopt.runtime.decoding.setup import Setup, fitting_rule
from treeopt.runtime.decoding.step import Stepper
from treeopt.runtime.decoding.step_acceptance import StepAcceptance
from treeopt.runtime.decoding.target_text import TargetText, text_seed
from treeopt.runtime.drafters.drafter import BatchedDrafter, Drafter, Proposal, Step
from treeopt.runtime.drafters.static_tree import StaticTreeDrafter
from treeopt.runtime.drafters.switching import SwitchingDrafter
from treeopt.runtime.drafters.texts import Texts
from treeopt.runtime.models.model import LanguageModel, Output, Outputs
from treeopt.runtime.models.runner import Runner, pool_for
from treeopt.runtime.rules.verify import Verdict
from treeopt.texts.stop import Ending, Stopping
from treeopt.trees import TokenTree
from treeopt.trees.tree_schedule import TreeSchedule


class Decoder:
    """Decodes one text at a time with any drafter.

    The text's distribution is the target's: at temperature 0 the same tokens as plain decoding, above it the same
    probabilities.  A text depends on its prompt and seed alone, not on those decoded before.

    Args:
        target: the model whose text is wanted.
        drafter: what drafts: a draft model, which fills `tree`; a `Drafter`, which brings trees of its own; None for
            plain decoding.
        tree: what a draft model drafts in every step; the root alone is plain decoding.
        rule: verification rule, by default `sequoia`, or `target` for a `Drafter` whose tokens are not sampled; at
            temperature 0 all are one.
        temperature: 0 takes the likeliest token.
        top_p: share of the target's distribution that is kept, above 0 and at most 1.
        top_k: tokens of the target's distribution that are kept, the likeliest; 0 keeps all.
        sampling: the three of them as one record; they are not looked at then.
        draft_sampling: what a static tree's children are sampled from; by default the target's temperature and all
            tokens.  It changes how many are accepted, never the text's distribution.
        seed: of all randomness: a text that is given none takes one made of this and the number of the text.
        lossy: allow a rule under which the text does not follow the target's distribution.
        max_text_tokens: longest text, prompt included; at most and by default as long as the target takes.  A draft
            model that takes shorter texts stops drafting at its own limit.
        max_nodes: nodes of the largest tree that `change_tree` may bring; by default this tree's, or what `on_step` may
            change to.
        cuda_graphs: whether passes are captured as CUDA graphs, which takes a moment the second time that a shape comes;
            by default on a CUDA device.  On a CPU, the same work is done without graphs.
        on_step: told of every step once it is committed; see `treeopt.runtime.decoding.observer`.

    The draft model may be on another device than the target; then its tokens and probabilities are moved once per step.

    Raises InvalidValueError for values out of range, rules that do not fit the drafter, and models whose vocabulary
    sizes differ, OutOfMemoryError where caches, masks and probabilities need more memory than is free.
    """

    def __init__(
        self,
        target: LanguageModel,
        drafter: LanguageModel | Drafter | None,
        tree: TokenTree | None = None,
        *,
        rule: str | None = None,
        temperature: float = 0.6,
        top_p: float = 1.0,
        top_k: int = 0,
        sampling: Sampling | None = None,
        draft_sampling: Sampling | None = None,
        seed: int = 0,
        lossy: bool = False,
        max_text_tokens: int | None = None,
        max_nodes: int | None = None,
        cuda_graphs: bool | None = None,
        on_step: Observer | None = None,
    ) -> None:
        self.rule = fitting_rule(rule, drafter, lossy=lossy)
        sampling = sampling or Sampling(temperature, top_p, top_k)
        if max_nodes is None and tree is not None and isinstance(on_step, Steering):
            max_nodes = on_step.room_nodes(tree)
        sampled_from = draft_sampling_of(sampling, draft_sampling)
        self._setup = setup = Setup.of(target, drafter, tree, max_nodes=max_nodes, max_text_tokens=max_text_tokens)
        setup.check_memory(sampling)
        if setup.tree is not None:
            setup.check_tree(setup.tree)
        self.target, self.draft_model = target, setup.draft
        self.max_nodes = setup.max_nodes
        self.max_text_tokens = setup.max_text_tokens
        pool = pool_for(target.device, cuda_graphs)
        self._static = setup.static_drafter(self.rule, sampled_from, pool, cuda_graphs)
        self._switching = SwitchingDrafter(self._static)
        self._drafter: Drafter = drafter if isinstance(drafter, Drafter) else self._switching
        self._acceptance = StepAcceptance(target.name, acceptance_by(self.rule, sampling, target))
        self._acceptance.prepare(self._static.tree)
        self._target_texts = Texts(self._new_texts)
        runner = Runner(target, max_nodes=setup.max_nodes, wants=self._drafter.wants, pool=pool)
        self._stepper = Stepper(self._drafter, runner, self._target_texts, self._acceptance, on_step)
        self.sampling, self.draft_sampling = sampling, sampled_from  # of the target, and of a static tree's children
        self._seed = seed
        self._text = self._texts = 0
        if isinstance(on_step, Steering):
            on_step.attach(self)

    @property
    def tree(self) -> TokenTree:
        """The static tree; the root alone where a drafter brings trees of its own."""
        return self._static.tree

    @property
    def takes_trees(self) -> bool:
        """Whether a draft model fills a static tree, which `change_tree` may replace."""
        return isinstance(self._static, StaticTreeDrafter)

    def draft_logits(self, tokens: Sequence[int]) -> Tensor | None:
        """Return the draft model's logits (n, V) after each of some tokens, read as a text of their own.

        None without a draft model, or for more tokens than it takes.
        """
        static = self._static
        if not isinstance(static, StaticTreeDrafter) or len(tokens) > static.model.config.max_positions:
            return None
        return static.logits(tokens)

    def change_tree(self, tree: TokenTree) -> None:
        """Draft and verify another tree from the next step on, between texts or within one.

        What is committed stays, and so do both caches and all captured graphs.

        Raises InvalidValueError for a tree of more nodes than `max_nodes`, where the decoder could not be made with it,
        and where a drafter brings trees of its own.
        """
        self._check_change(tree)
        self._take(tree)

    def change_drafter(self, drafter: Drafter) -> None:
        """Have another drafter draft from the next step on, until `change_tree`, between texts or within one.

        The draft model reads what it missed when it drafts again.  Drafts are accepted by rule `target` meanwhile.

        Raises InvalidValueError for one that samples its tokens, reads the target's states or has drafts of more than
        `max_nodes`, and for a decoder that was made with a drafter of its own.
        """
        self._setup.check_change(drafter)
        self._switching.take(drafter)

    def generate(
        self,
        token_ids: Sequence[int],
        max_new_tokens: int,
        *,
        stop: Sequence[Sequence[int]] = (),
        seed: int | None = None,
    ) -> Iterator[int]:
        """Return an iterator over the committed tokens, decoded as they are asked for.

        It ends after `max_new_tokens`, with the target's end token, or with the first of the token sequences `stop`
        that the new text holds; what ended it is its last tokens.  It may be given up at any time.

        Args:
            token_ids: the prompt.
            max_new_tokens: most tokens.
            stop: token sequences that end the text.
            seed: of this text, which then does not depend on how many were decoded before.

        Raises InvalidValueError, before anything runs, for an empty prompt, a token outside the vocabulary, or a text
        longer than the target takes; TreeoptError where another text was begun meanwhile.
        """
        return chain.from_iterable(self.steps(token_ids, max_new_tokens, stop=stop, seed=seed))

    def steps(
        self,
        token_ids: Sequence[int],
        max_new_tokens: int,
        *,
        stop: Sequence[Sequence[int]] = (),
        seed: int | None = None,
    ) -> Iterator[list[int]]:
        """Return an iterator over the tokens of each step; `generate` returns them one by one."""
        self._setup.check_text(token_ids, max_new_tokens)
        ending = self._ending(max_new_tokens, stop)
        self.start(token_ids, seed=seed)
        return (step.tokens[:count] for step, count in self._loop(self.step, ending, self._text))

    def whole_steps(
        self,
        token_ids: Sequence[int],
        positions: int,
        step: Callable[[], Step] | None = None,
        *,
        seed: int | None = None,
    ) -> Iterator[Step]:
        """Return an iterator over the steps of a text of at least `positions` new tokens, fewer where it ends.

        Args:
            token_ids: the prompt.
            positions: new tokens; fewer where the longest text has no room for them.
            step: decodes one step; by default `step` of this decoder.
            seed: of this text, which then does not depend on how many were decoded before.
        """
        self.start(token_ids, seed=seed)
        most = min(positions, self.max_text_tokens - len(token_ids))
        return (found for found, _ in self._loop(step or self.step, self._ending(most), self._text))

    def generate_all(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        *,
        stop: Sequence[Sequence[int]] = (),
        seeds: Sequence[int] | None = None,
        batch_size: int = 8,
        schedule: TreeSchedule | None = None,
    ) -> Iterator[tuple[int, list[int]]]:
        """Return an iterator over the tokens of each step of several texts, with the number of the text's prompt.

        `batch_size` texts are decoded at a time; where one ends, the next prompt joins.  The tokens of each are those
        that `generate` gives with the same seed.  A text that fails leaves the others alone.

        Args:
            prompts: of the texts, 0 first.
            max_new_tokens: most tokens of each.
            stop: token sequences that end a text.
            seeds: of each text; by default those that `generate` would take one after the other.
            batch_size: texts at a time, each with caches of its own.
            schedule: the tree of each step by the number of texts that are decoded then; by default the decoder's own.

        Raises InvalidValueError before anything runs for a batch size, seeds, stops or a schedule that do not fit,
        OutOfMemoryError where the caches do not fit into memory; and TextsError, when all other texts have ended, with
        the error of every text that could not be decoded.
        """
        if seeds is not None and len(seeds) != len(prompts):
            raise InvalidValueError(f"seeds: expected {len(prompts)}, one for each prompt. Got {len(seeds)}.")
        requests = [
            TextRequest(prompt, max_new_tokens, stop, None if seeds is None else seeds[number])
            for number, prompt in enumerate(prompts)
        ]
        return tokens_of(self.steps_of_all(requests, batch_size=batch_size, schedule=schedule), len(requests))

    def steps_of_all(
        self,
        requests: Sequence[TextRequest] | Arriving,
        *,
        batch_size: int = 8,
        schedule: TreeSchedule | None = None,
    ) -> Iterator[TextStep]:
        """Return an iterator over the steps of several texts, as `generate_all` without its error at the end.

        Requests may also arrive while texts are decoded, in a `queue.Queue` or what offers its `get`: they are numbered
        as they come and join before the next step as far as there is room, and None ends them.  While nothing is
        decoded, the next one is waited for.

        An error is told in the last step of its text; raises what `generate_all` raises before anything runs, save for
        requests that arrive.
        """
        size = min(batch_size, max(1, len(requests))) if isinstance(requests, Sequence) else batch_size
        self._setup.check_batch(self.sampling, size, there=self._target_texts.free)
        waiting = waiting_texts(requests, self._batch_text)
        if schedule is not None:
            for each in schedule.trees:
                self._check_change(each.tree)

        def before_step(count: int) -> None:
            if schedule is not None:
                self._take(schedule.tree(count))

        self._reserve(size)
        return Batch(self._stepper, self._begin_checked, before_step).decode(waiting, size)

    def start(self, token_ids: Sequence[int], *, seed: int | None = None) -> None:
        """Begin a text: fill the caches with all of it but the last token, which becomes the root."""
        self._drafter.end(self._text)
        self._target_texts.end(self._text)
        self._reserve(1)
        self._texts += 1
        self._text = self._texts
        self._begin(self._text, token_ids, seed)

    def step(self) -> Step:
        """Decode one step of the text; raises TreeoptError, and forgets the text, where the target's logits are not finite."""
        (found,) = self._stepper.step([self._started])
        return _raised(found)

    def draft(self) -> Proposal:
        """Return the draft of a step."""
        return self._stepper.draft([self._started])[0]

    def verify(self, proposal: Proposal) -> Output:
        """Return the target's logits after every token of a proposal, from one pass, and the states wanted."""
        return self._stepper.verify([self._started], [proposal])[0]

    def accept(self, proposal: Proposal, output: Output) -> Step:
        """Return the step that a proposal comes to: the accepted path, and one token sampled after it; raises as `step`."""
        outputs = Outputs(output, [output.logits.shape[0]])
        (found,) = self._stepper.accept([self._started], [proposal], outputs)
        return _raised(found)

    def accepted(self, tokens: Sequence[int], verdict: Verdict, output: Output) -> Step:
        """Return the step of a verdict on drafted tokens; raises as `step`."""
        return self._acceptance.accepted(self._target_texts[self._started], tokens, verdict, output)

    def commit(self, step: Step) -> None:
        """Keep the accepted path in the caches; the last committed token is the new root."""
        self._stepper.commit([self._started], [step])

    @contextmanager
    def observed(self, observer: Observer, now_s: Callable[[], float] = perf_counter) -> Iterator[None]:
        """Call another observer of every step too, with the seconds of a clock that may wait for the device."""
        stepper = self._stepper
        before = stepper.on_step, stepper.now_s
        stepper.on_step, stepper.now_s = observers(stepper.on_step, observer), now_s
        try:
            yield
        finally:
            stepper.on_step, stepper.now_s = before

    def check_request(self, token_ids: Sequence[int], max_new_tokens: int) -> None:
        """Raise the InvalidValueError that `generate` raises before anything runs."""
        self._setup.check_text(token_ids, max_new_tokens)

    @property
    def _started(self) -> int:
        """The text that `step` decodes; raises TreeoptError before the first `start`."""
        if self._text == 0:
            raise TreeoptError("step: expected a text that was begun. Got none: call start(token_ids) first.")
        return self._text

    def _batch_text(self, number: int, request: TextRequest) -> BatchText:
        """Return the text of a request; raises InvalidValueError for stops that are none."""
        ending = self._ending(request.max_new_tokens, request.stop, ignore_end_tokens=request.ignore_end_tokens)
        self._texts += 1
        return BatchText(number, self._texts, request, ending)

    def _check_change(self, tree: TokenTree) -> None:
        if self._setup.tree is None:
            raise InvalidValueError("tree: expected none, because the drafter brings its own. Got one: leave it out.")
        self._setup.check_tree(tree)

    def _take(self, tree: TokenTree) -> None:
        """Go on with a tree that was checked."""
        self._switching.take(None)
        if tree == self._static.tree:
            return
        self._static.change_tree(tree)
        self._acceptance.prepare(tree)

    def _reserve(self, texts: int) -> None:
        """Have caches for so many texts at a time; those of a much larger batch are freed."""
        self._target_texts.reserve(texts)
        if isinstance(self._drafter, BatchedDrafter):
            self._drafter.reserve(texts)

    @torch.inference_mode()
    def _begin(self, text: int, token_ids: Sequence[int], seed: int | None) -> None:
        """Begin the text of a number at target and drafter, by default with the seed of the number."""
        at = self._target_texts.begin(text)
        seed = text_seed(self._seed, text) if seed is None else seed
        self._drafter.begin(text, token_ids, at.begin(token_ids, seed))

    def _begin_checked(self, text: BatchText) -> None:
        self._setup.check_text(text.request.token_ids, text.request.max_new_tokens)
        self._begin(text.key, text.request.token_ids, text.request.seed)

    def _new_texts(self, texts: int) -> list[TargetText]:
        """Return the target ready for so many texts."""
        caches = self.target.new_caches(self.max_text_tokens + self.max_nodes, texts)
        return [TargetText(self.target, cache, self._drafter.wants) for cache in caches]

    def _ending(
        self, max_new_tokens: int, stop: Sequence[Sequence[int]] = (), *, ignore_end_tokens: bool = False
    ) -> Ending:
        ends = [] if ignore_end_tokens else [(token,) for token in self.target.config.end_tokens]
        return Ending(max_new_tokens, Stopping([*ends, *stop], vocabulary=self.target.config.vocabulary))

    def _loop(self, step: Callable[[], Step], ending: Ending, text: int) -> Iterator[tuple[Step, int]]:
        """Yield the steps of a text, and how many tokens of each belong to it."""
        while not ending.reached:
            if self._text != text:
                raise TreeoptError("generate: another text was begun on this decoder. Make a decoder for each.")
            found = step()
            yield found, ending.count(found.tokens)


def _raised(found: Step | TreeoptError) -> Step:
    if isinstance(found, TreeoptError):
        raise found
    return found
