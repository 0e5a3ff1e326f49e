"""The world's files: what an app would have logged, labelled evaluation sets, and apart from them the hidden utility.

Three groups of users never meet: those of the logs, those of the evaluations, and the annotators who rank replies.
Every reply of an evaluation set and of `gold_eval` is thus of users that no training row has seen.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lmgym.errors import InputError
from lmgym.text import Conversation, messages, to_transcript
from lmgym.world.bots import BOTS, speak
from lmgym.world.world import VERSION, Cohort, SimulatedChat, World, simulate

COHORT, EVAL_USERS, ANNOTATORS = 500, 10**9, 2 * 10**9
ROWS_A_USER = 40  # about
COMES_BACK = (3, 7, 30)  # days of retention_eval
GROUP = 4  # replies that an annotator ranks
FILES = (
    "logs", "gold", "retry_eval", "retention_eval", "ranking_eval", "reject_eval", "gold_eval", "pairs", "kwise", "sft",
)  # fmt: skip


def write_world(folder: str | Path, rows: int, seed: int) -> dict[str, int]:
    """Writes every table of a world as Parquet and `world.json`; the number of rows of each table.

    `rows` is the size of the logs; pairs have a tenth of it, kwise a twentieth, sft at most a tenth, the evaluation
    sets at most 5,000 each. Raises InputError for fewer than 1,000 rows, or a folder with such files that are not of a
    world.
    """
    folder = Path(folder)
    if rows < 1000:
        raise InputError(f"--rows {rows} is too small for a world; needed: at least 1000")
    refuse_other_files(folder)
    folder.mkdir(parents=True, exist_ok=True)
    world = World(seed)
    sizes = {"logs": _write_logs(folder, world, rows)}
    sizes["gold"] = sizes["logs"]
    for name, table in {**_evaluations(world, min(5000, rows // 10)), **_annotations(world, rows)}.items():
        pq.write_table(table, folder / f"{name}.parquet")
        sizes[name] = table.num_rows
    record = {"version": VERSION, "seed": seed, "rows": sizes, "noise": asdict(world.noise)}
    (folder / "world.json").write_text(json.dumps(record, indent=2) + "\n")
    return sizes


def refuse_other_files(folder: Path) -> None:
    """Raises InputError for a folder with files of these names that are not of a world."""
    if any((folder / f"{name}.parquet").exists() for name in FILES) and not (folder / "world.json").exists():
        raise InputError(f"{folder} holds Parquet files that are not of a world; give an empty folder as --output")


def _write_logs(folder: Path, world: World, rows: int) -> int:
    """Logs and gold, a cohort of users at a time, so that memory does not grow with the rows."""
    chunks = _logs(world, rows)
    first = next(chunks)
    with (
        pq.ParquetWriter(folder / "logs.parquet", first[0].schema) as logs_file,
        pq.ParquetWriter(folder / "gold.parquet", first[1].schema) as gold_file,
    ):
        for logs, gold in chain([first], chunks):
            logs_file.write_table(logs)
            gold_file.write_table(gold)
    return rows


def _logs(world: World, rows: int) -> Iterator[tuple[pa.Table, pa.Table]]:
    written = 0
    size = max(50, min(COHORT, rows // ROWS_A_USER))
    for number in count():
        cohort = simulate(world, size, number)
        taken = min(rows - written, len(cohort.logs))
        logs = logs_table(cohort, number * COHORT + np.arange(size), written).slice(0, taken)
        yield logs, pa.table({"row_id": logs["row_id"], "utility": pa.array(cohort.logs.utility[:taken])})
        written += taken
        if written == rows:
            return


def logs_table(cohort: Cohort, ids: np.ndarray, first_row: int = 0) -> pa.Table:
    """A cohort's logs in the columns of an app, its users by their ids; conversations are numbered within their user.

    Every logged day needs three more in `cohort.messages`, and there are at most 100 days.
    """
    logs = cohort.logs
    user, day = np.array(logs.user), np.array(logs.day)
    seconds = np.array(logs.seconds)
    log_seconds = np.where(seconds >= 0, np.log1p(np.maximum(seconds, 0)), seconds)
    returns = {f"d{d}": _nullable(cohort.messages[user, day + d]) for d in (1, 2, 3)}
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
            **returns,
        }
    )


def _nullable(counts: np.ndarray) -> pa.Array:
    return pa.array(counts, mask=counts == 0)


def _evaluations(world: World, rows: int) -> dict[str, pa.Table]:
    """Evaluation sets of users who are not in the logs."""
    cohort = _cohort(world, EVAL_USERS, rows)
    rng = np.random.default_rng([world.seed, EVAL_USERS])
    return evaluation_tables(cohort, EVAL_USERS + np.arange(len(cohort.users)), EVAL_USERS, rows, rng)


def evaluation_tables(
    cohort: Cohort, ids: np.ndarray, first_row: int, rows: int, rng: np.random.Generator
) -> dict[str, pa.Table]:
    """Labelled replies to a cohort's users: at most `rows` a set, drawn at random, users by their ids.

    A row of `retention_eval` needs 30 more days in `cohort.messages`: without such rows there is none.
    """
    logs = cohort.logs
    user, day = np.array(logs.user), np.array(logs.day)
    texts = np.array([to_transcript(c, r) for c, r in zip(logs.conversation, logs.reply, strict=True)], dtype=object)
    prompts = np.unique(np.stack([np.array(logs.chat), np.array(logs.turn)]), axis=1, return_inverse=True)[1].ravel()
    seen, known = ~np.isnan(logs.seconds), day + max(COMES_BACK) < cohort.messages.shape[1]
    retry, retention, gold = (
        np.sort(rng.choice(choice, min(rows, len(choice)), replace=False))
        for choice in (np.flatnonzero(seen), np.flatnonzero(known), np.arange(len(logs)))
    )
    came = {f"d{d}": cohort.messages[user[retention], day[retention] + d] > 0 for d in COMES_BACK}
    tables = {
        "retry_eval": _table(
            text=texts[retry], retried=np.array(logs.retried)[retry], end_of_conversation=np.array(logs.ended)[retry],
            user_id=ids[user[retry]], prompt_id=prompts[retry],
        ),
        "retention_eval": _table(
            text=texts[retention], **came, is_new_user=cohort.users.is_new[user[retention]],
            user_id=ids[user[retention]],
        ),
        "gold_eval": _table(
            row_id=first_row + gold, user_id=ids[user[gold]], text=texts[gold], utility=np.array(logs.utility)[gold],
        ),
    }  # fmt: skip
    return {name: table for name, table in tables.items() if table.num_rows}


def _annotations(world: World, rows: int) -> dict[str, pa.Table]:
    """What annotators made: pairs, ranked groups and evaluation groups, each on contexts of its own; and sft chats."""
    pairs, kwise, evals = rows // 10, rows // 20, max(100, min(1000, rows // 50))
    cohort = _cohort(world, ANNOTATORS, pairs + kwise + 2 * evals)
    groups = _ranked_groups(world, cohort)
    parts = [[next(groups) for _ in range(size)] for size in (pairs, kwise, evals, evals)]
    ends = [(g, [g["order"][0], g["order"][1 + i % (GROUP - 1)]]) for i, g in enumerate(parts[0])]
    return {
        "pairs": _table(
            prompt=[to_transcript(g["conversation"]) for g, _ in ends],
            chosen=[g["replies"][best] for g, (best, _) in ends],
            rejected=[g["replies"][other] for g, (_, other) in ends],
        ),
        "kwise": _table(
            prompt=[to_transcript(g["conversation"]) for g in parts[1]],
            replies=[g["replies"] for g in parts[1]],
            ranks=[g["ranks"] for g in parts[1]],
        ),
        "ranking_eval": _table(**_flat(parts[2]), **{"rank (lower is better)": _each(parts[2], "ranks")}),
        "reject_eval": _table(
            **_flat(parts[3]),
            label=[int(rank == GROUP) for rank in _each(parts[3], "ranks")],
            is_nsfw=[g["is_nsfw"] for g in parts[3] for _ in range(GROUP)],
            new_user=[g["is_new"] for g in parts[3] for _ in range(GROUP)],
        ),
        "sft": _table(messages=chat_messages(cohort.chats)[: rows // 10]),
    }


def _flat(groups: list[dict[str, Any]]) -> dict[str, list]:
    return {
        "id": [i for i in range(len(groups)) for _ in range(GROUP)],
        "text": [to_transcript(g["conversation"], reply) for g in groups for reply in g["replies"]],
    }


def _each(groups: list[dict[str, Any]], name: str) -> list:
    return [value for group in groups for value in group[name]]


def _ranked_groups(world: World, cohort: Cohort) -> Iterator[dict[str, Any]]:
    """Contexts of a cohort, each with different replies of several bots, ranked by utility and Gumbel noise.

    That noise makes the order a Plackett-Luce one with the utilities, divided by its scale, as scores (Luce 1959).
    """
    rng, words = np.random.default_rng([world.seed, ANNOTATORS]), random.Random(f"annotators {world.seed}")
    grammar, logs = world.grammar, cohort.logs
    personas = {persona.text: persona for persona in grammar.vocabulary.personas}
    for row in rng.permutation(len(logs)).tolist():
        conversation = logs.conversation[row]
        named, said = grammar.named(conversation), grammar.said(conversation)
        persona, topic = personas[conversation.persona], grammar.topic_of[named[0]]
        replies: dict[str, None] = {}
        while len(replies) < GROUP:
            replies[speak(grammar, words, words.choice(BOTS), persona, topic, named, said)] = None
        worth = world.utility([conversation] * GROUP, list(replies))
        order = np.argsort(-(worth + world.noise.annotator * rng.gumbel(size=GROUP)))
        yield {
            "conversation": conversation,
            "replies": list(replies),
            "order": order.tolist(),
            "ranks": (np.argsort(order) + 1).tolist(),
            "is_nsfw": logs.is_nsfw[row],
            "is_new": bool(cohort.users.is_new[logs.user[row]]),
        }


def chat_messages(chats: Sequence[SimulatedChat]) -> list[list[dict[str, str]]]:
    """Chats as they were accepted, as messages, up to the bot's last turn."""
    whole = (Conversation(tuple(chat.turns[: len(chat.turns) // 2 * 2]), chat.persona.text) for chat in chats)
    return [messages(conversation) for conversation in whole if conversation.turns]


def _cohort(world: World, seed: int, rows: int) -> Cohort:
    """Users with at least 1.5 times that many logged rows, so that rows can be drawn from them."""
    users = max(50, 2 * rows // ROWS_A_USER)
    while True:
        cohort = simulate(world, users, seed)
        if len(cohort.logs) >= 1.5 * rows:
            return cohort
        users *= 2


def _table(**columns: Any) -> pa.Table:
    return pa.table({name: pa.array(values) for name, values in columns.items()})
