"""The world's files: logs as an app would have them, labelled evaluation sets, and separately the hidden utility.

The logs, the evaluations and the annotators who rank replies have disjoint users. So every reply of an evaluation set
and of `gold_eval` is to a user that appears in no training row.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lmgym.apps.world.bots import BOTS, speak
from lmgym.apps.world.users import NOISE
from lmgym.apps.world.world import VERSION, Cohort, SimulatedChat, World, simulate
from lmgym.errors import InputError
from lmgym.report.status_line import StatusLine
from lmgym.text import Conversation, messages, to_transcript

COHORT, EVAL_USERS, ANNOTATORS = 500, 10**9, 2 * 10**9
ROWS_PER_USER = 40  # approximate
RETENTION_DAYS = (3, 7, 30)  # of retention_eval
GROUP = 4  # replies that an annotator ranks
FILES = (
    "logs",
    "gold",
    "retry_eval",
    "retention_eval",
    "ranking_eval",
    "reject_eval",
    "gold_eval",
    "pairs",
    "kwise",
    "sft",
)


def write_world(folder: str | Path, rows: int, seed: int, retention: float = NOISE.retention) -> dict[str, int]:
    """Writes every table of a world as Parquet, and `world.json`; returns the number of rows of each table.

    `rows` is the size of the logs; pairs have a tenth of it, kwise a twentieth, sft at most a tenth, the evaluation
    sets at most 5,000 each. Raises InputError for fewer than 1,000 rows, or if the folder holds other such files.
    """
    folder = Path(folder)
    if rows < 1000:
        raise InputError(f"--rows {rows} is too small for a world; needed: at least 1000")
    refuse_other_files(folder)
    folder.mkdir(parents=True, exist_ok=True)
    world = World.with_retention(seed, retention)
    with StatusLine("simulating users", rows, "rows of logs", plain=True) as line:
        line.update(0)
        sizes = {"logs": _write_logs(folder, world, rows, line)}
        sizes["gold"] = sizes["logs"]
        line.update(doing="simulating held-out users and annotators")
        for name, table in {**_evaluations(world, min(5000, rows // 10)), **_annotations(world, rows)}.items():
            pq.write_table(table, folder / f"{name}.parquet")
            sizes[name] = table.num_rows
    (folder / "world.json").write_text(json.dumps(world_record(world, sizes), indent=2) + "\n")
    return sizes


def world_record(world: World, sizes: dict[str, int]) -> dict[str, Any]:
    """The content of world.json: version, seed, rows of each table and noise."""
    return {"version": VERSION, "seed": world.seed, "rows": sizes, "noise": asdict(world.noise)}


def refuse_other_files(folder: Path) -> None:
    """Raises InputError for a folder with files of these names and no world.json."""
    if any((folder / f"{name}.parquet").exists() for name in FILES) and not (folder / "world.json").exists():
        raise InputError(f"{folder} holds Parquet files that are not of a world; give an empty folder as --output")


def _write_logs(folder: Path, world: World, rows: int, line: StatusLine) -> int:
    """Writes logs and gold a cohort of users at a time, so that memory does not grow with the rows."""
    cohorts = _logs(world, rows)
    first, written = next(cohorts), 0
    with (
        pq.ParquetWriter(folder / "logs.parquet", first[0].schema) as logs_file,
        pq.ParquetWriter(folder / "gold.parquet", first[1].schema) as gold_file,
    ):
        for logs, gold in chain([first], cohorts):
            logs_file.write_table(logs)
            gold_file.write_table(gold)
            written += logs.num_rows
            line.update(written)
    return rows


def _logs(world: World, rows: int) -> Iterator[tuple[pa.Table, pa.Table]]:
    written = 0
    size = max(50, min(COHORT, rows // ROWS_PER_USER))
    for number in count():
        cohort = simulate(world, size, number)
        taken = min(rows - written, len(cohort.logs))
        logs = logs_table(cohort, number * COHORT + np.arange(size), written).slice(0, taken)
        yield logs, pa.table({"row_id": logs["row_id"], "utility": pa.array(cohort.logs.utility[:taken])})
        written += taken
        if written == rows:
            return


def logs_table(cohort: Cohort, ids: np.ndarray, first_row: int = 0) -> pa.Table:
    """A cohort's logs in the columns of an app; ids[users] are the users' ids.

    Every logged day needs three more in `cohort.messages`, and there are at most 100 days.
    """
    logs = cohort.logs
    user, day, seconds = np.array(logs.user), np.array(logs.day), np.array(logs.seconds)
    log_seconds = np.where(seconds >= 0, np.log1p(np.maximum(seconds, 0)), seconds)
    returns = {f"d{d}": cohort.messages[user, day + d] for d in (1, 2, 3)}
    return pa.table(
        {
            "row_id": pa.array(np.arange(first_row, first_row + len(logs))),
            "user_id": pa.array(ids[user]),
            "convo_id": pa.array(ids[user] * 100 + day),
            "turn": pa.array(logs.turn),
            "is_new_user": pa.array(cohort.users.is_new[user]),
            "is_nsfw": pa.array(logs.is_nsfw),
            "input_text": pa.array(map(to_transcript, logs.conversation)),
            "output_text": pa.array(logs.reply),
            "accepted": pa.array(np.array(logs.accepted, dtype=np.int64)),
            "remaining_user_messages": pa.array(logs.remaining),
            "time_delta_till_user_response": pa.array(seconds),
            "log_norm_time_delta_till_user_response": pa.array(log_seconds),
            **{name: pa.array(counts, mask=counts == 0) for name, counts in returns.items()},
        }
    )


def _evaluations(world: World, rows: int) -> dict[str, pa.Table]:
    """Evaluation sets of users who are not in the logs."""
    cohort = _cohort(world, EVAL_USERS, rows)
    rng = np.random.default_rng([world.seed, EVAL_USERS])
    return evaluation_tables(cohort, EVAL_USERS + np.arange(len(cohort.users)), EVAL_USERS, rows, rng)


def evaluation_tables(
    cohort: Cohort, ids: np.ndarray, first_row: int, rows: int, rng: np.random.Generator
) -> dict[str, pa.Table]:
    """Labelled replies to a cohort's users: at most `rows` per set, drawn at random; ids[users] are the users' ids.

    A row of `retention_eval` needs 30 more days in `cohort.messages`; empty tables are omitted.
    """
    logs = cohort.logs
    user, day = np.array(logs.user), np.array(logs.day)
    texts = np.array([to_transcript(c, r) for c, r in zip(logs.conversation, logs.reply, strict=True)], dtype=object)
    prompts = np.unique(np.stack([np.array(logs.chat), np.array(logs.turn)]), axis=1, return_inverse=True)[1].ravel()
    seen, known = ~np.isnan(logs.seconds), day + max(RETENTION_DAYS) < cohort.messages.shape[1]
    retry, retention, gold = (
        np.sort(rng.choice(choice, min(rows, len(choice)), replace=False))
        for choice in (np.flatnonzero(seen), np.flatnonzero(known), np.arange(len(logs)))
    )
    returned = {f"d{d}": cohort.messages[user[retention], day[retention] + d] > 0 for d in RETENTION_DAYS}
    tables = {
        "retry_eval": _table(
            text=texts[retry],
            retried=np.array(logs.retried)[retry],
            end_of_conversation=np.array(logs.ended)[retry],
            user_id=ids[user[retry]],
            prompt_id=prompts[retry],
        ),
        "retention_eval": _table(
            text=texts[retention],
            **returned,
            is_new_user=cohort.users.is_new[user[retention]],
            user_id=ids[user[retention]],
        ),
        "gold_eval": _table(
            row_id=first_row + gold,
            user_id=ids[user[gold]],
            text=texts[gold],
            utility=np.array(logs.utility)[gold],
        ),
    }
    return {name: table for name, table in tables.items() if table.num_rows}


@dataclass(frozen=True)
class _RankedGroup:
    """Several replies to one prompt, and their order[GROUP] from best to worst."""

    prompt: Conversation
    replies: list[str]
    order: np.ndarray
    is_nsfw: bool
    is_new_user: bool

    @property
    def ranks(self) -> list[int]:
        """The rank of each reply; 1 is the best."""
        return (np.argsort(self.order) + 1).tolist()


def _annotations(world: World, rows: int) -> dict[str, pa.Table]:
    """The annotators' tables: pairs, ranked groups and evaluation groups, each of other prompts; and sft chats."""
    pairs, kwise, evals = rows // 10, rows // 20, max(100, min(1000, rows // 50))
    cohort = _cohort(world, ANNOTATORS, pairs + kwise + 2 * evals)
    groups = _ranked_groups(world, cohort)
    of_pairs, of_kwise, of_ranking, of_reject = (list(islice(groups, n)) for n in (pairs, kwise, evals, evals))
    labels = [int(rank == GROUP) for group in of_reject for rank in group.ranks]
    return {
        "pairs": _table(
            prompt=[to_transcript(group.prompt) for group in of_pairs],
            chosen=[group.replies[group.order[0]] for group in of_pairs],
            rejected=[group.replies[group.order[1 + i % (GROUP - 1)]] for i, group in enumerate(of_pairs)],
        ),
        "kwise": _table(
            prompt=[to_transcript(group.prompt) for group in of_kwise],
            replies=[group.replies for group in of_kwise],
            ranks=[group.ranks for group in of_kwise],
        ),
        "ranking_eval": _table(
            **_texts(of_ranking), **{"rank (lower is better)": [rank for group in of_ranking for rank in group.ranks]}
        ),
        "reject_eval": _table(
            **_texts(of_reject),
            label=labels,
            is_nsfw=[group.is_nsfw for group in of_reject for _ in range(GROUP)],
            new_user=[group.is_new_user for group in of_reject for _ in range(GROUP)],
        ),
        "sft": _table(messages=chat_messages(cohort.chats)[: rows // 10]),
    }


def _texts(groups: list[_RankedGroup]) -> dict[str, list]:
    return {
        "id": [i for i in range(len(groups)) for _ in range(GROUP)],
        "text": [to_transcript(group.prompt, reply) for group in groups for reply in group.replies],
    }


def _ranked_groups(world: World, cohort: Cohort) -> Iterator[_RankedGroup]:
    """Prompts of a cohort, each with different replies of several bots, ranked by utility plus Gumbel noise.

    The noise makes the order a Plackett-Luce one, whose scores are the utilities divided by its scale (Luce 1959).
    """
    rng, words = np.random.default_rng([world.seed, ANNOTATORS]), random.Random(f"annotators {world.seed}")
    grammar, logs = world.grammar, cohort.logs
    personas = {persona.text: persona for persona in grammar.vocabulary.personas}
    for row in rng.permutation(len(logs)).tolist():
        prompt = logs.conversation[row]
        named, earlier = grammar.named_things(prompt), grammar.bot_sentences(prompt)
        persona, topic = personas[prompt.persona], grammar.topic_of[named[0]]
        distinct: dict[str, None] = {}
        while len(distinct) < GROUP:
            distinct[speak(grammar, words, words.choice(BOTS), persona, topic, named, earlier)] = None
        replies = list(distinct)
        utilities = world.utility([prompt] * GROUP, replies)
        order = np.argsort(-(utilities + world.noise.annotator * rng.gumbel(size=GROUP)))
        yield _RankedGroup(prompt, replies, order, logs.is_nsfw[row], bool(cohort.users.is_new[logs.user[row]]))


def chat_messages(chats: Sequence[SimulatedChat]) -> list[list[dict[str, str]]]:
    """Chats with their accepted replies, as messages, up to the bot's last turn."""
    complete = (Conversation(tuple(chat.turns[: len(chat.turns) // 2 * 2]), chat.persona.text) for chat in chats)
    return [messages(conversation) for conversation in complete if conversation.turns]


def _cohort(world: World, seed: int, rows: int) -> Cohort:
    """Users with at least 1.5 times as many logged rows, so that rows can be drawn from them."""
    users = max(50, 2 * rows // ROWS_PER_USER)
    while True:
        cohort = simulate(world, users, seed)
        if len(cohort.logs) >= 1.5 * rows:
            return cohort
        users *= 2


def _table(**columns: Any) -> pa.Table:
    return pa.table({name: pa.array(values) for name, values in columns.items()})
