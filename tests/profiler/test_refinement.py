"""Measuring until a plan is certain, on fake machines on which only passes take time."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.profiler.pretended import Machine, SharedMachine, machine_and_pair
from tests.support.slow import slow
from treeopt.errors import TreeoptWarning
from treeopt.planner import Confidence
from treeopt.planner.certainty import Certainty, certainty
from treeopt.profiler import Checkpoint, Measurement, Settings, profile_run, refinement
from treeopt.profiler.acceptance import incremental, per_prompt
from treeopt.profiler.acceptance.incremental import MIN_SEQUENCES
from treeopt.profiler.budget import Budget
from treeopt.profiler.drafters import decoded_settings
from treeopt.profiler.latency import disturbance
from treeopt.profiler.latency.point import PointTimer
from treeopt.profiler.latency.steps import StepTimer
from treeopt.records.sampling import Sampling
from treeopt.records.timing_quality import MIN_SAMPLES
from treeopt.runtime.drafters.registry import LoadedDrafter
from treeopt.runtime.models.model import NO_STATES, Output, Outputs
from treeopt.runtime.models.padded_batch import compute_positions, last_outputs
from treeopt.trees import chain
from treeopt.trees.drafter_setting import DrafterSetting

CONTEXT = 30
PROMPTS = [[number % 20, 3, number % 7] for number in range(40)]
BUDGET_S = 10.0
POSITIONS = 16
"""Of each sequence in the first pass over the prompts."""
MOST_POSITIONS = 20
SETTINGS = Settings(context_tokens=(CONTEXT,), max_tokens=64, time_budget_s=BUDGET_S, depth=4, branching=4)


def slow_draft_s(width, context, batch):  # noqa: ARG001
    return 30e-3 + 75e-6 * width


def fast_draft_s(width, context, batch):  # noqa: ARG001
    return 3.75e-3 + 3.75e-6 * width


def verify_s(tokens, context, batch):  # noqa: ARG001
    return 15e-3 + 75e-6 * tokens


@pytest.fixture(autouse=True)
def few_positions(monkeypatch):
    monkeypatch.setattr(incremental, "FIRST_POSITIONS", POSITIONS)
    monkeypatch.setattr(incremental, "MAX_POSITIONS", MOST_POSITIONS)
    monkeypatch.setattr(decoded_settings, "TRIAL_POSITIONS", 8)


class Run:
    """One profile; its clock, and that of its budget, is the fake machine's."""

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
        prompts=PROMPTS,
        drafters=(),
        draft_model=True,
        busy=None,
        **changes,
    ):
        options = {"verify": verify_s, "draft": draft, "sigma": sigma, "drift": drift}
        options |= {"kind": Machine} if busy is None else {"kind": SharedMachine, "busy": busy}
        self.machine, *models = machine_and_pair(make_model, (CONTEXT,), **options)
        target, small = map(vary_tokens, models)
        small = small if draft_model else None
        self.checkpoint = checkpoint or Checkpoint(None, "")
        self.plan, self.plans = plan, []
        self.budget = Budget(budget_s, self.checkpoint, now_s=self.machine.now_s)

        self.measurement = Measurement(
            target,
            small,
            prompts,
            replace(SETTINGS, time_budget_s=budget_s, **changes),
            clock=self.machine,
            checkpoint=self.checkpoint,
            budget=self.budget,
            load=None if busy is None else lambda: self.machine,
            drafters=[
                LoadedDrafter(setting=DrafterSetting(name=name), target=target, draft=small, heads=None, capacity=256)
                for name in drafters
            ],
        )

    def profile(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(refinement, "plan_certainty", self.record_plan)
            patch.setattr(per_prompt, "fastest_drafted_tree", lambda _: chain(2))
            return self.measurement.profile(show_progress=False)

    def record_plan(self, profile, **point):
        self.plans.append(self.plan(profile, **point))
        return self.plans[-1]


def vary_tokens(model):
    """Return a fake model whose likeliest token changes along a sequence, so that some drafts are accepted."""
    forward = model.forward

    def varied(inputs, requested_states=NO_STATES, *, last_only=False):
        outputs = forward(inputs, requested_states)
        tokens = torch.cat([sequence.tokens for sequence in inputs])
        positions = torch.from_numpy(compute_positions(inputs))
        likeliest = (3 * tokens + positions) % 7 + (model.name == "small") * (positions % 3 == 0)
        logits = outputs.logits + torch.nn.functional.one_hot(likeliest, outputs.logits.shape[-1])
        varied = Outputs(Output(logits), outputs.sizes)
        return last_outputs(varied) if last_only else varied

    model.forward = varied
    return model


def constant_plan(probability, weakest="verify"):
    """Return a planner whose certainty never changes."""
    constant = Certainty(
        confidence=Confidence(probability=probability, if_exact={weakest: probability + 0.5}),
        verify_tokens=frozenset({4, 6}),
        draft_widths=frozenset({1, 2}),
    )
    return lambda *_, **__: constant


def test_clear_winner_ends_measuring_early(make_model):
    """Drafting takes twice as long as verification, so plain decoding is the fastest whatever is accepted."""
    run = Run(make_model, draft=slow_draft_s, budget_s=30.0)
    profile = run.profile()
    assert run.measurement.certainty.confidence.probability >= 0.9
    assert run.machine.passes_s < 24.0
    assert len(profile.latencies[0].verify.timings[0].samples_s) >= MIN_SAMPLES
    assert profile.acceptance().prompts >= MIN_SEQUENCES
    assert certainty(profile, temperature=0.0, context_tokens=CONTEXT, batch_size=1).confidence.probability >= 0.9


def test_uncertain_plan_uses_the_budget(make_model):
    run = Run(make_model, plan=constant_plan(0.5))
    run.profile()
    assert run.machine.passes_s == pytest.approx(BUDGET_S, rel=0.05)
    assert sum(run.budget.spent_s.values()) == pytest.approx(run.machine.passes_s, rel=0.05)


@pytest.mark.slow
def test_least_certain_part_has_most_of_the_time(make_model, monkeypatch):
    monkeypatch.setattr("treeopt.profiler.refinement.MAX_SAMPLES", 10**6)
    spent_s = {}
    for part in ("verify", "draft", "overhead", "acceptance"):
        run = Run(make_model, plan=constant_plan(0.5, part), budget_s=12.0)
        run.profile()
        spent_s[part] = run.budget.spent_s
    for part in spent_s:
        assert all(spent_s[part][part] > 1.9 * spent_s[other][part] for other in spent_s if other != part)


def test_certain_plan_still_has_the_samples_that_statistics_need(make_model):
    run = Run(make_model, plan=constant_plan(1.0))
    profile = run.profile()
    (latency,) = profile.latencies
    for tokens in (4, 6):
        place = latency.verify.tokens.tolist().index(tokens)
        assert len(latency.verify.timings[place].samples_s) >= MIN_SAMPLES
    assert min(len(timed.steps.samples_s) for timed in latency.steps[0].trees) >= MIN_SAMPLES
    assert profile.acceptance().prompts == MIN_SEQUENCES
    assert run.machine.passes_s < BUDGET_S


def test_long_sequences_leave_half_of_the_time_to_the_rest(make_model, monkeypatch):
    monkeypatch.setattr(incremental, "FIRST_POSITIONS", 200)
    run = Run(make_model, plan=constant_plan(0.5), budget_s=20.0)
    assert run.profile().acceptance().prompts < MIN_SEQUENCES
    spent_s = run.budget.spent_s
    assert 0.3 < spent_s["acceptance"] / sum(spent_s.values()) < 0.65


@pytest.mark.parametrize("interrupted", [*slow([30]), 200])
def test_resumed_run_keeps_all_samples_and_has_the_time_left(make_model, tmp_path, interrupted):
    path = tmp_path / "checkpoint"
    first = Run(make_model, plan=constant_plan(0.5), checkpoint=Checkpoint(path, "h"))
    time_s = first.machine.time_s

    def interrupt(work):
        if first.machine.timed == interrupted:
            raise KeyboardInterrupt
        return time_s(work)

    first.machine.time_s = interrupt
    with pytest.raises(KeyboardInterrupt):
        first.profile()
    before = {kind: Checkpoint(path, "h", resume=True).samples(kind) for kind in first.checkpoint.kinds()}
    resumed = Run(make_model, plan=constant_plan(0.5), checkpoint=Checkpoint(path, "h", resume=True))
    resumed.profile()
    assert resumed.machine.passes_s + first.machine.passes_s == pytest.approx(BUDGET_S, rel=0.06)
    for kind, samples in before.items():
        for key, values in samples.items():
            assert resumed.checkpoint.samples(kind)[key][: len(values)] == values


@pytest.mark.parametrize("timed_again", [True, *slow([False])])
def test_sizes_that_other_programs_disturbed_are_timed_again_after_they_end(make_model, monkeypatch, timed_again):
    """All sizes are timed first while others compute; none above 6 tokens or a width of 2 decides."""
    if not timed_again:  # negative control
        monkeypatch.setattr(PointTimer, "disturbed_part", None)
    run = Run(make_model, sigma=0.0, plan=constant_plan(0.5), busy=range(200))
    (latency,) = run.profile().latencies
    tables = ((latency.verify, verify_s), (latency.draft, fast_draft_s))
    errors = [
        abs(table.seconds(count) / seconds(count, CONTEXT, 1) - 1)
        for table, seconds in tables
        for count in table.tokens.tolist()
    ]
    assert max(errors) < 0.1 if timed_again else max(errors) > 1
    assert run.machine.passes_s < 1.1 * BUDGET_S


def test_least_certain_operating_point_is_refined(make_model):
    def plan(_, *, temperature, **point):  # noqa: ARG001
        return constant_plan(1.0 if temperature == 0 else 0.5)()

    run = Run(make_model, plan=plan, samplings=(Sampling(0.0), Sampling(0.8)), budget_s=20.0)
    latencies = {latency.sampled: latency.verify.timings for latency in run.profile().latencies}
    greedy, sampled = (sum(len(timing.samples_s) for timing in latencies[kind]) for kind in (False, True))
    assert sampled > 2 * greedy
    assert run.measurement.certainty.confidence.probability == 0.5


def test_acceptance_is_counted_on_more_positions_after_all_prompts(make_model):
    run = Run(make_model, plan=constant_plan(0.5, "acceptance"), budget_s=20.0, prompts=PROMPTS[:12])
    acceptance = run.profile().acceptance()
    assert acceptance.prompts == 12
    assert acceptance.positions > POSITIONS * 12


def test_fixed_amount_has_no_budget(make_model):
    machine, *models = machine_and_pair(make_model, (CONTEXT,))
    settings = replace(SETTINGS, time_budget_s=None, rounds=3, positions=120)
    measurement = Measurement(*models, PROMPTS, settings, clock=machine, checkpoint=Checkpoint(None, ""))
    profile = measurement.profile(show_progress=False)
    assert {len(timing.samples_s) for timing in profile.latencies[0].verify.timings} == {3}
    assert profile.acceptance().positions == 120


@pytest.mark.parametrize(
    ("names", "draft_model"), [(("prompt-lookup", "lookahead"), True), (("prompt-lookup",), False)]
)
def test_other_drafters_are_within_the_budget(make_model, names, draft_model):
    run = Run(make_model, plan=constant_plan(0.5), drafters=names, draft_model=draft_model, budget_s=20.0)
    profile = run.profile()
    assert [drafter.name for drafter in profile.drafters] == list(names)
    assert all(decodes.plain.count >= 2 for drafter in profile.drafters for decodes in drafter.decodes)
    assert run.machine.passes_s < 1.1 * 20.0
    if draft_model:
        assert run.budget.spent_s["drafters"] > 20.0 / 6
    else:
        assert (profile.acceptances, run.plans) == ((), [])
        assert len(profile.latencies[0].verify.timings[0].samples_s) >= MIN_SAMPLES


@pytest.mark.parametrize(("budget_s", "positions"), [(6.0, POSITIONS), (30.0, MOST_POSITIONS)])
def test_all_drafters_are_measured_on_sequences_of_one_length(make_model, budget_s, positions):
    """Later tokens are easier to draft, so a draft model that is counted on longer sequences would look better."""
    run = Run(make_model, plan=constant_plan(0.5), drafters=("prompt-lookup",), prompts=PROMPTS[:12], budget_s=budget_s)
    profile = run.profile()
    acceptance, (decodes,) = profile.acceptance(), profile.drafters[0].decodes
    assert acceptance.positions // acceptance.prompts == positions
    assert {*decodes.plain.tokens} == {positions}


@pytest.mark.parametrize(("confidence", "checks", "sequences"), [(0.95, 1, 8), (0.5, 2, 20)])
def test_drafters_decode_more_prompts_until_their_choice_is_certain(
    make_model, monkeypatch, confidence, checks, sequences
):
    """First 8 prompts, then 16, then all 20."""
    checked = []
    monkeypatch.setattr(profile_run, "choice_confidence", lambda choices: checked.append(choices) or confidence)
    monkeypatch.setattr("treeopt.profiler.settings.MAX_SAMPLES", 5)
    drafters = {"drafters": ("prompt-lookup", "lookahead"), "draft_model": False}
    run = Run(make_model, prompts=PROMPTS[:20], budget_s=10_000.0, **drafters)
    profile = run.profile()
    counts = [decodes.plain.count for drafter in profile.drafters for decodes in drafter.decodes]
    assert counts == [sequences, sequences]
    assert [len(choices) for choices in checked] == [3] * checks  # with plain decoding; not after the last prompt
    assert run.measurement.choice_confidence == confidence
    kinds = [kind for kind in run.checkpoint.kinds() if kind.startswith("decode plain")]
    assert [len([*run.checkpoint.entries(kind)]) for kind in kinds] == counts  # no prompt is decoded twice


def test_traversal_on_trees_is_within_the_budget(make_model):
    changes = {"rules": ("sequoia", "traversal"), "samplings": (Sampling(0.8),)}
    run = Run(make_model, plan=constant_plan(0.5), budget_s=15.0, **changes)
    assert [acceptance.rule for acceptance in run.profile().acceptances] == ["sequoia", "traversal"]
    assert run.machine.passes_s < 1.1 * 15.0


def test_contexts_without_time_are_left_out_with_a_warning(make_model):
    changes = {"context_tokens": (CONTEXT, 200), "plan": constant_plan(0.5)}
    run = Run(make_model, budget_s=7.0, **changes)
    with pytest.warns(TreeoptWarning, match="up to 200 tokens takes more than half"):
        profile = run.profile()
    assert [acceptance.context_tokens for acceptance in profile.acceptances] == [None]
    assert run.machine.passes_s < 1.2 * 7.0
    profile = Run(make_model, budget_s=30.0, **changes).profile()
    assert [acceptance.context_tokens for acceptance in profile.acceptances] == [CONTEXT, 200]


@pytest.mark.parametrize("budget_s", [7.0, 30.0])
def test_prompts_longer_than_the_models_are_cut_to_the_contexts(make_model, budget_s):
    """With the smaller budget there is no time for contexts, and one prompt alone is long enough for them."""
    prompts = [[*PROMPTS[0], *[5] * 2000], *PROMPTS[1:8]]
    changes = {"context_tokens": (CONTEXT, 200), "prompts": prompts, "drafters": ("prompt-lookup",)}
    run = Run(make_model, budget_s=budget_s, plan=constant_plan(1.0), **changes)
    with pytest.warns(TreeoptWarning) if budget_s == 7.0 else nullcontext():
        profile = run.profile()
    for acceptance in profile.acceptances:
        assert acceptance.positions == POSITIONS * acceptance.prompts
    for decodes in profile.drafters[0].decodes:
        assert min(decodes.plain.tokens) >= 16


@pytest.mark.parametrize("corrected", [True, *slow([False])])
def test_drift_changes_all_sizes_alike(make_model, monkeypatch, corrected):
    """The machine is slower by a quarter in every second period of 1.5 seconds, in which other sizes decide."""
    if not corrected:  # negative control
        monkeypatch.setattr(disturbance, "remove_drift", lambda samples, _: samples)

    def is_slow(seconds):
        return seconds % 3 < 1.5

    def plan(*_, **__):
        sizes = {1, 3, 6} if is_slow(run.machine.passes_s) else {6, 12, 24}
        return replace(constant_plan(0.5)(), verify_tokens=frozenset(sizes))

    run = Run(make_model, sigma=0.01, plan=plan, drift=lambda seconds: 1 + 0.25 * is_slow(seconds), budget_s=15.0)
    counts = np.array([1, 3, 6, 12, 24])
    seconds = run.profile().latencies[0].verify.seconds(counts)
    ratios = seconds / [verify_s(count, CONTEXT, 1) for count in counts.tolist()]
    error = ratios.max() / ratios.min() - 1
    assert error < 0.03 if corrected else error > 0.2


@pytest.mark.parametrize("corrected", [True, *slow([False])])
def test_slower_machine_during_steps_does_not_change_their_overhead(make_model, monkeypatch, corrected):
    """The machine is slower by a quarter whenever steps are timed; the overhead is in plain steps."""
    if not corrected:  # negative control
        monkeypatch.setattr(StepTimer, "_samples_at", lambda timer, _: timer._filter.usable(timer._kind))
    speed, time_rule, overheads = [1.0], StepTimer._time_rule, []

    def time_slowly(*arguments, **options):
        speed[0] = 1.25
        time_rule(*arguments, **options)
        speed[0] = 1.0

    for time_steps in (time_slowly, time_rule):
        monkeypatch.setattr(StepTimer, "_time_rule", time_steps)
        run = Run(make_model, sigma=0.01, plan=constant_plan(1.0), drift=lambda _: speed[0])
        (latency,) = run.profile().latencies
        overheads.append(float(np.median(latency.overhead.samples_s) / latency.verify.seconds(1)))
    slow, steady = overheads
    assert slow == pytest.approx(steady, abs=0.05) if corrected else slow > steady + 0.3
