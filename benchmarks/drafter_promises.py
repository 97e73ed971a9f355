"""What a profile promises of every drafter, and what decoding the same prompts comes to: `python benchmarks/drafter_promises.py`.

Each run measures a profile of the bundled pair anew, takes the fastest setting of every drafter from it, and decodes the
profile's prompts with each of them and plainly, in turn.  Arguments behind `--` go to `treeopt profile`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from conditions import bar, conditions, say

from treeopt import bundled as bundle
from treeopt.planner import DrafterChoice, PlanRequest, drafter_choices
from treeopt.profiler import Journal, MonotonicClock
from treeopt.profiler.drafters.decodes import Way, decoded_in_turn, together
from treeopt.profiler.drafters.measuring import KEPT_POSITIONS
from treeopt.profiler.recorder import Recorder
from treeopt.records.measured_drafter import DecodedTexts
from treeopt.records.profile import Profile
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder
from treeopt.runtime.decoding.limits import trained_tokens
from treeopt.runtime.drafters.drafter import Drafter
from treeopt.runtime.drafters.loaded import BUNDLED, load_drafter
from treeopt.runtime.models.pair import ModelPair, load_pair
from treeopt.texts.prompts import load_prompts, profile_prompts
from treeopt.trees import chain
from treeopt.trees.drafter_setting import DRAFTERS

POSITIONS = KEPT_POSITIONS  # as many as profiles decode with


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3, help="profiles that are measured")
    parser.add_argument("--profile", type=Path, help="a profile of the bundled pair to take in place of measuring one")
    parser.add_argument("--positions", type=int, default=POSITIONS, help="tokens that are decoded after each prompt")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--drafters", default=",".join(shipped()), help="those that are measured")
    parser.add_argument("options", nargs="*", help="of treeopt profile")
    asked = parser.parse_args()
    print(f"{conditions()}\n\nat temperature {asked.temperature:g}, promised and measured\n")
    models = load_pair()
    say(f"{'drafter':<15}{'setting':<44}{'tokens/step':>14}{'':>7}{'speedup':>24}{'':>7}")
    for run in bar(range(asked.runs), "runs"):
        profile = Profile.load(asked.profile) if asked.profile else measured(asked)
        say(f"run {run + 1}")
        for line in lines(models, profile, asked.temperature, asked.positions):
            say(line)


def shipped() -> list[str]:
    """Return the drafters that need no folder: those without heads, and with heads that ship."""
    return [name for name in DRAFTERS if name != "model" and hasattr(bundle, BUNDLED.get(name, "TARGET"))]


def measured(asked: argparse.Namespace) -> Profile:
    """Return a profile that the command measures in a process of its own."""
    named = [part for name in asked.drafters.split(",") for part in ("--drafter", name)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.yaml"
        command = [
            sys.executable,
            "-m",
            "treeopt",
            "profile",
            "-o",
            str(path),
            "--temperature",
            f"{asked.temperature:g}",
        ]
        subprocess.run([*command, *named, *asked.options], check=True, stdout=subprocess.DEVNULL, env=os.environ)
        return Profile.load(path)


def lines(models: ModelPair, profile: Profile, temperature: float, positions: int) -> list[str]:
    """Return a line for each drafter: what was promised, what came, and their ratio."""
    choices = drafter_choices(profile, PlanRequest(temperature=temperature))
    sampling = profile.acceptance(temperature=temperature).sampling
    ways = [Way("plain", lambda: decoder(models, None, sampling))]
    ways += [Way(str(place), maker(models, each, sampling)) for place, each in enumerate(choices)]
    texts = profile_prompts(load_prompts(most=profile_count(profile)))
    prompts = dict(enumerate(map(models.tokenizer.encode, texts)))
    recorder = Recorder(MonotonicClock(), Journal(None, ""))
    plain, *found = map(together, decoded_in_turn(ways, prompts, positions, recorder))
    rates = [rate(each) for each in found]
    fastest = max(range(len(choices)), key=lambda place: choices[place].speedup.value)
    chosen = f"solve chooses {choices[fastest].setting.name}: {rates[fastest] / max(rates):.2f} of the fastest row"
    return [*(line(choice, texts, plain) for choice, texts in zip(choices, found, strict=True)), chosen]


def profile_count(profile: Profile) -> int:
    """Return how many prompts leave as many for profiles as this one was measured on."""
    wanted = profile.acceptances[0].prompts or 1
    return next(most for most in range(1, 2 * wanted + 4) if len(profile_prompts(range(most))) == wanted)


def maker(models: ModelPair, choice: DrafterChoice, sampling: Sampling):  # type: ignore[no-untyped-def]
    """Return what makes the decoder of a choice."""
    if choice.setting.name == "model":
        return lambda: Decoder(models.target, models.draft, choice.tree, rule=choice.rule, sampling=sampling)
    loaded = load_drafter(
        choice.setting.name,
        choice.setting.source,
        models.target,
        models.draft,
        target_digest=models.described.target_digest,
        capacity=trained_tokens(models.target, models.draft),
    )
    if choice.tree is None:
        return lambda: decoder(models, loaded.set_to(choice.setting), sampling)
    return lambda: decoder(models, loaded.filling(choice.tree), sampling)


def decoder(models: ModelPair, drafter: Drafter | None, sampling: Sampling) -> Decoder:
    return Decoder(models.target, drafter, None if drafter else chain(0), sampling=sampling)


def rate(texts: DecodedTexts) -> float:
    """Return tokens per second."""
    return float(sum(texts.tokens) / texts.seconds.samples_s.sum())


def line(choice: DrafterChoice, texts: DecodedTexts, plain: DecodedTexts) -> str:
    tokens, speedup = choice.tokens_per_step, choice.speedup
    came = rate(texts) / rate(plain)
    return (
        f"{choice.setting.name:<15}{choice.shape:<44}{tokens.value:>7.2f}{texts.tokens_per_step:>7.2f}"
        f"{texts.tokens_per_step / tokens.value:>7.3f}{speedup.value:>7.2f} ({speedup.low:.2f}-{speedup.high:.2f})"
        f"{came:>7.2f}{came / speedup.value:>7.3f}"
    )


if __name__ == "__main__":
    main()
