"""Baselines for scorers of users' logs: the reply's length, a bag of words, and an oracle.

Each is a logistic regression for each of the six bits of `convo_joint`, fitted to the same logs; its score is the mean
of the six probabilities, as that experiment's. The oracle sees the features that the hidden utility is made of
(`lmgym/apps/world/utility.py`) instead of a text: an upper bound.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from lmgym.apps.world.world import VERSION, World
from lmgym.data.column_kinds import NUMBER, TEXT, Kind
from lmgym.data.columns import read_columns, require_columns
from lmgym.errors import MOST_SEED, InputError, one_line, regular, shown, shown_path
from lmgym.messages import from_transcript
from lmgym.text import Conversation
from reward_models.metrics.evaluations import split_reply
from reward_models.metrics.labels import JOINT_BITS
from reward_models.metrics.outcomes import gold_correlation

Inputs: TypeAlias = np.ndarray | scipy.sparse.csr_matrix
WORDS = r"[a-z]+|[.?!]"
AGAIN = "make it again"


def baselines(folder: str | Path, rows: int | None = None) -> dict[str, float]:
    """Spearman with the hidden utility, on the users of `gold_eval`, of length, bag_of_words and oracle.

    Fitted to the first `rows` of the world's logs, or to all. Raises InputError for a folder that is no world of this
    version.
    """
    folder = Path(folder)
    world = World(_seed(folder))
    logs = _read(folder / "logs.parquet", {"input_text": TEXT, "output_text": TEXT, **JOINT_BITS.kinds}, rows)
    labels = JOINT_BITS.compute(*(logs[name].to_numpy().astype(np.float64) for name in JOINT_BITS.columns))
    gold = _read(folder / "gold_eval.parquet", {"text": TEXT, "utility": NUMBER})
    chats = [from_transcript(text or "") for text in logs["input_text"].to_pylist()]
    train = chats, [reply or "" for reply in logs["output_text"].to_pylist()]
    held_out = [chat for text in gold["text"].to_pylist() if (chat := split_reply(text))]
    if len(held_out) < len(gold) or gold["utility"].is_null(nan_is_null=True).to_pylist().count(True):
        raise InputError(f"{shown_path(folder / 'gold_eval.parquet')} has rows without a reply or a utility; {AGAIN}")
    found = {}
    for name, fitted_to in (
        ("length", lambda *_: lambda chats, replies: _length(replies)),
        ("bag_of_words", _bag_of_words),
        ("oracle", lambda *_: world.features),
    ):
        try:
            inputs = fitted_to(*train)
            scores = _fit(
                inputs(*train), labels, inputs([chat for chat, _ in held_out], [reply for _, reply in held_out])
            )
            rho = gold_correlation(scores, gold["utility"].to_numpy())["gold_spearman"]
        except (ValueError, LookupError) as error:  # one label for all rows, no words, texts of another world
            fault = one_line(f"{type(error).__name__}: {error}", 80)
            raise InputError(f"no {name} baseline fits {shown_path(folder)}: {fault}; {AGAIN}") from error
        if rho is None:
            raise InputError(f"{shown_path(folder)}: the utilities or the scores by {name} are all equal; {AGAIN}")
        found[name] = rho
    return found


def _read(path: Path, wanted: Mapping[str, Kind], rows: int | None = None) -> Any:
    """The wanted columns of a world's table. Raises InputError for a damaged file, and for values of another kind."""
    columns = read_columns(str(path), wanted, max_rows=rows)
    require_columns(columns, [(name,) for name in wanted])
    if columns.rejections or not len(columns.line):
        fault = f": {columns.rejections[0]}" if columns.rejections else ""
        raise InputError(f"{shown_path(path)} has {len(columns.rejections)} damaged rows{fault}; {AGAIN}")
    return columns.table


def _seed(folder: Path) -> int:
    try:
        world = json.loads(regular(folder / "world.json").read_text())
        version, seed = world["version"], world["seed"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        why = one_line(f"no {error}" if isinstance(error, KeyError) else str(error), 80)
        raise InputError(f"{shown_path(folder)} is no world: {why}; make one with `lmgym world`") from error
    if version != VERSION:
        raise InputError(
            f"{shown_path(folder)} is of world version {one_line(str(version), 40)}, this is {VERSION}; {AGAIN}"
        )
    if type(seed) is not int or not 0 <= seed <= MOST_SEED:
        raise InputError(f"{shown_path(folder / 'world.json')} has seed={shown(seed)}; {AGAIN}")
    return seed


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
