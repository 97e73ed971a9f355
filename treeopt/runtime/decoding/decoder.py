"""The decode loop: draft a tree, verify it in one target pass, accept a path of it, commit the path."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from queue import SimpleQueue
from time import perf_counter

from torch import Tensor

from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.records.sampling import Sampling, resolve_draft_sampling
from treeopt.runtime.decoding.acceptance import Acceptance
from treeopt.runtime.decoding.batch import (
    ActiveRequest,
    GenerationRequest,
    QueuedRequests,
    RequestOutput,
    RequestQueue,
    decode_batch,
    iterate_tokens,
)
from treeopt.runtime.decoding.observer import Controller, Observer, combine_observers
from treeopt.runtime.decoding.setup import Setup, choose_rule
from treeopt.runtime.decoding.step import Stepper
from treeopt.runtime.decoding.target_sequence import TargetSequence, sequence_seed
from treeopt.runtime.drafters.drafter import Drafter, Proposal, Step
from treeopt.runtime.drafters.sequence_drafter import SequenceDrafter, SequencePool
from treeopt.runtime.drafters.static_tree import PlainDrafter, StaticTreeDrafter
from treeopt.runtime.models.model import LanguageModel, Output, Outputs
from treeopt.runtime.models.runner import Runner, make_graph_pool
from treeopt.runtime.rules.verify import Verdict
from treeopt.texts.stop import StoppingCriteria
from treeopt.trees import TokenTree
from treeopt.trees.tree_schedule import TreeSchedule


class Decoder:
    """Speculative decoding with any drafter.

    The output follows the target's distribution: at temperature 0 the tokens of plain decoding, above it the same
    probabilities.  A sequence depends on its prompt and seed alone, not on those decoded before.

    Args:
        target: the model that verifies.
        drafter: a draft model, which fills `tree`; a `Drafter`, which brings its own trees; None for plain decoding.
        tree: what a draft model drafts in every step; the root alone is plain decoding.
        rule: verification rule, by default `sequoia`, or `target` for a `Drafter` whose tokens are not sampled; at
            temperature 0 all rules are the same.
        temperature: 0 takes the most likely token.
        top_p: nucleus probability, above 0 and at most 1.
        top_k: the most likely tokens to sample from; 0 keeps all.
        sampling: temperature, top_p and top_k as one record, which replaces them.
        draft_sampling: what a static tree's children are sampled from, by default the target's temperature and all
            tokens.  It changes how many are accepted, never the distribution of the output.
        seed: of all random numbers; a sequence without a seed of its own derives one from this and its number.
        lossy: allow a rule under which the output does not follow the target's distribution.
        max_sequence_tokens: longest sequence, prompt included; at most and by default as long as the target takes and the
            drafter has room for.  A draft model that takes shorter sequences stops drafting at its own limit.
        max_nodes: nodes of the largest tree for `change_tree`; by default this tree's, or the largest that `on_step`
            may change to.
        cuda_graphs: whether passes are captured as CUDA graphs, each shape when it occurs first; by default on a CUDA
            device.
        on_step: called after every committed step with a `treeopt.runtime.decoding.observer.StepEvent`.

    The draft model may be on another device than the target; its tokens and probabilities are moved once per step.

    Raises InvalidValueError for values out of range, rules that do not fit the drafter, and models whose vocabulary
    sizes differ, OutOfMemoryError if caches, masks and probabilities need more memory than is free.
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
        max_sequence_tokens: int | None = None,
        max_nodes: int | None = None,
        cuda_graphs: bool | None = None,
        on_step: Observer | None = None,
    ) -> None:
        self.rule = choose_rule(rule, drafter, lossy=lossy)
        self.sampling = sampling or Sampling(temperature, top_p, top_k)
        self.draft_sampling = resolve_draft_sampling(self.sampling, draft_sampling)
        if max_nodes is None and tree is not None and isinstance(on_step, Controller):
            max_nodes = on_step.largest_tree_nodes(tree)
        self._setup = setup = Setup(
            target,
            drafter,
            tree,
            sampling=self.sampling,
            max_nodes=max_nodes,
            max_sequence_tokens=max_sequence_tokens,
        )
        setup.check_memory()
        if setup.tree is not None:
            setup.check_tree(setup.tree)
        self.target, self.draft_model = target, setup.draft
        self.max_nodes = setup.max_nodes
        self.max_sequence_tokens = setup.max_sequence_tokens
        pool = make_graph_pool(target.device, cuda_graphs)
        self._static: PlainDrafter | StaticTreeDrafter = PlainDrafter()
        if setup.draft is not None and setup.tree is not None and setup.max_nodes > 1:
            self._static = StaticTreeDrafter(
                setup.draft,
                setup.tree,
                rule=self.rule,
                sampling=self.draft_sampling,
                capacity=setup.max_sequence_tokens,
                max_nodes=setup.max_nodes,
                cuda_graphs=cuda_graphs,
                pool=pool if setup.draft.device == target.device else None,
            )
        self._drafter: Drafter = drafter if isinstance(drafter, Drafter) else self._static
        acceptance = Acceptance(self.rule, self.sampling, target)
        acceptance.prepare(self._static.tree)
        self._targets = SequencePool(self._new_targets)
        runner = Runner(target, max_nodes=setup.max_nodes, requested_states=self._drafter.requested_states, pool=pool)
        self._stepper = Stepper(self._drafter, runner, self._targets, acceptance, on_step)
        self._seed = seed
        self._sequence = 0
        """Number of the sequence that `step` decodes; 0 before the first `start`."""
        self._last_sequence = 0
        if isinstance(on_step, Controller):
            on_step.attach(self)

    @property
    def tree(self) -> TokenTree:
        """The static tree; the root alone if a drafter brings its own trees."""
        return self._static.tree

    @property
    def takes_trees(self) -> bool:
        """Whether a draft model fills a static tree, which `change_tree` may replace."""
        return isinstance(self._static, StaticTreeDrafter)

    def draft_logits(self, tokens: Sequence[int]) -> Tensor | None:
        """Return the draft model's logits (n, V) after each token of a new sequence.

        None without a draft model, or for more tokens than it takes.
        """
        static = self._static
        if not isinstance(static, StaticTreeDrafter) or len(tokens) > static.model.config.max_positions:
            return None
        return static.logits(tokens)

    def change_tree(self, tree: TokenTree) -> None:
        """Draft and verify another tree from the next step on; caches and captured graphs stay.

        Raises InvalidValueError for a tree of more than `max_nodes` nodes, for one that the decoder could not be made
        with, and if a drafter brings its own trees.
        """
        self._setup.check_tree(tree)
        self._use_tree(tree)

    def change_drafter(self, drafter: Drafter) -> None:
        """Draft with another drafter from the next step on, until `change_tree`.

        Meanwhile `target` replaces a rule for sampled drafts.  The draft model reads the tokens that it missed when it
        drafts again.

        Raises InvalidValueError for a drafter that samples its tokens, reads the target's states or has drafts of more
        than `max_nodes` tokens, and for a decoder that was made with its own drafter.
        """
        self._setup.check_drafter(drafter)
        self._stepper.select_drafter(drafter)

    def generate(
        self,
        token_ids: Sequence[int],
        max_new_tokens: int,
        *,
        stop: Sequence[Sequence[int]] = (),
        seed: int | None = None,
    ) -> Iterator[int]:
        """Return an iterator over new tokens, decoded on demand; it may be abandoned at any time.

        It ends after `max_new_tokens` tokens, with the target's end token, or with the first stop sequence.

        Args:
            token_ids: the prompt.
            max_new_tokens: most new tokens.
            stop: token sequences that end the output, and are included in it.
            seed: of this sequence, which then does not depend on how many were decoded before.

        Raises InvalidValueError, before anything runs, for an empty prompt, a token outside the vocabulary, or more
        tokens than the target takes; TreeoptError if another sequence was begun meanwhile.
        """
        return chain.from_iterable(self.stream(token_ids, max_new_tokens, stop=stop, seed=seed))

    def stream(
        self,
        token_ids: Sequence[int],
        max_new_tokens: int,
        *,
        stop: Sequence[Sequence[int]] = (),
        seed: int | None = None,
    ) -> Iterator[list[int]]:
        """Return an iterator over the new tokens of each step; arguments as for `generate`."""
        self._setup.check_request(token_ids, max_new_tokens)
        criteria = self._stopping_criteria(GenerationRequest(token_ids, max_new_tokens, stop))
        self.start(token_ids, seed=seed)
        return (step.tokens[:count] for step, count in self._run_steps(self.step, criteria, self._sequence))

    def decode_steps(
        self,
        token_ids: Sequence[int],
        min_new_tokens: int,
        step: Callable[[], Step] | None = None,
        *,
        seed: int | None = None,
    ) -> Iterator[Step]:
        """Return an iterator over whole steps until `min_new_tokens` new tokens, or the end of the sequence.

        There are fewer tokens if the longest sequence has no room for them.  `step` decodes one step, by default
        `Decoder.step`; `seed` is that of `generate`.

        Raises InvalidValueError as `start` does.
        """
        self.start(token_ids, seed=seed)
        new_tokens = min(min_new_tokens, self.max_sequence_tokens - len(token_ids))
        criteria = self._stopping_criteria(GenerationRequest(token_ids, new_tokens))
        return (result for result, _ in self._run_steps(step or self.step, criteria, self._sequence))

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
        """Return an iterator over the new tokens of each step of several sequences, with the number of the prompt.

        When a sequence ends, the next prompt joins.  The tokens of each are those of `generate` with the same seed.  A
        sequence that fails does not affect the others.

        Args:
            prompts: token ids; number 0 first.
            max_new_tokens: most new tokens of each.
            stop: token sequences that end an output.
            seeds: one for each prompt; by default those of successive calls to `generate`.
            batch_size: sequences at a time, each with its own caches.
            schedule: the tree for each batch size; by default the decoder's own.  The last one stays.

        Raises InvalidValueError, before anything runs, for a batch size, seeds, stops or a schedule that do not fit,
        OutOfMemoryError if the caches do not fit into memory; and at the end BatchError with the error of every
        sequence that could not be decoded.
        """
        if seeds is not None and len(seeds) != len(prompts):
            raise InvalidValueError(f"seeds: expected {len(prompts)}, one for each prompt. Got {len(seeds)}.")
        requests = [
            GenerationRequest(prompt, max_new_tokens, stop, None if seeds is None else seeds[number])
            for number, prompt in enumerate(prompts)
        ]
        return iterate_tokens(self.stream_all(requests, batch_size=batch_size, schedule=schedule), len(requests))

    def stream_all(
        self,
        requests: Sequence[GenerationRequest] | RequestQueue,
        *,
        batch_size: int = 8,
        schedule: TreeSchedule | None = None,
    ) -> Iterator[RequestOutput]:
        """Return an iterator over the outputs of requests, which may arrive in a `queue.Queue` during decoding.

        Requests are numbered in order of arrival, and join before the next step if there is room; None in the queue
        ends them.  While nothing is decoded, the iterator waits for the next request.

        The last output of a failed request has its error.  Raises what `generate_all` raises before anything runs,
        except for requests that arrive later.
        """
        if isinstance(requests, Sequence):
            batch_size = min(batch_size, max(1, len(requests)))
            queue: SimpleQueue[GenerationRequest | None] = SimpleQueue()
            for request in requests:
                self._stopping_criteria(request)  # raises for invalid stop sequences
                queue.put(request)
            queue.put(None)
            requests = queue
        self._setup.check_batch(batch_size, allocated=self._targets.free)
        if schedule is not None:
            for segment in schedule.trees:
                self._setup.check_tree(segment.tree)

        def before_step(running: int) -> None:
            if schedule is not None:
                self._use_tree(schedule.tree(running))

        self._reserve(batch_size)
        source = QueuedRequests(requests, self._activate)
        return decode_batch(self._stepper, source, batch_size, before_step=before_step)

    def start(self, token_ids: Sequence[int], *, seed: int | None = None) -> None:
        """Begin a sequence: prefill all of it but the last token, which becomes the root.

        Raises InvalidValueError, before anything runs, for an empty sequence, a token outside the vocabulary, or more
        tokens than the decoder takes.
        """
        self._setup.check_request(token_ids, 0)
        self._stepper.end(self._sequence)
        self._reserve(1)
        self._sequence, seed = self._number_sequence(seed)
        self._stepper.begin(self._sequence, token_ids, seed)

    def step(self) -> Step:
        """Decode one step; raises TreeoptError, and drops the sequence, if the target's logits are not finite."""
        (result,) = self._stepper.step([self._started])
        if isinstance(result, TreeoptError):
            self._stepper.end(self._sequence)
            self._sequence = 0
        return _raise_error(result)

    def draft(self) -> Proposal:
        """Return the draft of a step."""
        return self._stepper.draft([self._started])[0]

    def verify(self, proposal: Proposal) -> Output:
        """Return the target's logits and hidden states at every token of a proposal, from one pass."""
        return self._stepper.verify([self._started], [proposal])[0]

    def accept(self, proposal: Proposal, output: Output) -> Step:
        """Return the accepted path of a proposal and its bonus token; raises as `step`."""
        outputs = Outputs(output, [output.logits.shape[0]])
        (result,) = self._stepper.accept([self._started], [proposal], outputs)
        return _raise_error(result)

    def accept_verdict(self, tokens: Sequence[int], verdict: Verdict, output: Output) -> Step:
        """Return the step of a verdict on drafted tokens; raises as `step`."""
        return _raise_error(self._stepper.build_step(self._started, tokens, verdict, output))

    def commit(self, step: Step) -> None:
        """Keep the accepted path in the caches; the bonus token is the new root."""
        self._stepper.commit([self._started], [step])

    @contextmanager
    def observed(self, observer: Observer, now_s: Callable[[], float] = perf_counter) -> Iterator[None]:
        """Call another observer as well, with times from a clock that may wait for the device."""
        stepper = self._stepper
        before = stepper.on_step, stepper.now_s
        stepper.on_step, stepper.now_s = combine_observers(stepper.on_step, observer), now_s
        try:
            yield
        finally:
            stepper.on_step, stepper.now_s = before

    def check_request(self, token_ids: Sequence[int], max_new_tokens: int) -> None:
        """Raise the InvalidValueError that `generate` raises before anything runs."""
        self._setup.check_request(token_ids, max_new_tokens)

    @property
    def _started(self) -> int:
        if self._sequence == 0:
            raise TreeoptError("step: expected a sequence that has begun. Got none: call start(token_ids) first.")
        return self._sequence

    def _activate(self, number: int, request: GenerationRequest) -> ActiveRequest:
        """Assign a sequence to a request; raises InvalidValueError for an invalid one."""
        criteria = self._stopping_criteria(request)
        sequence, seed = self._number_sequence(request.seed)
        self._setup.check_request(request.token_ids, request.max_new_tokens)
        return ActiveRequest(number, sequence, request.token_ids, seed, criteria)

    def _number_sequence(self, seed: int | None) -> tuple[int, int]:
        """Return the number of a new sequence, and its seed, which by default depends on the number."""
        self._last_sequence += 1
        return self._last_sequence, sequence_seed(self._seed, self._last_sequence) if seed is None else seed

    def _use_tree(self, tree: TokenTree) -> None:
        """Draft a checked tree from the next step on."""
        self._stepper.select_drafter(None)
        if tree == self._static.tree:
            return
        self._static.change_tree(tree)
        self._stepper.acceptance.prepare(tree)

    def _reserve(self, sequences: int) -> None:
        """Allocate caches for a batch; those of a much larger batch are freed."""
        self._targets.reserve(sequences)
        if isinstance(self._drafter, SequenceDrafter):
            self._drafter.reserve(sequences)

    def _new_targets(self, sequences: int) -> list[TargetSequence]:
        caches = self.target.new_caches(self.max_sequence_tokens + self.max_nodes, sequences)
        return [TargetSequence(self.target, cache, self._drafter.requested_states) for cache in caches]

    def _stopping_criteria(self, request: GenerationRequest) -> StoppingCriteria:
        """Return the criteria of a request; raises InvalidValueError for invalid stop sequences."""
        sizes = self.target.config
        ends = () if request.ignore_end_tokens else sizes.end_tokens
        stops = [(token,) for token in ends if 0 <= token < sizes.vocabulary]  # some configurations list others, as -1
        return StoppingCriteria(request.max_new_tokens, [*stops, *request.stop], vocabulary=sizes.vocabulary)

    def _run_steps(
        self, step: Callable[[], Step], criteria: StoppingCriteria, sequence: int
    ) -> Iterator[tuple[Step, int]]:
        """Yield the steps of a sequence, and how many tokens of each belong to it."""
        while not criteria.reached:
            if self._sequence != sequence:
                raise TreeoptError("generate: another sequence has begun on this decoder. Make a decoder for each.")
            result = step()
            yield result, criteria.count(result.tokens)


def _raise_error(result: Step | TreeoptError) -> Step:
    if isinstance(result, TreeoptError):
        raise result
    return result
