"""Identities of profiles, trees and runs: same models, and differences."""

from dataclasses import replace

import pytest

from tests.records.test_profile_file import GOLDEN
from treeopt import bundled
from treeopt.records.identity import Identity
from treeopt.records.profile import UNKNOWN
from treeopt.runtime.models.folder import SAMPLES, ModelFolder, hash_model, hash_path
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
    def test_compares_digests_else_names(self, changes, same):
        other = replace(HERE, **changes)
        assert HERE.same_pair(other) is other.same_pair(HERE) is same

    @pytest.mark.parametrize(
        "distribution", ["over cpu, disk", "over 0, 1, cpu", "over cuda:0", "split over 2 processes"]
    )
    @pytest.mark.parametrize("digest", [None, HERE.target_digest])
    def test_distributed_target_is_the_same_model(self, distribution, digest):
        planned = replace(HERE, pair="t + d", target_digest=digest)
        here = replace(planned, pair=f"t {distribution} + d")
        assert planned.same_pair(here)
        assert here.same_pair(planned)
        assert not replace(planned, pair="t over night + d", target_digest=None).same_pair(here)

    def test_unknown_models_have_no_name(self):
        unknown = Identity.of(replace(GOLDEN.pair, target=UNKNOWN, target_digest=None), GOLDEN.machine)
        assert unknown.pair is None
        assert unknown.same_pair(replace(HERE, pair="others"))


class TestDifferences:
    def test_every_condition_is_compared(self):
        other = replace(HERE, machine="another", device="cuda:0", dtype="bfloat16", threads=1)
        assert HERE.differences(other) == (
            "AMD EPYC 7763, not another",
            "cpu, not cuda:0",
            "float32, not bfloat16",
            "2 threads, not 1 thread",
        )

    def test_distribution_of_the_target_is_compared(self):
        here = replace(HERE, pair="t over cpu, disk + d")
        assert HERE.differences(here) == ("the target on one device, not the target over cpu, disk",)
        assert here.differences(here) == ()

    def test_unknown_values_do_not_differ(self):
        assert HERE.differences(Identity()) == Identity().differences(HERE) == ()
        assert HERE.differences(replace(HERE, pair="others", target_digest="x")) == ()


class TestModelOptions:
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
    def test_options_load_models_with_known_source(self, identity, options, bundled):
        assert (identity.model_options, identity.bundled) == (options, bundled)

    def test_missing_draft_model_does_not_differ(self):
        alone = replace(HERE, draft=None, draft_digest=None, pair="target")
        assert alone.same_pair(HERE)
        assert HERE.same_pair(alone)
        assert not replace(alone, target_digest="another").same_pair(HERE)


def test_provenance_gives_identity():
    provenance = Provenance(pair="a + b", target="x/a", draft="x/b", dtype="float32", machine="m", threads=4)
    result = Identity.from_provenance(provenance)
    assert (result.pair, result.target, result.draft, result.machine, result.threads) == ("a + b", "x/a", "x/b", "m", 4)
    assert Identity.from_provenance(None) == Identity()


class TestDigest:
    @pytest.fixture
    def file(self, tmp_path):
        (tmp_path / "model.safetensors").write_bytes(bytes(1_000_000))
        return tmp_path / "model.safetensors"

    def test_digest_depends_on_content(self, file, tmp_path_factory):
        copy = tmp_path_factory.mktemp("copy") / file.name
        copy.write_bytes(file.read_bytes())
        assert hash_model({"layers": 1, "heads": 2}, [copy]) == hash_model({"heads": 2, "layers": 1}, [file])

    @pytest.mark.parametrize("place", [0, 65_535, 65_536, 65_536 + (1_000_000 - 65_536) * (SAMPLES - 1) // SAMPLES])
    def test_changed_weight_changes_digest(self, file, place):
        before = hash_model({}, [file])
        weights = bytearray(1_000_000)
        weights[place] = 1
        file.write_bytes(weights)
        assert hash_model({}, [file]) != before

    def test_changed_config_and_size_change_digest(self, file):
        before, other = hash_model({}, [file]), hash_model({"layers": 2}, [file])
        file.write_bytes(bytes(1_000_001))
        assert len({before, other, hash_model({}, [file])}) == 3

    def test_folder_has_digest_of_decoder(self):
        assert hash_path(str(bundled.TARGET)) == ModelFolder(bundled.TARGET).digest

    def test_openvino_folder_digest(self, tmp_path):
        result = set()
        for name, content in (
            ("m.bin", b"1"),
            ("m.xml", b"<a/>"),
            ("m.bin", b"2"),
            ("config.json", b"{}"),
            ("m.xml", b"<b/>"),
        ):
            (tmp_path / name).write_bytes(content)
            result.add(hash_path(str(tmp_path)))
        assert len(result) == 4  # an empty configuration is none

    def test_other_paths_have_no_digest(self, tmp_path):
        assert [hash_path(item) for item in (None, "org/name", str(tmp_path))] == [None] * 3
