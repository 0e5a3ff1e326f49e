"""A policy learns by DPO in rounds to win debates before a judge that counts a letter; a broken version does not.

Wins are of about 64 rounds against the policy that training started from, which wins half of them.
"""

import dataclasses
import json
from pathlib import Path

import outside
import pytest

from lmgym.apps.debate.formats import debate
from lmgym.apps.debate.players.judges import LetterJudge
from lmgym.apps.debate.prompts.short import PROMPTS
from lmgym.apps.debate.synthetic import synthetic_questions
from lmgym.apps.debate.training.preference_pairs import train_on_debates
from lmgym.config import ModelConfig, OptimizerConfig, RunConfig
from lmgym.text import Replies
from preferences.config import LossConfig
from preferences.iterative.config import IterativeConfig, JudgeConfig, PromptConfig, RoundConfig
from preferences.iterative.rounds import Rounds

LEARNED = 0.9  # fixed before the first run
GIVEN = synthetic_questions(512), debate(rounds=1), PROMPTS, LetterJudge("l")


def by_dpo_in_rounds(model: ModelConfig, run: RunConfig, seed: int) -> None:
    train_on_debates(
        IterativeConfig(
            "debate", model, PromptConfig(f"{run.output}.jsonl", eval_size=32, max_length=256),
            RoundConfig(128, 4, renew_reference=True, max_new_tokens=32),
            JudgeConfig(weights="p_win=1,won=0", missing_eos_penalty=0.0), LossConfig("dpo", beta=0.1),
            OptimizerConfig(
                2e-3, schedule="constant_with_warmup", global_batch=64, micro_batch=64, max_updates=16, seed=seed
            ),
            run,
        ),
        *GIVEN,
    )  # fmt: skip


WON = "eval/score/won"


def shares_won(start: Path, folder: Path, seed: int = 0) -> tuple[float, float]:
    """(before, after) training."""
    model = ModelConfig(str(start), lora_rank=32, lora_alpha=64, precision="fp32")
    by_dpo_in_rounds(model, RunConfig(str(folder), tracking="none", eval_updates=1000, save_updates=-1), seed)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    won = [line[WON] for line in lines if WON in line]
    return won[0], won[-1]


@pytest.mark.slow
def test_the_policy_wins_against_its_start(chat_policy: Path, tmp_path: Path) -> None:
    before, after = shares_won(chat_policy, tmp_path / "run")
    assert 0.3 < before < 0.7
    assert after > LEARNED
    assert letters_a_word(tmp_path / "run/adapter") > letters_a_word(chat_policy) + 0.2


def letters_a_word(policy: Path) -> float:
    """The mean count of the judge's letter in a word of the policy's replies to a line of this test."""
    spoken = outside.replies(policy, ["Which of the two is larger? Speak for the first."], tokens=32, samples=64)
    words = " ".join(spoken).split()
    return sum(word.lower().count("l") for word in words) / max(1, len(words))


def choose_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    pair_of = Rounds._pair

    def exchanged(self, *given):
        pair = pair_of(self, *given)
        row = pair and pair.replies
        return row and dataclasses.replace(pair, replies=Replies(row.prefix, row.suffixes[::-1], ends=row.ends[::-1]))

    monkeypatch.setattr(Rounds, "_pair", exchanged)


@pytest.mark.slow
def test_a_policy_that_learns_the_worse_speech_of_each_pair_loses(
    chat_policy: Path, monkeypatch, tmp_path: Path
) -> None:
    choose_the_worst(monkeypatch)
    assert shares_won(chat_policy, tmp_path / "run")[1] < 0.5
