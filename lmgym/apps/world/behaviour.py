"""The users' behaviour under a policy, and its files, with the columns of the training files of `lmgym world`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lmgym.apps.world.days import Moment, UserActivity
from lmgym.apps.world.streams import Population, draw_population
from lmgym.apps.world.tables import (
    FILES,
    chat_messages,
    evaluation_tables,
    logs_table,
    refuse_other_files,
    world_record,
)
from lmgym.apps.world.users import Floats, Reaction
from lmgym.apps.world.world import Cohort, Logs, SimulatedChat, World
from lmgym.errors import InputError
from lmgym.text import Conversation

RETURN_DAYS = 3  # days after a reply that its row covers: d1, d2, d3
HELD_OUT = 5  # one user of this many, by number, is in the evaluation sets: the same users under every policy
EVALUATION_ROWS = 5000


@dataclass
class Traces:
    """A row per reply, as columns in parts: its moment, utility and reaction, and the texts."""

    at: list[Moment] = field(default_factory=list)
    utility: list[Floats] = field(default_factory=list)
    reaction: list[Reaction] = field(default_factory=list)
    nsfw: list[bool] = field(default_factory=list)
    conversation: list[Conversation] = field(default_factory=list)
    reply: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Behaviour:
    """The users' behaviour under a policy, on `days` days from the first conversation of each."""

    world: World
    seed: int
    days: int
    population: Population
    activity: UserActivity
    traces: Traces
    chats: list[SimulatedChat]

    def __len__(self) -> int:
        return len(self.population.numbers)

    def write(self, folder: str | Path) -> dict[str, int]:
        """Writes logs, gold, sft, and retry_eval, retention_eval, gold_eval of every fifth user; returns their sizes.

        A row says on which of the next three days its user came back, so the last three days give no rows;
        `retention_eval` needs 30 days and is omitted if no row has them. Raises InputError for fewer than 4 days, which
        leave no row, and for a folder with files that are not of an app.
        """
        folder = Path(folder)
        refuse_unwritable(folder, self.days)
        tables = self.tables()
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            (folder / f"{name}.parquet").unlink(missing_ok=True)  # of other users
        for name, table in tables.items():
            pq.write_table(table, folder / f"{name}.parquet")
        sizes = {name: table.num_rows for name, table in tables.items()}
        app = {"users": len(self), "days": self.days, "seed": self.seed}
        (folder / "world.json").write_text(json.dumps(world_record(self.world, sizes) | {"app": app}, indent=2) + "\n")
        return sizes

    def tables(self) -> dict[str, pa.Table]:
        """The tables that `write` writes, by name. Raises InputError if no reply has three more days."""
        numbers = self.population.numbers
        held_out = numbers % HELD_OUT == 0 if len(numbers) > 1 else np.zeros(1, dtype=np.bool_)
        training, evaluation = self._cohort(~held_out), self._cohort(held_out)
        logs = logs_table(training, numbers)
        if not logs.num_rows:
            raise InputError(f"{len(self)} users left no rows; needed: more users")
        tables = {
            "logs": logs,
            "gold": pa.table({"row_id": logs["row_id"], "utility": pa.array(training.logs.utility)}),
            "sft": pa.table({"messages": pa.array(chat_messages(training.chats))}),
        }
        if len(evaluation.logs):
            rng = np.random.default_rng([self.world.seed, self.seed, len(self)])
            tables |= evaluation_tables(evaluation, numbers, logs.num_rows, EVALUATION_ROWS, rng)
        return tables

    def _cohort(self, chosen: np.ndarray) -> Cohort:
        """The rows and chats of the users chosen[users], in order of days, for the world's tables."""
        user, day, turn = (
            np.concatenate([getattr(at, name) for at in self.traces.at]) for name in ("who", "day", "message")
        )
        kept = np.flatnonzero(chosen[user] & (day < self.days - RETURN_DAYS))
        kept = kept[np.lexsort((user[kept], day[kept]))]  # stable: within a conversation by time
        user, day, turn = user[kept], day[kept], turn[kept]
        shown, retried, ended, seconds = (
            np.concatenate([getattr(reaction, name) for reaction in self.traces.reaction])[kept]
            for name in ("shown", "retried", "ended", "seconds")
        )
        logs = Logs(
            user=user.tolist(),
            day=day.tolist(),
            chat=(user * self.days + day).tolist(),
            turn=turn.tolist(),
            conversation=[self.traces.conversation[i] for i in kept.tolist()],
            reply=[self.traces.reply[i] for i in kept.tolist()],
            is_nsfw=[self.traces.nsfw[i] for i in kept.tolist()],
            accepted=(shown & ~retried).tolist(),
            retried=retried.tolist(),
            ended=ended.tolist(),
            seconds=seconds.tolist(),
            remaining=(self.activity.messages[user, day] - turn).tolist(),
            utility=np.concatenate(self.traces.utility)[kept].tolist(),
        )
        chats = sorted((chat for chat in self.chats if chosen[chat.user]), key=lambda chat: chat.user)
        return Cohort(self.population.users, logs, self.activity.messages, chats)


def merge_behaviours(parts: Sequence[Behaviour]) -> Behaviour:
    """One behaviour of users who were split into parts in the order of their numbers."""
    world, seed, days = parts[0].world, parts[0].seed, parts[0].days
    numbers = np.concatenate([part.population.numbers for part in parts])
    assert (np.diff(numbers) > 0).all(), "users are split in the order of their numbers"
    names = [field.name for field in fields(UserActivity)]
    activity = UserActivity(*(np.concatenate([getattr(part.activity, name) for part in parts]) for name in names))
    traces, chats, first = Traces(), [], 0
    for part in parts:
        traces.at += [replace(at, who=at.who + first) for at in part.traces.at]
        for name in ("utility", "reaction", "nsfw", "conversation", "reply"):
            getattr(traces, name).extend(getattr(part.traces, name))
        chats += [replace(chat, user=chat.user + first) for chat in part.chats]
        first += len(part)
    return Behaviour(world, seed, days, draw_population(world, numbers, seed), activity, traces, chats)


def refuse_unwritable(folder: Path, days: int) -> None:
    """Raises InputError where `write` would, for the folder or the days; call it before the conversations."""
    if days <= RETURN_DAYS:
        raise InputError(
            f"{days} days give no logs: a row says who came back on the next {RETURN_DAYS} days; needed: "
            f"{RETURN_DAYS + 1} days or more"
        )
    refuse_other_files(folder)
    record = folder / "world.json"
    if record.exists() and "app" not in json.loads(record.read_text()):
        raise InputError(f"{folder} holds a world that `lmgym world` wrote; give another folder for the app's logs")
