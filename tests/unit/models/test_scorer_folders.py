"""Scorers of other trainers score as they do there: adapters of peft, heads of TRL, LLaMA-Factory and OpenRLHF."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from lmgym.errors import InputError
from lmgym.scoring.named_scorers import load_scorer
from lmgym.text import Conversation, Turn, messages

CHAT = Conversation((Turn("user", "do you like soup on sundays?"),))
REPLIES = ["yes, and on mondays too.", "no."]
LINES = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}"


def texts(tokenizer) -> list[str]:
    return [tokenizer.apply_chat_template(messages(CHAT, reply), tokenize=False) for reply in REPLIES]


@torch.no_grad()
def states(folder: Path, given: list[str]) -> torch.Tensor:
    """The causal model's last hidden states at the last token of each text [texts, width], by transformers alone."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [tokenizer(text, add_special_tokens=False).input_ids for text in given]
    return torch.stack([model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0, -1] for ids in rows])


def with_head(source: Path, target: Path, **head: torch.Tensor) -> Path:
    """A copy of a causal model whose weights also hold a head, by the names of the layout."""
    shutil.copytree(source, target)
    weights = load_file(target / "model.safetensors")
    save_file(weights | {name.replace("__", "."): w for name, w in head.items()}, target / "model.safetensors")
    return target


@pytest.fixture
def head() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    return torch.randn(1, 32), torch.randn(1)


def scores(path: Path | str) -> torch.Tensor:
    return load_scorer(str(path)).score([CHAT] * 2, REPLIES)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("own_file", [False, True])
def test_a_value_head_of_trl_and_of_llama_factory(family: str, own_file: bool, head, small_models, tmp_path) -> None:
    (weight, bias), source = head, small_models[family]
    if own_file:
        folder = Path(shutil.copytree(source, tmp_path / "m"))
        save_file({"v_head.summary.weight": weight, "v_head.summary.bias": bias}, folder / "value_head.safetensors")
    else:
        folder = with_head(source, tmp_path / "m", v_head__summary__weight=weight, v_head__summary__bias=bias)
    expected = states(source, texts(AutoTokenizer.from_pretrained(source))) @ weight[0] + bias
    assert expected.diff().abs() > 1e-3
    torch.testing.assert_close(scores(folder), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("prefix", ["value_head", "score"])
@pytest.mark.parametrize("normalize", [False, True])
def test_a_reward_model_of_openrlhf_is_normalised_as_its_config_says(
    prefix: str, normalize: bool, head, small_models, tmp_path: Path
) -> None:
    folder = with_head(small_models["llama"], tmp_path / "m", **{f"{prefix}__weight": head[0]})
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["RewardModel"], "normalize_reward": normalize, "mean": 0.5, "std": 2.0}
    (folder / "config.json").write_text(json.dumps(config))
    expected = states(small_models["llama"], texts(AutoTokenizer.from_pretrained(folder))) @ head[0][0]
    torch.testing.assert_close(scores(folder), (expected - 0.5) / 2 if normalize else expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("template", [LINES, LINES.replace("{{ eos_token }}", "")])
def test_openrlhf_reads_the_eos_that_ends_a_text_and_adds_a_missing_one(
    template: str, head, small_models, tmp_path: Path
) -> None:
    folder = with_head(small_models["llama"], tmp_path / "m", value_head__weight=head[0])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"normalize_reward": False}))
    (folder / "chat_template.jinja").write_text(template)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    given = [text.rstrip("\n") for text in texts(tokenizer)]
    given = [text if text.endswith(tokenizer.eos_token) else f"{text} {tokenizer.eos_token}" for text in given]
    expected = states(small_models["llama"], given) @ head[0][0]
    torch.testing.assert_close(scores(folder), expected, rtol=0, atol=1e-5)


@pytest.fixture
def adapter(small_models, tmp_path: Path) -> Callable[..., tuple[Path, torch.Tensor]]:
    """(an adapter's folder as peft saves it, the scores of the model that it was saved from)."""

    def make(family: str = "llama", base: Path | None = None, in_full: list[str] | None = None):
        source = base or small_models[family]
        torch.manual_seed(5)
        model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=1, dtype=torch.float32)
        settings = LoraConfig(
            task_type="SEQ_CLS", r=2, target_modules="all-linear", init_lora_weights=False, modules_to_save=in_full
        )
        model = get_peft_model(model, settings).eval()
        model.save_pretrained(tmp_path / "adapter")
        tokenizer = AutoTokenizer.from_pretrained(source)
        with torch.no_grad():
            ends = family == "bert"  # [CLS] and [SEP]
            rows = [tokenizer(text, add_special_tokens=ends).input_ids for text in texts(tokenizer)]
            return tmp_path / "adapter", torch.cat([model(torch.tensor([ids])).logits[:, 0] for ids in rows])

    return make


@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "bert"])
def test_an_adapter_of_peft_is_merged_into_its_base_in_any_working_directory(
    family: str, adapter, scorer_folders, tmp_path: Path, monkeypatch
) -> None:
    folder, expected = adapter(family, scorer_folders["bert"] if family == "bert" else None)
    monkeypatch.chdir(tmp_path)
    torch.testing.assert_close(scores(folder), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(scores("adapter"), expected, rtol=0, atol=1e-5)


def test_an_adapter_whose_pooler_was_never_saved_is_refused(adapter) -> None:
    folder, _ = adapter("bert")  # masked models have none
    with pytest.raises(InputError, match="has no pooler, nor has the adapter"):
        load_scorer(str(folder))


def test_an_adapter_below_a_head_that_was_not_trained_has_that_of_its_base(adapter, scorer_folders) -> None:
    folder, expected = adapter(base=scorer_folders["llama"])
    settings = json.loads((folder / "adapter_config.json").read_text())
    assert settings["modules_to_save"] == ["classifier", "score"]  # peft adds them for its task
    weights = load_file(folder / "adapter_model.safetensors")
    save_file({n: w for n, w in weights.items() if "score" not in n}, folder / "adapter_model.safetensors")
    torch.testing.assert_close(scores(folder), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base_model_name_or_path": None}, r"adapter_config.json has no base_model_name_or_path"),
        ({"base_model_name_or_path": "nowhere/at/all"}, r"the base of the adapter .* nowhere/at/all does not exist"),
        ({"base_model_name_or_path": "GPT2"}, r"no adapter loads from .*adapter_config.json"),
        ({"peft_type": "FROB"}, r"no adapter loads from .*adapter_config.json"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused(change: dict, message: str, adapter, small_models) -> None:
    folder, _ = adapter(in_full=["score"])
    change = {key: str(small_models["gpt2"]) if value == "GPT2" else value for key, value in change.items()}
    settings = json.loads((folder / "adapter_config.json").read_text())
    settings["target_modules"] = ["q_proj", "v_proj"]
    (folder / "adapter_config.json").write_text(json.dumps(settings | change))
    with pytest.raises(InputError, match=message) as caught:
        load_scorer(str(folder))
    assert "\n" not in str(caught.value)


def test_a_pickled_adapter_and_one_without_any_head_are_refused(adapter) -> None:
    folder, _ = adapter()
    weights = load_file(folder / "adapter_model.safetensors")
    save_file({n: w for n, w in weights.items() if "score" not in n}, folder / "adapter_model.safetensors")
    with pytest.raises(InputError, match=r"the base of the adapter .* is not a scorer: it has no trained score"):
        load_scorer(str(folder))
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(InputError, match=r"adapter_model.bin only, a pickle"):
        load_scorer(str(folder))


def test_two_outputs_need_a_reduction_behind_the_path(small_models, tmp_path: Path) -> None:
    source, folder = small_models["llama"], tmp_path / "two"
    torch.manual_seed(7)
    model = AutoModelForSequenceClassification.from_pretrained(source, num_labels=2, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(source)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with torch.no_grad():
        rows = [tokenizer(text, add_special_tokens=False).input_ids for text in texts(tokenizer)]
        logits = torch.cat([model(torch.tensor([ids])).logits for ids in rows])
    torch.testing.assert_close(scores(f"{folder}#softmax[1]"), logits.softmax(-1)[:, 1], rtol=0, atol=1e-5)
    torch.testing.assert_close(scores(f"{folder}#difference"), logits[:, 1] - logits[:, 0], rtol=0, atol=1e-5)
    with pytest.raises(
        InputError, match=rf"scorer {folder}: 'logit' does not suit .*2 output.*as in PATH#softmax\[1\]"
    ):
        load_scorer(str(folder))
    with pytest.raises(InputError, match=r"'frob' behind the scorer .*; needed: logit, softmax\[1\], difference"):
        load_scorer(f"{folder}#frob")
    shutil.move(folder, tmp_path / "a#b")  # a sign in a folder's own name
    with pytest.raises(InputError, match="does not suit"):
        load_scorer(str(tmp_path / "a#b"))
