"""What users did under a policy, and its files: those that `lmgym world` writes for training, of the same columns."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lmgym.errors import InputError
from lmgym.text import Conversation
from lmgym.world.days import Moment, UserActivity
from lmgym.world.streams import Ints, Population, draw_population
from lmgym.world.tables import FILES, chat_messages, evaluation_tables, logs_table, refuse_other_files
from lmgym.world.users import Floats, Reaction
from lmgym.world.world import VERSION, Cohort, Logs, SimulatedChat, World

RETURNS = 3  # days after a reply that its log tells of: d1, d2, d3
HELD_OUT = 5  # of so many users one is in the evaluation sets, by number: the same ones whatever the policy
EVALUATION_ROWS = 5000


@dataclass
class Traces:
    """A row a reply, as columns in parts: when, what it was worth, what the user did; and what was said."""

    at: list[Moment] = field(default_factory=list)
    worth: list[Floats] = field(default_factory=list)
    reaction: list[Reaction] = field(default_factory=list)
    nsfw: list[bool] = field(default_factory=list)
    conversation: list[Conversation] = field(default_factory=list)
    reply: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Behaviour:
    """What users did under a policy, on `days` days from the first conversation of each."""

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
        """Writes logs, gold, sft, and retry_eval, retention_eval, gold_eval of every fifth user; rows of each.

        A reply's row says on which of the next three days its user came back: rows of the last three days do not know,
        and are left out; `retention_eval` needs 30 days, and is there where any row has them. Raises InputError for
        fewer than 4 days, where no row is left, and for a folder whose files are not of an app.
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
        record = {
            "version": VERSION, "seed": self.world.seed, "rows": sizes, "noise": asdict(self.world.noise), "app": app,
        }  # fmt: skip
        (folder / "world.json").write_text(json.dumps(record, indent=2) + "\n")
        return sizes

    def tables(self) -> dict[str, pa.Table]:
        """What `write` writes, by name. Raises InputError where no reply's next three days were all lived."""
        numbers = self.population.numbers
        held_out = numbers % HELD_OUT == 0 if len(numbers) > 1 else np.zeros(1, dtype=np.bool_)
        logged = self._cohort(~held_out)
        logs = logs_table(logged, numbers)
        if not logs.num_rows:
            raise InputError(f"{len(self)} users left no rows; needed: more users")
        tables = {
            "logs": logs,
            "gold": pa.table({"row_id": logs["row_id"], "utility": pa.array(logged.logs.utility)}),
            "sft": pa.table({"messages": pa.array(chat_messages(logged.chats))}),
        }
        judged = self._cohort(held_out)
        if len(judged.logs):
            rng = np.random.default_rng([self.world.seed, self.seed, len(self)])
            tables |= evaluation_tables(judged, numbers, logs.num_rows, EVALUATION_ROWS, rng)
        return tables

    def _cohort(self, chosen: np.ndarray) -> Cohort:
        """The rows and chats of chosen users [users], in the order of days, as the world's tables take them."""
        user, day, turn = (
            np.concatenate([getattr(at, name) for at in self.traces.at]) for name in ("who", "day", "message")
        )
        kept = np.flatnonzero(chosen[user] & (day < self.days - RETURNS))
        kept = kept[np.lexsort((user[kept], day[kept]))]  # stable: within a conversation by time
        user, day, turn = user[kept], day[kept], turn[kept]
        shown, retried, ended, seconds = (
            np.concatenate([getattr(did, name) for did in self.traces.reaction])[kept]
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
            utility=np.concatenate(self.traces.worth)[kept].tolist(),
        )
        chats = sorted((chat for chat in self.chats if chosen[chat.user]), key=lambda chat: chat.user)
        return Cohort(self.population.users, logs, self.activity.messages, chats)


@dataclass(frozen=True)
class BehaviourPart:
    """What some of the users did, as it comes from another process: without what that has of its own anyway."""

    numbers: Ints
    activity: UserActivity
    traces: Traces
    chats: list[SimulatedChat]

    @staticmethod
    def of(behaviour: Behaviour) -> "BehaviourPart":
        return BehaviourPart(behaviour.population.numbers, behaviour.activity, behaviour.traces, behaviour.chats)


def merge_parts(world: World, seed: int, days: int, parts: Sequence[BehaviourPart]) -> Behaviour:
    """One behaviour of users who were dealt to several, in the order of their numbers."""
    numbers = np.concatenate([part.numbers for part in parts])
    assert (np.diff(numbers) > 0).all(), "users are dealt in the order of their numbers"
    lives = [part.activity for part in parts]
    together = UserActivity(*(np.concatenate([getattr(one, f.name) for one in lives]) for f in fields(UserActivity)))
    traces, chats, first = Traces(), [], 0
    for part in parts:
        for at in part.traces.at:
            traces.at.append(replace(at, who=at.who + first))
        for name in ("worth", "reaction", "nsfw", "conversation", "reply"):
            getattr(traces, name).extend(getattr(part.traces, name))
        chats += [replace(chat, user=chat.user + first) for chat in part.chats]
        first += len(part.numbers)
    return Behaviour(world, seed, days, draw_population(world, numbers, seed), together, traces, chats)


def refuse_unwritable(folder: Path, days: int) -> None:
    """Raises InputError where `write` would, for the folder or the days: before anybody has talked."""
    if days <= RETURNS:
        raise InputError(
            f"{days} days give no logs: a row says who came back on the next {RETURNS}; needed: {RETURNS + 1} days or "
            "more"
        )
    refuse_other_files(folder)
    record = folder / "world.json"
    if record.exists() and "app" not in json.loads(record.read_text()):
        raise InputError(f"{folder} holds a world that `lmgym world` wrote; give another folder for the app's logs")
