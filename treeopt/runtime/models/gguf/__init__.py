"""GGUF models, run by llama.cpp."""

from treeopt.runtime.models.gguf.file import GGUFFile, is_gguf
from treeopt.runtime.models.gguf.model import load_gguf

__all__ = ["GGUFFile", "is_gguf", "load_gguf"]
