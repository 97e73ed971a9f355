"""Streams that change, decoded with toy models: the same texts in every way, and plans that are what they are called."""

import subprocess
from dataclasses import replace

import pytest

from tests.methods.toys import pair_of
from treeopt.adaptation.ways import shape_of
from treeopt.methods import drift
from treeopt.methods.drift import DriftBench, DriftEffort, median_of
from treeopt.methods.drift_streams import Circumstances, Stream, StreamTexts, joined, streams_of
from treeopt.methods.stream_names import DRIFTS, STEADY, dashed, named
from treeopt.profiler.bench.drift import StreamPart, Way, computing, decode_stream
from treeopt.records.drift import TimedStream, TimedText
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.prompt_lookup import PromptLookupSetting
from treeopt.trees import chain

LITTLE = DriftEffort(tokens=48, new_tokens=8, max_nodes=8, rounds=1, positions=80, branching=3, depth=3)


@pytest.fixture(scope="module")
def bench(target, draft):
    return DriftBench(
        models=pair_of(target, draft), effort=LITTLE, learning_missing="nothing learns here", show_progress=False
    )


@pytest.fixture(scope="module")
def stream(draft, target, prompts):
    before = Circumstances(draft=draft, measured_prompts=prompts, prompts=prompts, context_tokens=16)
    return Stream(name="draft swapped", what="another draft", before=before, behind=replace(before, draft=target))


@pytest.fixture(scope="module")
def decoded(bench, stream):
    return bench.run([stream])[0]


def test_every_way_decodes_every_text_and_all_are_the_same(decoded):
    texts = LITTLE.tokens // LITTLE.new_tokens
    assert decoded.identical
    assert [len(way.texts) for way in (decoded.fixed, decoded.adapted, decoded.best)] == [texts] * 3
    assert {each.tokens for each in decoded.fixed.texts} == {LITTLE.new_tokens}
    assert decoded.drift_text == round(LITTLE.drift_at * texts)
    assert (decoded.learning, decoded.learning_missing) == (None, "nothing learns here")


def test_the_best_way_has_the_plan_made_behind_the_change_and_the_fixed_one_does_not(bench, stream, monkeypatch):
    made = []
    decoder = DriftBench._decoder

    def noted(self, where, tree, observer=None, draft=None):
        made.append((where is stream.behind, tree, observer is not None, draft or where.draft))
        return decoder(self, where, tree, observer, draft)

    monkeypatch.setattr(DriftBench, "_decoder", noted)
    trees = iter([chain(1), chain(3)])
    monkeypatch.setattr("treeopt.methods.drift.plan_for", lambda *_: _Planned(next(trees)))
    profile = bench.profile(stream.before)
    learnt = []
    with_learner = replace(bench, learner=lambda draft: (draft, learnt.append))
    found = with_learner.decoded(stream, profile, profile)
    assert [(behind, tree.nodes, observed) for behind, tree, observed, _ in made] == [
        (False, 2, False), (False, 2, True), (False, 2, False), (False, 2, True),
        (True, 2, False), (True, 2, True), (True, 4, False), (True, 2, True),
    ]  # fmt: skip
    assert all(draft is (stream.behind if behind else stream.before).draft for behind, _, _, draft in made)
    assert found.learning is not None
    assert learnt, "the learner is told of steps"


class _Planned:
    def __init__(self, tree):
        self.tree, self.shape = tree, "a plan" if tree is None else f"{tree.nodes} nodes"


def test_plans_may_be_prompt_lookup_where_it_was_measured(bench, stream, monkeypatch):
    """The profile is measured with toys; that prompt lookup is the fastest on one side of the change is said of it here."""
    before, behind = (replace(each, lookups=True) for each in (stream.before, stream.behind))
    profile = bench.profile(before)
    (measured,) = profile.drafters
    values = measured.decodes[0].settings[0].values
    looked_up = _Planned(None)
    looked_up.setting = measured.setting(values)
    setting = PromptLookupSetting(**{each.name: each.value for each in values})
    made, recalibration = [], drift._recalibration
    monkeypatch.setattr(drift, "_recalibration", lambda *given: made.append(recalibration(*given)) or made[-1])
    for plans in ([_Planned(chain(2)), looked_up], [looked_up, _Planned(chain(2))]):
        monkeypatch.setattr(drift, "plan_for", lambda profile, where, plans=plans: plans[where is behind])  # noqa: ARG005
        found = bench.decoded(replace(stream, before=before, behind=behind), profile, profile)
        told = [shape_of(setting) if each is looked_up else each.shape for each in plans]
        assert [found.planned, found.planned_behind] == told
        assert found.identical
    assert [each._begin_with for each in made] == [None, setting]


def test_of_repeats_the_median_time_of_every_text_counts(decoded):
    def row(*seconds):
        texts = tuple(TimedText(tokens=8, seconds=each) for each in seconds)
        return replace(decoded, fixed=TimedStream(texts=texts), identical=seconds[0] < 9)

    found = median_of([row(1.0, 5.0), row(3.0, 4.0), row(9.0, 6.0)])
    assert [text.seconds for text in found.fixed.texts] == [3.0, 5.0]
    assert found.identical is False
    assert found.learning is None


def test_streams_change_in_one_thing_each(target, draft, prompts):
    texts = StreamTexts(measured=prompts, held_out=prompts, prose=prompts)
    found = streams_of(pair_of(target, draft), texts, new_tokens=8, spoilt=target)
    assert [each.name for each in found] == [*DRIFTS, *STEADY]
    short = found[0].before
    for each in found[: len(DRIFTS)]:
        assert short in (replace(side, lookups=False, also_measured=None) for side in (each.before, each.behind))
        assert not each.steady
        assert {each.before.lookups, each.behind.lookups} == {each.name == "text that repeats itself"}
    for each in found[len(DRIFTS) :]:
        assert each.steady
    assert found[2].behind == replace(short, sampling=Sampling(1.0))
    assert found[3].behind == replace(short, busy=True)
    assert found[4].before == replace(found[4].behind, sampling=Sampling(1.0))
    assert found[5].behind == found[2].behind
    assert found[5].before == replace(short, also_measured=Sampling(1.0))
    assert found[6].behind == found[7].before == replace(short, draft=target)
    assert {len(prompt) for prompt in found[1].behind.prompts} == {found[1].behind.context_tokens}
    without = streams_of(pair_of(target, draft), texts, new_tokens=8, spoilt=None)
    assert [each.name for each in without] == [*DRIFTS[:-2], *STEADY[:-1]]


def test_prompts_that_come_again_are_shorter(draft):
    where = Circumstances(draft=draft, measured_prompts=[], prompts=[[1] * 12, [2] * 12], context_tokens=12)
    assert [len(prompt) for prompt in where.part(5).prompts] == [12, 12, 7, 7, 2]
    assert joined([[1], [2, 3]], 3) == [[1, 2, 3], [2, 3, 1]]


def test_texts_are_decoded_in_turn_and_only_steps_are_timed(target, draft, prompts):
    clock = iter(range(1000))
    order = []
    parts = [StreamPart(prompts=prompts[:2]), StreamPart(prompts=prompts[:1])]

    def way(name):
        def make():
            order.append(name)
            return Decoder(target, draft, chain(2), temperature=0.0)

        return Way(decoders=[make, make])

    found = decode_stream(parts, [way("a"), way("b")], new_tokens=6, now_s=lambda: float(next(clock)))
    assert order == ["a", "b", "a", "b"]
    assert [each.seconds for each in found[0].texts] == [1.0] * 3
    assert found[0].tokens == found[1].tokens


def test_another_process_computes_and_ends(monkeypatch):
    started = []
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a: started.append(popen(*a)) or started[-1])
    with computing(busy=False):
        assert started == []

    def interrupted():
        with computing(busy=True):
            assert started[0].poll() is None
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert started[0].poll() is not None


def test_every_stream_is_found_by_its_name_with_spaces_or_dashes_and_no_other_is():
    names = (*DRIFTS, *STEADY)
    for name in names:
        assert dashed(name).replace("-", "").isalnum()  # one word, whatever shell takes it apart
        for asked in (name, dashed(name)):
            assert [each for each in names if named(asked, each)] == [name]
    assert [each for each in names if named("spoilt", each)] == ["draft spoilt", "steady: spoilt draft"]
    assert not any(named(nothing, each) for nothing in ("", "-", "code prose", "verse") for each in names)
