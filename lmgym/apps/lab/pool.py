"""A pool of a policy's replies to held-out prompts, scored once by the world and once by each proxy.

From it the best of N is exact for every N, without drawing again. As a program, for the steps of a plan:

    python -m lmgym.apps.lab.pool sample POLICY POOL WORLD PROMPTS REPLIES
    python -m lmgym.apps.lab.pool score POOL NAME SCORER
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from lmgym.errors import InputError, shown
from lmgym.messages import from_transcript
from lmgym.text import Conversation

MAX_NEW_TOKENS, SEED = 48, 0
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

    def flat(self) -> tuple[list[Conversation], list[str]]:
        """A prompt and a reply each."""
        owners = [prompt for prompt, own in zip(self.prompts, self.replies, strict=True) for _ in own]
        return owners, [reply for own in self.replies for reply in own]


def sample(policy: str, folder: Path, world: int, prompts: int, replies: int) -> None:
    """Writes a policy's replies, with their gold, to held-out prompts of the tables beside the pool."""
    from lmgym.generation.local_generation import LocalGenerator
    from lmgym.generation.protocol import Sampling
    from lmgym.models.forward.policies import load_policy
    from lmgym.models.loading import load_tokenizer
    from lmgym.scoring.named_scorers import load_scorer

    asked = held_out_prompts(folder.parent / "tables", prompts)
    tokenizer = load_tokenizer(policy)
    generator = LocalGenerator(load_policy(policy, tokenizer), tokenizer, 256)
    conversations = [from_transcript(text) for text in asked]
    found = generator.reply(conversations, replies, Sampling(MAX_NEW_TOKENS, seed=SEED))
    texts = [one.text.strip() for own in found for one in own]
    owners = [conversation for conversation in conversations for _ in range(replies)]
    gold = np.asarray(load_scorer(f"world:{world}").score(owners, texts))
    table = {
        "prompt": np.repeat(np.arange(prompts), replies),
        "text": texts,
        "gold": gold,
        "words": [len(text.split()) for text in texts],
    }
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"text": asked}), folder / "prompts.parquet")
    pq.write_table(pa.table(table), folder / "replies.parquet")


def held_out_prompts(tables: Path, number: int) -> list[str]:
    """Different prompts of users whom no training saw, as transcripts. Raises InputError if the world has fewer."""
    texts = pq.read_table(tables / "gold_eval.parquet", columns=["text"])["text"].to_pylist()
    prompts = list(dict.fromkeys(text.rpartition("\nBot:")[0] for text in texts))
    if len(prompts) < number:
        raise InputError(f"the world has {len(prompts):,} held-out prompts; needed: {number:,}; raise the plan's rows")
    return prompts[:number]


def score(folder: Path, name: str, spec: str) -> None:
    """Writes a proxy's scores[prompts, N] of a pool. Raises InputError if all are equal: nothing can be optimised."""
    from lmgym.scoring.named_scorers import load_scorer

    pool = Pool.read(folder)
    scores = np.asarray(load_scorer(spec).score(*pool.flat()), dtype=np.float32).reshape(pool.gold.shape)
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
