"""Time the host's part of a DDTree step: from a block's logits to the tree that is verified.

The bundled pair decodes held-out prompts. The first steps of every budget are left out.
"""

import time
from collections.abc import Sequence

import numpy as np
import torch
from common import default_prompts, describe_environment, floats, progress, script_parser

from treeopt.runtime import Decoder
from treeopt.runtime.drafters.dflash.drafters import DDTreeDrafter, DFlashSequence
from treeopt.runtime.drafters.drafter import Proposal
from treeopt.runtime.drafters.registry import load_drafter
from treeopt.runtime.models.pair import load_pair
from treeopt.texts.prompts import bench_prompts
from treeopt.trees.drafter_parameters import DDTreeSetting
from treeopt.trees.drafter_setting import DrafterSetting

WARM_UP_STEPS = 20


class TimedDrafter(DDTreeDrafter):
    """Keeps the seconds from the logits of a block to its tree."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.build_s: list[float] = []
        self._logits_s = 0.0

    def _draft_blocks(self, sequences: Sequence[DFlashSequence]) -> tuple[list[int], torch.Tensor]:
        blocks = super()._draft_blocks(sequences)
        self._logits_s = time.perf_counter()
        return blocks

    def _fill(self, sequences: Sequence[DFlashSequence], generators: Sequence[torch.Generator]) -> list[Proposal]:
        proposals = super()._fill(sequences, generators)
        self.build_s.append(time.perf_counter() - self._logits_s)
        return proposals


def main() -> None:
    parser = script_parser(__doc__)
    parser.add_argument("--budgets", type=floats, default="8,16,32,64", help="comma-separated (default: %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="of each prompt (default: %(default)s)")
    args = parser.parse_args()
    print(describe_environment())
    models = load_pair()
    prompts = bench_prompts(default_prompts(models))
    capacity = max(map(len, prompts)) + args.max_new_tokens + 64
    head = load_drafter(DrafterSetting(name="ddtree"), models, capacity=capacity).heads
    print(f"{'budget':>8}{'step, ms':>12}{'host, ms':>12}{'share, %':>12}")
    for budget in map(int, args.budgets):
        drafter = TimedDrafter(head, DDTreeSetting(budget=budget), capacity=capacity)
        decoder = Decoder(models.target, drafter, max_sequence_tokens=capacity)
        steps_s = []
        for prompt in progress(prompts, f"budget {budget}"):
            start_s = time.perf_counter()
            for number, _ in enumerate(decoder.decode_steps(prompt, args.max_new_tokens)):
                end_s = time.perf_counter()
                if number:  # the first includes the prompt
                    steps_s.append(end_s - start_s)
                start_s = end_s
        step_s, build_s = np.median(steps_s[WARM_UP_STEPS:]), np.median(drafter.build_s[WARM_UP_STEPS:])
        print(f"{budget:8}{1e3 * step_s:12.2f}{1e3 * build_s:12.3f}{100 * build_s / step_s:12.1f}", flush=True)


if __name__ == "__main__":
    main()
