"""The engine that plays: every agent has a player, and nothing needs a policy in training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest
from acting import TOKENIZER, Chat, Scripted

from lmgym.environments import engine
from lmgym.environments.engine import hash_of, play
from lmgym.environments.episodes import RunningEpisode
from lmgym.environments.players import ActionRequest, GeneratorPlayer, ScriptPlayer, ask
from lmgym.environments.protocol import Action, NoRoom, Observation, StepResult, Task
from lmgym.environments.rollout_engine import PolicyPlayer
from lmgym.errors import InputError, RunStopped
from lmgym.generation.protocol import Sampling, ScriptedGenerator
from lmgym.text import Conversation, Turn


@dataclass
class Says:
    """Says a text; keeps its requests."""

    text: str = "fine"
    asked: list[list[ActionRequest]] = field(default_factory=list)

    def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
        self.asked.append(list(requests))
        return [[Action(self.text, notes={"number": i}) for i in range(n)] for _ in requests]


@dataclass
class Talk:
    """Two agents at once, for so many steps."""

    steps: int = 2
    said: list[Mapping[str, str]] = field(default_factory=list)
    error: Exception | None = None

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        return self._shown() if self.steps else {}

    def step(self, actions: Mapping[str, str]) -> StepResult:
        if self.error:
            raise self.error
        self.said.append(dict(actions))
        over = len(self.said) == self.steps
        return StepResult({} if over else self._shown(), {"a": 1.0, "b": -1.0}, terminated=over)

    def _shown(self) -> dict[str, Observation]:
        return {agent: Observation(f"to {agent}") for agent in "ab"}


def play_talks(talks: Sequence[Talk], players, **settings) -> list[RunningEpisode]:
    return play(talks, [{}] * len(talks), range(len(talks)), players, **settings)


def test_seats_of_one_player_are_one_request_and_players_may_differ_by_episode() -> None:
    one, other = Says(), Says("no")
    play_talks([Talk(1), Talk(2)], {"a": one, "b": one})
    assert [len(requests) for requests in one.asked] == [4, 2]
    talks = [Talk(1), Talk(1)]
    play_talks(talks, [{"a": one, "b": other}, {"a": other, "b": one}])
    assert [talk.said for talk in talks] == [[{"a": "fine", "b": "no"}], [{"a": "no", "b": "fine"}]]
    assert [len(requests) for requests in other.asked] == [2]
    assert other.asked[0][0].players == {"a": one, "b": other}


def test_without_a_policy_no_step_and_no_reward_is_kept_and_what_was_said_is() -> None:
    [episode] = play_talks([Talk(2)], {"a": Says(), "b": Says("no")})
    assert episode.steps == {}
    assert episode.actions == [{"a": "fine", "b": "no"}] * 2
    assert episode.said[0]["b"].notes == {"number": 0}
    with pytest.raises(InputError, match=r"episode 0 .* 'b' has no player; needed: one of \['a'\]"):
        play_talks([Talk(2)], {"a": Says()})


def test_a_watcher_sees_each_episode_begin_and_each_of_its_steps_until_it_ends() -> None:
    seen: list[tuple[int, int, bool]] = []
    play_talks(
        [Talk(2), Talk(1), Talk(0), Talk(2, error=ValueError("oh"))],
        {"a": Says(), "b": Says()},
        watch=lambda e: seen.append((e.index, e.step_number, e.ended)),
    )
    begun = [(0, 0, False), (1, 0, False), (2, 0, True), (3, 0, False)]
    assert seen == [*begun, (0, 1, False), (1, 1, True), (3, 1, True), (0, 2, True)]


def test_so_many_episodes_at_once_are_played_as_others_end() -> None:
    player = Says()
    episodes = play_talks([Talk(n) for n in (1, 3, 1, 1)], {"a": player, "b": player}, at_once=2)
    together = [sorted({r.episode.index for r in requests if r.episode}) for requests in player.asked]
    assert together == [[0, 1], [1, 2], [1, 3]]
    assert [e.step_number for e in episodes] == [1, 3, 1, 1]


@pytest.mark.parametrize("error", [ValueError("oh"), InputError("oh"), OSError("oh"), KeyError("oh"), SystemExit(1)])
def test_one_episode_fails_and_the_others_go_on(error: BaseException) -> None:
    talks = [Talk(2, error=error), Talk(2)]  # type: ignore[arg-type]
    broken, whole = play_talks(talks, {"a": Says(), "b": Says()}, stops=(RunStopped,))
    assert broken.ended
    assert type(error).__name__ in broken.error
    if not isinstance(error, SystemExit):
        assert broken.reason == f"{type(error).__name__}: {error}"
    assert (whole.error, whole.step_number) == ("", 2)


def test_some_errors_end_the_play() -> None:
    for error in (InputError("oh"), RunStopped("oh", "stopped", 3)):
        with pytest.raises(type(error), match="oh"):
            play_talks([Talk(2, error=error), Talk(2)], {"a": Says(), "b": Says()})


def test_an_action_that_failed_ends_its_episode_alone_without_a_step() -> None:
    class Fails(Says):
        def act(self, requests: Sequence[ActionRequest], n: int = 1) -> list[list[Action]]:
            return [[Action("", error="no answer") if r.episode.index == 0 else Action("x")] for r in requests]  # type: ignore[union-attr]

    talks = [Talk(2), Talk(2)]
    broken, whole = play_talks(talks, {"a": Fails(), "b": Says()})
    assert broken.error == "episode 0 (seed 0) of Talk, step 0: no answer"
    assert broken.reason == "no answer"
    assert [len(talk.said) for talk in talks] == [0, 2]
    assert not whole.error


def test_a_generator_plays_by_the_seeds_of_its_requests_and_reads_a_text_as_a_turn_of_the_user() -> None:
    read: list[Conversation] = []

    def script(conversation: Conversation, rng) -> str:
        read.append(conversation)
        return str(rng.integers(1 << 30))

    player = GeneratorPlayer(ScriptedGenerator(script))
    given = [ActionRequest(Talk(), "a", Observation("hi"), seed) for seed in (1, 2, 1)]
    [first], [second], [again] = player.act(given)
    assert first == again != second
    assert read[0] == Conversation((Turn("user", "hi"),))
    assert player.act(given[:1], 2)[0][0] == first != player.act(given[:1], 2)[0][1]


def test_a_scripts_random_numbers_are_one_stream_an_episode() -> None:
    player = ScriptPlayer(lambda environment, seen, rng: str(rng.integers(1 << 30)), lambda seed: [7, seed])
    talks = [Talk(2), Talk(2)]
    play(talks, [{}] * 2, [5, 5], {"a": player, "b": player})
    drawn = [text for said in talks[0].said for text in said.values()]
    assert len(set(drawn)) == 4
    assert talks[0].said == talks[1].said


def test_the_seed_of_an_action_is_the_callers() -> None:
    player = Says()
    play_talks([Talk(1)], {"a": player, "b": player}, seed_of=lambda e, agent: 10 * e.index + len(agent))
    assert [r.seed for r in player.asked[0]] == [1, 1]
    play_talks([Talk(1)], {"a": player, "b": player})
    assert [r.seed for r in player.asked[1]] == [hash_of(0, 0, 0, "a"), hash_of(0, 0, 0, "b")]


def test_several_actions_of_several_players_are_a_call_of_each() -> None:
    one, other = Says(), Says("no")
    requests = [ActionRequest(Chat(1), str(i), Observation("hi"), i) for i in range(3)]
    found = ask({i: (one if i < 2 else other, r) for i, r in enumerate(requests)}, 2)
    assert [[a.text for a in found[i]] for i in range(3)] == [["fine"] * 2, ["fine"] * 2, ["no"] * 2]
    assert [len(r) for r in (*one.asked, *other.asked)] == [2, 1]


def test_players_that_differ_by_episode_are_not_trained_either() -> None:
    """An agent that has a player in one episode is the policy in another; a judge is paid before it acts."""

    class Judged(Talk):
        def step(self, actions: Mapping[str, str]) -> StepResult:
            result = super().step(actions)
            return replace(result, rewards={**result.rewards, "judge": 1.0})

    policy = PolicyPlayer(Scripted(), TOKENIZER, Sampling(4), 64, "cut")
    mixed = [{"a": Says(), "judge": Says()}, {"b": Says(), "judge": Says()}]
    first, second = play_talks([Judged(2), Judged(2)], mixed, policy=policy)
    assert [step.reward for step in first.steps["b"]] == [-1.0, -1.0]
    assert [step.reward for step in second.steps["a"]] == [1.0, 1.0]
    assert (first.steps.keys(), second.steps.keys()) == ({"b"}, {"a"})
    assert (first.unclaimed, second.unclaimed) == (set(), set())


@dataclass
class Room:
    """Places for episodes of `Seated`."""

    places: int
    taken: int = 0
    most: int = 0
    refused: int = 0


@dataclass
class Seated:
    """Needs a place until it is closed; never ends by itself."""

    room: Room
    blocking = True

    def reset(self, task: Task, seed: int) -> Mapping[str, Observation]:
        if self.room.taken == self.room.places:
            self.room.refused += 1
            raise NoRoom("all places are taken")
        self.room.taken += 1
        self.room.most = max(self.room.most, self.room.taken)
        return {"a": Observation("to a")}

    def step(self, actions: Mapping[str, str]) -> StepResult:
        return StepResult({"a": Observation("to a")}, {"a": 1.0})

    def close(self) -> None:
        self.room.taken -= 1


def test_as_many_episodes_are_played_at_once_as_there_is_room_for() -> None:
    room = Room(3)
    episodes = play_talks([Seated(room) for _ in range(9)], {"a": Says()}, most_steps=1)
    assert [(episode.error, episode.step_number) for episode in episodes] == [("", 1)] * 9
    assert (room.most, room.taken) == (3, 0)
    assert room.refused == 6, "those that were too many at first, and no others"


def test_episodes_fail_where_there_is_never_room(monkeypatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(engine, "sleep", waits.append)
    watched = []
    episodes = play_talks([Seated(Room(0)) for _ in range(4)], {"a": Says()}, watch=watched.append)
    assert [episode.reason for episode in episodes] == ["NoRoom: no room for an episode, in 60 tries"] * 4
    assert waits == [engine.ROOM_SECONDS] * 59
    assert watched == episodes
