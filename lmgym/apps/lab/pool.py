"""A pool of a policy's replies to held-out prompts, scored once by the world and once by each proxy.

From it the best of N is exact for every N, without drawing again. As a program, for the steps of a plan:

    python -m lmgym.apps.lab.pool sample POLICY POOL WORLD PROMPTS REPLIES
    python -m lmgym.apps.lab.pool score POOL NAME SCORER
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lmgym.errors import InputError, shown
from lmgym.generation.protocol import Sampling
from lmgym.messages import from_transcript
from lmgym.text import Conversation

MAX_NEW_TOKENS, SEED, TOGETHER = 48, 0, 256
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Pool:
    """Replies to prompts: [prompts, N] of texts, gold and words."""

    prompts: list[Conversation]
    replies: list[list[str]]
    gold: Array
    words: Array

    @classmethod
    def read(cls, folder: Path) -> "Pool":
        """That of `sample`."""
        table = pq.read_table(folder / "replies.parquet").to_pydict()
        n = table["prompt"].count(0)
        texts: list[str] = table["text"]
        grouped = [texts[i : i + n] for i in range(0, len(texts), n)]
        prompts = [from_transcript(text) for text in pq.read_table(folder / "prompts.parquet")["text"].to_pylist()]
        gold, words = (np.array(table[name], dtype=np.float64).reshape(-1, n) for name in ("gold", "words"))
        return cls(prompts, grouped, gold, words)


def sample(policy: str, folder: Path, world: int, prompts: int, replies: int) -> None:
    """Writes a policy's replies, with their gold, to held-out prompts of the tables beside the pool."""
    asked = held_out_texts(folder.parent / "tables", prompts)
    conversations = [from_transcript(text) for text in asked]
    found = sample_replies(policy, conversations, replies, Sampling(MAX_NEW_TOKENS, seed=SEED), TOGETHER)
    gold = score_replies(f"world:{world}", conversations, found)
    texts = [reply for own in found for reply in own]
    table = {
        "prompt": np.repeat(np.arange(prompts), replies),
        "text": texts,
        "gold": gold.ravel(),
        "words": [len(text.split()) for text in texts],
    }
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": asked}), folder / "prompts.parquet")
    pq.write_table(pa.table(table), folder / "replies.parquet")


def sample_replies(
    policy: str, prompts: Sequence[Conversation], n: int, sampling: Sampling, together: int
) -> list[list[str]]:
    """n replies to each prompt by a local model, at most so many together."""
    from lmgym.generation.local_generation import LocalGenerator
    from lmgym.models.forward.policies import load_policy
    from lmgym.models.loading import load_tokenizer

    tokenizer = load_tokenizer(policy)
    found = LocalGenerator(load_policy(policy, tokenizer), tokenizer, together).reply(prompts, n, sampling)
    return [[one.text.strip() for one in own] for own in found]


def score_replies(spec: str, prompts: Sequence[Conversation], replies: Sequence[Sequence[str]]) -> Array:
    """A scorer's scores [prompts, n] of n replies to each prompt."""
    from lmgym.scoring.named_scorers import load_scorer

    owners = [prompt for prompt, own in zip(prompts, replies, strict=True) for _ in own]
    texts = [reply for own in replies for reply in own]
    return np.asarray(load_scorer(spec).score(owners, texts), dtype=np.float64).reshape(len(replies), -1)


def held_out_texts(tables: Path, number: int) -> list[str]:
    """Different prompts of users whom no training saw, as transcripts. Raises InputError if the world has fewer."""
    texts = pq.read_table(tables / "gold_eval.parquet", columns=["text"])["text"].to_pylist()
    prompts = list(dict.fromkeys(text.rpartition("\nBot:")[0] for text in texts))
    if len(prompts) < number:
        raise InputError(f"the world has {len(prompts):,} held-out prompts; needed: {number:,}; raise the plan's rows")
    return prompts[:number]


def score(folder: Path, name: str, spec: str) -> None:
    """Writes a proxy's scores[prompts, N] of a pool. Raises InputError if all are equal: nothing can be optimised."""
    pool = Pool.read(folder)
    scores = score_replies(spec, pool.prompts, pool.replies).astype(np.float32)
    if not np.isfinite(scores).all():
        raise InputError(f"{shown(name)} gives scores that are not finite; needed: a finite score for every reply")
    if np.ptp(scores) == 0:
        raise InputError(
            f"{shown(name)} gives all {scores.size:,} replies the score {scores.flat[0]:g}: there is nothing to "
            "optimise; needed: a scorer that tells replies apart"
        )
    np.save(folder / f"{name}.npy", scores)


if __name__ == "__main__":
    from lmgym.runs.launch import launch

    what, *words = sys.argv[1:]
    if what == "sample":
        launch(lambda: sample(words[0], Path(words[1]), *map(int, words[2:])))
    else:
        launch(lambda: score(Path(words[0]), words[1], words[2]))
