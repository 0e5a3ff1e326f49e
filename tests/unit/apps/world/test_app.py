"""The app: users who chat with a policy for days, their logs, and what these depend on."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from app_tests import GaussianReplies

from lmgym.apps.world.app import OneLine, deploy
from lmgym.apps.world.behaviour import HELD_OUT, Behaviour
from lmgym.apps.world.days import simulate_users
from lmgym.apps.world.streams import Population, draw_population
from lmgym.apps.world.tables import write_world
from lmgym.apps.world.users import MAX_MESSAGES
from lmgym.apps.world.world import World, simulate
from lmgym.errors import InputError
from lmgym.generation.protocol import Completion, Sampling, ScriptedGenerator
from lmgym.messages import from_transcript
from lmgym.text import Conversation

WORLD = World(0)
TOPIC_OF = WORLD.grammar.topic_of


def kind(conversation: Conversation, rng: np.random.Generator) -> str:
    """Speaks of what the user spoke of: a good reply."""
    [thing, *_] = WORLD.grammar.named_things(conversation)
    return f"{thing} are great. do you like {thing}?" if rng.random() < 0.5 else f"i saw {thing} today. i am glad."


def rude(conversation: Conversation, rng: np.random.Generator) -> str:
    """A bad reply."""
    return "who cares." if rng.random() < 0.5 else "you are boring."


@dataclass(frozen=True)
class Watched:
    """A generator that remembers how many conversations came in each request."""

    generator: ScriptedGenerator
    sizes: list[int] = field(default_factory=list)

    def reply(self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress=None):
        self.sizes.append(len(conversations))
        return self.generator.reply(conversations, n, sampling, progress)


@cache
def under(name: str, users: int = 60, days: int = 12, seed: int = 0, noise: int = 0) -> Behaviour:
    """Behaviour under a script, once for all tests."""
    script = {"kind": kind, "rude": rude}[name]
    return deploy(ScriptedGenerator(script), users, days, seed, WORLD, Sampling(seed=noise))


def rows_of(behaviour: Behaviour) -> set[tuple]:
    """Everything that happened, whatever the order in which it was served."""
    columns = [
        np.concatenate([getattr(at, name) for at in behaviour.traces.at]).tolist()
        for name in ("who", "day", "message", "attempt")
    ]
    columns[0] = behaviour.population.numbers[columns[0]].tolist()
    worth = np.concatenate(behaviour.traces.utility).round(9).tolist()  # a product of more rows rounds otherwise
    seconds = np.concatenate([did.seconds for did in behaviour.traces.reaction]).astype(str).tolist()
    rows = set(zip(*columns, behaviour.traces.conversation, behaviour.traces.reply, worth, seconds, strict=True))
    assert len(rows) == len(worth)
    return rows


def test_users_come_on_days_of_their_own_and_days_are_whole() -> None:
    behaviour = under("kind")
    messages = behaviour.activity.messages
    assert messages.shape == (60, 12)
    assert (messages[:, 0] > 0).all()
    assert 0.1 < (messages[:, 1:] > 0).mean() < 0.9
    assert len({tuple(days) for days in (messages > 0).tolist()}) > 20
    assert messages.max() <= MAX_MESSAGES
    assert len(behaviour.chats) == (messages > 0).sum()
    # a conversation as it was said has as many messages of the user as were counted
    said = {
        (chat.user, i): sum(turn.speaker == "user" for turn in chat.turns) for i, chat in enumerate(behaviour.chats)
    }
    assert sorted(said.values()) == sorted(messages[messages > 0].tolist())


def test_replies_that_are_worth_more_keep_users_longer_and_bring_them_back() -> None:
    good, bad = under("kind"), under("rude")
    assert np.concatenate(good.traces.utility).mean() > 0.5 > -1.0 > np.concatenate(bad.traces.utility).mean()
    kind, rude = good.activity, bad.activity
    length, rude_length = (a.messages.sum() / (a.messages > 0).sum() for a in (kind, rude))
    assert length > 2 * rude_length
    assert (kind.messages > 0).mean() > 1.3 * (rude.messages > 0).mean()
    assert kind.retries.sum() / kind.replies.sum() < rude.retries.sum() / rude.replies.sum() / 2


def test_a_row_is_worth_what_the_hidden_utility_says_for_its_user() -> None:
    behaviour = under("kind")
    for i in (0, 100, 400):
        start = 0
        for at, worth in zip(behaviour.traces.at, behaviour.traces.utility, strict=True):
            if i < start + len(worth):
                user = behaviour.population.users.take(at.who[[i - start]])
                pair = [behaviour.traces.conversation[i]], [behaviour.traces.reply[i]]
                assert worth[i - start] == pytest.approx(WORLD.utility(*pair, user)[0])
                break
            start += len(worth)


def test_the_same_seed_gives_the_same_behaviour_and_another_seed_another() -> None:
    again = deploy(ScriptedGenerator(kind), 60, 12, 0, WORLD)
    assert rows_of(again) == rows_of(under("kind"))
    assert again.traces.reply == under("kind").traces.reply  # in the same order too
    assert not rows_of(deploy(ScriptedGenerator(kind), 60, 12, 1, WORLD)) & rows_of(again)


def test_a_users_rows_do_not_depend_on_other_users() -> None:
    some = np.array([41, 3, 17, 8])
    alone = deploy(ScriptedGenerator(kind), some, 12, 0, WORLD)
    assert rows_of(alone) == {row for row in rows_of(under("kind")) if row[0] in some}
    single = deploy(ScriptedGenerator(kind), np.array([17]), 12, 0, WORLD)
    assert rows_of(single) == {row for row in rows_of(under("kind")) if row[0] == 17}


def test_later_days_change_nothing_before_them() -> None:
    short = deploy(ScriptedGenerator(kind), 60, 5, 0, WORLD)
    assert (short.activity.messages == under("kind").activity.messages[:, :5]).all()


def test_one_policy_twice_is_the_same_users_with_other_luck_of_the_policy() -> None:
    first, second = under("kind"), under("kind", noise=1)
    assert (first.population.users.tastes == second.population.users.tastes).all()
    openings = [
        {(chat.user, chat.turns[0].text, chat.persona.text) for chat in b.chats if chat.turns} for b in (first, second)
    ]
    # on days on which both were there, users opened alike; what the policy said differs
    assert len(openings[0] & openings[1]) > 0.6 * len(openings[0])
    assert first.traces.reply[:60] != second.traces.reply[:60]
    assert first.traces.conversation[:60] == second.traces.conversation[:60]


def test_users_bring_the_same_noise_to_two_policies() -> None:
    """With replies worth the same always, policies of other words and luck leave identical activity."""
    population, others = (draw_population(WORLD, np.arange(300), seed) for seed in (0, 1))

    def messages(users: Population, spread: float, seed: int) -> np.ndarray:
        return simulate_users(users, 10, GaussianReplies(population, 0.3, spread, seed), WORLD.noise).messages

    assert (messages(population, 0.0, 0) == messages(population, 0.0, 1)).all()
    pairs = ((population, 1), (population, 2), (others, 2))
    correlation = np.corrcoef([(messages(users, 1.0, seed) > 0).sum(1) for users, seed in pairs])
    assert correlation[0, 1] > 0.7
    assert abs(correlation[0, 2]) < 0.2


def test_all_open_conversations_are_answered_in_one_request() -> None:
    watched = Watched(ScriptedGenerator(rude))
    behaviour = deploy(watched, 600, 3, 0, WORLD)
    assert watched.sizes[0] == max(watched.sizes) == 600  # everybody opens on the first day
    assert sum(watched.sizes) == len(behaviour.traces.reply)
    assert sum(size for size in watched.sizes if size >= 200) > 0.6 * sum(watched.sizes)
    assert len(watched.sizes) < sum(watched.sizes) / 40


def test_the_world_with_its_bots_is_the_app_with_its_bots() -> None:
    """Two pieces of code run the same users: what they do about bots of the same mixture agrees."""
    from lmgym.apps.world.embedded_world import bot_reply

    world = simulate(WORLD, 250, 9).logs
    bots = ScriptedGenerator(lambda conversation, rng: bot_reply(WORLD, conversation, rng))
    app = deploy(bots, 250, 12, 9, WORLD)
    retried = np.mean(world.retried), app.activity.retries.sum() / sum(map(len, app.traces.utility))
    assert retried[0] == pytest.approx(retried[1], abs=0.02)
    assert np.mean(world.utility) == pytest.approx(np.concatenate(app.traces.utility).mean(), abs=0.06)
    assert np.std(world.utility) == pytest.approx(np.concatenate(app.traces.utility).std(), abs=0.06)


def test_what_the_policy_sees_is_what_the_log_shows(tmp_path: Path) -> None:
    behaviour = under("kind")
    behaviour.write(tmp_path)
    logs = pq.read_table(tmp_path / "logs.parquet").to_pydict()
    seen = {(c, r) for c, r in zip(behaviour.traces.conversation, behaviour.traces.reply, strict=True)}
    assert {(from_transcript(c), r) for c, r in zip(logs["input_text"], logs["output_text"], strict=True)} <= seen


def test_files_are_those_of_a_world(tmp_path: Path) -> None:
    sizes = under("kind", users=30, days=34).write(tmp_path / "app")
    write_world(tmp_path / "world", 1000, 0)
    for name in sizes:
        found, needed = (pq.read_schema(tmp_path / kind / f"{name}.parquet") for kind in ("app", "world"))
        assert found.names == needed.names
        assert [field.type for field in found] == [field.type for field in needed], name
    assert set(sizes) == {"logs", "gold", "sft", "retry_eval", "retention_eval", "gold_eval"}
    record = json.loads((tmp_path / "app" / "world.json").read_text())
    assert record["rows"] == sizes
    assert (record["seed"], record["app"]) == (0, {"users": 30, "days": 34, "seed": 0})


def test_rows_tell_what_their_users_did(tmp_path: Path) -> None:
    behaviour = under("kind")
    behaviour.write(tmp_path)
    logs, messages = pq.read_table(tmp_path / "logs.parquet").to_pydict(), behaviour.activity.messages
    gold = pq.read_table(tmp_path / "gold.parquet").to_pydict()
    assert gold["row_id"] == logs["row_id"] == list(range(len(gold["row_id"])))
    assert {user % HELD_OUT for user in logs["user_id"]} == {1, 2, 3, 4}
    for i in range(0, len(gold["row_id"]), 7):
        user, day = logs["user_id"][i], logs["convo_id"][i] % 100
        assert logs["convo_id"][i] // 100 == user
        assert day < 9  # of 12: d1 to d3 are known
        after = [messages[user, day + ahead] or None for ahead in (1, 2, 3)]
        assert [logs[name][i] for name in ("d1", "d2", "d3")] == after
        assert logs["remaining_user_messages"][i] == messages[user, day] - logs["turn"][i]
    everyone = (
        np.concatenate([at.day for at in behaviour.traces.at]),
        np.concatenate([behaviour.population.numbers[at.who] for at in behaviour.traces.at]),
    )
    assert len(gold["row_id"]) == ((everyone[0] < 9) & (everyone[1] % HELD_OUT > 0)).sum()
    tables = [pq.read_table(tmp_path / f"{name}.parquet") for name in ("retry_eval", "gold_eval")]
    held_out = {user for table in tables for user in table["user_id"].to_pylist()}
    assert held_out
    assert not held_out & set(logs["user_id"])


def test_files_of_an_earlier_app_go_and_those_of_a_world_stay(tmp_path: Path) -> None:
    under("kind", users=30, days=34).write(tmp_path)
    sizes = under("kind").write(tmp_path)
    assert "retention_eval" not in sizes  # 12 days know no day 30
    assert not (tmp_path / "retention_eval.parquet").exists()
    write_world(tmp_path / "world", 1000, 0)
    with pytest.raises(InputError, match="a world that `lmgym world` wrote"):
        under("kind").write(tmp_path / "world")
    (tmp_path / "other").mkdir()
    os.link(tmp_path / "gold.parquet", tmp_path / "other" / "gold.parquet")
    with pytest.raises(InputError, match="not of a world"):
        under("kind").write(tmp_path / "other")


def test_too_few_days_for_a_log_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"3 days give no logs.*needed: 4 days or more"):
        deploy(ScriptedGenerator(kind), 5, 3, 0, WORLD).write(tmp_path / "logs")
    assert not (tmp_path / "logs").exists()
    assert deploy(ScriptedGenerator(kind), 5, 4, 0, WORLD).write(tmp_path / "logs")["logs"] > 0


@pytest.mark.parametrize(
    ("users", "days", "message"),
    [
        (0, 31, "0 users: nobody to deploy to; needed: 1 or more"),
        (-3, 31, "0 users"),
        (np.array([], dtype=np.int64), 31, "0 users"),
        (np.array([1, 2, 1]), 31, "user numbers must be 0 or more, each given once"),
        (np.array([-1, 2]), 31, "user numbers must be 0 or more, each given once"),
        (5, 0, "0 days; needed: 1 to 100"),
        (5, 101, "101 days; needed: 1 to 100"),
    ],
)
def test_no_users_and_no_days_are_refused(users, days: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        deploy(ScriptedGenerator(kind), users, days, 0, WORLD)


def test_an_error_of_a_policy_is_raised_with_its_place() -> None:
    def tired(conversation: Conversation, rng: np.random.Generator) -> str:
        if rng.random() < 0.02:
            raise RuntimeError("I have had enough")
        return "ok."

    with pytest.raises(RuntimeError, match="I have had enough") as caught:
        deploy(ScriptedGenerator(tired), 50, 5, 0, WORLD)
    assert "users waited for replies" in caught.value.__notes__[0]


def test_another_number_of_replies_than_asked_for_is_refused() -> None:
    class Short:
        def reply(self, conversations, n, sampling, progress=None):
            return [[Completion("ok.", "eos")]] * (len(conversations) - 1)

    with pytest.raises(ValueError, match="replies to 5 conversations, not 1 each"):
        deploy(Short(), 5, 5, 0, WORLD)


def test_replies_come_on_one_line_and_empty_ones_are_garbled_not_lost(tmp_path: Path) -> None:
    texts = [" ok.\n\nUser: i like  drums. ", "", "\n"]
    found = OneLine(ScriptedGenerator(texts)).reply([Conversation(())] * 40, 2, Sampling())
    assert {one.text for replies in found for one in replies} == {"ok. User: i like drums.", ""}
    behaviour = deploy(ScriptedGenerator([""]), 40, 6, 0, WORLD)
    assert np.concatenate(behaviour.traces.utility).mean() < -0.5
    assert behaviour.write(tmp_path)["logs"] > 40
