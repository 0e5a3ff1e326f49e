"""On `sentiment_words`, in replies of several tokens, a KL mask that is shifted by one is caught: two ways.

The model knows twenty words and begins near chance. A reply's last word has the optimum pi_ref exp(worth / beta) / Z,
whatever was said before; with GAE's lam at 1 the return at a token is the score less the KL of it and all after it.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import ppo.algorithms.learning
import ppo.train as loop
from lmgym.config import RunConfig
from lmgym.distributed.random_state import seeded
from lmgym.models.saving import save_plain
from lmgym.models.small_models import build_model, size_settings
from ppo.config import CriticConfig, LimitConfig
from ppo.experiments.sentiment_words import CONFIG, sentiment
from ppo.learner import Learner
from ppo.rollouts import Rollouts
from ppo.task_setups import text_with_function

BETA, WORDS, UPDATES = 1.0, 3, 32
PLEASANT, UNPLEASANT = ("lovely", "thank", "glad", "love"), ("hate", "boring", "stupid", "alone")
NEUTRAL = ("tree", "house", "river", "stone", "paper", "window", "street", "garden", "table", "cloud")
VOCABULARY = (*PLEASANT, *UNPLEASANT, *NEUTRAL, "<eos>", "<pad>")
PROMPTS = [f"{one} {other}" for one in NEUTRAL for other in NEUTRAL]


@pytest.fixture(scope="module")
def start(tmp_path_factory) -> Path:
    """A GPT-2 that says all words about equally often."""
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, padding_side="right", eos_token="<eos>", pad_token="<pad>", model_max_length=16,
        chat_template="{{ messages[0]['content'] }}",
    )  # fmt: skip
    with seeded(0, 0):
        model = build_model("gpt2", tokenizer, "causal", 0, **size_settings("gpt2", 2, 32, 2, 16))
    folder = tmp_path_factory.mktemp("words") / "model"
    save_plain(model, model.state_dict(), folder, tokenizer)
    return folder


def trained(start: Path, folder: Path, updates: int = UPDATES, **critic) -> Path:
    """The experiment with this model, replies of three words, and a KL that is as dear as a word."""
    config = replace(
        CONFIG,
        policy=replace(CONFIG.policy, model=str(start)),
        rollout=replace(CONFIG.rollout, num_rollouts=256, max_new_tokens=WORDS),
        method=replace(CONFIG.method, init_kl_coef=BETA),
        critic=CriticConfig(whiten=False, **critic),
        limits=LimitConfig(max_kl=0.0),
        optimizer=replace(CONFIG.optimizer, learning_rate=6e-3, warmup=0, global_batch=256, max_updates=updates),
        run=RunConfig(str(folder), tracking="none", eval_updates=updates, save_updates=-1),
    )
    loop.train(config, text_with_function(sentiment, tasks=[{"prompt": text} for text in PROMPTS]))
    return folder / "model"


@torch.no_grad()
def odds_of_the_last_word(model: Path) -> torch.Tensor:
    """Probabilities [prompts, vocabulary] of the third word, after two neutral ones."""
    ids = [[VOCABULARY.index(word) for word in (text + " " + PROMPTS[-i]).split()] for i, text in enumerate(PROMPTS)]
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    return policy(torch.tensor(ids)).logits[:, -1].softmax(-1)


def pleasant_share(start: Path, folder: Path) -> tuple[float, float]:
    """The share of pleasant last words after training, and the share that theory predicts."""
    worth = torch.tensor(sentiment(None, None, list(VOCABULARY), None), dtype=torch.float32)
    assert worth.tolist() == [1.0] * 4 + [-1.0] * 4 + [0.0] * 12
    tilted = odds_of_the_last_word(start) * (worth / BETA).exp()
    wanted = tilted / tilted.sum(1, keepdim=True)
    found = odds_of_the_last_word(trained(start, folder))
    return found[:, :4].sum(1).mean().item(), wanted[:, :4].sum(1).mean().item()


def charge_the_next_token(monkeypatch) -> None:
    """The KL of a token is charged to the one after it, as trlx did; that of a reply's last token to none."""
    kl_rewards = ppo.algorithms.learning.kl_rewards

    def shifted(logprobs, reference, scores, mask, coef, kind):
        right = kl_rewards(logprobs, reference, scores, mask, 0.0)
        kl = kl_rewards(logprobs, reference, torch.zeros_like(scores), mask, coef)
        late = torch.zeros_like(kl)
        late[:, 1:] = kl[:, :-1]
        return right + late * mask

    monkeypatch.setattr(ppo.algorithms.learning, "kl_rewards", shifted)


def forget_the_last_token(monkeypatch) -> None:
    """The mask of the KL ends a token too soon."""
    kl_rewards = ppo.algorithms.learning.kl_rewards

    def shifted(logprobs, reference, scores, mask, coef, kind):
        shorter = torch.zeros_like(mask)
        shorter[:, :-1] = mask[:, 1:]
        kl = kl_rewards(logprobs, reference, torch.zeros_like(scores), shorter, coef)
        return kl_rewards(logprobs, reference, scores, mask, 0.0) + kl

    monkeypatch.setattr(ppo.algorithms.learning, "kl_rewards", shifted)


BROKEN = [charge_the_next_token, pytest.param(forget_the_last_token, marks=pytest.mark.slow)]


def test_the_last_word_of_a_reply_ends_at_the_optimum(start: Path, tmp_path: Path) -> None:
    found, wanted = pleasant_share(start, tmp_path)
    assert found == pytest.approx(wanted, abs=0.08)


@pytest.mark.parametrize("broken", BROKEN)
def test_with_a_shifted_mask_it_does_not(broken: Callable, start: Path, monkeypatch, tmp_path: Path) -> None:
    broken(monkeypatch)
    found, wanted = pleasant_share(start, tmp_path)
    assert found > wanted + 0.12  # seeds 0 and 1: .18 to .22, and .03 to .04 with the right mask


def furthest_return(start: Path, folder: Path, monkeypatch) -> float:
    """The largest distance of returns from those by hand, in an iteration whose policy is no longer the reference."""
    seen: list[Rollouts] = []
    learn = Learner.learn

    def heard(self, rollouts: Rollouts, *more):
        seen.append(rollouts)
        return learn(self, rollouts, *more)

    monkeypatch.setattr(Learner, "learn", heard)
    trained(start, folder, updates=8, lam=1.0)
    assert len(seen) == 2
    late, furthest = seen[-1], 0.0
    kl = (late.old_logprobs - late.reference_logprobs).double().tolist()
    assert min(late.reply_lengths) < max(late.reply_lengths) == WORDS
    for first, count, ids in zip(late.row_starts, late.reply_lengths, late.rows, strict=False):
        said = " ".join(VOCABULARY[i] for i in ids[-count:])
        [score] = sentiment(None, None, [said], None)
        for place in range(first, first + count):
            wanted = score - BETA * math.fsum(kl[place : first + count])
            furthest = max(furthest, abs(late.returns[place].item() - wanted))
    return furthest


def test_returns_are_the_score_less_the_kl_of_each_token_still_to_come(
    start: Path, monkeypatch, tmp_path: Path
) -> None:
    assert furthest_return(start, tmp_path, monkeypatch) < 1e-5


@pytest.mark.parametrize("broken", BROKEN)
def test_with_a_shifted_mask_they_are_not(broken: Callable, start: Path, monkeypatch, tmp_path: Path) -> None:
    broken(monkeypatch)
    assert furthest_return(start, tmp_path, monkeypatch) > 1e-2
