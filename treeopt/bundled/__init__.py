"""The bundled pair: a small real target and draft, so that every command works on a machine without a model.

`tools/train_target.py`, `tools/train_draft.py`, `tools/train_heads.py`, `tools/train_redrafter.py`,
`tools/train_eagle.py`, `tools/train_dflash.py` and `tools/finish_pair.py` made these files; see README.md here.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
TARGET = FOLDER / "target"
DRAFT = FOLDER / "draft"
REDRAFTER = FOLDER / "redrafter"
MEDUSA = FOLDER / "medusa"
EAGLE = FOLDER / "eagle"
DFLASH = FOLDER / "dflash"
PROMPTS = FOLDER / "prompts.json"
