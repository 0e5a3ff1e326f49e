"""A policy from scratch, trained by the experiment alone, speaks the language of the world it was trained on."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from launching import ROOT, flags, launch, run

from lmgym.apps.world.checker import faults
from lmgym.apps.world.making import make_world, make_world_policy
from lmgym.apps.world.world import World
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.messages import from_transcript
from lmgym.models.forward.policies import load_policy
from lmgym.models.loading import load_tokenizer
from lmgym.text import Conversation

REPLIES = 500
SAMPLING = Sampling(96, temperature=0.8, top_p=0.95)  # at 1 and 1 it repeats what bots garble on purpose, too
# as in benchmarks/world_policy.py and the README
TRAIN = {
    "max_length": 128, "global_batch": 16, "micro_batch": 16, "learning_rate": "5e-3", "adam_beta2": 0.99,
    "weight_decay": 0.1, "epochs": 6, "precision": "fp32", "tracking": "none", "sample_prompts": 0,
    "save_updates": -1, "eval_size": 200,
}  # fmt: skip


@pytest.mark.slow
def test_its_replies_to_strangers_are_grammatical_and_varied(tmp_path: Path) -> None:
    make_world(str(tmp_path / "world"), 50_000, seed=3)
    make_world_policy(str(tmp_path / "world"), str(tmp_path / "start"), seed=3)
    values = {
        "model": tmp_path / "start",
        "dataset": tmp_path / "world/sft.parquet",
        "output": tmp_path / "chat",
        "seed": 3,
        **TRAIN,
    }
    done = run(launch("python", *flags(**values), script=ROOT / "sft/experiments/chat.py"), seconds=900)
    assert done.returncode == 0, done.stderr[-3000:]

    texts = pq.read_table(tmp_path / "world/gold_eval.parquet", columns=["text"])["text"].to_pylist()[:REPLIES]
    chats = [from_transcript(text) for text in texts]
    prompts = [Conversation(chat.turns[:-1], chat.persona) for chat in chats]
    folder = str(tmp_path / "chat/model")
    tokenizer = load_tokenizer(folder)
    generator = LocalGenerator(load_policy(folder, tokenizer), tokenizer)
    replies = [group[0].text.strip() for group in generator.reply(prompts, 1, SAMPLING)]
    grammar = World(3).grammar
    assert len(replies) == REPLIES
    assert sum(not faults(grammar, reply) for reply in replies) >= 0.95 * REPLIES
    assert len(set(replies)) >= 0.30 * REPLIES
