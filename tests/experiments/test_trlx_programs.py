"""Programs written against trlx's interface, run through `ppo.trlx`; and what they ask for that is not here."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import ROOT, launch, read_lines, read_metrics, read_weights, run, scripts_are_forked, words
from transformers import AutoModelForCausalLM

from lmgym.errors import InputError
from ppo import trlx
from ppo.trlx.data.default_configs import TRLConfig, default_ppo_config, default_sft_config
from ppo.trlx.trainer.accelerate_rft_trainer import RFTConfig

SCRIPT = ROOT / "tests/experiments/trlx_script.py"
PROMPTS = ["what a", "this is", "they were", "I am"]


@pytest.fixture
def config(talkative_models: dict[str, Path], tmp_path: Path) -> TRLConfig:
    model = str(talkative_models["gpt2"])
    return TRLConfig.update(default_ppo_config(), {
        "train.total_steps": 4, "train.batch_size": 4, "train.seq_length": 64, "train.tracker": None,
        "train.checkpoint_dir": str(tmp_path / "run"), "model.model_path": model, "tokenizer.tokenizer_path": model,
        "method.num_rollouts": 8, "method.ppo_epochs": 2, "method.gen_kwargs.max_new_tokens": 6,
        "model.num_layers_unfrozen": -1,
    })  # fmt: skip


def short(samples: list[str], **kwargs) -> list[float]:
    return [1 / (1 + len(sample)) for sample in samples]


def test_a_program_with_its_own_sentiment_scorer_runs_alone_and_on_two_ranks(talkative_models, tmp_path) -> None:
    for kind in ("fork", "forks"):
        folder = tmp_path / kind
        done = run(launch(kind, talkative_models["gpt2"], folder, script=SCRIPT))
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        metrics = read_metrics(folder)
        assert metrics["metrics/sentiments"].keys() >= {0, 4, 8}
        assert metrics["metrics/sentiments"][8] == pytest.approx(metrics["eval/reward/mean"][8], abs=1e-5)
        assert words(done.stdout).count("optimizer.kwargs.eps is not used") == 1, "once, on one rank"
        assert sorted(p.name for p in (folder / "saved").iterdir()) == sorted(
            p.name for p in (folder / "model").iterdir()
        )
    assert json.loads((tmp_path / "forks/run.json").read_text())["config"]["global_batch"] == 8


def test_what_train_returns_generates_and_is_saved_like_any_model(config: TRLConfig, tmp_path) -> None:
    trainer = trlx.train(reward_fn=short, prompts=PROMPTS, config=config)
    given = trainer.tokenizer(["what a"], return_tensors="pt")
    ids = trainer.generate(**given, min_new_tokens=6)
    assert ids.shape == (1, given.input_ids.shape[1] + 6)
    assert torch.equal(ids[:, :-6], given.input_ids)
    greedy = [trainer.generate(given.input_ids, do_sample=False, max_new_tokens=3) for _ in range(2)]
    assert torch.equal(*greedy)
    trainer.save_pretrained(tmp_path / "copy")
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "copy").state_dict()
    assert all(torch.equal(value, saved[name]) for name, value in read_weights(tmp_path / "run").items())
    trainer.save_pretrained()
    assert (tmp_path / "run/hf_model/config.json").is_file()


def test_prompts_may_be_dicts_whose_other_keys_the_function_reads(config: TRLConfig, tmp_path) -> None:
    seen: dict[str, list] = {}

    def reward_fn(outputs, wanted, tokenizer):
        seen.setdefault("wanted", []).extend(wanted)
        return [-abs(len(tokenizer(output).input_ids) - one) for output, one in zip(outputs, wanted, strict=True)]

    prompts = [{"prompt": prompt, "wanted": number} for number, prompt in enumerate(PROMPTS)]
    trlx.train(reward_fn=reward_fn, prompts=prompts, metric_fn=lambda wanted: {"wanted": wanted}, config=config)
    assert set(seen["wanted"]) == {0, 1, 2, 3}
    assert read_metrics(tmp_path / "run")["metrics/wanted"][4] == 1.5


def test_rewards_of_tokens_land_on_tokens(config: TRLConfig, tmp_path) -> None:
    def dense(samples, prompts, outputs, tokenizer, output_ids, **kwargs):
        return [[0.1] * (len(ids) - (ids[-1] == tokenizer.eos_token_id)) for ids in output_ids]

    trlx.train(reward_fn=dense, prompts=PROMPTS, config=config)
    for row in read_lines(tmp_path / "run/samples/rollouts-000004.jsonl"):
        assert len(row["reward"]) == row["tokens"]
        assert set(row["reward"]) <= {0.0, 0.1}


def test_replies_end_before_a_stop_sequence(config: TRLConfig, tmp_path) -> None:
    trlx.train(reward_fn=short, prompts=PROMPTS, config=config, stop_sequences=["e", "a"])
    rows = read_lines(tmp_path / "run/samples/rollouts-000004.jsonl")
    assert "stop" in {row["finish"] for row in rows}
    assert not any(set("ea") & set(row["reply"]) for row in rows)


def test_without_prompts_replies_begin_at_a_bos_and_the_first_batch_is_evaluated_on(config, tmp_path) -> None:
    with pytest.raises(InputError, match="the tokenizer has no BOS token to begin with; needed: prompts="):
        trlx.train(reward_fn=short, config=config)
    trlx.train(reward_fn=short, prompts=PROMPTS * 3, config=config)
    rows = read_lines(tmp_path / "run/samples/evaluation-000004.jsonl")
    assert [row["prompt"] for row in rows] == PROMPTS


def test_model_path_comes_before_the_configs(config: TRLConfig, talkative_models, tmp_path) -> None:
    trlx.train(str(talkative_models["llama"]), short, prompts=PROMPTS, config=config)
    assert json.loads((tmp_path / "run/run.json").read_text())["config"]["model"] == str(talkative_models["llama"])


def test_samples_without_rewards_are_sft(config: TRLConfig, tmp_path, capfd) -> None:
    model = config.model.model_path
    ours = TRLConfig.update(default_sft_config(), {
        "train.total_steps": 4, "train.batch_size": 4, "train.seq_length": 128, "train.tracker": None,
        "train.checkpoint_dir": str(tmp_path / "run"), "model.model_path": model, "tokenizer.tokenizer_path": model,
        "method.gen_kwargs.max_new_tokens": 6,
    })  # fmt: skip
    samples = [[f"{prompt} {i}", f"good {i}"] for i in range(10) for prompt in PROMPTS]
    with scripts_are_forked():
        trainer = trlx.train(samples=samples, eval_prompts=PROMPTS, config=ours, metric_fn=short)
    said = words(capfd.readouterr().out)
    assert "trlx: metric_fn is not called" in said
    assert "lmgym train sft chat --model" in said
    assert read_metrics(tmp_path / "run")["eval/loss"].keys() >= {4}
    assert trainer.generate(**trainer.tokenizer(["what a"], return_tensors="pt")).shape[0] == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reward_fn": None}, "PPO without reward_fn; needed: train"),
        ({"prompts": "what a"}, "prompts is 'what a'; needed: a list of prompts"),
        ({"prompts": ["a", 3]}, r"prompts\[1\] has the prompt 3; needed: a text, or a dict"),
        ({"prompts": ["a", {"text": "b"}]}, r"prompts\[1\] has the prompt None"),
        ({"eval_prompts": [""]}, r"eval_prompts\[0\] has the prompt ''"),
        ({"stop_sequences": [""]}, "stop_sequences is a list of 1 item; needed: texts that are not empty"),
        ({"reward_fn": lambda texts: [0.0]}, "reward_fn has the parameter"),
        ({"metric_fn": lambda texts: {}}, "metric_fn has the parameter"),
    ],
)
def test_what_is_not_here_is_refused_with_what_to_use_instead(changes: dict[str, Any], said: str, config) -> None:
    given = {"reward_fn": short, "prompts": PROMPTS, "config": config} | changes
    with pytest.raises(InputError, match=said):
        trlx.train(**given)


def test_rft_learns_the_best_of_its_replies_to_each_prompt(config: TRLConfig, tmp_path, capsys) -> None:
    config.method = RFTConfig(gen_kwargs=config.method.gen_kwargs, n_generations_per_prompt=8, n_improve_steps=2)
    trlx.train(reward_fn=short, prompts=PROMPTS, config=config)
    settings = json.loads((tmp_path / "run/run.json").read_text())["config"]
    assert {n: settings[n] for n in ("method", "num_rollouts", "num_generations", "ppo_epochs", "percentile")} == {
        "method": "rft", "num_rollouts": 32, "num_generations": 8, "ppo_epochs": 2, "percentile": pytest.approx(0.7625),
    }  # fmt: skip
    assert settings["global_batch"] == 16, "of which about batch_size=4 are learned"
    assert "method.start_percentile to end_percentile: every step has their mean, 0.762" in words(
        capsys.readouterr().out
    )
    assert read_metrics(tmp_path / "run")["groups/reward_std"][4] > 0


def test_samples_that_are_no_pairs_are_refused(config: TRLConfig) -> None:
    ours = default_sft_config()
    for samples in (["a text"], [["a prompt"]], [["a", 1]]):
        with pytest.raises(InputError, match=r"samples\[0\] is .*; needed: \[prompt, output\]"):
            trlx.train(samples=samples, config=ours)
    with pytest.raises(InputError, match=r"samples is None; needed: a list of \[prompt, output\]"):
        trlx.train(config=ours)


def test_rank_0_alone_prints_an_error_in_one_line_under_a_launcher(tmp_path) -> None:
    done = run(launch("forks", tmp_path / "no-model", tmp_path / "run", script=SCRIPT))
    assert done.returncode != 0
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")] != []
    assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 1
