"""Drafters by name: each is loaded and made, and errors are one line."""

import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.support.dflash_heads import save_dspark_head
from tests.support.eagle_heads import make_head, save_head, speculators, speculators_p_eagle
from treeopt import bundled as bundle
from treeopt.errors import InfeasibleError, InvalidValueError, TreeoptError
from treeopt.runtime.drafters.registry import digest_heads, load_drafter
from treeopt.trees import chain, level_widths
from treeopt.trees.drafter_setting import DrafterSetting, drafter_setting

TREE = level_widths([2, 2])
SETTINGS = (
    (drafter_setting("ddtree", budget=9), 9),
    (drafter_setting("redrafter", length=3, width=2), 7),
    (drafter_setting("lookahead", candidates=2, ngram=3, window=2), None),
    (drafter_setting("prompt-lookup", length=5, ngram=2), 6),
    (drafter_setting("specexec", batch=3, branching=4, budget=6, max_passes=3), 6),
    (drafter_setting("eagle2", depth=3, nodes=9, top_k=3), 9),
)


@pytest.fixture(scope="module")
def load(bundled_pair):
    """Return a function that loads a drafter for the bundled pair."""

    def load(name, source=None, *, layers=(), models=bundled_pair):
        return load_drafter(DrafterSetting(name=name, source=source, layers=layers), models, capacity=64)

    return load


@pytest.fixture(scope="module")
def eagle_folder(bundled_pair, tmp_path_factory):
    target = bundled_pair.target
    head = make_head(target, (1, 2), embedding=True)
    return save_head(speculators, tmp_path_factory.mktemp("head") / "eagle", head, target)


@pytest.mark.parametrize(("setting", "max_tokens"), SETTINGS)
def test_drafters_with_settings(load, setting, max_tokens):
    loaded = load(setting.name)
    assert loaded.setting.values == ()
    assert (
        (loaded.heads is not None) == (loaded.setting.digest is not None) == (setting.name in ("ddtree", "redrafter"))
    )
    assert max_tokens in (None, loaded.make_with_setting(setting).max_tokens)
    with pytest.raises(InvalidValueError, match="expected one that fills a tree"):
        loaded.make_with_tree(chain(2))
    with pytest.raises(InvalidValueError, match="Got none: plan again"):
        loaded.make_with_setting(drafter_setting(setting.name))


def test_drafters_with_static_trees(load, bundled_pair, eagle_folder, tmp_path):
    head = make_head(bundled_pair.target, (1, 2), embedding=True, mask=True)
    p_eagle = save_head(speculators_p_eagle, tmp_path / "p-eagle", head, bundled_pair.target)
    for name, source in (
        ("medusa", None),
        ("dflash", None),
        ("medusa", bundle.MEDUSA),
        ("dspark", save_dspark_head(tmp_path / "dspark")),
        ("eagle", eagle_folder),
        ("p-eagle", p_eagle),
    ):
        loaded = load(name, source and str(source))
        assert loaded.make_with_tree(TREE).max_tokens == TREE.nodes
        assert loaded.setting.source == (source and str(source))
        with pytest.raises(InvalidValueError, match="expected one with trees of its own"):
            loaded.make_with_setting(drafter_setting(name))
    dynamic, setting = load("eagle2", str(eagle_folder)), SETTINGS[-1][0]
    assert dynamic.setting.digest == digest_heads(eagle_folder) == load("eagle", str(eagle_folder)).setting.digest
    assert dynamic.make_with_setting(setting).requested_states.layer_ids
    assert not load("eagle2").make_with_setting(setting).requested_states.layer_ids  # it expands the draft model


def test_layer_ids_override_those_of_the_head(load, eagle_folder):
    folder = str(eagle_folder)
    for name in ("eagle", "eagle2"):
        assert load(name, folder).setting.layers == ()
        loaded = load(name, folder, layers=(5, 3))
        assert (loaded.heads.requested_states.layer_ids, loaded.setting.layers) == ((5, 3), (5, 3))
    for layers in ((1, 2, 3), (1, 9)):
        with pytest.raises(
            InvalidValueError, match=r"layers: expected 2 hidden-state layer ids from 0 to 8.*with --eagle-layers"
        ):
            load("eagle", folder, layers=layers)


def test_a_digest_depends_on_weights_and_not_on_the_folder(bundled_pair, tmp_path):
    target = bundled_pair.target
    first, same, other = (
        digest_heads(
            save_head(speculators, tmp_path / str(index), make_head(target, (1, 2), embedding=True, seed=seed), target)
        )
        for index, seed in enumerate((0, 0, 1))
    )
    assert first == same != other


def test_heads_of_the_hub_are_downloaded_once(load, eagle_folder, tmp_path, monkeypatch):
    cache, downloads = tmp_path / "cache", []

    def snapshot_download(name, *, allow_patterns, ignore_patterns, local_files_only):
        del ignore_patterns
        if local_files_only and not cache.exists():
            raise FileNotFoundError("not cached")
        if not local_files_only:
            downloads.append(name)
            cache.mkdir(exist_ok=True)
            for file in eagle_folder.iterdir():
                if any(file.match(pattern) for pattern in allow_patterns):
                    shutil.copy(file, cache)
        return str(cache)

    module = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)  # type: ignore[arg-type]
    first, second = (load("eagle", "org/head") for _ in range(2))
    assert downloads == ["org/head"]
    assert first.setting == second.setting == replace(load("eagle", str(eagle_folder)).setting, source="org/head")


@pytest.mark.parametrize(("name", "other"), [("dflash", "dspark"), ("ddtree", "dspark"), ("dspark", "dflash")])
def test_block_heads_are_refused_under_another_name(load, tmp_path, name, other):
    folder = bundle.DFLASH if other == "dflash" else save_dspark_head(tmp_path / "head")
    assert load(other, str(folder)).heads is not None
    with pytest.raises(InfeasibleError, match=rf"^{name}: expected .*Got a .* head, .*--drafter {other}=DIR") as error:
        load(name, str(folder))
    assert "\n" not in str(error.value)


def test_heads_that_do_not_fit_are_refused_in_one_line(load, bundled_pair, tmp_path):
    for name in ("dspark", "p-eagle"):
        with pytest.raises(InfeasibleError, match=rf"none ship for {name}. Got none: add it with --drafter {name}=DIR"):
            load(name)
    with pytest.raises(InfeasibleError, match=r"those that ship are the bundled target's.*--drafter medusa=DIR"):
        load("medusa", models=replace(bundled_pair, described=replace(bundled_pair.described, target_digest="0" * 16)))
    foreign = SimpleNamespace(name="foreign")
    with pytest.raises(InfeasibleError, match="expected a target that is built in"):
        load("eagle", str(tmp_path), models=replace(bundled_pair, target=foreign))
    sources = dict.fromkeys(("medusa", "dflash", "dspark", "ddtree", "eagle", "p-eagle", "eagle2"), tmp_path / "absent")
    for name, source in {**sources, "redrafter": bundle.MEDUSA}.items():
        with pytest.raises(TreeoptError) as error:
            load(name, str(source))
        assert "\n" not in str(error.value)
