"""Tokenizers and classifiers: loaded, refused, adapted and saved."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, PreTrainedTokenizerFast

from lmgym.data.truncation import tokenize_replies
from lmgym.errors import InputError
from lmgym.models.classifiers import Float32Head, head_name
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.models.loading import PAD_TOKEN, fit_to_tokenizer, load_classifier, load_config, load_tokenizer
from lmgym.models.lora import add_lora
from lmgym.models.parameters import count_parameters
from lmgym.models.saving import save_classifier
from lmgym.models.small_models import build_model
from lmgym.models.sources import resolve_source
from lmgym.scoring.scorers import HFScorer
from lmgym.text import Conversation, Turn

FAMILIES = ("gpt2", "llama", "qwen3", "bert")
CHATS = [Conversation((Turn("user", text),)) for text in ("hello! i want to talk about soup.", "why jazz?", "hm")]
REPLIES = ["jazz, always.", "that sounds lovely. what about you?", "go away and stop it."]


def copy_of(folder: Path, target: Path) -> Path:
    return Path(shutil.copytree(folder, target))


def plain_scores(model, tokenizer) -> torch.Tensor:
    """Scores of the chats one by one through the transformers model's own forward."""
    rows = tokenize_replies(tokenizer, CHATS, [[reply] for reply in REPLIES], 128)
    with torch.no_grad():
        return torch.cat([model(torch.tensor([row.prefix + row.suffixes[0]])).logits[:, 0] for row in rows])


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
def test_without_a_pad_token_eos_pads_and_transformers_is_not_told_so(pad: str | None, tmp_path: Path) -> None:
    save_with_tokenizer(tmp_path / "m", pad)
    tokenizer = load_tokenizer(str(tmp_path / "m"))
    assert tokenizer.pad_token == "<eos>"
    model, _ = load_classifier(str(tmp_path / "m"), tokenizer)
    assert model.get_input_embeddings().num_embeddings == 259
    assert model.config.pad_token_id is None
    # the reply's own eos is what is pooled, in a padded batch as alone
    scoring = ScoringModel(model.eval(), packed=False)
    rows = tokenize_replies(tokenizer, CHATS, [[reply] for reply in REPLIES], 256)
    assert all(row.suffixes[0][-1] == tokenizer.eos_token_id for row in rows)
    with torch.no_grad():
        together = scoring(**scoring.collate(rows, tokenizer.pad_token_id))[:, 0]
        torch.testing.assert_close(together, plain_scores(model, tokenizer), rtol=0, atol=1e-5)
        # saved, a batch of transformers is refused rather than read at the token before eos
        save_classifier(model, model.state_dict(), tmp_path / "saved", tokenizer, {})
        saved = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
        torch.testing.assert_close(together, plain_scores(saved, tokenizer), rtol=0, atol=1e-5)
        with pytest.raises(ValueError, match="no padding token is defined"):
            saved(torch.zeros(2, 3, dtype=torch.long))


def test_a_scorer_that_was_saved_with_a_pad_token_of_its_own_loads_as_before(tmp_path: Path) -> None:
    tokenizer = save_with_tokenizer(tmp_path / "m", None)
    model, _ = load_classifier(str(tmp_path / "m"), tokenizer)
    tokenizer.add_special_tokens({"pad_token": PAD_TOKEN})  # as lmgym did, which grew the embeddings
    fit_to_tokenizer(model, tokenizer)
    save_classifier(model, model.state_dict(), tmp_path / "saved", tokenizer, {"reduce": "logit"})
    scorer = HFScorer.load(tmp_path / "saved")
    assert (scorer.tokenizer.pad_token, scorer.model.config.pad_token_id) == (PAD_TOKEN, 259)
    expected = plain_scores(model.eval(), scorer.tokenizer)
    torch.testing.assert_close(scorer.score(CHATS, REPLIES), expected, rtol=0, atol=1e-5)


def test_a_separate_pad_token_is_kept(tmp_path: Path) -> None:
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
    with pytest.raises(InputError, match=r"is not a scorer: it has no trained (score|classifier); train one"):
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


def test_paths_without_a_model_are_refused_with_what_was_found(tmp_path: Path, small_models) -> None:
    (tmp_path / "file.bin").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("x")
    copy_of(small_models["gpt2"], tmp_path / "run" / "model")
    cases = {
        tmp_path / "none": "does not exist; needed: a Hugging Face folder",
        tmp_path / "file.bin": "is a file; needed",
        tmp_path / "empty": "is not a model folder: found nothing; needed: config.json",
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


@pytest.mark.parametrize("family", ["gpt2", "llama", "qwen3", "bert"])
def test_a_folder_without_tokenizer_files_is_refused_with_a_hint(family: str, small_models, tmp_path: Path) -> None:
    folder = shutil.copytree(small_models[family], tmp_path / "model")
    for path in (*folder.glob("*token*"), *folder.glob("vocab*"), *folder.glob("merges*")):
        path.unlink()
    with pytest.raises(
        InputError, match=r"tokenizer.*found no tokenizer's files in that folder; needed: tokenizer\.json"
    ):
        load_tokenizer(str(folder))


def test_weights_that_lack_a_layer_are_refused(scorer_folders, tmp_path: Path) -> None:
    folder = copy_of(scorer_folders["llama"], tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"incomplete: missing model\.layers\.1\.mlp\.up_proj\.weight \(1 in all\)"):
        load_classifier(str(folder), load_tokenizer(str(folder)))


def test_a_scorer_that_lost_its_pooler_is_refused(scorer_folders, tmp_path: Path) -> None:
    folder = copy_of(scorer_folders["bert"], tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    del tensors["bert.pooler.dense.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"incomplete: missing bert\.pooler\.dense\.weight"):
        load_classifier(str(folder), load_tokenizer(str(folder)), fresh_head=False)


@pytest.mark.parametrize("content", [b"", b"garbage" * 20, None])
def test_damaged_weights_are_refused_with_the_folders_name(content: bytes | None, scorer_folders, tmp_path) -> None:
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
def test_a_saved_lora_model_gives_equal_scores_merged_and_as_adapters_on_its_base(
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
