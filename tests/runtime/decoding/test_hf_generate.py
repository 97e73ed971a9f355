"""A loaded transformers model runs as its folder would, and `generate` with a tree returns the same tokens."""

import gc
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs the hf extra")

from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from treeopt import bundled
from treeopt.engines.exporters.hf import CODE, custom_generate_code
from treeopt.errors import FormatError, InvalidValueError, TreeoptError, TreeoptWarning
from treeopt.runtime import load_model
from treeopt.runtime.decoding import hf_generate
from treeopt.runtime.models.hf.cache import cache_argument
from treeopt.runtime.rules.distributions import distribution
from treeopt.texts.prompts import load_prompts
from treeopt.trees import TokenTree, chain, level_widths

TREE = level_widths([3, 4, 3, 2])
NEW = 24


def load_hf(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def target():
    return load_hf(bundled.TARGET)


@pytest.fixture(scope="module")
def draft():
    return load_hf(bundled.DRAFT)


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(bundled.TARGET)


@pytest.fixture(scope="module")
def prompt(tokenizer):
    return tokenizer(load_prompts()[0], return_tensors="pt", add_special_tokens=False)


@pytest.fixture(scope="module")
def plain(target, prompt):
    """Return the greedy tokens of transformers, int64 (1, n + NEW)."""
    return target.generate(**prompt, max_new_tokens=NEW)


@pytest.fixture
def tiny(make_checkpoint):
    """Return a function that loads a random model."""
    return lambda seed, **changes: load_hf(make_checkpoint(seed=seed, tie_word_embeddings=False, **changes))


@pytest.fixture
def modules_cache(tmp_path, monkeypatch):
    """Let transformers copy code to a temporary folder."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])


def write_code(folder: Path, tree: TokenTree = TREE) -> str:
    path = folder / CODE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(custom_generate_code(tree, "sequoia"))
    return str(folder)


class RecordingStreamer:
    def __init__(self):
        self.received = []

    def put(self, value):
        self.received.append(value.tolist())

    def end(self):
        self.received.append("end")


@pytest.mark.usefixtures("modules_cache")
class TestFolder:
    def test_tokens_equal_plain_generation(self, target, draft, prompt, plain, tmp_path):
        options = {"custom_generate": write_code(tmp_path / "tree.json.hf"), "assistant_model": draft}
        assert torch.equal(target.generate(**prompt, max_new_tokens=NEW, trust_remote_code=True, **options), plain)
        with pytest.raises(ValueError, match="trust_remote_code=True"):
            target.generate(**prompt, trust_remote_code=False, **options)

    def test_two_folders_of_one_name_keep_their_trees(self, target, draft, prompt, tmp_path, monkeypatch):
        used, trees = [], [chain(2), TREE, chain(2)]
        monkeypatch.setattr(hf_generate, "generate", lambda *_, tree, **__: used.append(tree))
        for index, tree in enumerate(trees):
            folder = write_code(tmp_path / str(index) / "same", tree)
            target.generate(**prompt, custom_generate=folder, trust_remote_code=True, assistant_model=draft)
        assert used == trees

    def test_a_model_folder_may_contain_the_code(self, draft, prompt, plain, tmp_path):
        for file in bundled.TARGET.iterdir():
            (tmp_path / file.name).symlink_to(file)
        write_code(tmp_path)
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, trust_remote_code=True)
        assert torch.equal(model.generate(**prompt, max_new_tokens=NEW, assistant_model=draft), plain)

    def test_the_code_contains_tree_and_rule(self, target, draft, prompt):
        code, names = custom_generate_code(level_widths([300, 900]), "traversal"), {}
        exec(code, names)  # noqa: S102
        assert names["TREE"] == level_widths([300, 900])
        assert 'rule="traversal", lossy=False' in code
        assert max(map(len, code.splitlines())) <= 120
        lossy, names = custom_generate_code(TREE, "typical"), {}
        exec(lossy, names)  # noqa: S102
        names["generate"](target, assistant_model=draft, **prompt, do_sample=True, max_new_tokens=5)
        assert "of another distribution" in lossy
        with pytest.raises(InvalidValueError, match="rule: expected one of"):
            custom_generate_code(TREE, "best")


class OddLength(StoppingCriteria):
    def __call__(self, input_ids, _scores, **_):
        return torch.tensor([input_ids.shape[1] % 17 == 0])


class TestGreedy:
    @pytest.mark.parametrize(
        "options",
        [
            {"max_new_tokens": 1},
            {"generation_config": GenerationConfig(max_new_tokens=30, eos_token_id=0)},
            {"max_length": 240, "eos_token_id": [10, 46]},
            {"max_new_tokens": 60, "stop_strings": ["e t", "se"]},
            {"max_new_tokens": 50, "stopping_criteria": StoppingCriteriaList([OddLength()])},
        ],
        ids=lambda options: ",".join(options),
    )
    def test_output_ends_with_plain_generation(self, target, draft, prompt, tokenizer, options):
        arguments = {**prompt, **options, "tokenizer": tokenizer}
        expected = target.generate(**arguments)
        assert torch.equal(hf_generate.generate(target, **arguments, tree=TREE, assistant_model=draft), expected)

    def test_the_models_own_end_token_alone_does_not_end_it(self, target, draft, prompt, monkeypatch):
        monkeypatch.setattr(target.config, "eos_token_id", 32)
        with torch.no_grad():  # drop the converted model
            target.lm_head.weight.add_(0)
        expected = target.generate(**prompt, max_new_tokens=NEW)
        tokens = hf_generate.generate(target, **prompt, max_new_tokens=NEW, tree=TREE, assistant_model=draft)
        assert torch.equal(tokens, expected)

    def test_the_root_alone_needs_no_draft(self, target, prompt, plain):
        assert torch.equal(hf_generate.generate(target, **prompt, max_new_tokens=NEW, tree=chain(0)), plain)

    def test_decode_is_a_custom_generate_function(self, target, draft, prompt, plain):
        method = partial(hf_generate.decode, tree=TREE, assistant_model=draft)
        assert torch.equal(target.generate(**prompt, max_new_tokens=NEW, custom_generate=method), plain)

    def test_a_streamer_receives_the_same(self, target, draft, prompt):
        expected, streamer = RecordingStreamer(), RecordingStreamer()
        target.generate(**prompt, max_new_tokens=NEW, streamer=expected)
        tokens = hf_generate.generate(
            target, **prompt, max_new_tokens=NEW, streamer=streamer, tree=TREE, assistant_model=draft
        )
        assert streamer.received == expected.received
        assert len(streamer.received) == NEW + 2
        assert tokens.dtype == torch.int64
        assert not tokens.is_inference()


class TestSampling:
    def sample(self, target, draft, prompt, **options):
        options = {"do_sample": True, "max_new_tokens": NEW, **options}
        return hf_generate.generate(target, **prompt, **options, tree=TREE, assistant_model=draft)

    def test_tokens_follow_the_seed_of_torch(self, target, draft, prompt):
        torch.manual_seed(3)
        first, second = (self.sample(target, draft, prompt) for _ in range(2))
        torch.manual_seed(3)
        assert torch.equal(self.sample(target, draft, prompt), first)
        assert not torch.equal(first, second)
        state = torch.get_rng_state()
        self.sample(target, draft, prompt, do_sample=False, max_new_tokens=5)
        assert torch.equal(torch.get_rng_state(), state)

    def test_options_reach_the_distribution(self, target, draft, prompt, plain):
        for options in ({"top_k": 1}, {"top_p": 1e-4}, {"temperature": 1e-5}):
            assert torch.equal(self.sample(target, draft, prompt, **options), plain)
        assert not torch.equal(self.sample(target, draft, prompt), plain)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"temperature": 0.6, "top_k": 0},
            {"top_p": 0.8, "top_k": 0},
            {"temperature": 1.3, "top_k": 9, "top_p": 0.7},
        ],
        ids=str,
    )
    def test_the_distribution_is_that_of_transformers(self, target, options):
        config, _ = target._prepare_generation_config(None, do_sample=True, **options)
        processors = target._get_logits_processor(config)
        logits = 3 * torch.randn(20, 256, generator=torch.Generator().manual_seed(1))
        expected = torch.softmax(processors(torch.zeros(20, 1, dtype=torch.int64), logits.clone()), -1)
        torch.testing.assert_close(distribution(logits, hf_generate._sampling(config, processors)), expected)


def warpers(*processors):
    return {"do_sample": True, "top_k": 0, "logits_processor": LogitsProcessorList(processors)}


REFUSED = [
    ({"num_beams": 2}, "generation_config: .* Got beam_search"),
    ({"prompt_lookup_num_tokens": 2}, "generation_config: .* Got assisted_generation"),
    ({"num_return_sequences": 2, "do_sample": True}, "input_ids: expected one sequence.* Got 2"),
    ({"repetition_penalty": 1.2}, "logits_processor: .* Got RepetitionPenaltyLogitsProcessor"),
    ({"do_sample": True, "min_p": 0.1}, "logits_processor: .*MinPLogitsWarper"),
    (
        warpers(transformers.TopPLogitsWarper(0.9), transformers.TemperatureLogitsWarper(0.5)),
        "logits_processor: .* in this order",
    ),
    (warpers(transformers.TopPLogitsWarper(0.9, min_tokens_to_keep=2)), "logits_processor"),
    ({"stop_strings": "x"}, "tokenizer: expected the models' tokenizer"),
    ({"return_dict_in_generate": True}, "return_dict_in_generate: expected false"),
    ({"assistant_model": None}, "assistant_model: expected a draft model for a tree of 13 nodes"),
    ({"max_new_tokens": 2000}, "max_new_tokens: .* takes 1024 tokens, its trained length"),
    ({"attention_mask": torch.tensor([[0, 0, *[1] * 148]])}, "attention_mask: expected ones only"),
    ({"position_ids": torch.arange(3, 153)[None]}, "position_ids: expected 0, 1, 2"),
    ({"rule": "best"}, "rule: expected one of"),
    ({"rule": "typical"}, "rule: expected a lossless one"),
]


class TestRefusals:
    @pytest.mark.parametrize(("options", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
    def test_unsupported_options_are_refused(self, target, draft, prompt, options, reason):
        arguments = {**prompt, "max_new_tokens": 5, "assistant_model": draft, **options}
        with pytest.raises(InvalidValueError, match=reason) as error:
            hf_generate.generate(target, tree=TREE, **arguments)
        assert "\n" not in str(error.value)

    def test_processors_of_the_models_generation_config_are_turned_off_as_the_error_says(
        self, target, draft, prompt, plain, monkeypatch
    ):
        monkeypatch.setattr(target.generation_config, "repetition_penalty", 1.05)
        generate = partial(hf_generate.generate, target, **prompt, max_new_tokens=NEW, tree=TREE, assistant_model=draft)
        with pytest.raises(InvalidValueError, match=r"generation_config, as with repetition_penalty=1\.0"):
            generate()
        assert torch.equal(generate(repetition_penalty=1.0), plain)

    def test_unsupported_inputs_are_refused(self, target, draft, prompt):
        argument = cache_argument(target)
        cache = target(prompt["input_ids"][:, :-1])[argument]
        for inputs, reason in (
            ({"inputs": prompt["input_ids"].repeat(2, 1)}, r"input_ids: expected one sequence.* Got 2"),
            ({"inputs_embeds": torch.zeros(1, 4, 256)}, "inputs_embeds: expected tokens"),
            ({**prompt, argument: cache}, f"{argument}: expected none"),
        ):
            with pytest.raises(InvalidValueError, match=reason):
                hf_generate.generate(target, **inputs, max_new_tokens=5, tree=TREE, assistant_model=draft)


class TestConversion:
    @pytest.mark.parametrize("folder", [bundled.TARGET, bundled.DRAFT], ids=["target", "draft"])
    def test_logits_equal_those_of_the_folder(self, folder, logits_after):
        ours, converted = load_model(folder), hf_generate.from_transformers(load_hf(folder))
        assert converted.config == ours.config
        assert converted.parameters == ours.parameters
        assert torch.equal(logits_after(converted, [3, 1, 4, 1, 5]), logits_after(ours, [3, 1, 4, 1, 5]))

    def test_the_dtype_is_kept_and_the_embedding_shared(self, tiny):
        model = tiny(6).to(torch.bfloat16)
        converted = hf_generate.from_transformers(model)
        assert converted.dtype == torch.bfloat16
        assert converted.weights.embedding.data_ptr() == model.model.embed_tokens.weight.data_ptr()
        assert not converted.weights.embedding.requires_grad

    def test_another_architecture_is_refused(self):
        config = transformers.GPT2Config(vocab_size=7, n_embd=16, n_layer=1, n_head=2, n_positions=32)
        with pytest.raises(FormatError, match=r"architectures: expected .* Got \['GPT2LMHeadModel'\]"):
            hf_generate.from_transformers(transformers.GPT2LMHeadModel(config))

    def test_other_weights_are_refused(self, tiny):
        model = tiny(6)
        head, weight = model.lm_head, model.lm_head.weight

        def check(reason):
            with pytest.raises(FormatError, match=reason):
                hf_generate.from_transformers(model)

        head.weight = torch.nn.Parameter(weight.to(torch.int8), requires_grad=False)
        check(r"lm_head.weight: expected float32.* Got torch.int8")
        model.lm_head = torch.nn.Linear(32, 22, bias=False)
        check(r"lm_head.weight: expected shape \(23, 32\). Got \(22, 32\)")
        model.lm_head = torch.nn.Sequential(model.lm_head)
        check(r"lm_head.weight: this tensor is missing")
        head.weight, model.lm_head, model.config.attention_bias = weight, head, True
        check(r"q_proj\.bias: this tensor is missing")
        model.model.norm.to("meta")
        check(r"model.norm.weight: expected all weights on one device, cpu. Got meta")


class TestRepeatedCalls:
    PROMPT = torch.tensor([[3, 1, 4, 1, 5]])

    def generate(self, target, draft, **options):
        options = {"max_new_tokens": 30, "tree": TREE, **options}
        return hf_generate.generate(target, self.PROMPT, assistant_model=draft, **options)

    def test_models_are_converted_once_and_decoders_reused_for_one_tree(self, tiny, monkeypatch):
        target, draft = tiny(7), tiny(8)
        converted, convert = [], hf_generate.from_transformers
        monkeypatch.setattr(
            hf_generate, "from_transformers", lambda model: (converted.append(model), convert(model))[1]
        )
        expected, decoders = target.generate(self.PROMPT, max_new_tokens=30), []
        for tree in (TREE, TREE, chain(3)):
            assert torch.equal(self.generate(target, draft, tree=tree), expected)
            decoders.append(hf_generate._decoders[target][1])
        assert decoders[0] is decoders[1]
        assert decoders[2].tree == chain(3)
        assert converted == [target, draft]

    @pytest.mark.parametrize("vocabulary", [20, 30])
    def test_the_vocabulary_of_the_draft_may_have_other_padding(self, tiny, vocabulary):
        target, draft = tiny(7), tiny(8, vocab_size=vocabulary)
        expected = target.generate(self.PROMPT, max_new_tokens=30)
        assert torch.equal(self.generate(target, draft), expected)
        decoder = hf_generate._decoders[target][1]
        self.generate(target, draft)
        assert hf_generate._decoders[target][1] is decoder

    def test_another_vocabulary_is_refused(self, tiny):
        with pytest.raises(InvalidValueError, match=r"expected the target's vocabulary of 23 tokens. Got 2000"):
            self.generate(tiny(7), tiny(8, vocab_size=2000))

    @pytest.mark.parametrize("change", ["in place", "other memory"])
    def test_changed_weights_are_used(self, tiny, change):
        target, draft = tiny(7), tiny(8)
        before = self.generate(target, draft)
        weight = target.lm_head.weight
        with torch.no_grad():
            if change == "in place":
                weight.copy_(weight.roll(1, 0))
            else:
                weight.data = weight.roll(1, 0)
        expected = target.generate(self.PROMPT, max_new_tokens=30)
        assert torch.equal(self.generate(target, draft), expected)
        assert not torch.equal(before, expected)

    @pytest.mark.slow
    def test_a_streamer_may_generate(self, tiny):
        target, draft = tiny(7), tiny(8)
        expected = target.generate(self.PROMPT, max_new_tokens=30)
        outputs = []

        class NestedStreamer(RecordingStreamer):
            def put(nested, value):  # noqa: ARG002, N805
                outputs.append(self.generate(target, draft))

        outputs.append(self.generate(target, draft, streamer=NestedStreamer()))
        assert len(outputs) == 32
        assert all(torch.equal(tokens, expected) for tokens in outputs)

    def test_deleted_models_are_freed(self, tiny):
        gc.collect()
        target, draft = tiny(7), tiny(8)
        self.generate(target, draft)
        assert target in hf_generate._models
        assert target in hf_generate._decoders
        converted = len(hf_generate._models)
        del target, draft
        gc.collect()
        assert len(hf_generate._models) == converted - 2


@pytest.mark.parametrize("sampled", [False, True])
def test_errors_and_warnings_name_the_model_whose_logits_are_nan(tiny, sampled):
    target, draft, broken = (tiny(seed) for seed in (1, 2, 3))
    with torch.no_grad():
        broken.model.norm.weight[0] = torch.nan
    prompt, options = torch.tensor([[1, 2, 3]]), {"tree": TREE, "max_new_tokens": 5, "do_sample": sampled}
    name = broken.name_or_path
    with pytest.raises(TreeoptError, match=f"^{name}: expected a target whose logits are finite"):
        hf_generate.generate(broken, prompt, assistant_model=draft, **options)
    with pytest.warns(TreeoptWarning, match=f"^{name}: expected a draft model whose logits are finite"):
        tokens = hf_generate.generate(target, prompt, assistant_model=broken, **options)
    assert sampled or torch.equal(tokens, target.generate(prompt, max_new_tokens=5, do_sample=False))
