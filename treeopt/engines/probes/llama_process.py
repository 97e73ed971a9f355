"""llama.cpp's server from the wheel xllamacpp, in a process of its own: ready, it prints its address, and it ends with its input."""

import json
import os
import sys
from typing import Any

from treeopt.engines.probes.client import EAGLE3, NGRAM


def main() -> None:
    """Serve the models named in the JSON object that is the first argument until standard input ends."""
    asked = json.loads(sys.argv[1])
    import xllamacpp

    server = xllamacpp.Server(_parameters(xllamacpp, asked))
    print(json.dumps({"address": server.listening_address}), flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # its threads would go on


def _parameters(xllamacpp: Any, asked: dict[str, Any]) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = asked["target"]
    parameters.n_parallel = asked["slots"]
    parameters.n_ctx = asked["slots"] * asked["context_tokens"]
    parameters.port = 0
    parameters.endpoint_metrics = True
    threads = asked["threads"]
    if threads is not None:
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    if asked["draft_tokens"] and asked["method"] == NGRAM:
        kinds, speculative = xllamacpp.common_speculative_type, parameters.speculative
        speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE]
        speculative.ngram_simple.size_m = asked["draft_tokens"]
        if asked["ngram_tokens"] is not None:
            speculative.ngram_simple.size_n = asked["ngram_tokens"]
    elif asked["draft_tokens"]:
        kinds, speculative = xllamacpp.common_speculative_type, parameters.speculative
        eagle = asked["method"] == EAGLE3
        speculative.types = [
            kinds.COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3 if eagle else kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE
        ]
        speculative.draft.mparams.path = asked["draft"]
        speculative.draft.n_max = asked["draft_tokens"]
        speculative.draft.n_min = 0
        speculative.draft.p_min = 0.0
        if threads is not None:
            speculative.draft.cpuparams.n_threads = speculative.draft.cpuparams_batch.n_threads = threads
    return parameters


if __name__ == "__main__":
    main()
