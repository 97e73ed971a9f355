"""What a profile, a tree and a run are of: the same models by what they hold, and what else differs."""

from dataclasses import replace

import pytest

from tests.records.test_profile_file import GOLDEN
from treeopt import bundled
from treeopt.engines.importers.combine import UNKNOWN
from treeopt.records.identity import Identity
from treeopt.runtime.models.digest import SAMPLES, model_digest, path_digest
from treeopt.runtime.models.folder import ModelFolder
from treeopt.trees import Provenance

HERE = Identity.of(GOLDEN.pair, GOLDEN.machine)


class TestSamePair:
    @pytest.mark.parametrize(
        ("changes", "same"),
        [
            ({}, True),
            ({"target_digest": "another"}, False),
            ({"draft_digest": "another"}, False),
            ({"pair": "moved + renamed", "target": "elsewhere/t", "draft": "elsewhere/d"}, True),
            ({"target_digest": None}, True),
            ({"target_digest": None, "pair": "others"}, False),
            ({"target_digest": None, "draft_digest": None, "pair": None}, True),
        ],
        ids=str,
    )
    def test_by_contents_else_by_name(self, changes, same):
        other = replace(HERE, **changes)
        assert HERE.same_pair(other) is other.same_pair(HERE) is same

    def test_models_that_nobody_looked_at_have_no_name(self):
        unknown = Identity.of(replace(GOLDEN.pair, target=UNKNOWN, target_digest=None), GOLDEN.machine)
        assert unknown.pair is None
        assert unknown.same_pair(replace(HERE, pair="others"))


class TestDifferences:
    def test_each_condition_is_told(self):
        other = replace(HERE, machine="another", device="cuda:0", dtype="bfloat16", threads=1)
        assert HERE.differences(other) == (
            "AMD EPYC 7763, not another",
            "cpu, not cuda:0",
            "float32, not bfloat16",
            "2 threads, not 1 thread",
        )

    def test_what_one_leaves_open_is_no_difference(self):
        assert HERE.differences(Identity()) == Identity().differences(HERE) == ()
        assert HERE.differences(replace(HERE, pair="others", target_digest="x")) == ()


class TestModels:
    @pytest.mark.parametrize(
        ("identity", "options", "bundled"),
        [
            (HERE, " --target models/target --draft models/draft", False),
            (Identity(pair="a b", target="a b"), " --target 'a b'", False),
            (Identity(pair="large + small"), "", False),
            (Identity(pair="bundled target + bundled draft"), "", True),
            (Identity(), "", False),
        ],
    )
    def test_options_load_them_where_it_is_known_where_they_are(self, identity, options, bundled):
        assert (identity.models, identity.bundled) == (options, bundled)

    def test_a_draft_model_that_only_one_has_is_no_difference(self):
        alone = replace(HERE, draft=None, draft_digest=None, pair="target")
        assert alone.same_pair(HERE)
        assert HERE.same_pair(alone)
        assert not replace(alone, target_digest="another").same_pair(HERE)


def test_a_tree_keeps_what_it_was_planned_for():
    provenance = Provenance(pair="a + b", target="x/a", draft="x/b", dtype="float32", machine="m", threads=4)
    found = Identity.planned_for(provenance)
    assert (found.pair, found.target, found.draft, found.machine, found.threads) == ("a + b", "x/a", "x/b", "m", 4)
    assert Identity.planned_for(None) == Identity()


class TestDigest:
    @pytest.fixture
    def file(self, tmp_path):
        (tmp_path / "model.safetensors").write_bytes(bytes(1_000_000))
        return tmp_path / "model.safetensors"

    def test_it_is_of_the_contents(self, file, tmp_path_factory):
        copy = tmp_path_factory.mktemp("copy") / file.name
        copy.write_bytes(file.read_bytes())
        assert model_digest({"layers": 1, "heads": 2}, [copy]) == model_digest({"heads": 2, "layers": 1}, [file])

    def test_the_order_of_files_does_not_count(self, file):
        other = file.with_name("more.safetensors")
        other.write_bytes(b"more")
        assert model_digest({}, [file, other]) == model_digest({}, [other, file]) != model_digest({}, [file])

    @pytest.mark.parametrize("place", [0, 65_535, 65_536, 65_536 + (1_000_000 - 65_536) * (SAMPLES - 1) // SAMPLES])
    def test_another_weight_is_another_model(self, file, place):
        before = model_digest({}, [file])
        weights = bytearray(1_000_000)
        weights[place] = 1
        file.write_bytes(weights)
        assert model_digest({}, [file]) != before

    def test_so_is_another_configuration_and_another_size(self, file):
        before, other = model_digest({}, [file]), model_digest({"layers": 2}, [file])
        file.write_bytes(bytes(1_000_001))
        assert len({before, other, model_digest({}, [file])}) == 3

    def test_a_folder_is_known_as_the_decoder_knows_it(self):
        assert path_digest(str(bundled.TARGET)) == ModelFolder(bundled.TARGET).digest

    def test_a_folder_of_openvino_is_its_weights_and_its_graph(self, tmp_path):
        found = set()
        for name, content in (
            ("m.bin", b"1"),
            ("m.xml", b"<a/>"),
            ("m.bin", b"2"),
            ("config.json", b"{}"),
            ("m.xml", b"<b/>"),
        ):
            (tmp_path / name).write_bytes(content)
            found.add(path_digest(str(tmp_path)))
        assert len(found) == 4  # an empty configuration is none

    def test_what_is_no_model_here_has_none(self, tmp_path):
        assert [path_digest(each) for each in (None, "org/name", str(tmp_path))] == [None] * 3
