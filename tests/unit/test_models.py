"""Tokenizers and classifiers: loaded, refused, adapted, saved, and what they weigh."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerFast

from lmgym.errors import InputError
from lmgym.memory import GIB, Demand, count_weights, estimate, refuse_excess
from lmgym.models import (
    PAD_TOKEN,
    Float32Head,
    ScoringModel,
    add_lora,
    count_parameters,
    head_name,
    load_classifier,
    load_config,
    load_tokenizer,
    resolve_source,
    save_classifier,
)
from lmgym.scorers import HFScorer
from lmgym.small_models import build_model
from lmgym.text import Conversation, Turn, tokenize_replies

FAMILIES = ("gpt2", "llama", "qwen3", "bert")
CHATS = [Conversation((Turn("user", text),)) for text in ("hello! i want to talk about soup.", "why jazz?", "hm")]
REPLIES = ["jazz, always.", "that sounds lovely. what about you?", "go away and stop it."]


def copy_of(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target))


def plain_scores(model, tokenizer) -> torch.Tensor:
    """Scores of the chats one by one through the transformers model's own forward."""
    rows = tokenize_replies(tokenizer, CHATS, [[reply] for reply in REPLIES], 128)
    with torch.no_grad():
        return torch.cat([model(torch.tensor([row.prefix + row.tails[0]])).logits[:, 0] for row in rows])


def save_with_tokenizer(folder: Path, pad: str | None) -> PreTrainedTokenizerFast:
    """A gpt2 whose tokenizer has 259 entries: 256 bytes, eos, x and one more; `pad` as given."""
    alphabet = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<eos>", "[X]", "[Y]"]
    core = Tokenizer(models.BPE({token: i for i, token in enumerate(alphabet)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token=pad)
    config = AutoConfig.for_model(
        "gpt2", vocab_size=259, n_layer=2, n_embd=32, n_head=4, n_positions=256, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    AutoModelForSequenceClassification.from_config(config).transformer.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return tokenizer


@pytest.mark.parametrize("pad", ["<eos>", None])
def test_a_pad_that_is_eos_or_absent_becomes_a_token_of_its_own(pad: str | None, tmp_path: Path) -> None:
    save_with_tokenizer(tmp_path / "m", pad)
    tokenizer = load_tokenizer(str(tmp_path / "m"))
    assert tokenizer.pad_token == PAD_TOKEN
    assert tokenizer.pad_token_id == 259 != tokenizer.eos_token_id
    model, _ = load_classifier(str(tmp_path / "m"), tokenizer)
    assert model.get_input_embeddings().num_embeddings == 260
    assert model.config.pad_token_id == 259
    # the reply's own eos is what is pooled, in a padded batch as alone
    scoring = ScoringModel(model.eval(), packed=False)
    rows = tokenize_replies(tokenizer, CHATS, [[reply] for reply in REPLIES], 256)
    assert all(row.tails[0][-1] == tokenizer.eos_token_id for row in rows)
    with torch.no_grad():
        together = scoring(**scoring.collate(rows, 259))[:, 0]
    torch.testing.assert_close(together, plain_scores(model, tokenizer), rtol=0, atol=1e-5)


def test_a_pad_of_its_own_is_left_alone(tmp_path: Path) -> None:
    save_with_tokenizer(tmp_path / "m", "[X]")
    tokenizer = load_tokenizer(str(tmp_path / "m"))
    model, _ = load_classifier(str(tmp_path / "m"), tokenizer)
    assert (tokenizer.pad_token, model.config.pad_token_id) == ("[X]", 257)
    assert model.get_input_embeddings().num_embeddings == 259


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_a_new_head_is_normal_with_the_std_of_the_paper_and_seeded(family: str, tmp_path: Path) -> None:
    width = {"n_embd": 512, "n_layer": 1, "n_head": 4, "n_positions": 16}
    if family != "gpt2":
        width = {"hidden_size": 512, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 16}
    tokenizer = save_with_tokenizer(tmp_path / "t", "[X]")
    model = build_model(family, tokenizer, "masked" if family == "bert" else "causal", **width)
    model.save_pretrained(tmp_path / "m")
    heads = {}
    for key, seed in (("first", 1), ("again", 1), ("other", 2)):
        loaded, new = load_classifier(str(tmp_path / "m"), tokenizer, num_labels=16, seed=seed)
        assert new
        heads[key] = getattr(loaded, head_name(loaded))
    weights = {key: head.weight for key, head in heads.items()}
    assert torch.equal(weights["first"], weights["again"])
    assert not torch.equal(weights["first"], weights["other"])
    # 8192 draws: the standard error of their std is 0.8%
    assert weights["first"].std().item() == pytest.approx(1 / 513**0.5, rel=0.04)
    assert abs(weights["first"].mean().item()) < 4 / 513**0.5 / 8192**0.5
    if heads["first"].bias is not None:
        assert heads["first"].bias.abs().max() == 0


def test_a_folder_in_bf16_is_loaded_as_fp32_weights(small_models, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    model, _ = load_classifier(str(small_models["llama"]), tokenizer)
    model.to(torch.bfloat16).save_pretrained(tmp_path / "m")
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert {t.dtype for t in stored.values()} == {torch.bfloat16}
    loaded, new = load_classifier(str(tmp_path / "m"), tokenizer)
    assert not new
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    assert torch.equal(loaded.score.weight, stored["score.weight"].float())


def test_the_head_computes_in_fp32_under_autocast(scorer_folders) -> None:
    tokenizer = load_tokenizer(str(scorer_folders["llama"]))
    model, _ = load_classifier(str(scorer_folders["llama"]), tokenizer)
    assert type(model.score) is Float32Head
    hidden = torch.randn(3, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = model.score(hidden.bfloat16())
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, hidden.bfloat16().float() @ model.score.weight.T)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_trained_head_is_kept_and_a_missing_one_is_new(family: str, scorer_folders, small_models) -> None:
    tokenizer = load_tokenizer(str(small_models[family]))
    trained, new = load_classifier(str(scorer_folders[family]), tokenizer, seed=5, fresh_head=False)
    assert not new
    name = f"{head_name(trained)}.weight"
    stored = load_file(scorer_folders[family] / "model.safetensors")[name]
    assert torch.equal(trained.get_parameter(name), stored)
    assert load_classifier(str(small_models[family]), tokenizer)[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_without_a_trained_head_is_no_scorer(family: str, small_models) -> None:
    tokenizer = load_tokenizer(str(small_models[family]))
    with pytest.raises(InputError, match=r"is no scorer: it has no trained (score|classifier); train one"):
        load_classifier(str(small_models[family]), tokenizer, num_labels=2, fresh_head=False)


def test_a_head_of_another_size_is_new(scorer_folders) -> None:
    tokenizer = load_tokenizer(str(scorer_folders["gpt2"]))
    model, new = load_classifier(str(scorer_folders["gpt2"]), tokenizer, num_labels=3)
    assert new
    assert model.score.weight.shape == (3, 32)


ENCODERS = {
    "deberta-v2": {"relative_attention": True, "position_biased_input": False, "pos_att_type": ["c2p", "p2c"]},
    "roberta": {},
    "electra": {"embedding_size": 32},
}


@pytest.mark.parametrize("family", ENCODERS)
def test_encoders_with_a_head_of_several_layers_get_a_new_one_and_keep_a_trained_one(
    family: str, small_models, tmp_path: Path
) -> None:
    tokenizer = load_tokenizer(str(small_models["bert"]))
    config = AutoConfig.for_model(
        family, vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=32, pad_token_id=tokenizer.pad_token_id, **ENCODERS[family],
    )  # fmt: skip
    trunk = AutoModelForSequenceClassification.from_config(config)
    getattr(trunk, trunk.base_model_prefix).save_pretrained(tmp_path / "trunk")
    model, new = load_classifier(str(tmp_path / "trunk"), tokenizer)
    assert new
    model.save_pretrained(tmp_path / "scorer")
    again, new = load_classifier(str(tmp_path / "scorer"), tokenizer, seed=9, fresh_head=False)
    assert not new
    torch.testing.assert_close(plain_scores(again.eval(), tokenizer), plain_scores(model.eval(), tokenizer))


def test_paths_that_are_no_model_say_what_was_found(tmp_path: Path, small_models) -> None:
    (tmp_path / "file.bin").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("x")
    copy_of(small_models["gpt2"], tmp_path / "run" / "model")
    cases = {
        tmp_path / "none": "does not exist; needed: a Hugging Face folder",
        tmp_path / "file.bin": "is a file; needed",
        tmp_path / "empty": "is no model folder: found nothing; needed: config.json",
        tmp_path / "notes": "found a.txt",
        tmp_path / "run": f"a model lies in {tmp_path / 'run' / 'model'}",
    }
    for path, message in cases.items():
        for load in (resolve_source, load_tokenizer, load_config):
            with pytest.raises(InputError) as caught:
                load(str(path))
            assert message in str(caught.value)
            assert str(path) in str(caught.value)
    with pytest.raises(InputError, match=r"^scorer .* does not exist"):
        resolve_source("./nowhere", role="scorer")
    assert resolve_source("owner/name") == "owner/name"
    assert resolve_source("gpt2") == "gpt2"


def test_weights_that_lack_a_layer_are_refused(scorer_folders, tmp_path: Path) -> None:
    folder = copy_of(scorer_folders["llama"], tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"not whole: missing model\.layers\.1\.mlp\.up_proj\.weight \(1 in all\)"):
        load_classifier(str(folder), load_tokenizer(str(folder)))


def test_a_scorer_that_lost_its_pooler_is_refused(scorer_folders, tmp_path: Path) -> None:
    folder = copy_of(scorer_folders["bert"], tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    del tensors["bert.pooler.dense.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"not whole: missing bert\.pooler\.dense\.weight"):
        load_classifier(str(folder), load_tokenizer(str(folder)), fresh_head=False)


@pytest.mark.parametrize("content", [b"", b"garbage" * 20, None])
def test_broken_weights_are_refused_with_the_folders_name(content: bytes | None, scorer_folders, tmp_path) -> None:
    folder = copy_of(scorer_folders["gpt2"], tmp_path / "m")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000] if content is None else content)
    with pytest.raises(InputError, match=f"no classifier loads from {folder}"):
        load_classifier(str(folder), load_tokenizer(str(folder)))
    weights.unlink()
    with pytest.raises(InputError, match=f"no classifier loads from {folder}"):
        load_classifier(str(folder), load_tokenizer(str(folder)))


def test_a_broken_config_or_tokenizer_is_refused(scorer_folders, tmp_path: Path) -> None:
    folder = copy_of(scorer_folders["gpt2"], tmp_path / "m")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match="no tokenizer loads from"):
        load_tokenizer(str(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(InputError, match="no model config loads from"):
        load_config(str(folder))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_folder_is_an_ordinary_one_with_the_same_scores(family: str, scorer_folders, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(scorer_folders[family]))
    model, _ = load_classifier(str(scorer_folders[family]), tokenizer)
    expected = plain_scores(model.eval(), tokenizer)
    scoring = ScoringModel(model)  # the live model may be set to packed attention
    state = {name.removeprefix("model."): value for name, value in scoring.state_dict().items()}
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "stale.safetensors").write_text("of a former run")
    save_classifier(model, state, tmp_path / "m", tokenizer, {"reduce": "logit"})

    names = sorted(p.name for p in tmp_path.glob("m/*"))
    assert [name for name in names if name.endswith((".safetensors", ".bin", ".pt"))] == ["model.safetensors"]
    assert {"config.json", "tokenizer.json", "scorer.json", "model.safetensors"} <= set(names)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["pad_token_id"] == tokenizer.pad_token_id
    assert "lmgym" not in json.dumps(config)
    plain = AutoModelForSequenceClassification.from_pretrained(tmp_path / "m")
    assert {p.dtype for p in plain.parameters()} == {torch.float32}
    theirs = AutoTokenizer.from_pretrained(tmp_path / "m")
    assert theirs.chat_template == tokenizer.chat_template
    torch.testing.assert_close(plain_scores(plain.eval(), theirs), expected, rtol=0, atol=1e-6)
    assert expected.std() > 0.01  # a thousand times the tolerance


def with_adapters(folder: Path, tokenizer):
    """A LoRA model whose adapters and head have moved away from where they began."""
    base, _ = load_classifier(str(folder), tokenizer)
    model = add_lora(base, rank=4, alpha=16, dropout=0.0).eval()
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_lora_trains_adapters_and_head_alone(family: str, small_models) -> None:
    tokenizer = load_tokenizer(str(small_models[family]))
    base, _ = load_classifier(str(small_models[family]), tokenizer)
    whole = count_parameters(base)
    model = add_lora(base, rank=4, alpha=16, dropout=0.0)
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    whole_modules = {name.split(".modules_to_save.")[0].rsplit(".", 1)[-1] for name in trainable if "lora_" not in name}
    assert whole_modules == ({"classifier", "pooler"} if family == "bert" else {"score"})
    adapted = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in trainable if ".lora_" in name}
    linear = {"gpt2": {"c_attn", "c_proj", "c_fc"}, "bert": {"query", "key", "value", "dense"}}
    assert adapted == linear.get(family, {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"})
    assert whole[0] == whole[1]
    counted = count_parameters(model)
    assert counted[0] == sum(p.numel() for p in model.parameters() if p.requires_grad) < counted[1] / 2


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_lora_model_scores_alike_merged_and_as_adapters_on_its_base(
    family: str, small_models, tmp_path: Path
) -> None:
    from peft import PeftModel

    source = small_models[family]  # its own head is new: the adapter's must replace it
    tokenizer = load_tokenizer(str(source))
    model = with_adapters(source, tokenizer)
    expected = plain_scores(model, tokenizer)
    scoring = ScoringModel(model)
    rows = tokenize_replies(tokenizer, CHATS, [[reply] for reply in REPLIES], 128)
    with torch.no_grad():
        live = scoring(**scoring.collate(rows, tokenizer.pad_token_id))[:, 0]
    torch.testing.assert_close(live, expected, rtol=0, atol=1e-5)
    assert expected.std() > 0.002  # two hundred times the tolerance

    state = {name.removeprefix("model."): value for name, value in scoring.state_dict().items()}
    before = {name: value.clone() for name, value in state.items()}
    save_classifier(model, state, tmp_path / "m", tokenizer, {"reduce": "logit"})
    assert not list(tmp_path.rglob("*.bin"))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())  # the live one stays

    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "m").eval()
    assert not any("lora" in name for name in merged.state_dict())
    torch.testing.assert_close(plain_scores(merged, tokenizer), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(HFScorer.load(tmp_path / "m").score(CHATS, REPLIES), expected, rtol=0, atol=1e-5)

    torch.manual_seed(99)  # whatever is new in the base is drawn anew: the adapter must bring it
    base = AutoModelForSequenceClassification.from_pretrained(source, num_labels=1, dtype=torch.float32)
    base.config.pad_token_id = tokenizer.pad_token_id
    adapted = PeftModel.from_pretrained(base, tmp_path / "m" / "adapter").eval()
    torch.testing.assert_close(plain_scores(adapted, tokenizer), expected, rtol=0, atol=1e-5)


def ten_million() -> AutoConfig:
    return AutoConfig.for_model(
        "llama", vocab_size=16384, hidden_size=256, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=688, num_labels=1, pad_token_id=0,
    )  # fmt: skip


# embeddings 16384 * 256; a layer: q and o 2 * 256^2, k and v 2 * 256 * 128, MLP 3 * 256 * 688, norms 2 * 256; a last
# norm and the head 2 * 256
WEIGHTS = 4_194_304 + 8 * (131_072 + 65_536 + 528_384 + 512) + 512


def test_weights_are_counted_as_by_hand_and_as_in_the_model_itself(small_models) -> None:
    assert WEIGHTS == 9_998_848
    assert count_weights(ten_million()) == (WEIGHTS, WEIGHTS)
    for family in FAMILIES:
        tokenizer = load_tokenizer(str(small_models[family]))
        model, _ = load_classifier(str(small_models[family]), tokenizer)
        everything = sum(p.numel() for p in model.parameters())
        assert count_weights(model.config) == (everything, everything)
        lora = add_lora(model, 4, 16, 0.0)
        counted = count_weights(model.config, 4)[1]  # an estimate: a bert's pooler, which trains in full, is left out
        assert counted == pytest.approx(count_parameters(lora)[0], rel=0.2 if family == "bert" else 0.05)


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimizer"),
    [
        # 2 bytes a weight, 2 a gradient, 12 for the fp32 master and two moments; two ranks share what is sharded
        (0, 19_997_696, 19_997_696, 119_986_176),
        (1, 19_997_696, 19_997_696, 59_993_088),
        (2, 19_997_696, 9_998_848, 59_993_088),
        (3, 9_998_848, 9_998_848, 59_993_088),
    ],
)
def test_the_memory_of_ten_million_weights_on_two_ranks_is_as_by_hand(stage, weights, gradients, optimizer) -> None:
    deepspeed = {"zero_optimization": {"stage": stage}} if stage else {}
    demand = estimate(ten_million(), 1000, "bf16", deepspeed, ranks=2)
    # 34 bytes * 1000 tokens * 256 wide * 8 layers
    assert demand == Demand(weights, gradients, optimizer, 69_632_000)
    assert demand.total == weights + gradients + optimizer + 69_632_000


def test_fp32_checkpointing_offload_and_lora_change_the_estimate_as_they_should() -> None:
    config = ten_million()
    fp32 = estimate(config, 1000, "fp32", None, 1)
    assert fp32 == Demand(4 * WEIGHTS, 4 * WEIGHTS, 8 * WEIGHTS, 139_264_000)
    # autocast without DeepSpeed keeps fp32 weights, and 16-bit activations
    assert estimate(config, 1000, "bf16", None, 1) == Demand(4 * WEIGHTS, 4 * WEIGHTS, 8 * WEIGHTS, 69_632_000)
    # 2 bytes a layer and 34 for the one in work
    assert estimate(config, 1000, "bf16", None, 1, checkpointing=True).activations == 1000 * 256 * (16 + 34)
    offload = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {}}}
    assert estimate(config, 1000, "bf16", offload, 2).optimizer == 0
    lora = estimate(config, 1000, "bf16", {}, 1, lora_rank=8)
    assert lora.weights == 2 * WEIGHTS
    assert lora.optimizer < 0.05 * 12 * WEIGHTS


def test_a_run_that_will_not_fit_says_what_it_needs_and_what_to_try() -> None:
    demand = Demand(2.0 * GIB, 2.0 * GIB, 12.0 * GIB, 4.0 * GIB)
    with pytest.raises(InputError) as caught:
        refuse_excess(demand, 16.0, stage=0, micro_batch=8)
    message = str(caught.value)
    assert "needs about 20.0 GiB a device (weights 2.0, gradients 2.0, optimizer 12.0, activations 4.0)" in message
    assert "--memory_gb is 16;" in message
    assert "--gradient_checkpointing, --deepspeed configs/zero2.json" in message
    assert "micro_batch" not in message  # activations are not what is big
    with pytest.raises(InputError, match=r"smaller --micro_batch.*zero3\.json"):
        refuse_excess(Demand(1.0, 1.0, 1.0, 8.0 * GIB), 4.0, stage=2, micro_batch=8)
    with pytest.raises(InputError, match=r"zero3_offload\.json"):
        refuse_excess(demand, 4.0, stage=3, micro_batch=1)
    refuse_excess(demand, 20.0, 0, 8)
    refuse_excess(demand, None, 0, 8)


def test_every_config_that_a_refusal_names_exists() -> None:
    root = Path(__file__).parents[2] / "configs"
    assert all((root / f"zero{name}.json").is_file() for name in ("2", "3", "3_offload"))
