"""Models whose logits are NaN are refused by name, and before anything is timed where they always are."""

from dataclasses import replace

import pytest
import torch

from tests.profiler.pretended import FakeClock
from tests.support.bench import bench
from tests.support.head_acceptance import head_acceptance
from treeopt.errors import TreeoptError, TreeoptWarning
from treeopt.profiler import Checkpoint, Measurement, Settings
from treeopt.profiler.acceptance.draft_record import RecordFiles, Recording, RecordSize
from treeopt.profiler.acceptance.positions import AcceptanceSequence
from treeopt.profiler.acceptance.traversal import count_reach
from treeopt.profiler.decoding import Decoding
from treeopt.records.sampling import GREEDY, Sampling
from treeopt.runtime import Transformer
from treeopt.runtime.drafters.medusa import MedusaHeads
from treeopt.trees import chain

SETTINGS = Settings(context_tokens=(20,), max_tokens=8, rounds=2, positions=60, depth=3, branching=3)
EVEN = Sampling(1.0)
DRAFT = r"^broken: expected a draft model whose logits are finite. Got NaN or infinity: .*float32"
TARGET = r"^broken: expected a target whose logits are finite. Got NaN or infinity: .*float32"


def broken(model, tokens=slice(None)):
    """Return the model without logits after texts with some tokens, by default after all."""
    embedding = model.weights.embedding.clone()
    embedding[tokens] = float("nan")
    return Transformer(model.config, replace(model.weights, embedding=embedding), name="broken")


@pytest.mark.parametrize("sampling", [GREEDY, EVEN])
def test_a_profile_is_refused_before_anything_is_timed(target, draft, prompts, sampling):
    settings, clock = replace(SETTINGS, samplings=(sampling,)), FakeClock(lambda: pytest.fail("timed"))
    for models, message in (((target, broken(draft)), DRAFT), ((broken(target), draft), TARGET)):
        measurement = Measurement(*models, prompts, settings, clock=clock, checkpoint=Checkpoint(None, ""))
        with pytest.raises(TreeoptError, match=message):
            measurement.profile(show_progress=False)


@pytest.mark.parametrize("sampling", [GREEDY, EVEN])
def test_texts_are_refused_where_they_come_by(target, draft, sampling):
    def counted(target, draft):
        text = AcceptanceSequence(target, draft, Decoding(sampling=sampling), branching=3, depth=3)
        return text.count([1, 2], 40).reached[0]

    assert counted(target, draft) == 40
    said = [token for token in range(23) if token not in (1, 2)]
    with pytest.raises(TreeoptError, match=DRAFT):
        counted(target, broken(draft, said))
    with pytest.raises(TreeoptError, match=TARGET):
        counted(broken(target, said), draft)


def test_reach_of_trees_is_refused(target, draft):
    for models, message in (((target, broken(draft)), DRAFT), ((broken(target), draft), TARGET)):
        with pytest.raises(TreeoptError, match=message):
            count_reach(*models, chain(2), [1, 2], 20, Decoding(sampling=EVEN), seed=0)


def test_draft_records_are_refused(target, draft, prompts):
    size = RecordSize(top_k=2, depth=3)
    for models, message in (((target, broken(draft)), DRAFT), ((broken(target), draft), TARGET)):
        recording = Recording(*models, prompts, replace(SETTINGS, record=size), files=RecordFiles(None))
        with pytest.raises(TreeoptError, match=message):
            recording.record(show_progress=False)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bench_warns_of_a_draft_and_refuses_a_target(target, draft, prompts, temperature):
    options = {"max_new_tokens": 4, "repeats": 1, "temperature": temperature, "show_progress": False}
    with pytest.warns(TreeoptWarning, match="^broken: expected a draft"):
        measured = bench(target, broken(draft), chain(2), prompts[:2], **options)
    assert measured.tokens_per_step == 1
    with pytest.raises(TreeoptError, match=TARGET):
        bench(broken(target), draft, chain(2), prompts[:2], **options)


def test_heads_are_refused(target, prompts):
    hidden = target.config.hidden
    weight = torch.zeros(2, hidden, hidden)
    weight[1, 0, 0] = float("nan")
    heads = MedusaHeads(target, weight, torch.zeros(2, hidden))
    with pytest.raises(TreeoptError, match=DRAFT.replace("broken", "Medusa heads of large")):
        head_acceptance(target, heads, prompts, sampling=GREEDY, positions=60, branching=3)
    other = broken(target)
    whole = MedusaHeads(other, torch.zeros(2, hidden, hidden), torch.zeros(2, hidden))
    with pytest.raises(TreeoptError, match=TARGET):
        head_acceptance(other, whole, prompts, sampling=GREEDY, positions=60, branching=3)
