"""Measuring until a plan is certain, on pretended machines whose passes are the only thing that takes time."""

from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
import torch

from tests.profiler.pretended import NO_WARM_UP, machine_and_pair
from treeopt.errors import TreeoptWarning
from treeopt.planner.certainty import Certainty, certainty
from treeopt.profiler import Checkpoint, Measurement, Settings, profile_run
from treeopt.profiler.acceptance.incremental import MIN_SEQUENCES
from treeopt.profiler.budget import Budget
from treeopt.profiler.latency import disturbance
from treeopt.profiler.latency.steps import StepTimer
from treeopt.records.sampling import Sampling
from treeopt.records.timing_quality import MIN_SAMPLES
from treeopt.runtime.drafters.registry import LoadedDrafter
from treeopt.runtime.models.model import NO_STATES, Output, Outputs
from treeopt.runtime.models.padded_batch import compute_positions, last_outputs
from treeopt.trees import chain

CONTEXT = 30
PROMPTS = [[number % 20, 3, number % 7] for number in range(40)]
BUDGET_S = 10.0
SETTINGS = Settings(context_tokens=(CONTEXT,), max_tokens=64, time_budget_s=BUDGET_S, depth=4, branching=4)


def slow_draft_s(width, context, batch):  # noqa: ARG001
    return 8e-3 + 2e-5 * width


def fast_draft_s(width, context, batch):  # noqa: ARG001
    return 1e-3 + 1e-6 * width


def verify_s(tokens, context, batch):  # noqa: ARG001
    return 4e-3 + 2e-5 * tokens


class Run:
    """One profile; its clock, and that of its budget, is the pretended machine's."""

    def __init__(
        self,
        make_model,
        *,
        draft=fast_draft_s,
        sigma=0.02,
        drift=lambda _: 1.0,
        plan=certainty,
        checkpoint=None,
        budget_s=BUDGET_S,
        drafters=(),
        draft_model=True,
        **changes,
    ):
        machine = {"verify": verify_s, "draft": draft, "sigma": sigma, "drift": drift, "warm_up": NO_WARM_UP}
        self.machine, *models = machine_and_pair(make_model, (CONTEXT,), **machine)
        target, small = (undecided(model) for model in models)
        small = small if draft_model else None
        self.checkpoint = checkpoint or Checkpoint(None, "")
        self.plans = []
        self.plan = plan
        self.budget = Budget(budget_s, self.checkpoint, now_s=lambda: self.machine.passes_s)
        self.measurement = Measurement(
            target,
            small,
            PROMPTS,
            replace(SETTINGS, time_budget_s=budget_s, **changes),
            clock=self.machine,
            checkpoint=self.checkpoint,
            certainty=self._certainty,
            budget=self.budget,
            fastest_tree=lambda _: chain(2),
            drafters=[
                LoadedDrafter(name=name, source=None, digest=None, target=target, draft=small, heads=None, capacity=256)
                for name in drafters
            ],
        )

    def _certainty(self, profile, **where):
        self.plans.append(self.plan(profile, **where))
        return self.plans[-1]

    def profile(self):
        return self.measurement.profile(show_progress=False)


def undecided(model):
    """Return a pretended model whose likeliest token changes with the text, so that drafts are accepted now and then."""
    forward = model.forward

    def spread(inputs, requested_states=NO_STATES, *, last_only=False):
        outputs = forward(inputs, requested_states)
        tokens, positions = (
            torch.cat([sequence.tokens for sequence in inputs]),
            torch.from_numpy(compute_positions(inputs)),
        )
        ahead = (3 * tokens + positions) % 7 + (model.name == "small") * (positions % 3 == 0)
        logits = outputs.logits + torch.nn.functional.one_hot(ahead, outputs.logits.shape[-1])
        found = Outputs(Output(logits), outputs.sizes)
        return last_outputs(found) if last_only else found

    model.forward = spread
    return model


def answer(probability, weakest="verify"):
    """Return a planner that always answers the same."""
    found = Certainty(
        probability=probability,
        gains={weakest: 0.5},
        verify_tokens=frozenset({4, 6}),
        draft_widths=frozenset({1, 2}),
    )
    return lambda *_, **__: found


def test_a_clear_winner_ends_it_early(make_model):
    """Drafting takes twice as long as the target's pass: plain decoding wins whatever is accepted."""
    run = Run(make_model, draft=slow_draft_s, budget_s=20.0)
    profile = run.profile()
    assert run.measurement.certainty.probability >= 0.9
    assert run.machine.passes_s < 15.0
    (latency,) = profile.latencies
    assert len(latency.verify.timings[0].samples_s) >= MIN_SAMPLES
    assert profile.acceptance().prompts >= MIN_SEQUENCES
    assert certainty(profile, temperature=0.0, context_tokens=CONTEXT, batch_size=1).probability >= 0.9


def test_where_nothing_is_certain_the_budget_is_spent_and_kept(make_model):
    run = Run(make_model, plan=answer(0.5))
    run.profile()
    assert 0.95 * BUDGET_S < run.machine.passes_s < 1.05 * BUDGET_S
    assert sum(run.budget.spent_s.values()) == pytest.approx(run.machine.passes_s, rel=0.05)


def test_a_real_plan_that_is_uncertain_uses_the_budget_and_becomes_surer(make_model):
    run = Run(make_model, sigma=0.3)
    run.profile()
    assert run.machine.passes_s < 1.05 * BUDGET_S
    if run.measurement.certainty.probability < 0.9:
        assert run.machine.passes_s > 0.95 * BUDGET_S


@pytest.mark.parametrize("part", ["verify", "draft", "overhead", "acceptance"])
def test_what_is_least_certain_gets_most_of_the_time(make_model, monkeypatch, part):
    monkeypatch.setattr("treeopt.profiler.refinement.MAX_SAMPLES", 10**6)
    spent = Run(make_model, plan=answer(0.5, part), budget_s=6.0)
    spent.profile()
    other = Run(make_model, plan=answer(0.5, "draft" if part == "verify" else "verify"), budget_s=6.0)
    other.profile()
    assert spent.budget.spent_s[part] > 1.9 * other.budget.spent_s[part]


def test_what_is_certain_still_has_the_samples_that_statistics_need(make_model):
    run = Run(make_model, plan=answer(1.0))
    profile = run.profile()
    (latency,) = profile.latencies
    for tokens in (4, 6):
        place = latency.verify.tokens.tolist().index(tokens)
        assert len(latency.verify.timings[place].samples_s) >= MIN_SAMPLES
    assert min(len(each.steps.samples_s) for each in latency.steps[0].trees) >= MIN_SAMPLES
    assert profile.acceptance().prompts == MIN_SEQUENCES
    assert run.machine.passes_s < BUDGET_S


@pytest.mark.parametrize("interrupted", [30, 400])
def test_a_resumed_run_keeps_all_samples_and_has_the_time_that_is_left(make_model, tmp_path, interrupted):
    path = tmp_path / "checkpoint"
    first = Run(make_model, plan=answer(0.5), checkpoint=Checkpoint(path, "h"))
    time_s = first.machine.time_s

    def until(work):
        if first.machine.timed == interrupted:
            raise KeyboardInterrupt
        return time_s(work)

    first.machine.time_s = until
    with pytest.raises(KeyboardInterrupt):
        first.profile()
    spent_s = first.machine.passes_s
    kept = {kind: Checkpoint(path, "h", resume=True).samples(kind) for kind in first.checkpoint.kinds()}
    run = Run(make_model, plan=answer(0.5), checkpoint=Checkpoint(path, "h", resume=True))
    run.profile()
    assert run.machine.passes_s + spent_s == pytest.approx(BUDGET_S, rel=0.06)
    for kind, samples in kept.items():
        for key, values in samples.items():
            assert run.checkpoint.samples(kind)[key][: len(values)] == values


def test_every_condition_counts_and_the_least_certain_one_is_refined(make_model):
    def planned(profile, *, temperature, context_tokens, batch_size):  # noqa: ARG001
        return answer(1.0 if temperature == 0 else 0.5)()

    run = Run(make_model, plan=planned, samplings=(Sampling(0.0), Sampling(0.8)))
    profile = run.profile()
    greedy, sampled = (
        sum(len(each.samples_s) for each in latency.verify.timings)
        for latency in sorted(profile.latencies, key=lambda each: bool(each.sampled))
    )
    assert sampled > 3 * greedy
    assert run.measurement.certainty.probability == 0.5


def test_acceptance_is_counted_further_on_the_same_texts_where_all_were_counted(make_model):
    run = Run(make_model, plan=answer(0.5, "acceptance"), budget_s=20.0)
    found = run.profile().acceptance()
    assert found.prompts == len(PROMPTS)
    assert found.positions > 64 * len(PROMPTS)


def test_a_fixed_amount_has_no_budget(make_model):
    machine, *models = machine_and_pair(make_model, (CONTEXT,), warm_up=NO_WARM_UP)
    settings = replace(SETTINGS, time_budget_s=None, rounds=3, positions=120)
    measurement = Measurement(*models, PROMPTS, settings, clock=machine, checkpoint=Checkpoint(None, ""))
    profile = measurement.profile(show_progress=False)
    assert measurement.budget is None
    assert {len(each.samples_s) for each in profile.latencies[0].verify.timings} == {3}
    assert profile.acceptance().positions == 120


@pytest.mark.parametrize("names", [("prompt-lookup",), ("prompt-lookup", "lookahead")])
def test_other_drafters_are_within_the_budget_too(make_model, names):
    run = Run(make_model, plan=answer(0.5), drafters=names, budget_s=20.0)
    profile = run.profile()
    assert [each.name for each in profile.drafters] == list(names)
    assert all(decodes.plain.count >= 2 for each in profile.drafters for decodes in each.decodes)
    assert run.machine.passes_s < 1.1 * 20.0
    assert run.budget.spent_s["drafters"] > 20.0 / 6


def test_a_target_alone_has_times_and_drafters_within_the_budget(make_model):
    run = Run(make_model, drafters=("prompt-lookup",), draft_model=False, budget_s=20.0)
    profile = run.profile()
    assert profile.acceptances == ()
    assert run.plans == []
    assert run.machine.passes_s < 1.1 * 20.0
    assert len(profile.latencies[0].verify.timings[0].samples_s) >= MIN_SAMPLES


@pytest.mark.parametrize(("confidence", "asked", "texts"), [(0.95, 1, 8), (0.5, 2, 20)])
def test_drafters_decode_more_prompts_until_the_choice_among_them_is_certain(
    make_model, monkeypatch, confidence, asked, texts
):
    """With time for all prompts: 8, 16, 20."""
    answers = []
    monkeypatch.setattr(profile_run, "choice_confidence", lambda choices: answers.append(choices) or confidence)
    monkeypatch.setattr(f"{__name__}.PROMPTS", PROMPTS[:20])
    run = Run(make_model, drafters=("prompt-lookup", "lookahead"), draft_model=False, budget_s=10_000.0)
    profile = run.profile()
    decoded = [decodes for each in profile.drafters for decodes in each.decodes]
    assert [each.plain.count for each in decoded] == [texts, texts]
    assert len(answers) == asked  # not after the last prompt
    assert [len(choices) for choices in answers] == [3] * len(answers)  # plain decoding is one of them
    assert run.measurement.choice_confidence == confidence
    kinds = [kind for kind in run.checkpoint.kinds() if kind.startswith("decode plain")]
    assert [len([*run.checkpoint.entries(kind)]) for kind in kinds] == [texts, texts]  # no prompt was decoded twice


def test_traversal_on_trees_is_within_the_budget_too(make_model):
    changes = {"rules": ("sequoia", "traversal"), "samplings": (Sampling(0.8),)}
    run = Run(make_model, plan=answer(0.5), budget_s=15.0, **changes)
    profile = run.profile()
    assert [each.rule for each in profile.acceptances] == ["sequoia", "traversal"]
    assert run.machine.passes_s < 1.1 * 15.0


def test_contexts_that_there_is_no_time_to_decode_up_to_are_left_out_with_a_warning(make_model):
    contexts = {"context_tokens": (CONTEXT, 400), "budget_s": 4.0}
    run = Run(make_model, plan=answer(0.5), **contexts)
    with pytest.warns(TreeoptWarning, match="up to 400 tokens takes more than half"):
        profile = run.profile()
    assert [each.context_tokens for each in profile.acceptances] == [None]
    assert run.machine.passes_s < 1.2 * 4.0
    enough = Run(make_model, plan=answer(0.5), **contexts | {"budget_s": 30.0}).profile()
    assert [each.context_tokens for each in enough.acceptances] == [CONTEXT, 400]


class TestDrift:
    """The machine's speed changes by a quarter, and the sizes that decide change as well."""

    @pytest.fixture
    def error(self, make_model):
        def error():
            sizes = cycle([{1, 3}, {3, 6}, {6, 12}, {1, 12, 24}])
            turn = lambda *_, **__: replace(answer(0.5)(), verify_tokens=frozenset(next(sizes)))
            run = Run(make_model, sigma=0.01, plan=turn, drift=lambda seconds: 1 + 0.25 * (seconds % 2 < 1))
            (latency,) = run.profile().latencies
            counts = np.array([1, 3, 6, 12, 24])
            ratios = latency.verify.seconds(counts) / [verify_s(count, CONTEXT, 1) for count in counts.tolist()]
            return ratios.max() / ratios.min() - 1

        return error

    def test_it_moves_all_sizes_alike(self, error):
        assert error() < 0.03

    def test_without_the_correction_it_moves_them_apart(self, error, monkeypatch):
        monkeypatch.setattr(disturbance, "remove_drift", lambda samples, _: samples)
        assert error() > 0.06


class TestSpeedOfSteps:
    """The machine is slower by a quarter whenever steps are timed."""

    @pytest.fixture
    def overheads(self, make_model, monkeypatch):
        def overheads():
            """Return the overhead of a step, in plain steps, on this machine and on one of steady speed."""
            speed, time_rule = [1.0], StepTimer._time_rule

            def time_slowly(*arguments, **options):
                speed[0] = 1.25
                time_rule(*arguments, **options)
                speed[0] = 1.0

            found = []
            for timed in (time_slowly, time_rule):
                monkeypatch.setattr(StepTimer, "_time_rule", timed)
                run = Run(make_model, sigma=0.01, plan=answer(0.5), drift=lambda _: speed[0])
                (latency,) = run.profile().latencies
                found.append(float(np.median(latency.overhead.samples_s) / latency.verify.seconds(1)))
            return found

        return overheads

    def test_it_is_not_their_overhead(self, overheads):
        slow, steady = overheads()
        assert slow == pytest.approx(steady, abs=0.05)

    def test_without_plain_steps_it_is(self, overheads, monkeypatch):
        monkeypatch.setattr(StepTimer, "_samples_at", lambda timer, _: timer._filter.usable(timer._kind))
        slow, steady = overheads()
        assert slow > steady + 0.3
