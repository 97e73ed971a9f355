"""transformers' assisted generation on the bundled pair: the whole distribution is sampled, whatever the folder sets."""

import json
import shutil

import pytest

from treeopt import bundled
from treeopt.engines.probes.client import NGRAM, Launch, Question
from treeopt.engines.probes.named import engine_client

pytest.importorskip("transformers", reason="needs the hf extra")
PROMPT = "def add(first, second):\n    return"
NEW_TOKENS = 24
GREEDY = Question(PROMPT, NEW_TOKENS, 0.0)


@pytest.fixture
def make_folder(tmp_path):
    """Return the function that copies the bundled target, with a generation_config.json."""

    def make(**generation):
        folder = shutil.copytree(bundled.TARGET, tmp_path / f"target{len(list(tmp_path.iterdir()))}")
        (folder / "generation_config.json").write_text(json.dumps(generation), "utf-8")
        return folder

    return make


def answer(target, question, draft=bundled.DRAFT, draft_tokens=3, method=None):
    client = engine_client("transformers", url=None, threads=1, timeout_s=60)
    launch = Launch(target=str(target), draft=None if method else str(draft), draft_tokens=draft_tokens, method=method)
    return client.start(launch).answers([question])[0]


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_the_whole_distribution_is_sampled(make_folder, draft_tokens):
    """Folders of chat models set top_p and penalties; profiles record top_p 1."""
    question = Question(PROMPT, NEW_TOKENS, 1.0)
    plain, narrow = make_folder(), make_folder(do_sample=True, top_p=0.05, repetition_penalty=1.5)
    texts = [
        [answer(folder, question._replace(seed=seed), draft_tokens=draft_tokens).text for seed in range(3)]
        for folder in (plain, narrow)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3


def test_a_penalty_of_the_folder_does_not_change_greedy_text(make_folder):
    assert answer(make_folder(repetition_penalty=3.0), GREEDY).text == answer(make_folder(), GREEDY).text


@pytest.mark.parametrize(("draft_tokens", "method"), [(0, None), (3, None), (3, NGRAM)])
def test_an_end_token_does_not_shorten_the_text(make_folder, draft_tokens, method):
    """The end token is the first that greedy decoding writes, so that a text that heeds it ends at once."""
    text = answer(bundled.TARGET, GREEDY, draft_tokens=0).text
    folder = make_folder(eos_token_id=ord(text[0]), pad_token_id=0)
    assert answer(folder, GREEDY, draft_tokens=draft_tokens, method=method).text == text
    assert len(text) == NEW_TOKENS  # a token of this pair is a byte
