"""DSpark heads: logits of an independent implementation, trees whose tokens depend on their parents, refused files."""

import pytest
import torch

from tests.support import dflash_heads as heads
from tests.support import dspark_fixture as fixture
from tests.support.decoded import PROMPT, decoded_step
from treeopt.errors import FormatError, InvalidValueError
from treeopt.runtime import Decoder
from treeopt.runtime.drafters.dflash import DFlashDrafter, load_dflash
from treeopt.runtime.models.model import HiddenStates
from treeopt.trees import chain, k_ary, level_widths

TEXT = [3, 14, 15, 9, 2, 6, 5, 11, 20]
FEW = [0, 2, 3, 7, 11, 21]


@pytest.fixture(scope="module")
def oracle(deep):
    return heads.make_oracle(deep.config)


@pytest.fixture(scope="module")
def files(oracle, deep):
    """Return config and tensors of a DSpark head in DeepSpec's layout."""
    return heads.add_markov(*heads.deep_spec(oracle, deep))


@pytest.fixture
def load(deep, tmp_path):
    """Return a function that saves and loads a head."""
    return lambda config, tensors: load_dflash(heads.save(tmp_path / "head", config, tensors), deep)


@pytest.fixture(scope="module")
def head(files, deep, tmp_path_factory):
    return load_dflash(heads.save(tmp_path_factory.mktemp("dspark") / "head", *files), deep)


def block_logits(head, states, text):
    """Return the logits (levels, V) after a text's root, without a Markov head's."""
    (cache,) = head.new_caches(len(text), 1)
    head.read(states, cache)
    return head.draft([text[-1]], [cache])[0]


def states_of(head, target, text):
    return target.compute_states(torch.tensor(text[:-1]), head.requested_states)


def likeliest_tree(tree, text, block, tensors):
    """Return the tokens of a tree, node by node: the children of one are the likeliest after its token."""
    tokens = [text[-1]]
    for parent, depth, rank in zip(tree.parents[1:], tree.depth[1:], tree.rank[1:], strict=True):
        logits = block[depth - 1] + heads.markov_bias(tensors, tokens[parent])
        tokens.append(int(logits.argsort(descending=True)[rank]))
    return tokens


class TestNetwork:
    @pytest.mark.parametrize("name", ["shifted", "in_place"])
    def test_logits_are_those_of_speculators(self, load, name):
        """Every slot after the sequence's own token, as its training pass has them."""
        tensors, arrays = fixture.load()
        head = load(fixture.config(shifted=None if name == "shifted" else False), tensors)
        assert head.requested_states.layer_ids == tuple(fixture.LAYER_IDS)
        assert head.levels == fixture.BLOCK - (name == "in_place")
        tokens, root = arrays["tokens"], fixture.ROOT
        states = HiddenStates(tuple(arrays["states"][:, :root].double()), None)
        block = block_logits(head, states, tokens[: root + 1].tolist())
        logits = block + head.markov.bias(tokens[root : root + head.levels])
        expected = arrays[name][fixture.BLOCK - head.levels :]
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
        assert (block - expected).abs().max() > 0.1
        late = block + head.markov.bias(tokens[root + 1 : root + 1 + head.levels])
        assert (late - expected).abs().max() > 0.1

    def test_the_slots_are_those_of_transformers(self, deep, oracle, head):
        found = block_logits(head, states_of(head, deep, TEXT), TEXT)
        torch.testing.assert_close(found, heads.oracle_logits(oracle, deep, TEXT), atol=1e-5, rtol=1e-5)

    def test_a_head_of_fewer_tokens_predicts_these(self, oracle, load):
        config, tensors = heads.speculators(oracle)
        offsets = torch.tensor(FEW) - torch.arange(len(FEW))
        config, tensors = heads.add_markov(config, tensors | {"d2t": offsets})
        head = load(config, tensors)
        logits = head.markov.bias(torch.tensor([[4, 9]]))
        assert head.tokens == len(FEW)
        assert logits.isfinite().nonzero()[:, -1].unique().tolist() == FEW
        torch.testing.assert_close(logits[..., FEW], heads.markov_bias(tensors, [[4, 9]]))

    @pytest.mark.parametrize(
        ("fields", "shifted"),
        [
            ({"speculators_model_type": "dspark"}, True),
            ({"speculators_model_type": "dspark", "sample_from_anchor": False}, False),
            ({"architectures": ["DSparkDraftModel"]}, True),
            ({"dflash_config": {"projector_type": "dspark"}}, True),
            ({"architectures": ["DFlashDraftModel"]}, False),
        ],
    )
    def test_slots_are_shifted_where_the_layout_has_it(self, oracle, load, fields, shifted):
        config, tensors = heads.speculators(oracle)
        assert load(config | fields, tensors).shifted == shifted

    def test_early_names_of_specforge_load(self, files, head, load):
        config, tensors = files
        nested = {
            f"logit_head.{name}" if name.startswith(("markov", "confidence")) else name: tensor
            for name, tensor in tensors.items()
        }
        found = load(config, nested)
        assert torch.equal(found.markov.bias(torch.arange(23)), head.markov.bias(torch.arange(23)))


class TestDrafter:
    @pytest.mark.parametrize("tree", [chain(5), k_ary(2, 3), level_widths([3, 5, 2])], ids=repr)
    def test_every_node_is_likely_after_its_parent(self, deep, oracle, files, head, tree):
        decoder = Decoder(deep, DFlashDrafter(head, tree, capacity=60), temperature=1.5, seed=5)
        text, by_depth_and_rank = list(PROMPT), []
        decoder.start(text)
        for _ in range(5):
            proposal = decoder.draft()
            expected = likeliest_tree(tree, text, heads.oracle_logits(oracle, deep, text), files[1])
            assert proposal.tokens.tolist() == expected
            places = list(zip(tree.depth.tolist(), tree.rank.tolist(), strict=True))
            by_depth_and_rank.append(len(set(zip(places, expected, strict=True))) == len(set(places)))
            text += decoded_step(decoder, proposal)
        assert all(by_depth_and_rank) == (tree == chain(5))  # as without a Markov head

    def test_the_tree_may_change_within_what_the_head_predicts(self, deep, head):
        drafter = DFlashDrafter(head, k_ary(2, 3), capacity=60)
        decoder = Decoder(deep, drafter, temperature=0.0)
        decoder.start(PROMPT)
        for tree in (chain(4), chain(0), k_ary(2, 3)):
            drafter.change_tree(tree)
            assert decoder.draft().tree == tree
            decoder.step()
        with pytest.raises(InvalidValueError, match="at most 5 levels"):
            drafter.change_tree(chain(6))
        with pytest.raises(InvalidValueError, match="at most 23 children"):
            drafter.change_tree(level_widths([24]))

    def test_a_token_whose_bias_is_not_finite_ends_the_tree_there(self, deep, files, load):
        config, tensors = files
        broken = tensors["markov_head.markov_w1.weight"].clone()
        head = load(
            config, tensors | {"markov_head.markov_w1.weight": broken.index_fill(0, torch.tensor(TEXT[-1:]), torch.nan)}
        )
        drafter = DFlashDrafter(head, chain(3), capacity=60)
        for number, text in enumerate((TEXT, TEXT[:-1])):
            drafter.begin(number, text, states_of(head, deep, text))
        scores = [proposal.scores for proposal in drafter.propose([0, 1], [torch.Generator()] * 2)]
        assert [list(each.nodes) for each in scores] == [[0, 1, 2, 3]] * 2
        assert not scores[0].values[0].isfinite()
        assert scores[1].values[0].isfinite()


class TestRefused:
    @pytest.mark.parametrize(
        ("fields", "tensors", "reason"),
        [
            ({"markov_head_type": "gated"}, {}, "markov_head_type: expected vanilla. Got 'gated'"),
            ({"markov_head_type": "rnn"}, {}, "markov_head_type: expected vanilla. Got 'rnn'"),
            ({"markov_rank": 4}, {}, r"markov_w2.weight: expected shape \(23, 4\)"),
            ({"markov_rank": "4"}, {}, "markov_rank: expected a whole number"),
            ({}, {"markov_w1.weight": (22, 3)}, r"markov_w1.weight: expected shape \(23, 3\)"),
            ({}, {"markov_w2.weight": None}, "markov_w2.weight: this tensor is missing"),
            ({}, {"markov_w1.weight": None, "markov_w2.weight": None}, "markov_w2.weight: this tensor is missing"),
            ({"markov_rank": None}, {"markov_w1.weight": ()}, "markov_w2.weight: expected shape"),
            ({}, {"proj.weight": (1, 32)}, r"proj.weight: expected shape \(1, 35\)"),
            ({}, {"proj.bias": (2,)}, r"proj.bias: expected shape \(1,\)"),
            ({"confidence_head_with_markov": False}, {}, r"proj.weight: expected shape \(1, 32\)"),
            ({"confidence_head_with_markov": 1}, {}, "confidence_head_with_markov: expected true or false"),
        ],
    )
    def test_files_that_do_not_fit(self, files, load, fields, tensors, reason):
        config, stored = files
        changed = dict(stored)
        for name, shape in tensors.items():
            (full,) = (key for key in stored if key.endswith(name) and "_head." in key)
            if shape is None:
                del changed[full]
            else:
                changed[full] = torch.ones(shape)
        with pytest.raises(FormatError, match=reason):
            load(config | fields, changed)


def test_rank_follows_from_the_tensors_if_the_file_lacks_it(files, load):
    config, tensors = files
    assert (
        load({name: value for name, value in config.items() if "markov" not in name}, tensors).markov.rank == heads.RANK
    )
