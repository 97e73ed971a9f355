"""Print the sizes and held-out losses of the bundled pair.

python tools/report_pair.py --pair treeopt/bundled
"""

import argparse
from pathlib import Path

from train_target import held_out_loss, load_llama


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", type=Path, required=True, help="folder of the pair")
    args = parser.parse_args()
    for name in ("target", "draft"):
        model = load_llama(args.pair / name)
        config = model.config
        print(
            f"{name}: {config.num_hidden_layers} layers x {config.hidden_size}, {model.num_parameters():,} parameters, "
            f"held-out loss {held_out_loss(model):.4f} nats per byte"
        )


if __name__ == "__main__":
    main()
