"""Classifiers of decoders that transformers has no classifier of: made, loaded, adapted, saved and scored with."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from lmgym.data.truncation import tokenize_replies
from lmgym.errors import InputError
from lmgym.models.classifiers import Float32Head, classifier_class, new_classifier
from lmgym.models.forward.scoring_model import ScoringModel
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.models.lora import add_lora
from lmgym.models.memory import count_weights
from lmgym.models.saving import save_classifier
from lmgym.models.small_models import build_model
from lmgym.scoring.named_scorers import load_scorers
from lmgym.text import Conversation, Turn

FAMILIES = ("granite", "cohere")
SIZE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 256,
}  # fmt: skip
# multipliers away from 1, so that a trunk that is run otherwise than by its own forward scores otherwise
MORE = {"granite": {"embedding_multiplier": 3.0, "residual_multiplier": 0.7, "attention_multiplier": 0.2}}
CHATS = [Conversation((Turn("user", text),)) for text in ("hello! i want to talk about soup.", "why jazz?", "hm")]
REPLIES = ["jazz, always.", "that sounds lovely. what about you?", "go away and stop it."]


@pytest.fixture(scope="module")
def decoders(tmp_path_factory, small_models) -> dict[str, Path]:
    """Folders of small causal models of those families; large weights, so that every token matters to a score."""
    root = tmp_path_factory.mktemp("decoders")
    tokenizer = load_tokenizer(str(small_models["llama"]))
    for family in FAMILIES:
        model = build_model(family, tokenizer, "causal", **SIZE, **MORE.get(family, {}))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 2:
                    parameter.mul_(4.0)
        model.save_pretrained(root / family)
        tokenizer.save_pretrained(root / family)
    return {family: root / family for family in FAMILIES}


def rows_of(tokenizer) -> list[list[int]]:
    rows = tokenize_replies(tokenizer, CHATS, [[reply] for reply in REPLIES], 128)
    return [row.prefix + row.suffixes[0] for row in rows]


def own_scores(model, tokenizer) -> torch.Tensor:
    """Each row by itself: the last state of the trunk, times the head."""
    trunk = model.get_base_model().model if hasattr(model, "get_base_model") else model.model
    head = model.get_base_model().score if hasattr(model, "get_base_model") else model.score
    with torch.no_grad():
        return torch.stack([head(trunk(torch.tensor([ids])).last_hidden_state[0, -1])[0] for ids in rows_of(tokenizer)])


def padded_scores(model, tokenizer) -> torch.Tensor:
    """All rows as one batch, padded on the right."""
    scoring = ScoringModel(model, packed=False)
    rows = tokenize_replies(tokenizer, CHATS, [[reply] for reply in REPLIES], 128)
    with torch.no_grad():
        return scoring(**scoring.collate(rows, tokenizer.pad_token_id))[:, 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_decoder_gets_a_new_head_as_other_families_do(family: str, decoders) -> None:
    tokenizer = load_tokenizer(str(decoders[family]))
    model, new = load_classifier(str(decoders[family]), tokenizer, num_labels=16, seed=1)
    again, _ = load_classifier(str(decoders[family]), tokenizer, num_labels=16, seed=1)
    assert new
    assert type(model.score) is Float32Head
    assert model.score.weight.shape == (16, 32)
    assert model.score.weight.std().item() == pytest.approx(1 / 33**0.5, rel=0.15)  # 512 draws
    assert torch.equal(model.score.weight, again.score.weight)
    stored = load_file(decoders[family] / "model.safetensors")
    assert torch.equal(model.model.layers[1].mlp.up_proj.weight, stored["model.layers.1.mlp.up_proj.weight"])
    with pytest.raises(InputError, match="is not a scorer: it has no trained score"):
        load_classifier(str(decoders[family]), tokenizer, fresh_head=False)


@pytest.mark.parametrize("family", FAMILIES)
def test_padded_rows_are_read_at_their_last_token(family: str, decoders) -> None:
    tokenizer = load_tokenizer(str(decoders[family]))
    model, _ = load_classifier(str(decoders[family]), tokenizer)
    expected = own_scores(model.eval(), tokenizer)
    assert len({len(ids) for ids in rows_of(tokenizer)}) == 3
    torch.testing.assert_close(padded_scores(model, tokenizer), expected, rtol=0, atol=1e-5)
    assert expected.std() > 0.01


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_classifier_is_an_ordinary_folder_that_loads_with_its_head(family: str, decoders, tmp_path) -> None:
    tokenizer = load_tokenizer(str(decoders[family]))
    model, _ = load_classifier(str(decoders[family]), tokenizer)
    expected = own_scores(model.eval(), tokenizer)
    save_classifier(model, model.state_dict(), tmp_path / "m", tokenizer, {"reduce": "logit", "max_length": 128})
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    assert config["architectures"] == [f"{family.capitalize()}ForSequenceClassification"]
    assert "lmgym" not in json.dumps(config)
    again, new = load_classifier(str(tmp_path / "m"), tokenizer, seed=9, fresh_head=False)
    assert not new
    torch.testing.assert_close(own_scores(again.eval(), tokenizer), expected, rtol=0, atol=0)
    [scorer] = load_scorers(f"own={tmp_path / 'm'}").values()
    torch.testing.assert_close(scorer.score(CHATS, REPLIES), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_train_beside_the_head_and_merge_into_the_same_scores(family: str, decoders, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(decoders[family]))
    base, _ = load_classifier(str(decoders[family]), tokenizer)
    model = add_lora(base, 4, 16, 0.0).eval()
    trained = {name for name, p in model.named_parameters() if p.requires_grad and "lora_" not in name}
    assert trained == {"base_model.model.score.modules_to_save.default.weight"}
    before = own_scores(model, tokenizer)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in (p for p in model.parameters() if p.requires_grad):
            parameter.add_(torch.randn_like(parameter) * 0.1)
    expected = own_scores(model, tokenizer)
    assert (expected - before).abs().max() > 0.01
    torch.testing.assert_close(padded_scores(model, tokenizer), expected, rtol=0, atol=1e-5)
    save_classifier(model, model.state_dict(), tmp_path / "m", tokenizer, {"reduce": "logit"})
    merged, new = load_classifier(str(tmp_path / "m"), tokenizer, fresh_head=False)
    assert not new
    torch.testing.assert_close(own_scores(merged.eval(), tokenizer), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_checkpointing_works(family: str, decoders) -> None:
    tokenizer = load_tokenizer(str(decoders[family]))
    gradients = []
    for recompute in (False, True):
        model, _ = load_classifier(str(decoders[family]), tokenizer)
        if recompute:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        scoring = ScoringModel(model.train(), packed=False)
        rows = tokenize_replies(tokenizer, CHATS, [[reply] for reply in REPLIES], 128)
        scoring(**scoring.collate(rows, tokenizer.pad_token_id)).sum().backward()
        gradients.append(model.model.layers[0].mlp.up_proj.weight.grad)
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_counted_without_allocating_any(family: str, decoders) -> None:
    config = AutoConfig.from_pretrained(decoders[family], num_labels=1)
    assert count_weights(config)[0] == sum(p.numel() for p in new_classifier(config).parameters())


@pytest.mark.parametrize("family", ["mamba", "llama4_text", "codegen"])
def test_the_head_works_on_any_trunk(family: str, tmp_path: Path) -> None:
    """Mamba's is called backbone and takes no position ids; Llama 4's class names no prefix; CodeGen's is GPT's."""
    sizes = {
        "codegen": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "rotary_dim": 4},
        "llama4_text": SIZE | {"head_dim": 8, "num_local_experts": 2, "intermediate_size_mlp": 48},
    }
    config = AutoConfig.for_model(
        family, vocab_size=64, num_labels=1, pad_token_id=0, bos_token_id=None, eos_token_id=1,
        **sizes.get(family, {"hidden_size": 32, "num_hidden_layers": 2}),
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "causal")
    kind = classifier_class(config)
    assert kind is classifier_class(config)  # of one type: copies are told by it
    model, info = kind.from_pretrained(tmp_path / "causal", num_labels=1, output_loading_info=True)
    assert info["missing_keys"] == {"score.weight"}
    ids = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 0, 0]])
    with torch.no_grad():
        both = model.eval()(input_ids=ids, attention_mask=(ids != 0).long()).logits
        alone = model(input_ids=ids[1:, :3]).logits
    torch.testing.assert_close(both[1:], alone, rtol=0, atol=1e-6)
    assert (both[0] - both[1]).abs() > 1e-4


def test_a_family_without_text_input_gets_no_head() -> None:
    with pytest.raises(InputError, match="neither a classifier nor a causal model of the family vit"):
        new_classifier(AutoConfig.for_model("vit"))
