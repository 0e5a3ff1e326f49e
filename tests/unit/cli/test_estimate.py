"""`lmgym estimate`: parts as the stages count them, from a config alone; what a GPU of a size holds."""

import pytest
from click.testing import CliRunner
from transformers import AutoConfig

from lmgym.cli.estimate import estimate_of
from lmgym.cli.main import main
from lmgym.models.memory import GIB
from ppo.config import PPOConfig


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The config.json of Qwen3-8B alone: no weights, no tokenizer."""
    folder = tmp_path_factory.mktemp("qwen3-8b")
    config = AutoConfig.for_model(
        "qwen3", num_hidden_layers=36, hidden_size=4096, vocab_size=151936, intermediate_size=12288,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, tie_word_embeddings=False,
    )  # fmt: skip
    config.save_pretrained(folder)
    return str(folder)


def gib(word: str, model: str, *flags: str, ranks: int = 1) -> float:
    return estimate_of(word, [*flags, "--model", model], ranks).memory.total / GIB


def test_an_8b_policy_with_adapters_is_optimised_in_36_gib_and_fine_tuned_in_24(qwen: str) -> None:
    lora = ("--lora_rank", "16", "--gradient_checkpointing")
    sampled = ("--num_rollouts", "64", "--max_prompt", "512", "--max_new_tokens", "512")
    for method in ("ppo", "grpo"):
        assert 24 < gib(method, qwen, *lora, *sampled) < 36
    one_row = ("--max_length", "4096", "--micro_batch", "1")
    assert 18 < gib("sft", qwen, *lora, *one_row) < 24
    assert gib("sft", qwen, *lora, *one_row, "--load_in_4bit") < 12


def test_the_parts_of_all_weights_under_zero_3_are_an_eighth_on_each_of_8_gpus(qwen: str) -> None:
    """2 bytes a weight, 2 a gradient, 12 for AdamW and fp32 masters."""
    found = estimate_of("sft", ["--model", qwen, "--deepspeed", "configs/zero3.json"], 8)
    memory, eighth = found.memory, found.total / 8
    assert found.total == found.trained == pytest.approx(8.19e9, rel=0.01)
    assert (memory.weights, memory.gradients, memory.optimizer) == (2 * eighth, 2 * eighth, 12 * eighth)


def test_adapters_on_the_command_line_take_the_place_of_the_experiments_layers(qwen: str) -> None:
    """`hh_harmless` trains two layers, which goes with no adapters; what the user asks for stays, and is refused."""
    found = estimate_of("grpo", ["--model", qwen, "--lora_rank", "8"])
    assert 0.01e9 < found.trained < 0.05e9
    config = PPOConfig("x").with_given({"learning_rate"})
    assert config == PPOConfig("x")


def test_it_prints_the_parts_and_the_smallest_gpu_that_holds_them(qwen: str) -> None:
    flags = ["--lora_rank", "16", "--gradient_checkpointing", "--micro_batch", "1"]
    done = CliRunner().invoke(main, ["estimate", "reward", "--model", qwen, *flags])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert "7.61 billion weights" in lines[0]
    assert lines[1] == "1 GPU: 2 row(s) of 512 tokens a micro-batch"
    assert [line.split()[0] for line in lines[2:]] == ["weights", "gradients", "optimizer", "activations", "CUDA", "in"]
    assert "fits 24 GB" in lines[-1]
    parts = [float(line.split()[1]) for line in lines[2:-1]]
    assert float(lines[-1].split()[2]) == pytest.approx(sum(parts), abs=0.26)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rloop", "--model", "x"], "rloop is nothing to train; did you mean rloo? needed: reward, sft"),
        (["sft", "--modl", "x"], "unknown flag --modl; did you mean --model?"),
        (["sft", "--model", "/not/there"], "/not/there"),
    ],
)
def test_what_is_not_known_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["estimate", *words])
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1
