"""Baselines for scorers of users' logs: the reply's length, a bag of words, and an oracle.

Each is a logistic regression for each of the six bits of `convo_joint`, fitted to the same logs; its score is the mean
of the six probabilities, as that experiment's. The oracle sees the features that the hidden utility is made of
(`lmgym/world/utility.py`) instead of a text: an upper bound.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow.parquet as pq
import scipy.sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from lmgym.errors import InputError
from lmgym.text import Conversation, from_transcript
from lmgym.world.world import VERSION, World
from reward_models.metrics.evaluations import split_reply
from reward_models.metrics.labels import JOINT_BITS
from reward_models.metrics.outcomes import gold_correlation

Inputs: TypeAlias = np.ndarray | scipy.sparse.csr_matrix
WORDS = r"[a-z]+|[.?!]"


def baselines(folder: str | Path, rows: int | None = None) -> dict[str, float]:
    """Spearman with the hidden utility, on the users of `gold_eval`, of length, bag_of_words and oracle.

    Fitted to the first `rows` of the world's logs, or to all. Raises InputError for a folder that is no world of this
    version.
    """
    folder = Path(folder)
    world = World(_seed(folder))
    logs = pq.read_table(folder / "logs.parquet").slice(0, rows)
    labels = JOINT_BITS.compute(*(np.asarray(logs[name].to_pandas(), dtype=np.float64) for name in JOINT_BITS.columns))
    gold = pq.read_table(folder / "gold_eval.parquet")
    chats = [from_transcript(text) for text in logs["input_text"].to_pylist()]
    train = chats, logs["output_text"].to_pylist()
    held_out = [chat for text in gold["text"].to_pylist() if (chat := split_reply(text))]
    assert len(held_out) == len(gold), "a world's texts end in a reply"
    evaluation = [chat for chat, _ in held_out], [reply for _, reply in held_out]
    found = {}
    for name, inputs in (
        ("length", lambda chats, replies: _length(replies)),
        ("bag_of_words", _bag_of_words(*train)),
        ("oracle", world.features),
    ):
        scores = _fit(inputs(*train), labels, inputs(*evaluation))
        rho = gold_correlation(scores, gold["utility"].to_numpy())["gold_spearman"]
        assert rho is not None
        found[name] = rho
    return found


def _seed(folder: Path) -> int:
    try:
        world = json.loads((folder / "world.json").read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} is no world: {error}; make one with `lmgym world --output {folder}`") from error
    if world["version"] != VERSION:
        raise InputError(f"{folder} is of world version {world['version']}, this is {VERSION}; make it again")
    return world["seed"]


def _length(replies: Sequence[str]) -> np.ndarray:
    """Words and their square, so that a best length can be found."""
    words = np.array([len(reply.split()) for reply in replies], dtype=np.float64)
    return np.stack([words, words**2 / 10], axis=1)


def _bag_of_words(
    conversations: Sequence[Conversation], replies: Sequence[str]
) -> Callable[[Sequence[Conversation], Sequence[str]], Inputs]:
    """Counts of the reply's words and of the conversation's, separately."""
    bags = [CountVectorizer(token_pattern=WORDS) for _ in range(2)]
    bags[0].fit(replies)
    bags[1].fit(map(_words, conversations))
    return lambda chats, texts: scipy.sparse.hstack(
        [bags[0].transform(texts), bags[1].transform(map(_words, chats))], format="csr"
    )


def _words(conversation: Conversation) -> str:
    return " ".join([conversation.persona, *(turn.text for turn in conversation.turns)])


def _fit(train: Inputs, labels: np.ndarray, evaluation: Inputs) -> np.ndarray:
    """The mean over labels of each one's probability; NaN is a missing label."""
    probabilities = []
    for column in labels.T:
        known = ~np.isnan(column)
        model = LogisticRegression(max_iter=200).fit(train[known], column[known])
        probabilities.append(model.predict_proba(evaluation)[:, 1])
    return np.mean(probabilities, axis=0)
