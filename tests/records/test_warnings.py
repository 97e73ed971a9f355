"""Every warning says what was found and what to do, and only the command line makes lines of warnings."""

import dataclasses
import re
from pathlib import Path

import pytest

from treeopt.records import warnings
from treeopt.records.warnings import Caution, FormatCaution

ROOT = Path(__file__).parents[2]
WHERE = "256 tokens of context, batch 1"
TEXTS = {
    warnings.OutsideMeasured(300, 2): "context 300 tokens x batch 2 lies outside what was measured; its times are "
    "extrapolated along straight lines. Profile there before you rely on them.",
    warnings.AcceptanceElsewhere("acceptance", (256,), (64, 4096)): "acceptance was measured for 256 tokens of context "
    "only, and is taken from there for 64,4096: it may be another. Profile with --context-tokens 64,256,4096.",
    warnings.AcceptanceElsewhere("acceptance", (64, 256), (4096,)): "acceptance was measured for 64 to 256 tokens of "
    "context, and is taken from there for 4096: it may be another. Profile with --context-tokens 64,256,4096.",
    warnings.AcceptanceElsewhere("acceptance of medusa", (256,), (4096,)): "acceptance of medusa was measured for 256 "
    "tokens of context only, and is taken from there for 4096: it may be another. Profile with --context-tokens 256,4096.",
    warnings.LongerThanMeasured(171, 500, 12000): "acceptance was measured along at most 171 tokens of a text, and is "
    "taken from there for texts of 500. Profile with --positions 12000.",
    warnings.BeyondLargestPass(
        64, 128
    ): "passes were measured up to 64 tokens; times beyond are extrapolated along straight "
    "lines. Profile with --max-tokens 128 before you rely on them.",
    warnings.ImportedWithoutErrors(("acceptance", "draft time")): "imported without errors: acceptance, draft time. "
    "Intervals and certainty take them for exact: import several samples of each time, and counts in place of rates.",
    warnings.UnsureChoice(0.5, 0.75, "draft time", "--rounds"): "that the choice is within 1 % of the fastest is only "
    "50 % certain. It would be 75 %, were draft time known exactly. Profile with more --rounds.",
    warnings.UnsureChoice(
        0.5, 0.75, "draft time", None, "target"
    ): "that the choice is within 1 % of the fastest under "
    "target is only 50 % certain. It would be 75 %, were draft time known exactly. Import more samples of it.",
    warnings.OtherPair("t was planned for", "a + b", "c + d", "add --target a"): "t was planned for a + b, and this is "
    "c + d: what was promised does not hold. For the promised pair add --target a.",
    warnings.OtherConditions(
        "t was planned for", ("2 threads, not 1", "cpu, not cuda")
    ): "t was planned for 2 threads, not 1; cpu, not cuda: times differ. Give the same options, or profile again here.",
    warnings.RacedElsewhere(
        "b.json", ("a + b, not c + d",)
    ): "b.json was raced with a + b, not c + d: the verdict leaves it out. Name the profile that it was raced beside, or "
    "race here.",
    warnings.OtherPrograms(
        "1.5 of 2 processors", "cpu", "wait longer"
    ): "other programs use 1.5 of 2 processors. Times taken beside them are too long: close them, or wait longer.",
    warnings.OtherPrograms("1.5 of 2 processors", "cuda", "wait longer"): "other programs use 1.5 of 2 processors. The "
    "host may start the device's work too late: close them, or wait longer.",
    warnings.DisturbedTimes(
        WHERE, 0.5, 0.25, 0.125
    ): f"{WHERE}: other programs used 50% of the processors during 25% of "
    "the timed calls: 12% of the samples are from then, and too long. Close them, or wait for quiet with --wait 10m, and "
    "profile again without --resume.",
    warnings.SpeedChanged(
        WHERE, -0.2
    ): f"{WHERE}: the machine became 20% faster while it was timed. It may be throttling, "
    "or shared: let it cool, close other programs, and profile again without --resume.",
    warnings.ScatteredTimes(
        WHERE, 0.4
    ): f"{WHERE}: single calls vary by 40%. Close other programs, set --threads to the "
    "cores that are free, or ask for more --rounds.",
    warnings.PlainSpeedChanged(): "the machine's speed is not what it was when it was profiled: profile again right before "
    "this, or trust speedups more than times",
    warnings.UpdateDropped(
        "small"
    ): "small: an update of the draft was dropped, because its gradient is NaN or infinite; "
    "the text goes on as it was. If it happens again, lower --learning-rate, or do without --learn.",
    warnings.TextsDiffer(3): "the text of 3 trees DIFFERS from plain decoding's. Look with treeopt bench TREE",
    warnings.BatchesWithoutTimes((8, 16)): "nothing is predicted for 8, 16 texts at a time, because the profile has no "
    "times there. Profile with --batch-sizes 1,8,16.",
    warnings.BatchesWithoutTimes((1, 16)): "nothing is predicted for 1, 16 texts at a time, because the profile has no "
    "times there. Profile with --batch-sizes 1,16.",
    warnings.BatchesWithoutSteps(): "the profile was measured before batched steps were timed, so that predictions for "
    "several texts are too fast. Profile again.",
    warnings.TextsOfBatchDiffer(
        2
    ): "2 texts DIFFER from those decoded alone, not at near-ties. Report it, with --output",
    warnings.TextsOfStreamsDiffer(
        2
    ): "the texts of 2 streams DIFFER between ways of decoding, not at near-ties. Report it, with --output",
    warnings.TextDiffers(): "the text DIFFERS from plain decoding's. Report it, with --output",
    warnings.NamedDraft("small", "vLLM"): "the draft model is given as 'small', which is a name and no model that vLLM "
    "could load. Name one with --draft-model.",
    warnings.WithoutRecord(
        "SGLang"
    ): "SGLang takes dynamic trees, but without a draft record only chains can be planned. "
    "Run treeopt profile --record, and name it with --record.",
    warnings.SmallBatchesUnmeasured(
        4
    ): "batch sizes below 4 were not measured; the schedule treats them like 4. Profile them.",
    warnings.WithoutProfile(
        "vLLM", branched=False
    ): "without a profile nothing is predicted. Run treeopt profile, or name one with --profile.",
    warnings.WithoutProfile(
        "vLLM", branched=True
    ): "without a profile nothing is predicted, and the length is the depth "
    "of the tree, whose branches vLLM cannot be given. Run treeopt profile, or name one with --profile.",
    warnings.OtherHeads(
        "t.json", "eagle", "heads"
    ): "t.json was planned for other eagle heads than those in heads: what was "
    "promised does not hold. Name the folder of the planned ones with --drafter eagle=DIR, or profile and solve again.",
    warnings.OtherHeads(
        "t.json", "medusa", None
    ): "t.json was planned for other medusa heads than those that ship: what was "
    "promised does not hold. Name the folder of the planned ones with --drafter medusa=DIR, or profile and solve again.",
    warnings.OtherLayers(
        "t.json", (2, 6, 9), (1, 2)
    ): "t.json was planned with boundaries 2,6,9, and boundaries 1,2 are read: what was promised need not hold. Leave out "
    "--eagle-layers, or profile with it and solve again.",
    warnings.OtherLayers(
        "t.json", (), (1,)
    ): "t.json was planned with those of the head's config.json, and boundaries 1 "
    "are read: what was promised need not hold. Leave out --eagle-layers, or profile with it and solve again.",
    warnings.SpeculationOff(
        "vLLM"
    ): "vLLM is set to decode plainly, as nothing is known of a draft. Export a tree file with a chain to speculate.",
    warnings.SpeculationOff(
        "vLLM", "chain of 1 draft token", 1.5
    ): "vLLM is set to decode plainly, as asked, although a chain "
    "of 1 draft token is 1.50 times as fast. Export a tree file with a chain to speculate.",
    warnings.SpeculationOff(
        "vLLM", "chain of 1 draft token", 0.5
    ): "speculation loses: the fastest draft, a chain of 1 draft "
    "token, is 0.50 times as fast as plain decoding, so vLLM is set to decode plainly. Export a tree file with a chain to "
    "speculate.",
    warnings.TorchMissing(
        "No module named 'torch'"
    ): "torch cannot be imported (No module named 'torch'): only solve, show, compare, export and import work. Install it "
    "with pip install torch; its CPU build is enough.",
    warnings.MissingPackages(("scipy",)): "treeopt needs scipy, which is not installed. Run pip install scipy.",
    warnings.MissingPackages(
        ("numba", "scipy")
    ): "treeopt needs numba, scipy, which are not installed. Run pip install numba scipy.",
    warnings.DeviceUnseen(
        "2.13.0+cpu"
    ): "NVIDIA's driver is here, but torch 2.13.0+cpu sees no GPU. Install a torch that "
    "is built for CUDA, and look whether CUDA_VISIBLE_DEVICES hides the GPU.",
    warnings.SlowGovernor(
        "powersave"
    ): "the processors' frequency is set by the governor powersave, so that short passes "
    "run slower than long ones. Run sudo cpupower frequency-set --governor performance before you profile.",
    warnings.OnBattery(): "the computer runs on its battery and saves power: plug it in before you profile.",
    warnings.MemoryTaken(
        "cuda:0", 0.25
    ): "25% of the memory of cuda:0 is taken by other programs, which may compute there "
    "too. Close them (nvidia-smi lists them), or choose another with --device.",
    warnings.ProcessorQuota(1.5, 2): "this container may use 1.5 processors' worth of time and torch computes with 2 "
    "threads, which are stopped in turn. Give --threads 1, or raise the container's limit.",
    warnings.SharedCores(
        8, 4
    ): "torch computes with 8 threads on 4 cores, so that some share one. Give --threads 4 and look which is faster.",
    warnings.FewThreads(
        1, 2, "1"
    ): "torch computes with 1 thread on 2 cores because OMP_NUM_THREADS is 1. Give --threads "
    "2, unless the others are for something else.",
    warnings.FewThreads(
        2, 4, None
    ): "torch computes with 2 threads on 4 cores. Give --threads 4, unless the others are for something else.",
    FormatCaution("Heads are few. It fails. Check the model."): "Heads are few. It fails. Check the model.",
}


def test_every_kind_of_warning_has_its_text_here() -> None:
    kinds = [each for each in vars(warnings).values() if isinstance(each, type) and issubclass(each, Caution)]
    assert {type(each) for each in TEXTS} | {Caution} == set(kinds)
    for caution, text in TEXTS.items():
        assert str(caution) == text


def test_every_warning_is_a_value_that_ends_in_what_to_do() -> None:
    for caution in TEXTS:
        assert caution.found.endswith((".", ":")), caution
        assert len(caution.action.split()) > 1, caution
        assert str(caution).endswith(caution.action)
        assert caution == dataclasses.replace(caution)
        for each in dataclasses.fields(caution):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(caution, each.name, None)


@pytest.mark.source
def test_nobody_else_writes_warnings() -> None:
    """A line that begins with `Warning: ` is made in one place, by an argument that is one of these."""
    makes = re.compile(r"""f?["']Warning: """)
    found = [path.name for path in sorted((ROOT / "cli").rglob("*.py")) for _ in makes.findall(path.read_text("utf-8"))]
    assert found == ["terminal.py", "terminal.py"]  # these, and Python's own warnings of treeopt's category
