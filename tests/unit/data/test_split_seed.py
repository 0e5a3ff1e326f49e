"""Only --split_seed decides which rows are held out: runs with other seeds are evaluated on the same rows."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig
from lmgym.errors import InputError
from lmgym.models.loading import load_tokenizer
from ppo.config import PPOConfig, RolloutConfig
from ppo.task_setups import text_with_function
from reward_models.behaviour import BehaviourTask
from reward_models.check import check_settings
from reward_models.config import RewardModelConfig
from reward_models.kwise import KwiseTask
from reward_models.metrics.labels import ACCEPTED_AND_CONTINUED
from reward_models.objectives import CROSS_ENTROPY
from reward_models.pairwise import PairTask
from sft.config import SftConfig
from sft.tasks import CHAT

Prepare = Callable[[OptimizerConfig], tuple[str, list]]
"""the data's fingerprint, and what is evaluated on"""


def scorer(model: Path, tokenizer, task, **data) -> Prepare:
    own = {name: data.pop(name) for name in ("rows_per_user", "rows_per_user_mode") if name in data}
    settings = RowsConfig(**{"max_length": 200, **data})

    def prepare(optimizer: OptimizerConfig) -> tuple[str, list]:
        found = task.prepare(RewardModelConfig("x", ModelConfig(str(model)), settings, optimizer, **own), tokenizer)
        return found.fingerprint, [example.origin for example in found.evaluation]

    return prepare


@pytest.fixture(params=["pairs", "groups", "logs", "chats", "prompts"])
def prepare(request, small_models, demo_file: Path, chats_file: Path, write_log, tmp_path: Path) -> Prepare:
    """One of the stages' ways from a file to rows, some of them left out by a limit."""
    model = small_models["llama"]
    tokenizer = load_tokenizer(str(model))
    if request.param == "pairs":
        return scorer(model, tokenizer, PairTask(), dataset=str(demo_file), train_size=100, eval_size=40)
    if request.param == "groups":
        rows = [{"prompt": f"User: hello {i}", "replies": ["a", "b"], "ranks": [1, 2]} for i in range(60)]
        (tmp_path / "groups.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return scorer(model, tokenizer, KwiseTask(), dataset=str(tmp_path / "groups.jsonl"), train_size=20, eval_size=9)
    if request.param == "logs":
        write_log(tmp_path / "logs.jsonl", rows=300)
        limits = {"rows_per_user": 8, "rows_per_user_mode": "random", "train_size": 50, "eval_size": 64}
        task = BehaviourTask(ACCEPTED_AND_CONTINUED, CROSS_ENTROPY, ())
        return scorer(model, tokenizer, task, dataset=str(tmp_path / "logs.jsonl"), **limits)
    if request.param == "chats":

        def chats(optimizer: OptimizerConfig) -> tuple[str, list]:
            data = RowsConfig(str(chats_file), eval_size=8, train_size=12)
            found = CHAT.prepare(SftConfig("x", ModelConfig(str(model)), data, optimizer), tokenizer)
            return found.fingerprint, [example.origin for example in found.evaluation]

        return chats

    def play(optimizer: OptimizerConfig) -> tuple[str, list]:
        rollout = RolloutConfig(str(chats_file), eval_size=8)
        config = PPOConfig("x", ModelConfig(str(model)), rollout, optimizer=optimizer)
        setup = text_with_function(lambda outputs, **_: [0.0] * len(outputs))(config, tokenizer)
        return setup.fingerprint, setup.eval_tasks

    return play


def test_two_seeds_are_judged_on_the_same_rows_and_two_split_seeds_are_not(prepare: Prepare) -> None:
    first = prepare(OptimizerConfig())
    assert prepare(OptimizerConfig(seed=7)) == first
    other = prepare(OptimizerConfig(split_seed=7))
    assert other[0] != first[0]


def test_another_split_seed_holds_out_other_rows(demo_file: Path, small_models) -> None:
    tokenizer = load_tokenizer(str(small_models["llama"]))
    prepare = scorer(small_models["llama"], tokenizer, PairTask(), dataset=str(demo_file), eval_size=40)
    assert set(prepare(OptimizerConfig())[1]) != set(prepare(OptimizerConfig(split_seed=1))[1])


def test_a_split_seed_out_of_bounds_is_refused() -> None:
    config = RewardModelConfig("x", optimizer=OptimizerConfig(split_seed=-1))
    with pytest.raises(InputError, match=r"split_seed=-1; needed: 0 to"):
        check_settings(config)
