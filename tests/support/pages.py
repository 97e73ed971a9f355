"""Pages to look into, and what they are made from: invented profiles, trees and benches of every kind."""

import csv
import io
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from urllib.parse import unquote

import numpy as np

from tests.cli.invented import FOUR_CONDITIONS, TABLE, invented
from treeopt.planner import drafter_choices, requested_plan
from treeopt.planner.benchmarks import tree_prediction
from treeopt.planner.profile_plan import ProfilePlan
from treeopt.planner.request import PlanRequest
from treeopt.planner.scheduling import schedule_if_measured
from treeopt.records.bench_file import BenchHeading, GridBench, GridTree, MethodsBench, TreeBench
from treeopt.records.latency import Estimate
from treeopt.records.profile import Profile
from treeopt.records.results import (
    FAULT,
    NO_PREDICTION,
    UNCHECKED,
    BatchBench,
    BatchMeasurement,
    BatchRow,
    BatchSize,
    Divergence,
    EngineBench,
    EngineRow,
    Losslessness,
    MethodRow,
    NotRun,
    OutputDivergence,
    Pace,
    PacedPrediction,
    TreeMeasurement,
    TreePrediction,
)
from treeopt.report.html.contents import Contents, LabelledBench
from treeopt.trees import Provenance, TokenTree, TreeFile, chain, level_widths

VOID = {"meta", "link", "br", "img", "input"}


class Page(HTMLParser):
    """Elements with their attributes in the order of the page, and the text of each."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[int] = []
        self.feed(text)
        self.close()
        assert self._open == [], "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), []))
        if tag not in VOID:
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self._open.pop()][0] == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self._open:
            self.elements[self._open[-1]][2].append(data)

    def texts(self, tag: str, **attributes: str) -> list[str]:
        """Return the texts of all elements of a kind with some attributes."""
        return [
            "".join(text) for name, found, text in self.elements if name == tag and attributes.items() <= found.items()
        ]

    def attributes(self, tag: str, name: str) -> list[str]:
        """Return one attribute of all elements of a kind that have it."""
        return [str(found[name]) for each, found, _ in self.elements if each == tag and name in found]

    @property
    def skeleton(self) -> list[tuple[str, tuple[str, ...]]]:
        """Elements with the names of their attributes: what no text of others may change."""
        return [(tag, tuple(found)) for tag, found, _ in self.elements]

    def file(self, name: str) -> list[list[str]]:
        """Return the rows of a table's file."""
        (address,) = [
            str(found["href"]) for tag, found, _ in self.elements if tag == "a" and found.get("download") == name
        ]
        assert address.startswith("data:text/csv;charset=utf-8,")
        return list(csv.reader(io.StringIO(unquote(address.partition(",")[2]))))


def planned(profile: Profile | None = None, **request: Any) -> ProfilePlan:
    """Return a profile with all that follows from it."""
    profile, asked = profile or invented(), PlanRequest(**request)
    plan = requested_plan(profile, asked)
    return ProfilePlan(
        profile=profile,
        plan=plan,
        request=asked,
        schedule=schedule_if_measured(profile, asked),
        drafters=drafter_choices(profile, asked, plan=plan) if profile.drafters else (),
    )


def bench_of(found: ProfilePlan, measured: float, **changes: Any) -> TreeBench:
    """Return a bench of a plan's choice, measured at a speedup."""
    choice = found.plan.choice
    known: dict[str, Any] = {
        "rule": found.plan.rule,
        "temperature": found.plan.temperature,
        "nodes": choice.tree.nodes,
        "depth": choice.tree.max_depth,
        "predicted": tree_prediction(choice),
        "measured": replace(MEASURED, speedup=Estimate(measured, measured - 0.1, measured + 0.1)),
    }
    return TreeBench(**(known | changes))


MEASURED = TreeMeasurement(
    speedup=Estimate(1.5, 1.4, 1.6),
    tokens_per_step=2.0,
    step_s=0.01,
    plain_step_s=0.01,
    divergences=(),
    tokens=1000,
    prompts=2,
    rounds=6,
)
PACE = Pace(plain=1.2, verify=1.3, verify_tokens=8, draft=1.1, draft_width=2, samples=9)
PACED = PacedPrediction(step_s=0.012, speedup=1.03)
GRID = GridBench(
    rule="sequoia",
    temperature=0.0,
    predicted_plain_step_s=0.01,
    trees=tuple(
        GridTree(
            tree=TokenTree(parents),
            predicted=TreePrediction(
                tokens_per_step=2.0,
                step_s=0.011,
                speedup=predicted,
                interval=(predicted - 0.1, predicted + 0.1),
                at_pace=paced,
            ),
            measured=replace(
                MEASURED,
                speedup=Estimate(predicted + 0.1, predicted, predicted + 0.2),
                tokens_per_step=2.1,
                step_s=0.012,
                divergences=divergences,
                pace=PACE,
            ),
        )
        for parents, predicted, divergences, paced in (
            ([-1, 0, 0, 1], 1.5, (), PACED),
            ([-1, 0, 1], 1.3, None, None),
        )
    ),
)
ROW = MethodRow(
    method="medusa",
    rule="target",
    temperature=0.0,
    setting="tree of 8 nodes",
    tokens_per_step=2.0,
    step_s=0.01,
    draft_s=0.001,
    verify_s=0.009,
    overhead_s=-0.0001,
    rounds=4,
    tokens_per_s=200.0,
    speedup=1.7,
    predicted_speedup=1.8,
    lossless=True,
    evidence="token by token",
    assumed=("drafting costs nothing",),
    predicted_at_pace=PACED,
    pace=PACE,
)
METHODS = MethodsBench(rows=(ROW,), not_run=(NotRun(method="lookahead", temperature=0.0, reason="no room"),))
DIVERGED = OutputDivergence(prompt=1, position=5, plain="a", other="b", gap=3.5, at_least=True, verdict=FAULT)
ENGINE = EngineBench(
    engine="llama-server",
    version="b1",
    rows=tuple(
        EngineRow(
            length=length,
            chosen=length == 2,
            predicted=NO_PREDICTION
            if length == 3
            else TreePrediction(tokens_per_step=1.0 + length, step_s=None, speedup=1.0 + length / 5),
            tokens_per_step=1.0 + length,
            tokens_per_s=100.0,
            speedup=1.0 + length / 4,
            spread=0.02,
            identical=None if length == 1 else length != 3,
            divergences=(DIVERGED, replace(DIVERGED, gap=None, verdict=UNCHECKED)) if length == 3 else (),
        )
        for length in range(4)
    ),
    losslessness=Losslessness(prompts=8, near_tie_nats=0.08, unchecked="it does not tell"),
)
HEADING = BenchHeading(
    tool="treeopt 9", created="2026-11-23T00:10:00+00:00", machine=invented().machine, pair=invented().pair
)
DIVERGENCE = Divergence(prompt=3, position=17, gap=0.25, near_tie=False)


def batch_row(tree: TokenTree, rate: float, batch_size: int, *, speedup: float = 1.0, **changes: Any) -> BatchRow:
    """Return a row measured at `rate` tokens per second and predicted 1 % below it."""
    measured = BatchMeasurement(
        tokens_per_s=rate,
        step_s=0.01,
        batch_tokens_per_step=2.5 * batch_size,
        speedup=speedup,
        spread=0.04,
        overhead=changes.pop("overhead", 0.083),
        prefill_s=0.5,
        outputs=16,
        divergences=changes.pop("divergences", ()),
    )
    predicted = TreePrediction(
        tokens_per_step=2.4,
        step_s=2.4 * batch_size / (0.99 * rate),
        speedup=0.99 * speedup,
        at_pace=changes.pop("at_pace", None),
    )
    return BatchRow(tree=tree, measured=measured, **({"chosen": False, "predicted": predicted} | changes))


BATCHES = BatchBench(
    rule="sequoia",
    temperature=0.0,
    prompts=16,
    max_new_tokens=96,
    rounds=3,
    sizes=(
        BatchSize(
            batch_size=1,
            rows=(
                batch_row(chain(0), 400.0, 1, overhead=0.05),
                batch_row(level_widths([2, 2]), 600.0, 1, speedup=1.5, chosen=True),
                batch_row(chain(3), 500.0, 1, speedup=1.25),
            ),
        ),
        BatchSize(
            batch_size=6,
            pace=replace(PACE, draft=None, draft_width=None),
            rows=(
                batch_row(chain(0), 1600.0, 6, chosen=True),
                batch_row(
                    chain(3),
                    1680.0,
                    6,
                    speedup=1.05,
                    divergences=(Divergence(prompt=3, position=7, gap=0.0, near_tie=True),),
                    at_pace=PACED,
                ),
                batch_row(chain(2), 1500.0, 6, speedup=0.9375, predicted=NO_PREDICTION),
            ),
        ),
    ),
)


def everything() -> Contents:
    """Return all that a page can show at once."""
    several = planned(
        invented(conditions=FOUR_CONDITIONS, tables=[TABLE, TABLE], others={"target": TABLE}, verify_noise=0.6)
    )
    tree = TokenTree([-1, 0, 0, 1, 1, 2])
    reach = np.array([1.0, 0.7, 0.2, 0.5, 0.1, 0.1])
    known = Provenance(pair="big + small", machine="invented", rule="sequoia", temperature=0.0, speedup=1.5)
    return Contents(
        planned=several,
        trees=(("tree.json", TreeFile(tree=tree, reach=reach, provenance=known)),),
        benches=(
            LabelledBench("bench.json", bench_of(several, 1.9), HEADING),
            LabelledBench("grid.json", GRID, HEADING),
            LabelledBench("methods.json", METHODS, HEADING),
            LabelledBench("engines.json", ENGINE, HEADING),
            LabelledBench("batches.json", BATCHES, HEADING),
        ),
    )
