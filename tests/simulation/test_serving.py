"""Servers under a load: against queueing theory, against rounds worked out by hand, and against what planners expect."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

from tests.scripts import ROOT
from tests.support.invented_machines import acceptance, latency, profile, seconds
from treeopt.errors import InfeasibleError, InvalidValueError
from treeopt.planner.request import PlanRequest
from treeopt.planner.tokens import TokenModels, token_model
from treeopt.records.acceptance import AcceptanceTable, TextSums
from treeopt.records.accepted_ranks import AcceptedRanks
from treeopt.records.engine import ChainCounts, ChainLatency, EngineRun, TimedChain
from treeopt.records.latency import LatencyTable, PrefillLatency, Timing
from treeopt.records.profile import Profile
from treeopt.report.simulation import fastest
from treeopt.simulation.arrivals import Arrival, Load, arrivals
from treeopt.simulation.outcome import Outcome, outcome
from treeopt.simulation.served import ServedText
from treeopt.simulation.serving import Server, serve
from treeopt.simulation.settings import ServedSetting, served_settings
from treeopt.simulation.simulate import Limits, largest_rate, simulate
from treeopt.simulation.step_seconds import StepSeconds
from treeopt.simulation.step_tokens import (
    DrawnTokens,
    ReplayedTokens,
    TokensByContext,
    step_tokens,
    tokens_by_context,
)
from treeopt.trees import TokenTree, chain

P = [[0.7, 0.15], [0.6, 0.2], [0.6, 0.2], [0.5, 0.2]]
ALWAYS = [[1.0]] * 4
STEP_S, TOKEN_S = 1.0, 0.01
"""Of a pass of one token, and of each further one."""


def machine(*, batches: tuple[int, ...] = (1,), table: object = P, dearer: float = 0.0) -> Profile:
    """Return a machine on which a pass over n tokens of B texts takes 1 + (n - 1) (0.01 + dearer (B - 1)) + 0.1 (B - 1)."""
    latencies = [
        latency(
            seconds(
                lambda n, b=batch: STEP_S + (n - 1) * (TOKEN_S + dearer * (b - 1)) + 0.1 * (b - 1),
                lambda _: 0.001,
                nodes=32,
            ),
            batch_size=batch,
        )
        for batch in batches
    ]
    return profile(latencies, [acceptance(table)])


def seconds_of(found: Profile, prompt_s: float | None = None) -> StepSeconds:
    return StepSeconds(found, token_model(found.acceptances[0]), prompt_s)


def served_by(found: StepSeconds, texts: list[Arrival], tree: TokenTree, most_texts: int, servers: int = 1) -> list:
    setting = ServedSetting.fixed("fixed", tree, found.most_texts)
    made = [
        Server(
            setting=setting,
            seconds=found,
            tokens=step_tokens(found.model, setting.trees),
            noise=np.random.default_rng(number),
            most_texts=most_texts,
        )
        for number in range(servers)
    ]
    return serve(texts, made)


class TestRounds:
    """Worked out by hand: reading takes 0.5 s, a step of one text 1 s, of two 1.1 s."""

    def served(self, most_texts: int, servers: int = 1) -> list[tuple[float, float, float]]:
        found = seconds_of(machine(batches=(1, 2)), prompt_s=0.5)
        texts = [Arrival(0.0, 8, 2), Arrival(0.6, 8, 2)]
        done = served_by(found, texts, chain(0), most_texts, servers)
        return sorted((each.asked.arrival_s, each.first_token_s, each.finished_s) for each in done)

    def test_a_second_text_joins_between_two_steps(self) -> None:
        # 0.5 read, 1.5 first token; 2.0 the second is read, 3.1 a step of both ends the first; 4.1 the second's last
        assert self.served(2) == [pytest.approx((0.0, 1.5, 3.1)), pytest.approx((0.6, 3.1, 4.1))]

    def test_one_that_comes_while_a_prompt_is_read_joins_before_the_next_step(self) -> None:
        found = seconds_of(machine(batches=(1, 2)), prompt_s=0.5)
        done = served_by(found, [Arrival(0.0, 8, 1), Arrival(0.3, 8, 1)], chain(0), 2)

        # 0.5 the first is read, 1.0 the second, 2.1 a step of both
        assert [each.finished_s for each in done] == pytest.approx([2.1, 2.1])

    def test_it_waits_where_one_is_decoded_at_a_time(self) -> None:
        assert self.served(1) == [pytest.approx((0.0, 1.5, 2.5)), pytest.approx((0.6, 4.0, 5.0))]

    def test_it_goes_to_the_server_without_texts(self) -> None:
        assert self.served(1, servers=2) == [pytest.approx((0.0, 1.5, 2.5)), pytest.approx((0.6, 2.1, 3.1))]

    def test_a_step_gives_no_more_tokens_than_were_asked_for(self) -> None:
        found = seconds_of(machine(table=ALWAYS), prompt_s=0.5)
        (done,) = served_by(found, [Arrival(0.0, 8, 7)], chain(4), 1)

        assert done.steps == 2  # 5 tokens, and 2 of 5
        assert outcome("", 1.0, [done]).tokens_per_s == pytest.approx(7 / done.finished_s)


class TestTimePerToken:
    """Steps take 1 s, so two thirds of these sequences have a token a second after the first, and a third has none."""

    def served(self, lengths: list[int]) -> Outcome:
        texts = [Arrival(20.0 * number, 8, length) for number, length in enumerate(lengths)]
        return outcome("", 1.0, served_by(seconds_of(machine(), prompt_s=0.5), texts, chain(0), 1))

    def test_sequences_of_one_token_are_left_out(self) -> None:
        found = self.served([1, 1, 1, 5, 5])

        assert found.time_per_token is not None
        assert (found.time_per_token.median_s, found.time_per_token.p99_s) == pytest.approx((1.0, 1.0))

    def test_of_such_alone_it_is_not_known_and_any_limit_is_kept(self) -> None:
        found = self.served([1, 1, 1])

        assert found.time_per_token is None
        assert Limits(token_s=1e-9).kept(found)
        assert fastest([found, self.served([1])]) is found


class TestEngines:
    """Steps of an engine, 1 s plain and 1.5 s with a chain of 1 that is always accepted; a prompt brings a token."""

    ACCEPTANCE = acceptance([[1.0]], chains=(ChainCounts(length=1, steps=(9, 9), tokens=(18, 18)),))

    def profile(self, prefill: dict[int, LatencyTable] | None = None) -> Profile:
        chains = tuple(
            TimedChain(length=drafted, steps=Timing([step_s]), prefill=(prefill or {}).get(drafted))
            for drafted, step_s in ((0, 1.0), (1, 1.5))
        )
        latencies = (ChainLatency(context_tokens=64, batch_size=size, chains=chains) for size in (1, 2))
        return dataclasses.replace(
            machine(),
            engine=EngineRun(name="engine", version="1"),
            latencies=(),
            chain_latencies=tuple(latencies),
            acceptances=(self.ACCEPTANCE,),
        )

    def test_what_is_read_beside_a_step_comes_when_both_are_done(self) -> None:
        """0.25 the first is read; 1.25 its second token; 2.5 its third, beside which the second text is read."""
        seconds = seconds_of(self.profile(), prompt_s=0.25)
        done = served_by(seconds, [Arrival(0.0, 8, 4), Arrival(0.5, 8, 3)], chain(0), 2)

        times = [(each.first_token_s, each.finished_s, each.steps) for each in done]
        assert times == [pytest.approx((0.25, 3.5, 3)), pytest.approx((2.5, 4.5, 2))]

    def test_prompts_that_wait_are_read_together(self) -> None:
        seconds = seconds_of(self.profile(), prompt_s=0.25)
        done = served_by(seconds, [Arrival(0.0, 8, 1), Arrival(0.1, 8, 1), Arrival(0.2, 8, 1)], chain(0), 2)

        assert [each.finished_s for each in done] == pytest.approx([0.25, 0.75, 0.75])

    def test_prompts_take_as_long_as_the_engine_told(self) -> None:
        tables = {
            0: LatencyTable([10, 20], [Timing([0.5]), Timing([0.8])]),
            1: LatencyTable([10, 20], [Timing([0.6]), Timing([1.0])]),
        }
        seconds = seconds_of(self.profile(tables))

        assert seconds.tells_prompts
        assert seconds.longest_prompt == 20
        assert [seconds.reading_s(tokens, 0) for tokens in (3, 10, 15, 40)] == pytest.approx([0.5, 0.5, 0.65, 1.6])
        assert [seconds.reading_s(15, drafted) for drafted in (1, 7)] == pytest.approx([0.8, 0.8])
        assert not seconds_of(self.profile()).tells_prompts
        assert seconds_of(self.profile()).longest_prompt is None
        assert seconds_of(self.profile(tables), prompt_s=2.0).reading_s(15, 0) == 2.0

    def served(self, length: int, new_tokens: int) -> ServedText:
        seconds = seconds_of(self.profile(), prompt_s=0.25)
        (done,) = served_by(seconds, [Arrival(0.0, 8, new_tokens)], chain(length), 1)
        return done

    def test_the_first_token_comes_with_the_prompt(self) -> None:
        plain, drafted = self.served(0, 5), self.served(1, 5)

        assert (plain.first_token_s, plain.finished_s, plain.steps) == (0.25, pytest.approx(4.25), 4)
        assert (drafted.first_token_s, drafted.finished_s, drafted.steps) == (0.25, pytest.approx(3.25), 2)
        assert outcome("", 1.0, [plain]).tokens_per_step == 1.0
        assert outcome("", 1.0, [drafted]).tokens_per_step == 2.0

    def test_a_text_of_one_token_takes_no_step(self) -> None:
        done = self.served(1, 1)

        assert (done.first_token_s, done.finished_s, done.steps) == (0.25, 0.25, 0)


class TestPrompts:
    PREFILL = PrefillLatency(
        target=LatencyTable([16, 64], [Timing([0.2]), Timing([0.8])]),
        draft=LatencyTable([16, 64], [Timing([0.02]), Timing([0.05])]),
    )

    def test_they_take_as_long_as_measured_and_the_draft_model_reads_them_too(self) -> None:
        seconds = seconds_of(dataclasses.replace(machine(), prefill=self.PREFILL))

        assert seconds.longest_prompt == 64
        assert [seconds.reading_s(tokens, 0) for tokens in (1, 16, 40, 64, 128)] == pytest.approx(
            [0.2, 0.2, 0.5, 0.8, 1.6]
        )
        assert seconds.reading_s(40, 3) == pytest.approx(0.5 + 0.035)

    def test_where_none_were_timed_passes_stand_for_them(self) -> None:
        seconds = seconds_of(machine())

        assert (seconds.tells_prompts, seconds.longest_prompt) == (True, None)
        assert seconds.reading_s(20, 3) == pytest.approx(STEP_S + 19 * TOKEN_S)
        assert seconds.reading_s(40, 0) == pytest.approx(2 * STEP_S + 38 * TOKEN_S)

    def test_a_schedule_that_drafts_for_some_has_a_draft_model(self) -> None:
        assert ServedSetting(name="schedule", trees=(chain(2), chain(0))).draft_tokens == 2
        assert ServedSetting.fixed("plain", chain(0), 3).draft_tokens == 0


class TestQueueingTheory:
    """One text at a time, all alike: waiting follows Pollaczek and Khinchine, rho D / (2 (1 - rho)) on average."""

    SERVICE_S = 0.5 + 2 * STEP_S

    @pytest.mark.parametrize("rho", [0.3, 0.8])
    def test_waiting_of_poisson_arrivals(self, rho: float) -> None:
        found = seconds_of(machine(), prompt_s=0.5)
        load = Load(
            rate_per_s=rho / self.SERVICE_S, prompt_tokens=(8, 8), new_tokens=(2, 2), duration_s=12_000 / rho, seed=3
        )
        done = served_by(found, list(arrivals(load)), chain(0), 1)

        waited = np.mean([each.finished_s - each.asked.arrival_s for each in done]) - self.SERVICE_S
        assert waited == pytest.approx(rho * self.SERVICE_S / (2 * (1 - rho)), rel=0.12)

    def outcome_at(self, share: float, texts: float, seed: int = 0) -> Outcome:
        """Return what a server comes to where `texts` sequences arrive at a share of its capacity, one decoded at a time."""
        rate = share / self.SERVICE_S
        load = Load(rate_per_s=rate, prompt_tokens=(8, 8), new_tokens=(2, 2), duration_s=texts / rate, seed=seed)
        (found,) = simulate([ServedSetting.fixed("plain", chain(0), 1)], seconds_of(machine(), prompt_s=0.5), load)
        return found

    @pytest.mark.parametrize("share", [1.05, 1.2, 1.5, 3.0, 20.0])
    def test_an_overloaded_server_does_not_keep_up(self, share: float) -> None:
        found = self.outcome_at(share, 4000)

        assert not found.keeps_up
        assert found.tokens_per_s == pytest.approx(2 / self.SERVICE_S, rel=0.01)

    @pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
    def test_a_stable_server_keeps_up(self, share: float) -> None:
        assert all(self.outcome_at(share, 1500, seed).keeps_up for seed in range(4))

    @pytest.mark.parametrize(("share", "keeps_up"), [(0.5, True), (2.0, False), (20.0, False)])
    def test_so_it_is_judged_over_short_times(self, share: float, keeps_up: bool) -> None:
        assert all(self.outcome_at(share, 60, seed).keeps_up is keeps_up for seed in range(6))

    def test_a_single_sequence_is_kept_up_with(self) -> None:
        assert self.outcome_at(0.1, 0.01).keeps_up

    @pytest.mark.parametrize(("share", "keeps_up"), [(0.8, True), (1.1, False), (4.0, False)])
    def test_a_server_of_many_sequences_is_judged_alike(self, share: float, keeps_up: bool) -> None:
        """Steps of eight take 1.7 s, and each sequence 8 of them: 0.588 sequences a second."""
        found = seconds_of(machine(batches=(1, 8)), prompt_s=0.0)
        load = Load(rate_per_s=share / 1.7, prompt_tokens=(8, 8), new_tokens=(8, 8), duration_s=3000)
        (served,) = simulate([ServedSetting.fixed("plain", chain(0), 8)], found, load)

        assert served.keeps_up is keeps_up

    @pytest.mark.parametrize("start", [0.02, 0.6, 1.3, 20.0])
    def test_the_largest_rate_is_the_same_from_any_start(self, start: float) -> None:
        """A limit of tokens alone, which this server always keeps: it has to keep up, no more."""
        load = Load(rate_per_s=start / self.SERVICE_S, prompt_tokens=(8, 8), new_tokens=(2, 2), duration_s=5000)
        rate = largest_rate(
            ServedSetting.fixed("plain", chain(0), 1), seconds_of(machine(), prompt_s=0.5), load, Limits(token_s=2.0)
        )

        assert rate is not None
        assert rate * self.SERVICE_S == pytest.approx(1.0, abs=0.06)

    def test_the_largest_rate_is_the_largest(self) -> None:
        found = seconds_of(machine(), prompt_s=0.5)
        setting = ServedSetting.fixed("plain", chain(0), 1)
        load = Load(rate_per_s=0.05, prompt_tokens=(8, 8), new_tokens=(2, 2), duration_s=2500)
        limits = Limits(first_token_s=10.0)
        rate = largest_rate(setting, found, load, limits)

        def kept(at: float) -> bool:
            (there,) = simulate([setting], found, dataclasses.replace(load, rate_per_s=at))
            return limits.kept(there)

        assert rate is not None
        assert kept(rate)
        assert not kept(1.2 * rate)
        assert rate < 1 / self.SERVICE_S

    def test_a_limit_below_one_step_is_never_kept(self) -> None:
        load = Load(rate_per_s=0.05, prompt_tokens=(8, 8), new_tokens=(2, 2), duration_s=400)
        setting = ServedSetting.fixed("plain", chain(0), 1)

        assert largest_rate(setting, seconds_of(machine()), load, Limits(token_s=0.5)) is None


class TestTokens:
    TREE = TokenTree([-1, 0, 0, 1, 1, 3])

    def mean(self, source: object, tree: TokenTree, steps: int = 20_000) -> float:
        noise = np.random.default_rng(1)
        place, total = source.start(noise), 0
        for _ in range(steps):
            tokens, place = source.step(tree, place, noise)
            total += tokens
        return total / steps

    @pytest.mark.parametrize("tree", [TREE, chain(3), chain(0)])
    def test_draws_come_to_what_the_planner_expects(self, tree: TokenTree) -> None:
        model = token_model(acceptance(P))

        assert self.mean(DrawnTokens(model), tree) == pytest.approx(model.tokens_per_step(tree), rel=0.01)

    def test_replays_walk_measured_texts(self) -> None:
        rng = np.random.default_rng(4)
        ranks = AcceptedRanks([rng.choice([-1, 0, 0, 0, 1], 400) for _ in range(6)])
        tokens, steps = ranks.replay(self.TREE)

        walked = self.mean(ReplayedTokens(ranks), self.TREE)
        assert walked == pytest.approx(tokens.sum() / steps.sum(), rel=0.01)

    def test_a_text_stays_as_hard_as_it_was_measured(self) -> None:
        easy, hard = np.zeros(200, np.int64), np.full(200, -1)
        source, noise = ReplayedTokens(AcceptedRanks([easy, hard])), np.random.default_rng(0)
        found = set()
        for _ in range(20):
            place = source.start(noise)
            came = []
            for _ in range(10):
                tokens, place = source.step(chain(3), place, noise)
                came.append(tokens)
            found.add(tuple(came))

        assert found == {(4,) * 10, (1,) * 10}

    @pytest.mark.parametrize("lengths", [[9, 4] + [6] * 30, [9] + [5] * 2000])
    def test_a_tree_may_be_deeper_than_most_measured_texts_are_long(self, lengths: list[int]) -> None:
        source = ReplayedTokens(AcceptedRanks([np.zeros(length, np.int64) for length in lengths]))
        noise = np.random.default_rng(0)
        place = source.start(noise)
        for _ in range(20):
            tokens, place = source.step(chain(7), place, noise)
            assert tokens == 8

    def test_a_tree_deeper_than_every_measured_text_is_long_is_refused(self) -> None:
        source, noise = ReplayedTokens(AcceptedRanks([np.zeros(5, np.int64)] * 3)), np.random.default_rng(0)
        assert source.step(chain(4), source.start(noise), noise)[0] == 5
        with pytest.raises(InfeasibleError, match=r"depth: expected at most 4, .* Got 5"):
            source.step(chain(5), source.start(noise), noise)

    def test_it_is_as_hard_at_every_context_length(self) -> None:
        short = [np.full(200, -1), np.zeros(200, np.int64), np.zeros(50, np.int64), np.zeros(200, np.int64)]
        long = [np.full(400, -1), np.zeros(400, np.int64), np.zeros(400, np.int64), np.zeros(40, np.int64)]
        source = TokensByContext((64, 192), (ReplayedTokens(AcceptedRanks(short)), ReplayedTokens(AcceptedRanks(long))))
        noise = np.random.default_rng(0)
        places = [source.start(noise) for _ in range(100)]

        begun = {tuple(each.text for each in place.others) for place in places}
        assert begun == {(0, 0), (1, 1), (3, 0), (3, 1), (3, 2)}  # the last does not go on so long
        hard = next(place for place in places if place.text == 0)
        for _ in range(12):
            tokens, hard = source.step(chain(3), hard, noise, 128.0)
            assert tokens == 1

    def test_ranks_are_replayed_where_they_tell_of_every_tree(self) -> None:
        ranks = AcceptedRanks([np.zeros(300, np.int64)] * 2)
        sums = TextSums(np.full((2, 4), 300.0), 300 * np.array([P, P]))
        model = token_model(acceptance(P, texts=sums, accepted_ranks=ranks))

        assert isinstance(step_tokens(model, [chain(3)]), ReplayedTokens)
        assert isinstance(step_tokens(token_model(acceptance(P)), [chain(3)]), DrawnTokens)


class TestLoads:
    def test_texts_come_as_often_as_asked_and_the_same_for_a_seed(self) -> None:
        load = Load(rate_per_s=7.0, prompt_tokens=(3, 9), new_tokens=(5, 5), duration_s=1000)
        texts = arrivals(load)

        assert len(texts) == pytest.approx(7000, rel=0.05)
        assert {each.prompt_tokens for each in texts} == set(range(3, 10))
        assert texts == arrivals(load)
        assert texts != arrivals(dataclasses.replace(load, seed=1))
        gaps = np.diff([each.arrival_s for each in texts])
        assert np.std(gaps) == pytest.approx(np.mean(gaps), rel=0.05)  # as of exponential ones

    @pytest.mark.parametrize(
        "wrong",
        [
            {"rate_per_s": 0.0},
            {"rate_per_s": float("nan")},
            {"duration_s": -1.0},
            {"new_tokens": (0, 4)},
            {"prompt_tokens": (5, 4)},
            {"rate_per_s": 1e9},
        ],
    )
    def test_impossible_loads_are_refused(self, wrong: dict[str, object]) -> None:
        (name,) = wrong
        with pytest.raises(InvalidValueError, match=rf"^{name}: expected"):
            Load(**{"rate_per_s": 1.0, "prompt_tokens": (8, 8), "new_tokens": (8, 8)} | wrong)

    def test_more_texts_at_a_time_than_measured_are_refused(self) -> None:
        load = Load(rate_per_s=1.0, prompt_tokens=(8, 8), new_tokens=(8, 8))
        found = seconds_of(machine(batches=(1, 4)))
        with pytest.raises(InfeasibleError, match=r"4 were measured. Got 5: .*--batch-sizes"):
            simulate([ServedSetting.fixed("plain", chain(0), 4)], found, load, most_texts=5)


class TestSettings:
    def test_the_schedule_drafts_less_where_more_texts_are_decoded(self) -> None:
        found = machine(batches=(1, 8), dearer=0.2)
        seconds = seconds_of(found)
        settings = served_settings(found, seconds, PlanRequest(max_nodes=8))
        schedule = settings[-1]

        assert [each.name for each in settings[:2]] == ["plain", "chain of 1 draft token"]
        assert schedule.name == "schedule"
        nodes = [tree.nodes for tree in schedule.trees]
        assert len(nodes) == 8
        assert nodes == sorted(nodes, reverse=True)
        assert nodes[0] > nodes[-1]

    def test_it_is_about_as_fast_as_the_best_fixed_setting_at_every_rate(self) -> None:
        found = machine(batches=(1, 2, 3, 4, 6, 8), dearer=0.2)
        seconds = seconds_of(found, prompt_s=0.01)
        settings = served_settings(found, seconds, PlanRequest(max_nodes=8))
        for rate in (0.02, 0.2):
            load = Load(rate_per_s=rate, prompt_tokens=(8, 8), new_tokens=(16, 16), duration_s=60 / rate)
            *fixed, schedule = simulate(settings, seconds, load)
            best = min(each.time_per_token.median_s for each in fixed)
            worst = max(each.time_per_token.median_s for each in fixed)

            assert schedule.time_per_token.median_s <= 1.1 * best
            assert worst > 1.3 * best  # otherwise this would tell nothing


class TestScheduleOfShortTexts:
    """Acceptance of the bundled pair rises along its texts: what is best for long ones is not for short ones."""

    @pytest.mark.slow
    @pytest.mark.parametrize("rate", [8, 16, 32])
    def test_it_is_as_fast_as_the_best_fixed_setting(self, rate: float) -> None:
        found = Profile.load(ROOT / "docs" / "profiles" / "bundled-2-cores-surface.yaml")
        seconds = seconds_of(found)
        *fixed, schedule = served_settings(found, seconds, PlanRequest(), new_tokens=64)
        for_long_texts = served_settings(found, seconds, PlanRequest())[-1]
        chains = [each for each in fixed if 3 <= each.draft_tokens <= 7]
        load = Load(rate_per_s=rate, prompt_tokens=(32, 128), new_tokens=(64, 64), duration_s=3000 / rate)
        *others, short, long = (
            each.latency.median_s for each in simulate([*chains, schedule, for_long_texts], seconds, load)
        )

        assert short <= 1.02 * min(others)
        assert max(others) > 1.04 * min(others)  # otherwise this would tell nothing
        if rate == 32:
            assert long > 1.04 * min(others)  # as would this


class TestContexts:
    """A text's steps yield what was measured around its length, in the shares of the straight line."""

    @staticmethod
    def models() -> TokenModels:
        always, never = AcceptanceTable([[1.0]] * 3), AcceptanceTable([[0.0]] * 3)
        return TokenModels(
            tuple(
                token_model(replace(acceptance([[0.5]] * 3), table=table, context_tokens=at))
                for at, table in ((100, always), (300, never))
            )
        )

    def test_steps_are_those_of_the_context(self) -> None:
        tokens, noise = tokens_by_context(self.models(), [chain(3)]), np.random.default_rng(1)
        for context, share in ((50, 1.0), (100, 1.0), (150, 0.75), (200, 0.5), (300, 0.0), (900, 0.0)):
            place = tokens.start(noise)
            found = []
            for _ in range(2000):
                step, place = tokens.step(chain(3), place, noise, context)
                found.append(step)
            assert set(found) <= {1, 4}
            assert np.mean(found) == pytest.approx(1 + 3 * share, abs=0.15)

    def test_one_acceptance_serves_every_context(self) -> None:
        models = TokenModels(self.models().measured[:1])
        assert isinstance(tokens_by_context(models, [chain(3)]), DrawnTokens)

    def test_a_server_slows_down_as_its_texts_grow(self) -> None:
        found = profile(
            [latency(seconds(lambda n: 1 + 0.01 * n, lambda _: 0.01), context_tokens=at) for at in (100, 300)],
            [each.acceptance for each in self.models().measured],
        )
        steps = StepSeconds(found, token_model(found.acceptances[0]), 0.0)
        assert steps.models.contexts == (100, 300)
        setting = ServedSetting.fixed("chain", chain(3), 1)
        outcomes = [
            simulate(
                [setting], steps, Load(rate_per_s=1e-3, duration_s=3e4, prompt_tokens=(at, at), new_tokens=(8, 8))
            )[0]
            for at in (50, 600)
        ]
        assert outcomes[0].tokens_per_step > 3
        assert outcomes[1].tokens_per_step == pytest.approx(1.0)

    @pytest.mark.parametrize(
        ("engine", "finished_s"),
        [  # with seconds of each step: alone, with the second text, alone
            (None, (2.97 + 3.08 + 3.09, 2.97 + 3.08 + 3.09 + 3.0)),
            ("engine", (2.98 + 2.99 + 2.1,) * 2),
        ],
    )
    def test_texts_take_as_long_as_the_longest_and_in_engines_as_their_mean(
        self, engine: str | None, finished_s: tuple[float, float]
    ) -> None:
        """Plain steps take 1 s behind 100 tokens, 3 s behind 300, 0.1 s more with a second text; prompts take nothing."""
        batches = [(at, size) for size in (1, 2) for at in (100, 300)]
        if engine is None:
            timed = [
                latency(
                    seconds(lambda _, at=at, size=size: at / 100 + 0.1 * (size - 1), lambda _: 0.01),
                    context_tokens=at,
                    batch_size=size,
                )
                for at, size in batches
            ]
            found = profile(timed, [acceptance([[0.5]] * 3)])
        else:
            chains = tuple(
                ChainLatency(
                    context_tokens=at,
                    batch_size=size,
                    chains=tuple(
                        TimedChain(length=drafted, steps=Timing([at / 100 + 0.1 * (size - 1) + drafted]))
                        for drafted in (0, 1)
                    ),
                )
                for at, size in batches
            )
            found = dataclasses.replace(TestEngines().profile(), chain_latencies=chains)
        steps = seconds_of(found, prompt_s=0.0)

        done = served_by(steps, [Arrival(0.0, 297, 4), Arrival(0.1, 99, 2)], chain(0), 2)

        assert [each.finished_s for each in done] == pytest.approx(finished_s)
