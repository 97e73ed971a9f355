"""Print what docs/reference/bundled-pair.md says of the bundled pair: sizes and held-out losses.

Run it as `python tools/report_pair.py --pair treeopt/bundled`.
"""

import argparse
from pathlib import Path

from llama import load_llama
from train_target import held_out_loss


def main() -> None:
    """Load both models as anybody would and measure them on the held-out files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", type=Path, required=True)
    options = parser.parse_args()
    for name in ("target", "draft"):
        model = load_llama(options.pair / name)
        config = model.config
        print(
            f"{name}: {config.num_hidden_layers} layers x {config.hidden_size}, {model.num_parameters():,} parameters, "
            f"held-out loss {held_out_loss(model):.4f} nats per byte"
        )


if __name__ == "__main__":
    main()
