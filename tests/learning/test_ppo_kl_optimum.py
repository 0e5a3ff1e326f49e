"""With a KL reward PPO ends where theory says: at pi = pi_ref exp(r / beta) / Z, and not where a shifted mask leads.

Replies have one token, worth 1 where its text ends in a vowel: so the share of such tokens at the optimum is known.
"""

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import ppo.algorithms.learning
import ppo.train as loop
from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.models.loading import load_tokenizer
from lmgym.text import Conversation, Turn, render_all, tokenize_texts
from ppo.config import CriticConfig, LimitConfig, MethodConfig, PPOConfig, RolloutConfig
from ppo.task_setups import text_with_function

BETA, UPDATES = 1.0, 32


def ends_in_a_vowel(samples, prompts, outputs, tokenizer) -> list[float]:
    return [float(text[-1:] in tuple("aeiou")) for text in outputs]


def shares(folder: Path, model: Path, chats: Path) -> list[float]:
    """The probability of a token that is worth 1, after each of ten prompts."""
    tokenizer = load_tokenizer(str(folder))
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    texts = [tokenizer.decode([i], skip_special_tokens=True) for i in range(len(tokenizer))]
    good = torch.tensor([text[-1:] in tuple("aeiou") for text in texts])
    rows = [json.loads(line)["messages"] for line in chats.read_text().splitlines()[:10]]
    speakers = {"user": "user", "assistant": "bot"}
    asked = [Conversation(tuple(Turn(speakers[m["role"]], m["content"]) for m in row[:3])) for row in rows]
    with torch.no_grad():
        found = [
            policy(torch.tensor([ids])).logits[0, -1].softmax(-1)[good].sum()
            for ids in tokenize_texts(tokenizer, render_all(tokenizer, asked))
        ]
    return [share.item() for share in found]


def learn(model: Path, chats: Path, folder: Path) -> tuple[float, float]:
    """The mean share after training, and the one that theory wants."""
    config = PPOConfig(
        "kl_optimum",
        ModelConfig(str(model), precision="fp32"),
        RolloutConfig(str(chats), eval_size=4, num_rollouts=256, max_new_tokens=1),
        method=MethodConfig(init_kl_coef=BETA),
        critic=CriticConfig(whiten=False),
        limits=LimitConfig(max_kl=0),
        optimizer=OptimizerConfig(
            6e-3, warmup=0, schedule="linear", global_batch=256, micro_batch=128, max_updates=UPDATES
        ),
        run=RunConfig(str(folder), tracking="none", eval_updates=UPDATES, save_updates=-1),
    )
    before = shares(model, model, chats)
    loop.train(config, text_with_function(ends_in_a_vowel, as_text=False))
    after = shares(model, folder / "model", chats)
    wanted = [p * math.exp(1 / BETA) / (1 - p + p * math.exp(1 / BETA)) for p in before]
    return sum(after) / len(after), sum(wanted) / len(wanted)


@pytest.mark.slow
def test_the_policy_ends_at_the_optimum_of_reward_and_kl(
    small_models: dict[str, Path], chats_file: Path, tmp_path: Path
) -> None:
    found, wanted = learn(small_models["gpt2"], chats_file, tmp_path)
    assert found == pytest.approx(wanted, abs=0.05)


@pytest.mark.slow
def test_a_kl_mask_that_is_shifted_by_one_does_not(
    small_models: dict[str, Path], chats_file: Path, monkeypatch, tmp_path: Path
) -> None:
    kl_rewards = ppo.algorithms.learning.kl_rewards

    def shifted(logprobs, reference, scores, mask, coef, kind):
        """The KL of a token is charged to the one after it, as trlx did."""
        right = kl_rewards(logprobs, reference, scores, mask, 0.0)
        kl = kl_rewards(logprobs, reference, torch.zeros_like(scores), mask, coef)
        late = torch.zeros_like(kl)
        late[:, 1:] = kl[:, :-1]
        return right + late * mask

    monkeypatch.setattr(ppo.algorithms.learning, "kl_rewards", shifted)
    found, wanted = learn(small_models["gpt2"], chats_file, tmp_path)
    assert found > wanted + 0.1
