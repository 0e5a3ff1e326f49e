"""PPO from a config to folders, in this process: what each setting does to a run, and what is refused before step 1."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from launching import ROOT, read_lines, read_metrics, read_weights, words
from peft import PeftModel
from ppo_in_process import PLAIN, Go, shortness
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from lmgym.config import ModelConfig
from lmgym.errors import InputError, RunStopped
from lmgym.models.critics import ValueHead, save_critic
from lmgym.models.loading import load_tokenizer
from lmgym.scoring.scorers import FunctionScorer
from ppo.config import CriticConfig, PPOConfig, RewardConfig
from ppo.setup import build
from ppo.task_setups import TaskSetup, chat_with_scorers, text_with_function


def shorter(samples, prompts, outputs, tokenizer, wanted) -> list[float]:
    return [x - len(text) for x, text in zip(wanted, outputs, strict=True)]


def moved(folder: Path, start: Path) -> dict[str, float]:
    """The distance of each weight from the start's."""
    before = AutoModelForCausalLM.from_pretrained(start, dtype=torch.float32).state_dict()
    return {name: (value.float() - before[name]).abs().max().item() for name, value in read_weights(folder).items()}


def test_bf16_trains_fp32_weights_that_move_at_a_small_rate(go: Go, talkative_models) -> None:
    folder = go(precision="bf16", learning_rate=1e-5, schedule="constant_with_warmup")
    after = read_weights(folder)
    matrices = [name for name in after if after[name].ndim == 2 and "wpe" not in name]
    far = moved(folder, talkative_models["gpt2"])
    assert all(after[name].dtype == torch.float32 for name in matrices)
    assert all(1e-5 < far[name] < 2e-4 for name in matrices), "eight steps of at most 1e-5 each"
    rounded = [(after[name] == after[name].to(torch.bfloat16)).float().mean().item() for name in matrices]
    assert max(rounded) < 0.5, "in bf16 a weight of .02 would move by 6e-5 or not at all"
    assert max(read_metrics(folder)["rollout/logprob_mismatch"].values()) < 0.02


def test_embeddings_train_in_full_beside_adapters_on_named_layers(go: Go, talkative_models) -> None:
    settings = {"lora_rank": 2, "lora_target_modules": "c_attn", "modules_to_save": "wte", "learning_rate": 1e-2}
    folder = go(**settings)
    kl = list(read_metrics(folder)["kl/reference"].values())
    assert kl[0] == 0, "the reference is the policy without what trains"
    assert kl[1] != 0
    assert max(read_metrics(folder)["rollout/logprob_mismatch"].values()) < 1e-4
    far = {name for name, by in moved(folder, talkative_models["gpt2"]).items() if by > 1e-4}
    layers = {f"transformer.h.{i}.attn.c_attn.weight" for i in range(2)}
    assert far == {"transformer.wte.weight", *layers}  # with which the head is tied
    ids = AutoTokenizer.from_pretrained(folder / "model")("and now", return_tensors="pt")
    with torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()(**ids).logits
        beside = AutoModelForCausalLM.from_pretrained(folder / "adapter", dtype=torch.float32).eval()(**ids).logits
    torch.testing.assert_close(merged, beside, rtol=0, atol=1e-4)


def test_adapters_start_at_a_kl_of_0_and_are_saved_beside_the_merged_model(go: Go, talkative_models) -> None:
    folder = go(lora_rank=4, learning_rate=1e-2)
    kl = list(read_metrics(folder)["kl/reference"].values())
    assert kl[0] == 0
    assert kl[1] != 0
    ids = AutoTokenizer.from_pretrained(folder / "model")("and now", return_tensors="pt")
    start = AutoModelForCausalLM.from_pretrained(talkative_models["gpt2"], dtype=torch.float32).eval()
    with torch.no_grad():
        merged = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32).eval()(**ids).logits
        before = start(**ids).logits
        adapted = PeftModel.from_pretrained(start, folder / "adapter").eval()(**ids).logits
    torch.testing.assert_close(merged, adapted, rtol=0, atol=1e-5)
    assert (merged - before).abs().max() > 1e-2
    again = go(name="again", lora_rank=4, learning_rate=1e-2)
    assert read_lines(again / "samples/rollouts-000008.jsonl") == read_lines(folder / "samples/rollouts-000008.jsonl")


def test_a_critic_of_its_own_starts_from_a_reward_model(go: Go, scorer_folders: dict[str, Path]) -> None:
    folder = go(critic=scorer_folders["gpt2"])
    metrics = read_metrics(folder)
    assert abs(metrics["values/mean"][4]) > 1e-3, "it does not say 0 at first, as a new head does"
    head = go(name="head")
    assert read_metrics(head)["values/mean"][4] == 0
    assert metrics["reward/mean"][4] == read_metrics(head)["reward/mean"][4], "the policy is the same"


@pytest.mark.parametrize("own", [False, True])
def test_another_run_goes_on_with_the_critic_of_a_former_one(own: bool, go: Go, scorer_folders) -> None:
    first = go(critic=scorer_folders["gpt2"] if own else "head")
    assert [path.suffix for path in (first / "critic").glob("*.safetensors")] == [".safetensors"]
    model, critic = str(first / "model"), str(first / "critic")
    actor, _ = build(PPOConfig("more", policy=ModelConfig(model), critic=CriticConfig(critic)), load_tokenizer(model))
    assert (actor.critic is not None) == own
    saved = load_file(next((first / "critic").glob("*.safetensors")))
    loaded = (actor.critic if own else actor.value_head).state_dict()
    assert saved.keys() <= loaded.keys()
    assert all(torch.equal(saved[name], loaded[name]) for name in saved)
    # what it has learned is there: an error of values that a new head does not have
    again = go(name="again", model=model, critic=critic)
    fresh = go(name="fresh", model=model, critic=scorer_folders["gpt2"] if own else "head")
    assert read_metrics(again)["loss/value"][4] < read_metrics(fresh)["loss/value"][4]


def test_a_value_head_of_another_policy_is_refused(go: Go, tmp_path) -> None:
    save_critic(None, {f"value_head.{n}": p for n, p in ValueHead(24, 0).state_dict().items()}, tmp_path / "critic", 0)
    with pytest.raises(InputError, match="is a value head for states of 24 numbers, and the policy's have 32"):
        go(critic=tmp_path / "critic")


def test_a_run_that_will_not_fit_is_refused_before_the_policy_is_loaded(go: Go, scorer_folders) -> None:
    found = r"needs about .* GiB a device .*; --memory_gb is 0.001; try .*--num_layers_unfrozen, more devices"
    with pytest.raises(InputError, match=found):
        go(memory_gb=0.001)
    go(memory_gb=0.2, max_updates=2, critic=scorer_folders["gpt2"])


def test_while_the_critic_warms_up_the_policy_stays(go: Go, talkative_models) -> None:
    folder = go(critic_warmup=2)
    assert set(moved(folder, talkative_models["gpt2"]).values()) == {0.0}
    losses = read_metrics(folder)["loss/value"]
    assert losses[8] < losses[4]


def test_epochs_end_once_the_policy_has_moved_far_enough(go: Go) -> None:
    folder = go(stop_kl=1e-9, learning_rate=1e-2)
    assert set(read_metrics(folder)["policy/stopped_early"].values()) == {1.0}


def test_long_prompts_are_cut_counted_and_told(go: Go, capsys) -> None:
    folder = go(max_prompt=20)
    assert "40 of 40 prompts have more than 20 tokens" in words(capsys.readouterr().out)
    assert set(read_metrics(folder)["rollout/cut_prompts"].values()) == {1.0}


def test_a_dry_run_shows_prompts_as_they_are_cut_and_leaves_nothing(go: Go, capsys) -> None:
    folder = go(max_prompt=20, dry_run=True)
    said = words(capsys.readouterr().out)
    assert "40 of 40 prompts have more than 20 tokens" in said
    assert len(re.findall(r"policy: (?:1\d|20) tokens, (?:without the \d oldest|the last turn without)", said)) == 3
    assert not folder.exists()


def test_prompts_are_truncated_to_what_the_policy_reads_beside_a_reply_and_one_line_says_so(go: Go, capsys) -> None:
    go(max_prompt=255, dry_run=True)
    said = words(capsys.readouterr().out)
    assert re.search(
        r"--max_prompt 255 exceeds what \S+ reads beside a reply of 8 tokens: prompts are truncated to 248", said
    )
    go(max_prompt=248, dry_run=True)
    assert "exceeds" not in capsys.readouterr().out


def test_a_run_without_prompts_to_evaluate_on_draws_no_empty_tables(go: Go, capsys) -> None:
    folder = go(eval_size=0)
    assert "replies to held-out prompts" not in words(capsys.readouterr().out)
    assert len(read_metrics(folder)["kl/reference"]) == 2


def test_a_warm_up_as_long_as_the_run_is_told(go: Go, capsys) -> None:
    go(critic_warmup=2, dry_run=True)
    assert "critic_warmup=2 of 2 iterations: the policy will not learn" in words(capsys.readouterr().out)
    go(critic_warmup=1, dry_run=True)
    assert "will not learn" not in words(capsys.readouterr().out)


def test_scorers_are_normalised_weighted_watched_and_logged(go: Go, scorer_folders: dict[str, Path]) -> None:
    names = f"a={scorer_folders['gpt2']},b={scorer_folders['bert']}"
    folder = go(chat_with_scorers, scorers=names, weights="b=0", eval_scorer=scorer_folders["llama"], max_kl=0)
    metrics = read_metrics(folder)
    assert abs(metrics["reward/mean"][4]) < 1.0, "shifted by the mean of replies of the policy before step 1"
    assert {
        "scores/a",
        "scores/b",
        "eval/eval_scorer",
        "eval/eval_scorer_error",
        "alarm/eval_scorer_falls",
    } <= metrics.keys()
    rows = read_lines(folder / "samples/evaluation-000008.jsonl")
    assert len(rows) == 6
    assert all({"a", "b"} == row["scores"].keys() and "eval_scorer" in row["monitors"] for row in rows)
    # a linear function of the one scorer that has a weight
    (x, y), (u, v), (s, t) = [(row["scores"]["a"], row["reward"]) for row in rows[:3]]
    assert (y - v) * (x - s) == pytest.approx((y - t) * (x - u), rel=1e-3, abs=1e-6)


def without_eos(folder: Path, to: Path) -> Path:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.eos_token = None
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(to)
    tokenizer.save_pretrained(to)
    return to


def test_what_cannot_work_is_refused_before_step_1(
    go: Go, small_models: dict[str, Path], scorer_folders: dict[str, Path], tmp_path: Path
) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"other": 1}\n')

    def wrong(prompts, replies) -> list[float]:
        return []

    def of_ones_own(config, tokenizer) -> TaskSetup:
        return replace(PLAIN(replace(config, reward=RewardConfig()), tokenizer), monitors={})

    cases: list[tuple[Any, dict[str, Any], str]] = [
        (chat_with_scorers, {}, "there is no reward; needed: --reward FILE.py:FUNCTION"),
        (chat_with_scorers, {"scorers": f"a={tmp_path / 'absent'}"}, "absent"),
        (chat_with_scorers, {"scorers": f"a={small_models['gpt2']}"}, str(small_models["gpt2"])),
        (chat_with_scorers, {"scorers": "a="}, "needed [name=]PATH"),
        (
            text_with_function(wrong, as_text=False),
            {},
            "the reward function(prompts, replies) has no parameter that says its form",
        ),
        (PLAIN, {"model": small_models["bert"]}, "bert"),
        (PLAIN, {"model": without_eos(small_models["gpt2"], tmp_path / "endless")}, "has no eos token"),
        (PLAIN, {"prompts": empty}, "holds no prompts: found the columns other"),
        (PLAIN, {"max_prompt": 20, "long_prompts": "refuse"}, "40 of 40 prompts have more than 20 tokens"),
        (PLAIN, {"max_new_tokens": 256}, "leaves no room for a prompt in a context of 256"),
        (PLAIN, {"num_layers_unfrozen": 3}, "has 2 layers"),
        (
            PLAIN,
            {"model": scorer_folders["gpt2"]},
            "it is a GPT2ForSequenceClassification, a scorer, which cannot generate text",
        ),
        (PLAIN, {"monitor_scorers": "b="}, "--monitor_scorers 'b=': needed [name=]PATH"),
        (of_ones_own, {"eval_scorer": "world:0"}, "--eval_scorer world:0 would not be used"),
        (PLAIN, {"critic": scorer_folders["bert"]}, "has another tokenizer"),
        (PLAIN, {"critic": tmp_path / "absent"}, "absent"),
        (PLAIN, {"critic": small_models["gpt2"]}, "is not a scorer but a GPT2LMHeadModel; needed: a reward model's"),
        (PLAIN, {"num_layers_unfrozen": 1, "lora_rank": 2}, "choose one"),
    ]
    for prepare, changes, said in cases:
        for dry in (True, False):
            with pytest.raises(InputError) as refused:
                go(prepare, dry_run=dry, **changes)
            assert said in str(refused.value), f"{changes}: {refused.value}"
            assert not (tmp_path / "run").exists(), f"{changes}: a folder of results was opened"


def test_a_finished_run_outlives_other_commands_for_its_folder(go: Go, tmp_path: Path, capsys) -> None:
    def files(folder: Path) -> dict[str, bytes]:
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    folder = go(save_updates=4)
    before = files(folder) | {".lock": b""}
    for refused in ({"top_p": 2.0}, {"critic": tmp_path / "absent"}, {"model": folder / "model"}):
        with pytest.raises(InputError):
            go(**refused)
        assert files(folder) | {".lock": b""} == before, refused
    with pytest.raises(InputError, match="holds a finished run, which is never replaced"):
        go(learning_rate=5e-3, max_updates=4)
    assert files(folder) | {".lock": b""} == before
    assert go(learning_rate=5e-3, max_updates=4, resume="never") == folder / "2"
    after = {name: content for name, content in files(folder).items() if not name.startswith("2/")}
    assert after | {".lock": b""} == before
    assert files(folder / "2")["model/model.safetensors"] != before["model/model.safetensors"]
    assert "holds 1 run already" in words(capsys.readouterr().out)


def test_a_reward_that_never_comes_ends_the_run_and_says_so(go: Go) -> None:
    with pytest.raises(RunStopped, match=r"6 of 6 rewards failed.*needed: a number"):
        go(text_with_function(lambda samples, prompts, outputs, tokenizer: ["good"] * len(samples), as_text=False))


def test_an_evaluation_without_rewards_or_without_its_watched_scorer_ends_no_run(go: Go, capsys) -> None:
    def rewarded(samples, prompts, outputs, tokenizer) -> list[Any]:
        return [None] * 6 if len(outputs) == 6 else shortness(samples, prompts, outputs, tokenizer)  # 6 are evaluated

    def away(conversations, replies) -> list[float]:
        raise OSError("[/away]")

    def setup(function, gold):
        watched = {"eval_scorer": FunctionScorer(gold)}
        return lambda *given: replace(text_with_function(function, as_text=False)(*given), monitors=watched)

    metrics = read_metrics(
        go(
            setup(rewarded, lambda conversations, replies: [float(len(x)) for x in replies]),
            max_failed_rewards=1.0,
        )
    )
    assert metrics["eval/eval_scorer"].keys() == {0, 8}
    assert not {"eval/reward/mean", "alarm/eval_scorer_falls"} & metrics.keys()
    assert words(capsys.readouterr().out).count("the evaluation lacks 6 of 6 rewards: ") == 2
    metrics = read_metrics(go(setup(shortness, away), "again"))
    assert metrics["eval/reward/mean"].keys() == {0, 8}
    assert "eval/eval_scorer" not in metrics
    told = "the evaluation lacks 6 of 6 scores of eval_scorer: raised OSError: [/away]"
    assert words(capsys.readouterr().out).count(told) == 2


def test_other_tasks_are_other_data(talkative_models) -> None:
    from lmgym.models.loading import load_tokenizer

    tokenizer, config = load_tokenizer(str(talkative_models["gpt2"])), PPOConfig("x")
    tasks = [[{"prompt": "a", "wanted": 1}], [{"prompt": "a", "wanted": 1}], [{"prompt": "a", "wanted": 2}]]
    same, again, other = (text_with_function(shorter, tasks=rows)(config, tokenizer).fingerprint for rows in tasks)
    assert same == again != other
    text_with_function(shortness, tasks=tasks[0])(config, tokenizer)  # a column that a function does not take


def test_the_environment_of_the_documents_is_trained_in(go: Go) -> None:
    def code(name: str) -> list[str]:
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)

    names: dict[str, Any] = {}
    exec((ROOT / "examples/environments/guess.py").read_text(), names)
    names |= {"train": None, "config": None, "launch": lambda entry: None}
    [setup] = [part for part in code("ppo.md") if "def guessing" in part]
    exec(setup, names)
    folder = go(names["guessing"])
    assert json.loads((folder / "run.json").read_text())["data"] == {
        "train_tasks": 64, "eval_tasks": 16, "rejected_rows": 0,
    }  # fmt: skip


def test_columns_reach_a_reward_that_may_be_dense(go: Go, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"say {i}", "wanted": i}) + "\n" for i in range(30)))
    seen: list[tuple[str, int]] = []

    def reward(samples, prompts, outputs, tokenizer, wanted) -> list[list[float]]:
        seen.extend(zip(prompts, wanted, strict=True))
        return [[0.5] for _ in outputs]  # one token a reply

    folder = go(text_with_function(reward), prompts=file, max_new_tokens=1)
    assert all(prompt == f"say {i}" for prompt, i in seen)
    assert set(read_metrics(folder)["reward/mean"].values()) == {0.5}
