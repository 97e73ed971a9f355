"""Commands that the output prints for profiles of engines."""

from dataclasses import replace
from pathlib import Path

import pytest

from treeopt.records.engine import EngineSetting
from treeopt.records.profile import Profile
from treeopt.report.commands import engine_command, profile_command

PROBED = Profile.load(Path(__file__).parents[1] / "data" / "profile-engine.yaml")
MODELS = {"target_source": "t.gguf", "draft_source": "d.gguf"}
NGRAM = (EngineSetting(name="method", value="ngram"),)


@pytest.mark.parametrize(
    ("name", "sources", "settings", "measure", "follow"),
    [
        ("llama-server", MODELS, (), "probe llama-server --target t.gguf --draft d.gguf", "bench engine llama-server"),
        ("llama-server", {"target_source": "t"}, NGRAM, "probe llama-server --target t --method ngram", "bench engine"),
        ("llama-server", {}, (), "probe llama-server --url URLS", "--url 0=URL"),
        ("vllm", MODELS, (), "probe vllm --target t.gguf --draft d.gguf --url URLS", "--url 0=URL"),
        ("imported", {}, (), None, "export tree.json --profile p.yaml --to vllm"),
    ],
)
def test_engine_is_started_or_named_by_its_address(
    name: str, sources: dict[str, str], settings: tuple[EngineSetting, ...], measure: str | None, follow: str
) -> None:
    assert PROBED.engine is not None
    pair = replace(PROBED.pair, **{"target_source": None, "draft_source": None, **sources})
    profile = replace(PROBED, pair=pair, engine=replace(PROBED.engine, name=name, settings=settings))
    assert profile_command(profile) == (None if measure is None else f"treeopt {measure}")
    command = engine_command(profile, "p.yaml", "tree.json")
    assert follow in command
    assert ("--url" in command) == ("--url" in follow)
