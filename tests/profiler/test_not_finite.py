"""Models whose logits are NaN are refused by name, before anything is timed if they always are."""

from dataclasses import replace

import pytest
import torch

from tests.profiler.pretended import FakeClock, measure_profile
from tests.support.bench import bench
from tests.support.head_acceptance import head_acceptance
from treeopt.errors import TreeoptError, TreeoptWarning
from treeopt.profiler import Settings
from treeopt.profiler.acceptance.draft_record import RecordFiles, Recording, RecordSize
from treeopt.profiler.acceptance.positions import PositionSampler, continue_prompts
from treeopt.profiler.acceptance.traversal import count_reach
from treeopt.profiler.decoding import Decoding
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime import Transformer
from treeopt.runtime.drafters.medusa import MedusaHeads
from treeopt.trees import chain

SETTINGS = Settings(context_tokens=(20,), max_tokens=8, rounds=2, positions=60, depth=3, branching=3)
WARM = Sampling(1.0)
DRAFT = r"^broken: expected a draft model whose logits are finite. Got NaN or infinity: .*float32"
TARGET = r"^broken: expected a target whose logits are finite. Got NaN or infinity: .*float32"


def break_model(model, tokens=slice(None)):
    """Return the model with NaN logits after sequences with some tokens, by default after all."""
    embedding = model.weights.embedding.clone()
    embedding[tokens] = float("nan")
    return Transformer(model.config, replace(model.weights, embedding=embedding), name="broken")


@pytest.fixture(params=[DRAFT, TARGET], ids=["draft", "target"])
def broken_pair(request, target, draft):
    """Return a pair with a broken model, and the error that names it."""
    pair = (target, break_model(draft)) if request.param == DRAFT else (break_model(target), draft)
    return *pair, request.param


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_profile_is_refused_before_anything_is_timed(broken_pair, prompts, sampling):
    *pair, message = broken_pair
    clock = FakeClock(lambda: pytest.fail("timed"))
    with pytest.raises(TreeoptError, match=message):
        measure_profile(*pair, prompts, replace(SETTINGS, samplings=(sampling,)), clock=clock)


@pytest.mark.parametrize("sampling", [GREEDY, WARM])
def test_acceptance_is_refused_at_the_first_broken_position(target, draft, sampling):
    def count(target, draft):
        sampler = PositionSampler(target, Decoding(sampling=sampling), branching=3)
        return len(continue_prompts(target, draft, [sampler], [[1, 2]], 40)[0].expected)

    assert count(target, draft) == 40
    generated = [token for token in range(23) if token not in (1, 2)]
    with pytest.raises(TreeoptError, match=DRAFT):
        count(target, break_model(draft, generated))
    with pytest.raises(TreeoptError, match=TARGET):
        count(break_model(target, generated), draft)


def test_reach_of_trees_and_draft_records_are_refused(broken_pair, prompts):
    *pair, message = broken_pair
    with pytest.raises(TreeoptError, match=message):
        count_reach(*pair, chain(2), [1, 2], 20, Decoding(rule="traversal", sampling=WARM), seed=0)
    settings = replace(SETTINGS, record=RecordSize(top_k=2, depth=3))
    recording = Recording(*pair, prompts, settings, files=RecordFiles(None))
    with pytest.raises(TreeoptError, match=message):
        recording.record(show_progress=False)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bench_warns_of_a_draft_and_refuses_a_target(target, draft, prompts, temperature):
    options = {"max_new_tokens": 4, "repeats": 1, "temperature": temperature}
    with pytest.warns(TreeoptWarning, match="^broken: expected a draft"):
        measured = bench(target, break_model(draft), chain(2), prompts[:2], **options)
    assert measured.tokens_per_step == 1
    with pytest.raises(TreeoptError, match=TARGET):
        bench(break_model(target), draft, chain(2), prompts[:2], **options)


def test_heads_are_refused(target, prompts):
    hidden = target.config.hidden
    weight = torch.zeros(2, hidden, hidden)
    weight[1, 0, 0] = float("nan")
    broken = break_model(target)
    for model, weights, message in (
        (target, weight, DRAFT.replace("broken", "Medusa heads of large")),
        (broken, torch.zeros(2, hidden, hidden), TARGET),
    ):
        heads = MedusaHeads(model, weights, torch.zeros(2, hidden))
        with pytest.raises(TreeoptError, match=message):
            head_acceptance(model, heads, prompts, sampling=GREEDY, positions=60, branching=3)
