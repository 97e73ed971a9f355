"""Tests on a GPU; skipped without one."""

import warnings
from collections import Counter
from itertools import cycle, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from tests.support.bench import bench
from tests.support.passes import new_cache
from treeopt.bundled import DFLASH, TARGET
from treeopt.profiler import Checkpoint, CudaClock, Measurement, Settings
from treeopt.runtime import Decoder, Sampling, draw, verify
from treeopt.runtime.drafters.dflash import load_dflash
from treeopt.runtime.drafters.dflash.drafters import make_block_runner, run_blocks
from treeopt.runtime.drafters.dflash.head import concatenate_layers
from treeopt.runtime.models.hf import load_adapter
from treeopt.runtime.models.model import SequenceInput
from treeopt.runtime.models.nodes import PassNodes
from treeopt.runtime.models.pair import load_pair
from treeopt.runtime.models.runner import GraphPool, Runner
from treeopt.texts.prompts import bench_prompts, load_prompts, profile_prompts
from treeopt.trees import chain, k_ary, level_widths

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; this machine has none"),
]


TREES = [level_widths([3, 4, 3, 2]), chain(4), chain(0), k_ary(2, 3)]


@pytest.fixture(scope="module")
def models():
    return load_pair(device="cuda")


@pytest.fixture(scope="module")
def half_models():
    return load_pair(device="cuda", dtype="bfloat16")


@pytest.fixture(scope="module")
def adapter_models():
    return SimpleNamespace(target=load_adapter(TARGET, device="cuda"))


@pytest.fixture
def captures(monkeypatch):
    """Return the list that every capture adds its pool to."""
    pools: list[GraphPool] = []
    capture = GraphPool.capture
    monkeypatch.setattr(GraphPool, "capture", lambda pool, work: pools.append(pool) or capture(pool, work))
    return pools


def text_with_changes(models, prompt, count, **arguments):
    """Return tokens that are decoded with another tree after every third step, and the decoder."""
    decoder = Decoder(models.target, models.draft, TREES[0], max_nodes=80, **arguments)
    return changing(decoder, prompt, count), decoder


def changing(decoder, prompt, count):
    tokens: list[int] = []
    trees = cycle(TREES)
    for number, step in enumerate(decoder.stream(prompt, count)):
        tokens += step
        if number % 3 == 2:
            decoder.change_tree(next(trees))
    return tokens


def test_logits_are_those_of_the_cpu(models) -> None:
    on_cpu = load_pair()
    tokens = torch.tensor(models.tokenizer.encode(load_prompts()[0]))
    logits = []
    for model in (on_cpu.target, models.target):
        sequence = SequenceInput.causal(new_cache(model, len(tokens)), tokens.to(model.device))
        logits.append(model.forward([sequence]).logits.cpu())

    torch.testing.assert_close(logits[1], logits[0], atol=5e-3, rtol=1e-3)


@pytest.mark.parametrize("tree", [chain(4), level_widths([3, 4, 3, 2])], ids=["chain", "tree"])
def test_greedy_output_equals_plain_decoding(models, tree) -> None:
    prompts = [models.tokenizer.encode(text) for text in bench_prompts(load_prompts())[:3]]
    measured = bench(models.target, models.draft, tree, prompts, max_new_tokens=64, repeats=1)

    assert measured.identical


def test_profile_with_cuda_events(models) -> None:
    prompts = [models.tokenizer.encode(text) for text in profile_prompts(load_prompts())[:4]]
    settings = Settings(max_tokens=32, rounds=3, positions=200, samplings=(Sampling(0.6),))
    clock = CudaClock(models.target.device)
    measurement = Measurement(
        models.target, models.draft, prompts, settings, clock=clock, checkpoint=Checkpoint(None, "test")
    )
    profile = measurement.profile(show_progress=False)

    assert profile.machine.device.startswith("cuda")
    assert profile.latencies[0].verify.medians_s.min() > 0
    assert 0 < profile.acceptance().table.p[0, 0] <= 1


@pytest.mark.parametrize("fixture", ["models", "half_models", "adapter_models"])
@pytest.mark.parametrize(
    "length", [1, 200, 203, 300]
)  # with 203 the mask's rows are whole sixteens of bytes, and shifted
def test_logits_of_a_graph_are_those_of_the_eager_pass(fixture, length, request) -> None:
    model = request.getfixturevalue(fixture).target
    tree = level_widths([3, 4, 3, 2])
    text = torch.arange(length, device=model.device) % model.config.vocabulary
    tokens = torch.arange(tree.nodes, device=model.device) % model.config.vocabulary
    cache = new_cache(model, 400)
    model.prefill(text, cache)
    inputs = [SequenceInput(cache, tokens, PassNodes.whole(tree))]
    runner = Runner(model, max_nodes=80, pool=GraphPool(model.device))
    logits = [runner.forward(inputs).logits.float().clone() for _ in range(3)]  # eager, captured, replayed

    assert len(runner.captured) == 1
    assert torch.equal(logits[1], logits[2])
    assert (logits[1] - logits[0]).norm() < (1e-4 if model.dtype == torch.float32 else 0.03) * logits[0].norm()


@pytest.mark.parametrize("fixture", ["models", "half_models", "adapter_models"])
def test_logits_of_a_graph_of_several_sequences_are_those_of_the_eager_pass(fixture, request) -> None:
    model = request.getfixturevalue(fixture).target
    trees = [level_widths([3, 4, 3, 2]), chain(0), chain(4)]
    inputs = []
    for length, tree, cache in zip((200, 1, 77), trees, model.new_caches(400, 4), strict=False):
        model.prefill(torch.arange(length, device=model.device) % model.config.vocabulary, cache)
        tokens = torch.arange(tree.nodes, device=model.device) % model.config.vocabulary
        inputs.append(SequenceInput(cache, tokens, PassNodes.whole(tree)))
    runner = Runner(model, max_nodes=80, pool=GraphPool(model.device))
    logits = [runner.forward(inputs).logits.float().clone() for _ in range(3)]

    assert len(runner.captured) == 1
    assert torch.equal(logits[1], logits[2])
    assert (logits[1] - logits[0]).norm() < (1e-4 if model.dtype == torch.float32 else 0.03) * logits[0].norm()


@pytest.mark.parametrize("fixture", ["models", "half_models"])
def test_logits_of_a_block_head_graph_are_those_of_the_eager_pass(fixture, request) -> None:
    target = request.getfixturevalue(fixture).target
    head = load_dflash(DFLASH, target)
    text = torch.arange(40, device=target.device) % target.config.vocabulary
    states = target.compute_states(text, head.requested_states)
    caches = head.new_caches(60, 2)
    eager, graphs = (make_block_runner(head, cuda_graphs) for cuda_graphs in (False, True))
    for counts in ((0, 3), (5, 1), (2, 8), (5, 1)):
        unread = [concatenate_layers(states.map(lambda layer, count=count: layer[:count])) for count in counts]
        inputs = [head.feed_block(7, new, cache) for new, cache in zip(unread, caches, strict=True)]
        for batch in (inputs, inputs[:1]):
            expected, replayed = (run_blocks(runner, batch, head.levels).float() for runner in (eager, graphs))
            assert (replayed - expected).norm() < (1e-4 if head.dtype == torch.float32 else 0.03) * expected.norm()
        for cache, count in zip(caches, counts, strict=True):
            cache.length += count

    assert graphs.captured


def test_greedy_batch_outputs_equal_plain_decoding(models, captures) -> None:
    prompts = [models.tokenizer.encode(text) for text in bench_prompts(load_prompts())[:4]]
    plain = Decoder(models.target, None, chain(0), temperature=0.0, cuda_graphs=False)
    expected = [list(plain.generate(prompt, 64)) for prompt in prompts]
    decoder = Decoder(models.target, models.draft, TREES[0], temperature=0.0)
    outputs: list[list[int]] = [[] for _ in prompts]
    for number, tokens in decoder.generate_all(prompts, 64, batch_size=3):
        outputs[number] += tokens

    assert outputs == expected
    assert captures


@pytest.mark.parametrize("tree", TREES)
def test_greedy_output_of_graphs_equals_eager(models, tree) -> None:
    prompt = models.tokenizer.encode(bench_prompts(load_prompts())[0])
    outputs = [
        list(Decoder(models.target, models.draft, tree, temperature=0.0, cuda_graphs=graphed).generate(prompt, 128))
        for graphed in (False, True)
    ]

    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("fixture", ["models", "half_models"])
@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_graph_replay_equals_a_call(fixture, temperature, request, monkeypatch) -> None:
    models = request.getfixturevalue(fixture)
    prompt = models.tokenizer.encode(bench_prompts(load_prompts())[1])
    replayed, _ = text_with_changes(models, prompt, 128, temperature=temperature)
    monkeypatch.setattr(GraphPool, "capture", lambda _, work: work)
    called, _ = text_with_changes(models, prompt, 128, temperature=temperature)

    assert replayed == called


def test_tree_change_reuses_graphs(models, captures) -> None:
    prompt = models.tokenizer.encode(bench_prompts(load_prompts())[0])
    plain = list(Decoder(models.target, None, chain(0), temperature=0.0, cuda_graphs=False).generate(prompt, 128))
    text, decoder = text_with_changes(models, prompt, 128, temperature=0.0)
    outputs = [text, changing(decoder, prompt, 128)]  # the second text may bring further shapes
    count = len(captures)
    outputs.append(changing(decoder, prompt, 128))

    assert outputs == [plain] * 3
    assert count > 0
    assert len(set(captures)) == 1
    assert len(captures) == count


def test_graphs_are_not_freed_during_a_capture() -> None:
    pool, numbers, calls = GraphPool(torch.device("cuda")), torch.zeros(4, device="cuda"), []
    gone = [pool.capture(lambda: numbers.add_(1))]

    def work() -> None:
        calls.append(numbers.mul_(2))
        if len(calls) == 2:  # the call that is captured
            ring = [gone.pop()]
            ring.append(ring)  # only Python's collector can free it
            del ring
            assert len([[] for _ in range(10_000)]) == 10_000  # and so many new lists wake it

    replay = pool.capture(work)
    numbers.fill_(1)
    replay()
    assert numbers.tolist() == [2] * 4


def test_graphs_are_optional(models, captures) -> None:
    prompt = models.tokenizer.encode(bench_prompts(load_prompts())[0])
    list(Decoder(models.target, models.draft, chain(2), cuda_graphs=False).generate(prompt, 32))

    assert captures == []


def test_greedy_step_synchronizes_at_most_three_times(models) -> None:
    decoder = Decoder(models.target, models.draft, level_widths([3, 4, 3, 2]), temperature=0.0)
    prompt = models.tokenizer.encode(bench_prompts(load_prompts())[0])
    for _ in range(2):  # the passes of the second text have the shapes of the first and are captured
        list(decoder.generate(prompt, 64))
    decoder.start(prompt)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(10):
                decoder.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = [warning for warning in caught if "synchronizing CUDA operation" in str(warning.message)]

    assert 10 <= len(waits) <= 30


@pytest.mark.parametrize("rule", ["sequoia", "specinfer", "target", "traversal"])
def test_two_tokens_follow_the_distribution_of_the_target(rule) -> None:
    device, steps, vocabulary, tree = torch.device("cuda"), 3000, 4, level_widths([2, 2])
    noise = np.random.default_rng(1)
    target, draft = noise.dirichlet(np.ones(vocabulary), size=(2, vocabulary))
    target_distributions, draft_distributions = (
        torch.tensor(distributions, device=device) for distributions in (target, draft)
    )
    generator = torch.Generator(device).manual_seed(2)
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(steps):
        tokens = torch.zeros(tree.nodes, dtype=torch.int64, device=device)
        for level, below in zip(tree.levels[:-1], tree.levels[1:], strict=True):
            children = torch.tensor(tree.child_counts[level], dtype=torch.int64, device=device)
            tokens[below] = draw(rule, draft_distributions[tokens[level]], children, generator)
        verdict = verify(rule, tree, tokens, draft_distributions[tokens], target_distributions[tokens], generator)
        text = [*tokens[verdict.path[1:].to(device)].tolist(), verdict.bonus]
        if len(text) == 1:
            text.append(int(noise.choice(vocabulary, p=target[text[0]])))
        counts[tuple(text[:2])] += 1
    pairs = list(product(range(vocabulary), repeat=2))
    expected = [steps * target[0, first] * target[first, second] for first, second in pairs]

    assert stats.chisquare([counts[pair] for pair in pairs], expected).pvalue > 1e-3
