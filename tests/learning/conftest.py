"""Fixtures that several learning tests begin from."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flywheel import TURNS_A_CHAT, bot_reply, lines_of_a_chat

from lmgym.apps.world.world import World
from lmgym.config import ModelConfig, OptimizerConfig, RowsConfig, RunConfig, SamplesConfig
from lmgym.environments import random_walks_model
from lmgym.environments.random_walks_model import make_start
from lmgym.models.small_models import make_small_model
from lmgym.text import Conversation, Turn, messages
from sft.config import SftConfig
from sft.tasks import CHAT
from sft.train import train as train_sft

CHAT_SEED, CHATS = 1, 1500
MadeOnce = Callable[[str, Callable[[Path], Path]], Path]


@pytest.fixture(scope="session")
def start(made_once: MadeOnce) -> Path:
    """The walks' start, made once: 10 CPU seconds."""
    return made_once("walks", lambda folder: make_start(folder, graph_seed=1000, seed=0))


@pytest.fixture(scope="session")
def small_start(made_once: MadeOnce) -> Path:
    """The same of 2 layers in place of 6, with which PPO takes a third of the time: 6 CPU seconds."""

    def make(folder: Path) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {"LAYERS": 2, "WIDTH": 96, "HEADS": 4}.items():
                patch.setattr(random_walks_model, name, value)
            return make_start(folder, graph_seed=1000, seed=0, steps=120)

    return made_once("small_walks", make)


@pytest.fixture(scope="session")
def chat_world() -> World:
    """The world in which `chat_policy` talks."""
    return World(CHAT_SEED)


@pytest.fixture(scope="session")
def chat_policy(chat_world: World, made_once: MadeOnce) -> Path:
    """A policy that talks as the world's bot does, made once: 10 CPU seconds."""
    return made_once("policy", lambda folder: _train_chat_policy(chat_world, folder))


def _train_chat_policy(chat_world: World, folder: Path) -> Path:
    words, rng, rows = random.Random("chats"), np.random.default_rng(0), []
    for _ in range(CHATS):
        turns: tuple[Turn, ...] = ()
        for line in lines_of_a_chat(chat_world, words, TURNS_A_CHAT):
            turns = (*turns, Turn("user", line))
            turns = (*turns, Turn("bot", bot_reply(chat_world, Conversation(turns), rng)))
        rows.append({"messages": messages(Conversation(turns))})
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = [message["content"] for row in rows for message in row["messages"]]
    make_small_model(folder / "start", "llama", texts, width=64, max_length=256)
    train_sft(
        SftConfig(
            "chat",
            ModelConfig(str(folder / "start"), precision="fp32"),
            RowsConfig(str(folder / "chats.jsonl"), max_length=128, eval_size=50),
            optimizer=OptimizerConfig(learning_rate=5e-3, adam_beta2=0.99, epochs=4, global_batch=16, micro_batch=16),
            samples=SamplesConfig(sample_prompts=0),
            run=RunConfig(str(folder / "chat"), tracking="none", eval_updates=10_000, save_updates=-1),
        ),
        CHAT,
    )
    return folder / "chat/model"
