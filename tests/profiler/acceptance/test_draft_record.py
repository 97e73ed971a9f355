"""Draft records contain the distributions of fresh passes, and replaying them takes the steps of decoding."""

from dataclasses import fields, replace

import numpy as np
import pytest

from tests.profiler.pretended import interrupt
from tests.support.passes import logits_after
from tests.support.slow_beam_expansion import best
from treeopt.errors import InvalidValueError, TreeoptError
from treeopt.planner.replay import Replay
from treeopt.profiler import RecordFiles, Recording, RecordSize, Settings
from treeopt.profiler.acceptance.expansion import Expander
from treeopt.records.sampling import Sampling
from treeopt.runtime import Decoder, ExpandingDrafter, Transformer
from treeopt.trees import chain
from treeopt.trees.drafter_parameters import DynamicTree, pool_nodes

SETTINGS = Settings(positions=42, record=RecordSize(top_k=4, depth=4))


def make_recording(target, draft, prompts, settings=SETTINGS, *, folder=None, resume=False):
    return Recording(target, draft, prompts, settings, files=RecordFiles(folder, resume=resume))


def record_drafts(*arguments, **options):
    return make_recording(*arguments, **options).record(show_progress=False)


def assert_same(one, other):
    for field in fields(one):
        if field.name != "created":
            np.testing.assert_array_equal(getattr(one, field.name), getattr(other, field.name), field.name)


def log_probs_after(model, tokens):
    """Return the log-probabilities (V,) after a sequence, from a pass over nothing else."""
    return logits_after(model, tokens).float().log_softmax(-1).numpy()


def decode_greedily(model, prompt, count):
    return list(Decoder(model, None, chain(0), temperature=0.0).generate(prompt, count))


def nodes_of(record, root):
    """Return {path of ranks: log-probabilities (K,)} of the nodes expanded below a root."""
    paths, nodes = [], {}
    for node in range(record.node_starts[root], record.node_starts[root + 1]):
        parent = record.parent[node]
        paths.append(() if parent < 0 else (*paths[parent], int(record.rank[node])))
        nodes[paths[-1]] = record.log_probs[node]
    assert len(nodes) == len(paths)
    return nodes


def grow(nodes, top_k, depth):
    """Return the scores of the pool of one size of tree, by path of ranks, the pool in order, and the beams of each level."""
    scores, pool, beams, levels = {(): np.float32(0)}, [], [()], [[()]]
    for _ in range(depth):
        level = []
        for path in beams:
            for rank in range(top_k):
                scores[*path, rank] = np.float32(scores[path] + nodes[path][rank])
                level.append((*path, rank))
        pool += level
        beams = best(level, scores, top_k)
        levels.append(beams)
    return scores, pool, levels


def replay(record, tree):
    """Return the lengths of the steps of every sequence with a dynamic tree."""

    def count_accepted(root):
        scores, pool, _ = grow(nodes_of(record, root), tree.top_k, tree.depth)
        tree_nodes = set(best(pool, scores, tree.nodes - 1))
        ranks = record.accepted_ranks[root].tolist()
        length = 0
        while length < tree.depth and tuple(ranks[: length + 1]) in tree_nodes:
            length += 1
        return length

    sequences = []
    for root, end in zip(record.sequence_starts[:-1].tolist(), record.sequence_starts[1:].tolist(), strict=True):
        steps = []
        while root + sum(steps) < end:
            left = end - root - sum(steps)
            steps.append(min(count_accepted(root + sum(steps)) + 1, left))
        sequences.append(steps)
    return sequences


@pytest.fixture(scope="module")
def record(target, draft, prompts):
    return record_drafts(target, draft, prompts)


@pytest.fixture(scope="module")
def long_record(target, draft, prompts):
    """Return a record of 20 positions of each prompt, for deep trees."""
    return record_drafts(target, draft, prompts, Settings(positions=120, record=RecordSize(top_k=6, depth=6)))


class TestContent:
    def test_roots_are_the_generated_positions(self, record, target, draft, prompts):
        assert (record.sequences, record.roots, record.top_k, record.depth) == (6, 42, 4, 4)
        assert record.sequence_starts.tolist() == [0, 7, 14, 21, 28, 35, 42]
        assert (record.temperature, record.top_p, record.target_top_k) == (0.0, 1.0, 0)
        assert record.pair == "large + small"
        assert record_drafts(target, draft, prompts, replace(SETTINGS, positions=7)).roots == 12

    def test_nodes_are_those_of_all_trees_with_the_log_probs_of_fresh_passes(self, record, target, draft, prompts):
        for number, prompt in enumerate(prompts[:3]):
            sequence = [*prompt, *decode_greedily(target, prompt, 7)]
            for position in range(7):
                context = sequence[: len(prompt) + position]
                nodes = nodes_of(record, 7 * number + position)
                levels = [level for top_k in range(1, 5) for level in grow(nodes, top_k, 4)[2][:-1]]
                assert set(nodes) == {path for level in levels for path in level}
                for path, log_probs in nodes.items():
                    tokens = list(context)
                    for rank in path:
                        tokens.append(int(np.argsort(-log_probs_after(draft, tokens))[rank]))
                    fresh = np.sort(log_probs_after(draft, tokens))[::-1][:4]
                    np.testing.assert_allclose(log_probs, fresh, rtol=1e-4, atol=1e-5)

    def test_outcomes_are_the_ranks_of_the_sequence(self, record, target, draft, prompts):
        assert (record.accepted_ranks >= 0).any(axis=0).all()
        for number, prompt in enumerate(prompts):
            sequence = [*prompt, *decode_greedily(target, prompt, 11)]
            for position in range(7):
                root, length = 7 * number + position, len(prompt) + position
                nodes, expected = nodes_of(record, root), []
                for depth in range(4):
                    order = np.argsort(-log_probs_after(draft, sequence[: length + depth]))[:4].tolist()
                    if tuple(expected) not in nodes or sequence[length + depth] not in order:
                        break
                    expected.append(order.index(sequence[length + depth]))
                assert record.accepted_ranks[root].tolist() == [*expected, *[-1] * (4 - len(expected))]

    def test_small_vocabulary_is_recorded_whole(self, target, draft, prompts):
        settings = replace(SETTINGS, positions=6, record=RecordSize(top_k=99, depth=2))
        record = record_drafts(target, draft, prompts, settings)
        assert record.top_k == 23
        np.testing.assert_allclose(np.exp(record.log_probs).sum(axis=1), 1, rtol=1e-5)
        assert (record.accepted_ranks >= 0).all()

    @pytest.mark.parametrize("depth", [1, 3])
    def test_record_of_one_child_is_of_chains(self, target, draft, prompts, depth):
        settings = replace(SETTINGS, record=RecordSize(top_k=1, depth=depth))
        assert np.diff(record_drafts(target, draft, prompts, settings).node_starts).tolist() == [depth] * 42

    def test_sequence_that_ends_early_has_fewer_roots(self, target, draft, prompts, record):
        tokens = decode_greedily(target, prompts[0], 7)
        ending = Transformer(replace(target.config, end_tokens=(tokens[3],)), target.weights, name="large")
        length = tokens.index(tokens[3]) + 1
        cut = record_drafts(ending, draft, prompts)
        assert cut.sequence_starts[1] == length
        assert (cut.accepted_ranks[length - 1, 1:] == -1).all()
        np.testing.assert_array_equal(cut.accepted_ranks[0, :length], record.accepted_ranks[0, :length])

    def test_sequences_end_at_the_trained_length(self, target, make_model, prompts):
        short = make_model(seed=1, noise=0.15, max_positions=16)
        record = record_drafts(target, short, prompts, replace(SETTINGS, positions=36))
        assert record.roots == 36
        last = record.sequence_starts[-1] - 1  # prompt of 10, root 5 at position 14, one token follows
        assert (record.accepted_ranks[last, 1:] == -1).all()

    def test_sampled_sequences_have_their_own_seeds(self, target, draft, prompts):
        settings = replace(SETTINGS, samplings=(Sampling(1.0, 0.9, 20),))
        record, again = (record_drafts(target, draft, prompts[:1] * 3, settings) for _ in range(2))
        assert_same(record, again)
        assert (record.temperature, record.top_p, record.target_top_k) == (1.0, 0.9, 20)
        assert len({record.accepted_ranks[start : start + 14].tobytes() for start in (0, 14, 28)}) == 3


class TestReplay:
    def decoder(self, target, draft, tree, temperature):
        drafter = ExpandingDrafter(draft, tree, capacity=draft.config.max_positions)
        return Decoder(target, drafter, temperature=temperature)

    @pytest.mark.parametrize("numbers", [(1, 6, 4), (4, 2, 1 + pool_nodes(4, 2)), (6, 6, 40)])
    def test_replayed_steps_are_those_of_decoding(self, target, draft, prompts, long_record, numbers):
        tree = DynamicTree(top_k=numbers[0], depth=numbers[1], nodes=numbers[2])
        decoder, steps = self.decoder(target, draft, tree, 0.0), replay(long_record, tree)
        assert steps == [[len(step) for step in decoder.stream(prompt, 20)] for prompt in prompts]
        assert max(map(max, steps)) > 2

    def test_replayed_steps_are_those_of_sampling(self, target, draft, prompts):
        tree = DynamicTree(top_k=2, depth=3, nodes=5)
        decoder = self.decoder(target, draft, tree, 0.6)
        settings = Settings(positions=40, samplings=(Sampling(0.6),), record=RecordSize(top_k=6, depth=6))
        recording = make_recording(target, draft, prompts, settings)
        for prompt in prompts[:3]:
            steps = list(decoder.stream(prompt, 46))
            tokens = [token for step in steps for token in step]
            starts = np.cumsum([0, *map(len, steps[:-1])])
            roots = len(tokens) - tree.depth
            record = recording.record_sequence(prompt, tokens, roots)
            counts = Replay(record).count_steps(tree.top_k, tree.depth, np.array([tree.nodes]))
            lengths = [len(step) for start, step in zip(starts, steps, strict=True) if start < roots]
            assert (counts.tokens.item(), counts.steps.item()) == (sum(lengths), len(lengths))

    def test_other_sizes_and_shifted_records_have_other_steps(self, long_record):
        """Negative control."""
        small, large = (DynamicTree(top_k=3, depth=6, nodes=nodes) for nodes in (4, 12))
        shifted = replace(long_record, accepted_ranks=np.roll(long_record.accepted_ranks, 1, axis=0))
        steps = replay(long_record, large)
        assert replay(long_record, small) != steps
        assert replay(shifted, large) != steps


class TestFiles:
    @pytest.mark.parametrize("temperature", [0.0, 0.8])
    def test_resumed_record_expands_only_what_is_missing(
        self, target, draft, prompts, tmp_path, temperature, monkeypatch
    ):
        settings, folder = replace(SETTINGS, samplings=(Sampling(temperature),)), tmp_path / "records"
        whole = record_drafts(target, draft, prompts, settings)
        calls = interrupt(monkeypatch, Expander, "expand", 3)
        with pytest.raises(KeyboardInterrupt):
            record_drafts(target, draft, prompts, settings, folder=folder)
        assert sorted(path.name for path in folder.iterdir()) == ["0.npz", "1.npz", "2.npz"]
        resumed = make_recording(target, draft, prompts, settings, folder=folder, resume=True)
        assert_same(resumed.record(show_progress=False), whole)
        assert [tokens[: len(tokens) - roots + 1] for _, tokens, roots in calls] == [*prompts[:4], *prompts[3:]]
        resumed._files.remove()
        assert not folder.exists()

    def test_new_record_replaces_the_files(self, target, draft, prompts, tmp_path, record):
        record_drafts(target, target, prompts, folder=tmp_path / "records")
        assert_same(record_drafts(target, draft, prompts, folder=tmp_path / "records"), record)

    def test_folder_is_created_with_the_first_record(self, tmp_path):
        files = RecordFiles(tmp_path / "records")
        assert files.load(0) is None
        files.remove()
        assert list(tmp_path.iterdir()) == []

    def test_file_in_place_of_the_folder_is_refused_and_removed_when_starting_over(
        self, target, draft, prompts, tmp_path
    ):
        (tmp_path / "records").touch()
        with pytest.raises(TreeoptError, match="records"):
            record_drafts(target, draft, prompts, folder=tmp_path / "records", resume=True)
        RecordFiles(tmp_path / "records")
        assert list(tmp_path.iterdir()) == []

    def test_starting_over_removes_a_link_but_not_its_target(self, tmp_path):
        (tmp_path / "mine").mkdir()
        (tmp_path / "records").symlink_to("mine")
        RecordFiles(tmp_path / "records")
        assert list(tmp_path.iterdir()) == [tmp_path / "mine"]

    @pytest.mark.parametrize("name", ["top_k", "depth"])
    def test_size_below_one_is_refused(self, name):
        with pytest.raises(InvalidValueError, match=f"record {name}: expected at least 1. Got 0"):
            RecordSize(**{name: 0})
