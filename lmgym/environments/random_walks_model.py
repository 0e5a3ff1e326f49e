"""The initial policy of PPO on random walks: a small GPT-2 trained on them, with a tokenizer of letters."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lmgym.console import say
from lmgym.distributed.deepspeed_engine import without_sharded_load
from lmgym.distributed.random_state import seeded
from lmgym.distributed.ranks import rank
from lmgym.environments.random_walks import GOAL, LETTERS, draw_random_walks
from lmgym.models.forward.policies import PolicyModel
from lmgym.models.loading import PAD_TOKEN
from lmgym.models.saving import save_plain
from lmgym.models.small_models import EOS_TOKEN, build_model, size_settings

LAYERS, WIDTH, HEADS, CONTEXT = 6, 144, 12, 32
# 14 CPU seconds; after them 1 in 30 sampled steps is not an edge, and samples are as long as the walks
STEPS, BATCH, LEARNING_RATE, WARMUP_STEPS = 70, 100, 2e-3, 20
# only the text, so that a walk continues the prompt
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def make_start(folder: str | Path, graph_seed: int = 1000, seed: int = 0, steps: int = STEPS) -> Path:
    """A Hugging Face folder under `folder` with such a model, made on first use and reused later."""
    target = Path(folder) / f"graph{graph_seed}_seed{seed}_steps{steps}"
    return made_once(target, lambda: train_start(graph_seed, seed, steps))


def made_once(target: Path, make: Callable[[], tuple[Any, Any]]) -> Path:
    """The folder `target` with the model and tokenizer that `make` gives, unless it exists.

    If several processes make it at once, the first to finish provides it. It takes up to a minute: a line says so.
    """
    if target.is_dir():
        return target
    if rank() == 0:
        say(f"making {target}, a small model to begin with; later runs reuse it")
    target.parent.mkdir(parents=True, exist_ok=True)
    model, tokenizer = make()
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".partial-") as partial:
        saved = Path(partial) / "model"
        save_plain(model, model.state_dict(), saved, tokenizer)
        try:
            saved.rename(target)
        except OSError:  # another process was first
            if not target.is_dir():
                raise
    return target


def train_start(graph_seed: int = 1000, seed: int = 0, steps: int = STEPS):
    """(model, tokenizer): a GPT-2 in fp32, trained on the graph's walks with the cross entropy of next letters.

    A walk that reaches the goal ends with eos; one that does not has no eos. A function of the seeds.
    """
    tokenizer = build_letter_tokenizer()
    with seeded(graph_seed, seed), without_sharded_load():
        sizes = size_settings("gpt2", LAYERS, WIDTH, HEADS, CONTEXT)
        model = build_model("gpt2", tokenizer, "causal", seed, **sizes)
    rows = [_ids(walk, tokenizer.eos_token_id) for walk in draw_random_walks(graph_seed).walks]
    fit(PolicyModel(model), rows, [1] * len(rows), steps, np.random.default_rng([graph_seed, seed]))
    return model.eval(), tokenizer


def build_letter_tokenizer() -> PreTrainedTokenizerFast:
    """A token a letter, eos and pad: 23 in all. Raises an exception for other characters, which would change a walk."""
    vocabulary = {token: i for i, token in enumerate([*LETTERS, EOS_TOKEN, PAD_TOKEN])}
    letters = Tokenizer(models.WordLevel(vocabulary))
    letters.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    letters.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=letters,
        padding_side="right",
        pad_token=PAD_TOKEN,
        eos_token=EOS_TOKEN,
        model_max_length=CONTEXT,
        chat_template=TEMPLATE,
    )


def _ids(walk: str, eos: int) -> list[int]:
    ids = [LETTERS.index(letter) for letter in walk]
    return [*ids, eos] if ids[-1] == GOAL else ids


def fit(
    policy: PolicyModel,
    rows: Sequence[list[int]],
    starts: Sequence[int],
    steps: int,
    rng: np.random.Generator,
    batch_size: int = BATCH,
    learning_rate: float = LEARNING_RATE,
) -> None:
    """Update on `steps` batches of the cross entropy of each row's ids from its start on; epochs have own orders."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARMUP_STEPS, 1 - 0.9 * step / steps)
    )
    epochs = -(-steps * batch_size // len(rows))
    order = np.concatenate([rng.permutation(len(rows)) for _ in range(epochs)])[: steps * batch_size]
    policy.train()
    for batch in order.reshape(steps, batch_size).tolist():
        # those of one length side by side, whose attention is then one call
        chosen = sorted(((rows[i], starts[i]) for i in batch), key=lambda one: len(one[0]))
        logits = policy(
            **policy.collate([row for row, _ in chosen], [range(at - 1, len(row) - 1) for row, at in chosen])
        )
        targets = torch.tensor([token for row, at in chosen for token in row[at:]])
        F.cross_entropy(logits, targets).backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
