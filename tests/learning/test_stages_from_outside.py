"""SFT, and scorers of rankings and of what users do: one saved model of each knows good from bad, seen from outside.

Thanks are what people like here, and insults what they do not. The texts on which the saved models are looked at are in
no row, and nothing of the library reads them (tests/outside.py).
"""

import json
from pathlib import Path
from random import Random

import outside
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, SamplesConfig
from reward_models.behaviour import BehaviourTask
from reward_models.config import RewardModelConfig
from reward_models.kwise import KwiseTask
from reward_models.metrics.labels import ACCEPTED_AND_CONTINUED, JOINT_BITS, MESSAGES_FIRST_DAYS, RESPONDS_180S
from reward_models.objectives import CROSS_ENTROPY, MULTI_LABEL_BCE, SQUARED_ERROR
from reward_models.tasks import Task
from reward_models.train import train as train_scorer
from sft.config import SftConfig
from sft.tasks import CHAT
from sft.train import train as train_sft

THINGS = ("soup", "jazz", "roses", "films", "stars", "cats", "bread", "opera", "tulips", "comets", "yarn", "herbs")
GOOD = ("thank you for telling me.", "that sounds lovely.", "i am glad you asked.", "thank you.")
BAD = ("that is a stupid thing to say.", "nobody cares what you think.", "go away and stop it.", "how stupid.")
ROWS, MARGIN = 400, 1.0
SEEN = [
    [(f"what about {thing} and songs?", f"{side[i % 4]} many people like it.") for i, thing in enumerate(THINGS)]
    for side in (GOOD, BAD)
]
LIKED = {
    "accepted": 1, "remaining_user_messages": 6, "time_delta_till_user_response": 20.0,
    "log_norm_time_delta_till_user_response": 1.0, "d1": 150, "d2": 150, "d3": 150,
}  # fmt: skip
DISLIKED = {
    "accepted": 0, "remaining_user_messages": 0, "time_delta_till_user_response": -1.0,
    "log_norm_time_delta_till_user_response": -1.0, "d1": None, "d2": None, "d3": None,
}  # fmt: skip


def run_of(folder: Path) -> RunConfig:
    return RunConfig(str(folder), tracking="none", eval_updates=1000, save_updates=-1)


def train_on(path: Path, task: Task, model: Path, folder: Path) -> torch.Tensor:
    """[labels]: the scorer's logits of good replies above those of bad ones, a mean."""
    train_scorer(
        RewardModelConfig(
            "seen", ModelConfig(str(model), precision="fp32"),
            RowsConfig(str(path), eval_size=60, max_length=128),
            OptimizerConfig(learning_rate=3e-3, epochs=2, global_batch=16, micro_batch=16), run_of(folder),
        ),
        task,
    )  # fmt: skip
    good, bad = (outside.scores(folder / "model", side) for side in SEEN)
    return (good - bad).mean(0)


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> Path:
    """Logs of users after thanks and after insults."""
    draw, rows = Random(0), []
    for i in range(ROWS):
        liked = draw.random() < 0.5
        reply = f"{draw.choice(GOOD if liked else BAD)} {draw.choice(THINGS)}, always."
        asked = f"User: do you like {draw.choice(THINGS)} or {draw.choice(THINGS)}?\nBot:"
        rows.append({"user_id": i // 10, "input_text": asked, "output_text": reply, **(LIKED if liked else DISLIKED)})
    path = tmp_path_factory.mktemp("logs") / "logs.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize(
    ("label", "criterion", "least"),
    [
        (ACCEPTED_AND_CONTINUED, CROSS_ENTROPY, MARGIN),
        pytest.param(RESPONDS_180S, CROSS_ENTROPY, MARGIN, marks=pytest.mark.slow),
        # of 2.25 messages in units of 200
        pytest.param(MESSAGES_FIRST_DAYS, SQUARED_ERROR, 1.0, marks=pytest.mark.slow),
        (JOINT_BITS, MULTI_LABEL_BCE, MARGIN),
    ],
    ids=["retry_accept", "responds_180s", "messages_first_days", "convo_joint"],
)
def test_a_scorer_of_behaviour_puts_what_users_liked_above_what_they_did_not(
    label, criterion, least: float, logs: Path, small_models: dict[str, Path], tmp_path: Path
) -> None:
    found = train_on(logs, BehaviourTask(label, criterion), small_models["llama"], tmp_path / "run")
    margins = found[1:] - found[:1] if len(found) == 2 else found  # of class 1 above class 0; of each label
    assert margins.min() > least


def test_a_scorer_of_rankings_puts_the_best_reply_above_the_worst(small_models, tmp_path: Path) -> None:
    draw, rows = Random(0), []
    for _ in range(ROWS):
        thing = draw.choice(THINGS)
        three = [f"{draw.choice(GOOD)} {thing}.", f"{thing}, always.", f"{draw.choice(BAD)} {thing}."]
        order = draw.sample(range(3), 3)
        asked = f"what do you think of {thing} and {draw.choice(THINGS)} {len(rows)}?"
        rows.append({"prompt": asked, "replies": [three[i] for i in order], "ranks": [i + 1 for i in order]})
    path = tmp_path / "ranked.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert train_on(path, KwiseTask(), small_models["llama"], tmp_path / "run").min() > MARGIN


def test_sft_makes_what_the_bot_said_likelier_and_nothing_that_the_user_said(small_models, tmp_path: Path) -> None:
    draw, rows = Random(0), []
    for i in range(ROWS):
        asked = f"{draw.choice(BAD)} what about {draw.choice(THINGS)} {i}?"
        told = f"{draw.choice(GOOD)} {draw.choice(THINGS)}, always."
        rows.append({"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]})
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    start, folder = small_models["llama"], tmp_path / "run"
    train_sft(
        SftConfig(
            "seen", ModelConfig(str(start), precision="fp32"), RowsConfig(str(path), eval_size=60, max_length=128),
            OptimizerConfig(learning_rate=3e-3, epochs=2, global_batch=16, micro_batch=16),
            SamplesConfig(sample_prompts=0), run_of(folder),
        ),
        CHAT,
    )  # fmt: skip
    bot, user = (outside.logprobs(folder / "model", side) - outside.logprobs(start, side) for side in SEEN)
    assert (bot - user).mean() > 5, "nats: the user's insults are read, not learned"
    assert bot.mean() > 5
