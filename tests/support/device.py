"""Where the toy models of the contract suite and of the runtime's tests lie: TREEOPT_TEST_DEVICE=cuda puts them on a GPU."""

import os

import torch

DEVICE = torch.device(os.environ.get("TREEOPT_TEST_DEVICE", "cpu"))
