"""Games that are played by players, their results on disk, and evaluations."""

import json
import math
from pathlib import Path

import pytest
from toy_games import SayGame, scripted, without_keys

from lmgym.apps.games.dialogue.records import read_scores
from lmgym.apps.games.dialogue.suites import suite_score
from lmgym.apps.playpen import evaluation
from lmgym.apps.playpen.episodes import clear_game, pair_name, write_players
from lmgym.apps.playpen.evaluation import EvalSettings, evaluate
from lmgym.apps.playpen.players import Player
from lmgym.apps.playpen.playing import play, tasks_of
from lmgym.apps.playpen.registries.games import GameRegistry, load_games
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.apps.playpen.static_rows import read_static_games
from lmgym.errors import InputError, TooLong

YES = ["yes"]
MOCK = Player(Spec({"model_name": "mock", "backend": "_player_programmed"}))
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
    with pytest.raises(InputError, match="there is no game 'nay'"):
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
        evaluate(Player(Spec({"model_name": "mock", "backend": "_player_programmed"})), GameRegistry([]), settings)
    assert kept.exists()


def test_players_folders_and_a_group_of_three(tmp_path) -> None:
    assert pair_name([MOCK, scripted(YES, "b", 0.5)]) == "mock-t0.0--b-t0.5"
    assert pair_name([MOCK] * 3).startswith("group-3p-")
    clear_game(tmp_path / "new", "mock-t0.0", "say")
    write_players(tmp_path / "mock-t0.0", [MOCK])
    assert json.loads((tmp_path / "mock-t0.0/player_models.json").read_text())["0"]["model_name"] == "mock"
