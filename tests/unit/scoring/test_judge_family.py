"""Judges of the policy's own family are named: by vocabulary, or by the name of a served model."""

from pathlib import Path

from lmgym.models.loading import load_tokenizer
from lmgym.scoring.judge_family import family_notes, of_one_family


def test_models_with_one_vocabulary_are_of_one_family(small_models: dict[str, Path]) -> None:
    llama, gpt2 = str(small_models["llama"]), str(small_models["gpt2"])
    tokenizer = load_tokenizer(llama)
    assert of_one_family(f"judge:{llama}", llama, tokenizer)
    other = load_tokenizer(gpt2)
    assert of_one_family(f"compare:{llama}", gpt2, other) == (tokenizer.get_vocab() == other.get_vocab())
    other.add_tokens(["<another word>"])
    assert not of_one_family(f"compare:{llama}", gpt2, other)


def test_a_served_model_is_known_by_how_its_name_begins() -> None:
    server = "judge:openai:http://127.0.0.1:1/v1#"
    assert of_one_family(f"{server}Qwen3-8B-Instruct", "outputs/models/qwen3-0.6b", None)
    assert of_one_family(f"{server}HuggingFaceTB/SmolLM2-1.7B", "/data/smollm2-135m", None)
    assert not of_one_family(f"{server}gpt-5-mini", "outputs/models/qwen3-0.6b", None)
    assert not of_one_family(f"{server}Llama-3-8B", "outputs/sft/model", None), "not known"


def test_only_judges_get_a_line_and_a_spec_that_is_none_gets_no_error() -> None:
    scorers = {
        "a": "judge:openai:http://127.0.0.1:1/v1#qwen3",
        "b": "outputs/scorer/model",
        "c": "judge:",
        "d": "no.yaml",
    }
    [note] = family_notes(scorers, "outputs/qwen3", None)
    assert note.startswith("a judges by a model of the policy's own family")
    assert note.endswith("--base outputs/qwen3 measures by how much")
