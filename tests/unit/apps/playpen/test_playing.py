"""Games that are played by players, their results on disk, and evaluations."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from toy_games import SayEpisode, SayGame, scripted, without_keys

from lmgym.apps.games.dialogue.records import read_scores
from lmgym.apps.games.dialogue.suites import suite_score
from lmgym.apps.playpen import evaluation
from lmgym.apps.playpen.evaluation import EvalSettings, evaluate
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.playing import ServerGone, play, tasks_of
from lmgym.apps.playpen.registries.games import GameRegistry, load_games
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.apps.playpen.static_rows import read_static_games
from lmgym.environments.engine import hash_of
from lmgym.errors import InputError, ServerError, TooLong
from lmgym.generation.protocol import Completion

YES = ["yes"]
MOCK = Model(Spec({"model_name": "mock", "backend": "_player_programmed"}))
PUBLISHED = Path(__file__).parents[5] / "shared/data/playpen-eval"


def kinds(found) -> list[str]:
    return [next((n for n in ("Success", "Lose", "Aborted") if records.outcome.get(n)), "failed") for records in found]


def test_one_player_takes_all_seats_or_each_seat_has_one() -> None:
    game = SayGame(2)
    assert kinds(play(game, [scripted(YES)], tasks_of(game))) == ["Success", "Success"]
    assert kinds(play(game, [scripted(YES), scripted(["no"], "b")], tasks_of(game))) == ["Lose", "Lose"]
    assert kinds(play(game, [MOCK, scripted(["what?"])], tasks_of(game))) == ["Aborted", "Aborted"]
    with pytest.raises(InputError, match="say has 2 players, and 3 models are given"):
        play(game, [MOCK, MOCK, MOCK], tasks_of(game))


def test_results_are_the_same_however_many_are_played_at_once() -> None:
    game = SayGame(12)
    player = scripted(lambda conversation, rng: ["yes", "yes", "no", "?"][int(rng.integers(4))])
    found = [kinds(play(game, [player], tasks_of(game), seed=3, at_once=size)) for size in (1, 5, 64)]
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) > 1


def test_an_episode_that_fails_leaves_its_reason_and_the_others_go_on() -> None:
    game = SayGame(3)
    game.instances[1]["breaks"] = 1
    game.instances.append({"of": "another version"})
    found = play(game, [MOCK], tasks_of(game))
    assert kinds(found) == ["Success", "failed", "Success", "failed"]
    assert found[1].failure == "EpisodeFailed: the game broke"
    assert found[3].failure == "ValueError: an instance without game_id"


def test_a_prompt_beyond_the_context_fails_its_own_episode() -> None:
    class Short:
        def reply(self, conversations, n, sampling, progress=None):
            if len(conversations) > 1 or sampling.seed[0] % 2:
                raise TooLong("a prompt has 9 tokens")
            return MOCK_REPLIES.reply(conversations, n, sampling)

    MOCK_REPLIES = scripted(YES).generator
    player = scripted(YES)
    vars(player)["generator"] = Short()
    game = SayGame(12)
    found = kinds(play(game, [player, scripted(YES, "b")], tasks_of(game)))
    assert set(found) == {"Success", "failed"}


@dataclass
class Counted:
    """Says yes first, and then no; keeps the prompts of each request."""

    requests: list[list[str]] = field(default_factory=list)

    def reply(self, conversations, n, sampling, progress=None):
        self.requests.append([conversation.turns[-1].text for conversation in conversations])
        replies = ["yes" if text.endswith("0") else "no" for text in self.requests[-1]]
        return [[Completion(reply, "eos")] for reply in replies]


def test_an_episode_is_handed_over_when_it_ends_and_the_next_one_begins() -> None:
    model = scripted(YES)
    generator = vars(model)["generator"] = Counted()
    game = SayGame(5)
    game.instances[1] = {"game_id": 1, "breaks": 0}
    ended = []

    def done(index, records) -> None:
        ended.append((index, len(generator.requests), records.failure))

    found = play(game, [model], tasks_of(game), at_once=2, done=done, skipped={3})
    assert [records.outcome.get("Lose") for records in found] == [1, None, 1, 1]
    assert ended == [(1, 1, "EpisodeFailed: the game broke"), (0, 2, ""), (2, 3, ""), (4, 4, "")]


def test_seats_of_one_model_are_one_request() -> None:
    first, second = scripted(YES), scripted(YES)  # of one name and temperature
    generator = vars(first)["generator"] = vars(second)["generator"] = Counted()
    game = SayGame(3)
    game.instances[0] = {"game_id": 0, "breaks": 0}
    play(game, [first, second], tasks_of(game), at_once=2)
    said = [["first: say yes, 0", "first: say yes, 0"], ["second: say yes, 1", "first: say yes, 0"]]
    assert generator.requests == [*said, ["second: say yes, 1"]]


def test_seeds_of_replies_follow_from_the_episode_its_step_and_the_seat() -> None:
    seeds = []

    class Seeds:
        def reply(self, conversations, n, sampling, progress=None):
            seeds.append(sampling.seed)
            return [[Completion("yes", "eos")] for _ in conversations]

    model = scripted(YES)
    vars(model)["generator"] = Seeds()
    play(SayGame(2, length=2), [model], tasks_of(SayGame(2)), seed=3)
    of_episodes = [hash_of(3, i, 0, "") for i in range(2)]
    by_step = enumerate(SayGame.seats)
    assert seeds == [tuple(hash_of(seed, 0, step, seat) for seed in of_episodes) for step, seat in by_step]
    assert seeds[0][0] == 1908863766968548058


@pytest.mark.parametrize("error", [InputError("a bad instance"), LookupError("a bad instance")])
def test_an_error_of_a_game_fails_its_episode_alone(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    step = SayEpisode.step

    def fail(self, actions):
        if self.task["instance"]["game_id"] == 1:
            raise error
        return step(self, actions)

    monkeypatch.setattr(SayEpisode, "step", fail)
    found = play(SayGame(3), [MOCK], tasks_of(SayGame(3)))
    assert [records.failure for records in found] == ["", f"{type(error).__name__}: a bad instance", ""]


def test_an_episode_that_ends_at_its_beginning_is_recorded_as_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    reset = SayEpisode.reset

    def end_at_once(self, task, seed):
        shown = reset(self, task, seed)
        return {} if task["instance"]["game_id"] == 0 else shown

    monkeypatch.setattr(SayEpisode, "reset", end_at_once)
    ended = []
    found = play(SayGame(2), [MOCK], tasks_of(SayGame(2)), done=lambda index, records: ended.append(index))
    assert [records.failure for records in found] == ["", ""]
    assert [len(records.interactions["turns"]) for records in found] == [0, 3]
    assert ended == [0, 1]


def test_a_model_that_answers_nothing_ends_the_play_once_its_failures_were_handed_over() -> None:
    class Gone:
        def reply(self, conversations, n, sampling, progress=None):
            raise ServerError("http://here gave no usable answer; needed: a server")

    model, failures = scripted(YES), []
    vars(model)["generator"] = Gone()
    game = SayGame(20)

    def done(index, records) -> None:
        failures.append(records.failure)

    with pytest.raises(ServerGone, match=r"^0 of 20 episodes of say were played: ServerError: http://here gave no"):
        play(game, [MOCK, model], tasks_of(game), at_once=4, done=done)
    assert failures == ["ServerError: http://here gave no usable answer; needed: a server"] * 8


def test_a_model_that_answers_now_and_then_is_not_given_up() -> None:
    class Unsteady:
        requests = 0

        def reply(self, conversations, n, sampling, progress=None):
            self.requests += 1
            if self.requests % 4:
                raise ServerError("busy")
            return [[Completion("no", "eos")] for _ in conversations]

    model = scripted(YES)
    vars(model)["generator"] = Unsteady()
    found = kinds(play(SayGame(20), [model], tasks_of(SayGame(20)), at_once=1))
    assert found == [*["failed"] * 3, "Lose"] * 5


def test_a_game_without_instances_is_refused() -> None:
    with pytest.raises(InputError, match="say has no instances; needed: at least one"):
        tasks_of(SayGame(0))
    with pytest.raises(InputError, match="no instances of experiment hard; it has easy"):
        tasks_of(SayGame(1), "hard")


@pytest.fixture
def say_games(monkeypatch, tmp_path):
    """A registry of two games of the tests' own."""
    without_keys(monkeypatch, tmp_path)
    games = {name: SayGame(4, name) for name in ("say", "tell")}
    monkeypatch.setattr(evaluation, "open_game", lambda spec: games[spec.name])
    registry = GameRegistry([game.spec for game in games.values()], is_chosen=True)
    return registry, games


def test_an_evaluation_writes_scores_null_for_what_was_not_played_and_coverage(say_games) -> None:
    registry, games = say_games
    games["tell"].instances[0]["breaks"] = 0
    scores = evaluate(MOCK, registry, EvalSettings(folder="out"))
    assert scores["clem"].score == 100
    assert json.loads(Path("out/mock.val.json").read_text()) == {"statscore": None, "clemscore": 100.0}
    coverage = json.loads(Path("out/mock.coverage.json").read_text())["suites"]["clem"]
    assert coverage["games"]["tell"] == {"episodes": 3, "expected": 4}
    assert coverage["share"] == 7 / 8
    assert coverage["failures"] == {"EpisodeFailed: the game broke": 1}
    assert Path("out/clem/mock-t0.0/say/0_easy/episode_3/scores.json").is_file()
    assert "28.09" in Path("out/report.html").read_text()
    again = evaluate(MOCK, registry, EvalSettings(folder="out", skip_gameplay=True))
    assert again["clem"] == scores["clem"]


def test_one_game_is_replaced_and_the_scores_are_computed_again(say_games) -> None:
    registry, games = say_games
    loser = scripted(["no"], "model")
    evaluate(loser, registry, EvalSettings(folder="out"))
    winner = scripted(YES, "model")
    evaluate(winner, registry, EvalSettings(folder="out", game=("say",)))
    found = json.loads(Path("out/model.val.json").read_text())
    assert found == {"statscore": None, "clemscore": 50.0}
    games["say"].instances.pop()
    evaluate(winner, registry, EvalSettings(folder="out", game=("say",)))
    assert len(list(Path("out/clem/model-t0.0/say/0_easy").glob("episode_*"))) == 3


def test_a_folder_of_another_models_results_and_an_unknown_game_are_refused(say_games) -> None:
    registry, _ = say_games
    evaluate(MOCK, registry, EvalSettings(folder="out"))
    with pytest.raises(InputError, match=r"holds the results of mock-t0\.0, and not of other-t0\.0"):
        evaluate(scripted(YES, "other"), registry, EvalSettings(folder="out", game=("say",)))
    assert Path("out/clem/mock-t0.0/say").is_dir()
    with pytest.raises(InputError, match="no game matches 'nay'; did you mean say"):
        evaluate(MOCK, registry, EvalSettings(game=("nay",)))
    with pytest.raises(InputError, match="--skip_gameplay without -r"):
        evaluate(MOCK, registry, EvalSettings(skip_gameplay=True))


def test_half_written_scores_are_left_out_and_reported(say_games, capsys) -> None:
    registry, _ = say_games
    evaluate(MOCK, registry, EvalSettings(folder="out"))
    Path("out/clem/mock-t0.0/say/0_easy/episode_0/scores.json").write_text('{"episode sco')
    scores = evaluate(MOCK, registry, EvalSettings(folder="out", skip_gameplay=True))
    assert scores["clem"].coverage == 7 / 8
    assert "is left out" in capsys.readouterr().err


def test_our_own_games_are_evaluated_without_a_checkout(monkeypatch, tmp_path) -> None:
    without_keys(monkeypatch, tmp_path)
    scores = evaluate(MOCK, load_games(), EvalSettings(folder="out", game=("taboo",)))
    assert scores["clem"].games["taboo"].played == 100
    assert scores["clem"].games["taboo"].quality > 0


def test_the_published_evaluation_gives_the_published_scores(tmp_path) -> None:
    archive = PUBLISHED / "llama3-8b-base.tar.xz"
    if not archive.is_file():
        pytest.skip(f"there is no {archive}")
    import tarfile

    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    assert suite_score(read_scores(tmp_path / "clem")).score == 29.28
    assert suite_score(read_scores(tmp_path / "static")).score == 56.46


def test_questions_are_a_suite_with_exact_answers(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [
        {"task": "a", "question": "2+2?", "answer": "4"},
        {"task": "a", "question": "Capital?", "choices": ["Rome", "Paris"], "answer": 1},
        {"task": "b", "prompt": "Which?", "options": ["x", "y"], "answer": "A"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = read_static_games(str(path))
    for reply, scores in (("4.", [100, 0]), ("B", [0, 100]), ("b) Paris", [0, 100]), ("Paris", [0, 100])):
        found = play(first, [scripted([reply])], tasks_of(first))
        assert [records.outcome["Main Score"] for records in found] == scores, reply
    [empty] = play(second, [scripted([" "])], tasks_of(second))
    assert empty.outcome["Aborted"] == 1
    assert math.isnan(empty.outcome["Main Score"])
    path.write_text('{"question": "q", "choices": ["a"], "answer": "z"}\n')
    with pytest.raises(InputError, match="the answer 'z' is not among its choices"):
        read_static_games(str(path))


@pytest.mark.parametrize("choices", [0.5, "ab", {"a": 1}, 3])
def test_choices_that_are_no_list_are_refused(choices, tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "?", "answer": "a", "choices": choices}) + "\n")
    with pytest.raises(InputError, match=r"row 1 has the choices .*; needed: a list"):
        read_static_games(str(path))


@pytest.mark.parametrize("task", ["../../../kept", "/kept", "..", "a\x1bb", "x" * 999, "a\\b"])
def test_a_task_whose_name_is_a_path_reaches_no_other_folder(task, tmp_path) -> None:
    kept = tmp_path / "kept/0_x/episode_0/scores.json"
    kept.parent.mkdir(parents=True)
    kept.write_text("{}")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"question": "?", "answer": "a", "task": task}) + "\n")
    settings = EvalSettings("static", folder=str(tmp_path / "out"), static=str(tmp_path / "rows.jsonl"))
    with pytest.raises(InputError, match=r"a game or task is called .*; needed: a name for a folder"):
        evaluate(Model(Spec({"model_name": "mock", "backend": "_player_programmed"})), GameRegistry([]), settings)
    assert kept.exists()
