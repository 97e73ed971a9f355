"""A loaded transformers model is executed as its folder would be, and `generate` with a tree gives the same text."""

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
from treeopt.runtime.rules.distributions import distribution
from treeopt.texts.prompts import load_prompts
from treeopt.trees import TokenTree, chain, level_widths

TREE = level_widths([3, 4, 3, 2])
ROOT = TokenTree([-1])
NEW = 40


def loaded(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def target():
    return loaded(bundled.TARGET)


@pytest.fixture(scope="module")
def draft():
    return loaded(bundled.DRAFT)


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(bundled.TARGET)


@pytest.fixture(scope="module")
def prompts(tokenizer):
    return [tokenizer(text, return_tensors="pt", add_special_tokens=False) for text in load_prompts()[:2]]


@pytest.fixture
def tiny(make_checkpoint):
    """Return a function that loads a random model of its own."""
    return lambda seed, **changes: loaded(make_checkpoint(seed=seed, tie_word_embeddings=False, **changes))


@pytest.fixture
def modules_cache(tmp_path, monkeypatch):
    """Let transformers copy code to a folder that goes away."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])


def folder_of(files, folder: Path) -> str:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder)


class Collected:
    """A streamer that keeps what it gets."""

    def __init__(self):
        self.got = []

    def put(self, value):
        self.got.append(value.tolist())

    def end(self):
        self.got.append("end")


@pytest.mark.usefixtures("modules_cache")
class TestFolder:
    def test_text_equals_plain_generation(self, target, draft, prompts, tmp_path):
        folder = folder_of({CODE: custom_generate_code(TREE, "sequoia")}, tmp_path / "tree.json.hf")
        for prompt in prompts:
            plain = target.generate(**prompt, max_new_tokens=NEW)
            text = target.generate(
                **prompt, max_new_tokens=NEW, custom_generate=folder, trust_remote_code=True, assistant_model=draft
            )
            assert torch.equal(text, plain)

    def test_nothing_runs_without_trust(self, target, draft, prompts, tmp_path):
        folder = folder_of({CODE: custom_generate_code(TREE, "sequoia")}, tmp_path)
        with pytest.raises(ValueError, match="trust_remote_code=True"):
            target.generate(**prompts[0], custom_generate=folder, trust_remote_code=False, assistant_model=draft)

    def test_two_folders_of_one_name_keep_their_trees(self, target, draft, prompts, tmp_path, monkeypatch):
        used = []
        monkeypatch.setattr(hf_generate, "generate", lambda *_, tree, **__: used.append(tree))
        trees = [chain(2), TREE, chain(2)]
        folders = [
            folder_of({CODE: custom_generate_code(tree, "sequoia")}, tmp_path / str(index) / "same")
            for index, tree in enumerate(trees)
        ]
        for folder in folders:
            target.generate(**prompts[0], custom_generate=folder, trust_remote_code=True, assistant_model=draft)
        assert used == trees

    def test_a_model_folder_may_hold_it(self, draft, prompts, tmp_path):
        plain = loaded(bundled.TARGET).generate(**prompts[0], max_new_tokens=NEW)
        for file in bundled.TARGET.iterdir():
            (tmp_path / file.name).symlink_to(file)
        folder_of({CODE: custom_generate_code(TREE, "sequoia")}, tmp_path)
        model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, trust_remote_code=True)
        assert torch.equal(model.generate(**prompts[0], max_new_tokens=NEW, assistant_model=draft), plain)

    def test_the_file_holds_tree_and_rule(self):
        text = custom_generate_code(level_widths([300, 900]), "traversal")
        held = {}
        exec(text, held)  # noqa: S102
        assert held["TREE"] == level_widths([300, 900])
        assert 'rule="traversal", lossy=False' in text
        assert max(map(len, text.splitlines())) <= 120

    def test_a_lossy_rule_is_allowed_and_told(self, target, draft, prompts):
        text = custom_generate_code(TREE, "typical")
        held = {}
        exec(text, held)  # noqa: S102
        held["generate"](target, assistant_model=draft, **prompts[0], do_sample=True, max_new_tokens=5)
        assert "of another distribution" in text

    def test_an_unknown_rule(self):
        with pytest.raises(InvalidValueError, match="rule: expected one of"):
            custom_generate_code(TREE, "best")


class TestGreedy:
    @pytest.mark.parametrize(
        "options",
        [
            {"max_new_tokens": 1},
            {"generation_config": GenerationConfig(max_new_tokens=30, eos_token_id=0)},
            {"max_new_tokens": 60, "eos_token_id": 32},
            {"max_length": 240, "eos_token_id": [10, 46]},
            {"max_new_tokens": 60, "stop_strings": ["e t", "se"]},
        ],
        ids=str,
    )
    def test_it_ends_where_plain_generation_ends(self, target, draft, prompts, tokenizer, options):
        for prompt in prompts:
            asked = {**prompt, **options, "tokenizer": tokenizer}
            expected = target.generate(**asked)
            assert torch.equal(hf_generate.generate(target, **asked, tree=TREE, assistant_model=draft), expected)

    def test_a_stopping_criterion_of_the_caller(self, target, draft, prompts):
        class Odd(StoppingCriteria):
            def __call__(self, input_ids, _scores, **_):
                return torch.tensor([input_ids.shape[1] % 17 == 0])

        asked = {**prompts[0], "stopping_criteria": StoppingCriteriaList([Odd()]), "max_new_tokens": 50}
        expected = target.generate(**asked)
        assert expected.shape[1] % 17 == 0
        assert torch.equal(hf_generate.generate(target, **asked, tree=TREE, assistant_model=draft), expected)

    def test_an_end_token_of_the_configuration_alone_does_not_end_it(self, target, draft, prompts, monkeypatch):
        monkeypatch.setattr(target.config, "eos_token_id", 32)
        with torch.no_grad():  # so that nothing is taken from before
            target.lm_head.weight.add_(0)
        expected = target.generate(**prompts[0], max_new_tokens=NEW)
        text = hf_generate.generate(target, **prompts[0], max_new_tokens=NEW, tree=TREE, assistant_model=draft)
        assert torch.equal(text, expected)

    def test_the_tree_of_the_root_alone_needs_no_draft(self, target, prompts):
        expected = target.generate(**prompts[0], max_new_tokens=NEW)
        assert torch.equal(hf_generate.generate(target, **prompts[0], max_new_tokens=NEW, tree=ROOT), expected)

    def test_as_a_function(self, target, draft, prompts):
        method = partial(hf_generate.decode, tree=TREE, assistant_model=draft)
        expected = target.generate(**prompts[0], max_new_tokens=NEW)
        assert torch.equal(target.generate(**prompts[0], max_new_tokens=NEW, custom_generate=method), expected)

    def test_a_streamer_gets_the_same(self, target, draft, prompts):
        plain, tree = Collected(), Collected()
        target.generate(**prompts[0], max_new_tokens=NEW, streamer=plain)
        hf_generate.generate(target, **prompts[0], max_new_tokens=NEW, streamer=tree, tree=TREE, assistant_model=draft)
        assert tree.got == plain.got
        assert len(tree.got) == NEW + 2

    def test_the_text_can_be_used_further(self, target, draft, prompts):
        text = hf_generate.generate(target, **prompts[0], max_new_tokens=5, tree=TREE, assistant_model=draft)
        assert text.dtype == torch.int64
        assert not text.is_inference()
        text += 0


class TestSampling:
    def sampled(self, target, draft, prompt, **options):
        return hf_generate.generate(
            target, **prompt, **{"do_sample": True, "max_new_tokens": NEW, **options}, tree=TREE, assistant_model=draft
        )

    def test_it_follows_the_seed_of_torch(self, target, draft, prompts):
        torch.manual_seed(3)
        first, second = (self.sampled(target, draft, prompts[0]) for _ in range(2))
        torch.manual_seed(3)
        assert torch.equal(self.sampled(target, draft, prompts[0]), first)
        assert not torch.equal(first, second)

    def test_greedy_decoding_takes_no_randomness(self, target, draft, prompts):
        state = torch.get_rng_state()
        hf_generate.generate(target, **prompts[0], max_new_tokens=5, tree=TREE, assistant_model=draft)
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 1e-4}, {"temperature": 1e-5}], ids=str)
    def test_the_options_reach_the_distribution(self, target, draft, prompts, options):
        greedy = target.generate(**prompts[0], max_new_tokens=NEW)
        assert torch.equal(self.sampled(target, draft, prompts[0], **options), greedy)

    def test_such_a_text_is_seldom_greedy_without_them(self, target, draft, prompts):
        greedy = target.generate(**prompts[0], max_new_tokens=NEW)
        assert not torch.equal(self.sampled(target, draft, prompts[0]), greedy)

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"temperature": 0.6, "top_k": 0},
            {"top_k": 5},
            {"top_p": 0.8, "top_k": 0},
            {"temperature": 1.3, "top_k": 9, "top_p": 0.7},
        ],
        ids=str,
    )
    def test_the_distribution_is_the_one_that_transformers_would_sample_from(self, target, options):
        config, _ = target._prepare_generation_config(None, do_sample=True, **options)
        processors = target._get_logits_processor(config)
        logits = 3 * torch.randn(20, 256, generator=torch.Generator().manual_seed(1))
        expected = torch.softmax(processors(torch.zeros(20, 1, dtype=torch.int64), logits.clone()), -1)
        torch.testing.assert_close(distribution(logits, hf_generate._sampling(config, processors)), expected)


REFUSED = [
    ({"num_beams": 2}, "generation_config: .* Got beam_search"),
    ({"prompt_lookup_num_tokens": 2}, "generation_config: .* Got assisted_generation"),
    ({"num_return_sequences": 2, "do_sample": True}, "input_ids: expected one sequence.* Got 2"),
    ({"repetition_penalty": 1.2}, "logits_processor: .* Got RepetitionPenaltyLogitsProcessor"),
    ({"do_sample": True, "min_p": 0.1}, "logits_processor: .*MinPLogitsWarper"),
    ({"min_new_tokens": 3}, "logits_processor: .*MinNewTokens"),
    (
        {
            "do_sample": True,
            "top_k": 0,
            "logits_processor": LogitsProcessorList(
                [transformers.TopPLogitsWarper(0.9), transformers.TemperatureLogitsWarper(0.5)]
            ),
        },
        "logits_processor: .* in this order",
    ),
    (
        {
            "do_sample": True,
            "logits_processor": LogitsProcessorList([transformers.TopPLogitsWarper(0.9, min_tokens_to_keep=2)]),
        },
        "logits_processor",
    ),
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
    def test_what_cannot_be_honoured(self, target, draft, prompts, options, reason):
        asked = {**prompts[0], "max_new_tokens": 5, "assistant_model": draft, **options}
        with pytest.raises(InvalidValueError, match=reason) as caught:
            hf_generate.generate(target, tree=TREE, **asked)
        assert "\n" not in str(caught.value)

    def test_several_texts(self, target, draft, prompts):
        with pytest.raises(InvalidValueError, match=r"input_ids: expected one sequence.* Got 2"):
            hf_generate.generate(
                target, prompts[0]["input_ids"].repeat(2, 1), max_new_tokens=5, tree=TREE, assistant_model=draft
            )

    def test_embeddings(self, target, draft):
        with pytest.raises(InvalidValueError, match="inputs_embeds: expected tokens"):
            hf_generate.generate(
                target, inputs_embeds=torch.zeros(1, 4, 256), max_new_tokens=5, tree=TREE, assistant_model=draft
            )

    def test_a_text_that_was_begun(self, target, draft, prompts):
        cache = target(prompts[0]["input_ids"][:, :-1]).past_key_values
        with pytest.raises(InvalidValueError, match="past_key_values: expected none"):
            hf_generate.generate(
                target, **prompts[0], past_key_values=cache, max_new_tokens=5, tree=TREE, assistant_model=draft
            )


class TestConversion:
    @pytest.mark.parametrize("folder", [bundled.TARGET, bundled.DRAFT], ids=["target", "draft"])
    def test_logits_equal_those_of_the_folder(self, folder, logits_after):
        ours, theirs = load_model(folder), hf_generate.from_transformers(loaded(folder))
        assert theirs.config == ours.config
        assert theirs.parameters == ours.parameters
        assert torch.equal(logits_after(theirs, [3, 1, 4, 1, 5]), logits_after(ours, [3, 1, 4, 1, 5]))

    @pytest.mark.parametrize("tied", [False, True])
    def test_logits_equal_those_of_the_loaded_model(self, make_checkpoint, logits_after, tied):
        model = loaded(make_checkpoint(seed=5, tie_word_embeddings=tied))
        ours = hf_generate.from_transformers(model)
        expected = model(torch.tensor([[3, 1, 4, 1, 5]])).logits[0, -1]
        torch.testing.assert_close(logits_after(ours, [3, 1, 4, 1, 5]), expected, atol=1e-4, rtol=1e-4)

    def test_the_dtype_is_kept_and_the_embedding_shared(self, tiny):
        model = tiny(6).to(torch.bfloat16)
        ours = hf_generate.from_transformers(model)
        assert ours.dtype == torch.bfloat16
        assert ours.weights.embedding.data_ptr() == model.model.embed_tokens.weight.data_ptr()
        assert not ours.weights.embedding.requires_grad

    def test_another_architecture(self):
        config = transformers.GPT2Config(vocab_size=7, n_embd=16, n_layer=1, n_head=2, n_positions=32)
        with pytest.raises(FormatError, match=r"architectures: expected .* Got \['GPT2LMHeadModel'\]"):
            hf_generate.from_transformers(transformers.GPT2LMHeadModel(config))

    def test_a_bias_that_is_not_there(self, tiny):
        model = tiny(6)
        model.config.attention_bias = True
        with pytest.raises(FormatError, match=r"q_proj\.bias: this tensor is missing"):
            hf_generate.from_transformers(model)

    def test_quantised_weights(self, tiny):
        model = tiny(6)
        weight = model.lm_head.weight
        model.lm_head.weight = torch.nn.Parameter(weight.to(torch.int8), requires_grad=False)
        with pytest.raises(FormatError, match=r"lm_head.weight: expected float32.* Got torch.int8"):
            hf_generate.from_transformers(model)

    def test_weights_elsewhere(self, tiny):
        model = tiny(6)
        model.model.norm.to("meta")
        with pytest.raises(FormatError, match=r"model.norm.weight: expected all weights on one device, cpu. Got meta"):
            hf_generate.from_transformers(model)

    def test_other_shapes_and_names(self, tiny):
        model = tiny(6)
        model.lm_head = torch.nn.Linear(32, 22, bias=False)
        with pytest.raises(FormatError, match=r"lm_head.weight: expected shape \(23, 32\). Got \(22, 32\)"):
            hf_generate.from_transformers(model)
        model.lm_head = torch.nn.Sequential(model.lm_head)
        with pytest.raises(FormatError, match=r"lm_head.weight: this tensor is missing"):
            hf_generate.from_transformers(model)


class TestRepeatedCalls:
    PROMPT = torch.tensor([[3, 1, 4, 1, 5]])

    def text(self, target, draft, **options):
        return hf_generate.generate(
            target, self.PROMPT, **{"max_new_tokens": 30, "tree": TREE, **options}, assistant_model=draft
        )

    def test_models_are_converted_once(self, tiny, monkeypatch):
        target, draft = tiny(7), tiny(8)
        converted, convert = [], hf_generate.from_transformers
        monkeypatch.setattr(
            hf_generate, "from_transformers", lambda model: (converted.append(model), convert(model))[1]
        )
        texts = [self.text(target, draft), self.text(target, draft), self.text(target, draft, tree=chain(3))]
        expected = target.generate(self.PROMPT, max_new_tokens=30)
        assert all(torch.equal(text, expected) for text in texts)
        assert converted == [target, draft]

    @pytest.mark.parametrize("change", ["in place", "other memory"])
    def test_changed_weights_are_seen(self, tiny, change):
        target, draft = tiny(7), tiny(8)
        before = self.text(target, draft)
        weight = target.lm_head.weight
        with torch.no_grad():
            if change == "in place":
                weight.copy_(weight.roll(1, 0))
            else:
                weight.data = weight.roll(1, 0)
        expected = target.generate(self.PROMPT, max_new_tokens=30)
        assert torch.equal(self.text(target, draft), expected)
        assert not torch.equal(before, expected)

    @pytest.mark.slow
    def test_a_call_within_a_call(self, tiny):
        target, draft = tiny(7), tiny(8)
        expected = target.generate(self.PROMPT, max_new_tokens=30)
        texts = []

        class Nested(Collected):
            def put(nested, value):  # noqa: ARG002, N805
                texts.append(self.text(target, draft))

        texts.append(self.text(target, draft, streamer=Nested()))
        assert len(texts) == 32
        assert all(torch.equal(text, expected) for text in texts)

    def test_nothing_is_kept_of_a_model_that_is_gone(self, tiny):
        gc.collect()
        target, draft = tiny(7), tiny(8)
        self.text(target, draft)
        assert target in hf_generate._models
        assert target in hf_generate._decoders
        kept = len(hf_generate._models)
        del target, draft
        gc.collect()
        assert len(hf_generate._models) == kept - 2


@pytest.mark.parametrize("sampled", [False, True])
def test_logits_that_are_nan_are_told_by_the_models_name(tiny, sampled):
    models = {name: tiny(seed) for name, seed in (("whole", 1), ("other", 2), ("broken", 3))}
    with torch.no_grad():
        models["broken"].model.norm.weight[0] = torch.nan
    prompt, options = torch.tensor([[1, 2, 3]]), {"tree": TREE, "max_new_tokens": 5, "do_sample": sampled}
    name = models["broken"].name_or_path
    with pytest.raises(TreeoptError, match=f"^{name}: expected a target whose logits are finite"):
        hf_generate.generate(models["broken"], prompt, assistant_model=models["other"], **options)
    with pytest.warns(TreeoptWarning, match=f"^{name}: expected a draft model whose logits are finite"):
        text = hf_generate.generate(models["whole"], prompt, assistant_model=models["broken"], **options)
    assert sampled or torch.equal(text, models["whole"].generate(prompt, max_new_tokens=5, do_sample=False))
