"""Drafters by name: every one is loaded and made, and what does not fit is one line."""

import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.support.dflash_heads import save_dspark_head
from tests.support.eagle_heads import make_head, save_head, speculators, speculators_p_eagle
from treeopt import bundled as bundle
from treeopt.errors import InfeasibleError, InvalidValueError, TreeoptError
from treeopt.runtime import load_model
from treeopt.runtime.drafters.registry import digest_heads, load_drafter
from treeopt.runtime.models.folder import ModelFolder
from treeopt.trees import chain, level_widths
from treeopt.trees.drafter_setting import drafter_setting

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
def pair():
    return load_model(bundle.TARGET), load_model(bundle.DRAFT)


def load(pair, name, source=None, digest=None, layers=()):
    known = digest or ModelFolder(bundle.TARGET).digest
    return load_drafter(name, source, *pair, layers=layers, target_digest=known, capacity=64)


@pytest.mark.parametrize(("setting", "most"), SETTINGS)
def test_trees_of_their_own(pair, setting, most):
    loaded = load(pair, setting.name)
    assert loaded.setting(setting.values).values == setting.values
    assert (loaded.heads is not None) == (loaded.digest is not None) == (setting.name in ("ddtree", "redrafter"))
    made = loaded.make_with_setting(setting)
    assert most in (None, made.max_tokens)
    with pytest.raises(InvalidValueError, match="expected one that fills a tree"):
        loaded.make_with_tree(chain(2))
    with pytest.raises(InvalidValueError, match="Got none: plan again"):
        loaded.make_with_setting(drafter_setting(setting.name))


def test_heads_fill_a_tree_or_grow_their_own(pair, tmp_path):
    folder = save_head(speculators, tmp_path / "eagle", make_head(pair[0], (1, 2), embedding=True), pair[0])
    masked = make_head(pair[0], (1, 2), embedding=True, mask=True)
    parallel = save_head(speculators_p_eagle, tmp_path / "p-eagle", masked, pair[0])
    named = (
        ("medusa", None),
        ("dflash", None),
        ("medusa", bundle.MEDUSA),
        ("dspark", save_dspark_head(tmp_path / "dspark")),
        ("eagle", folder),
        ("p-eagle", parallel),
    )
    for name, folder_or_none in named:
        source = None if folder_or_none is None else str(folder_or_none)
        loaded = load(pair, name, source)
        assert loaded.make_with_tree(TREE).max_tokens == TREE.nodes
        assert loaded.setting().source == source
        with pytest.raises(InvalidValueError, match="expected one with trees of its own"):
            loaded.make_with_setting(drafter_setting(name))
    dynamic = load(pair, "eagle2", str(folder))
    assert dynamic.digest == digest_heads(folder) == load(pair, "eagle", str(folder)).digest
    assert dynamic.make_with_setting(SETTINGS[-1][0]).requested_states.layer_ids
    assert not load(pair, "eagle2").make_with_setting(SETTINGS[-1][0]).requested_states.layer_ids


def test_layer_ids_that_are_given_override_those_of_the_head_and_stay_with_the_drafter(pair, tmp_path):
    folder = save_head(speculators, tmp_path / "eagle", make_head(pair[0], (1, 2), embedding=True), pair[0])
    for name in ("eagle", "eagle2"):
        assert load(pair, name, str(folder)).setting().layers == ()
        loaded = load(pair, name, str(folder), layers=(5, 3))
        assert (loaded.heads.requested_states.layer_ids, loaded.setting().layers) == ((5, 3), (5, 3))
    assert load(pair, "eagle", layers=(1, 2, 3)).heads.requested_states.layer_ids == (1, 2, 3)
    for wrong in ((1, 2, 3), (1, 9)):
        with pytest.raises(
            InvalidValueError, match=r"layers: expected 2 hidden-state layer ids from 0 to 8.*with --eagle-layers"
        ):
            load(pair, "eagle", str(folder), layers=wrong)


def test_a_digest_tells_heads_apart_and_not_where_they_lie(pair, tmp_path):
    folders = [
        save_head(speculators, tmp_path / str(place), make_head(pair[0], (1, 2), embedding=True, seed=seed), pair[0])
        for place, seed in enumerate((0, 0, 1))
    ]
    first, same, other = map(digest_heads, folders)
    assert first == same != other


def test_heads_of_the_hub_are_downloaded_once(pair, tmp_path, monkeypatch):
    hub = save_head(speculators, tmp_path / "hub", make_head(pair[0], (1, 2), embedding=True), pair[0])
    cache, downloads = tmp_path / "cache", []

    def snapshot_download(name, *, allow_patterns, ignore_patterns, local_files_only):
        del ignore_patterns
        if local_files_only and not cache.exists():
            raise FileNotFoundError("not cached")
        if not local_files_only:
            downloads.append(name)
            cache.mkdir(exist_ok=True)
            for file in hub.iterdir():
                if any(file.match(pattern) for pattern in allow_patterns):
                    shutil.copy(file, cache)
        return str(cache)

    module = SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)  # type: ignore[arg-type]
    first, second = (load(pair, "eagle", "org/head") for _ in range(2))
    assert downloads == ["org/head"]
    assert first.setting() == second.setting() == replace(load(pair, "eagle", str(hub)).setting(), source="org/head")


def test_heads_that_do_not_ship_need_a_folder(pair):
    for name in ("dspark", "p-eagle"):
        with pytest.raises(InfeasibleError, match=rf"none ship for {name}. Got none: add it with --drafter {name}=DIR"):
            load(pair, name)
    assert load(pair, "eagle2").heads is None  # it expands the draft model


@pytest.mark.parametrize(("name", "other"), [("dflash", "dspark"), ("ddtree", "dspark"), ("dspark", "dflash")])
def test_block_heads_load_under_the_name_that_engines_have_for_them(pair, tmp_path, name, other):
    folder = bundle.DFLASH if other == "dflash" else save_dspark_head(tmp_path / "head")
    assert load(pair, other, str(folder)).heads is not None
    with pytest.raises(InfeasibleError, match=rf"^{name}: expected .*Got a .* head, .*--drafter {other}=DIR") as error:
        load(pair, name, str(folder))
    assert len(str(error.value).splitlines()) == 1


def test_what_does_not_fit_is_one_line(pair, tmp_path):
    with pytest.raises(InfeasibleError, match="those that ship are the bundled target's") as found:
        load(pair, "medusa", digest="0" * 16)
    assert "--drafter medusa=DIR" in str(found.value)
    foreign = SimpleNamespace(name="foreign")
    with pytest.raises(InfeasibleError, match="expected a target that is built in"):
        load_drafter("eagle", str(tmp_path), foreign, foreign, target_digest=None, capacity=64)  # type: ignore[arg-type]
    for name in ("medusa", "dflash", "dspark", "ddtree", "redrafter", "eagle", "p-eagle", "eagle2"):
        with pytest.raises(TreeoptError) as error:
            load(pair, name, str(tmp_path / "absent"))
        assert len(str(error.value).splitlines()) == 1
    with pytest.raises(TreeoptError):
        load(pair, "redrafter", str(bundle.MEDUSA))
