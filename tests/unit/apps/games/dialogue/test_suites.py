"""Suite scores: by hand, with missing ones, and those of a published evaluation."""

import json
import math
import tarfile
from pathlib import Path

import pytest
from scipy.stats import binomtest

from lmgym.apps.games.dialogue.records import read_scores
from lmgym.apps.games.dialogue.suites import EpisodeScore, episode_score, suite_score

PUBLISHED = Path(__file__).parents[6] / "shared/data/playpen-eval/llama3-8b-base.tar.xz"
NAN = math.nan


def episodes(game: str, *main: float) -> list[EpisodeScore]:
    """Aborted where the Main Score is nan."""
    return [EpisodeScore(game, "one", math.isnan(score), score) for score in main]


def test_a_suite_by_hand() -> None:
    found = suite_score([*episodes("taboo", 100, 50, NAN), *episodes("grids", 0, 0, 1), *episodes("facts", 50)])
    taboo, grids = found.games["taboo"], found.games["grids"]
    assert (taboo.played, taboo.quality, taboo.score) == (66.67, 75, 50)
    assert (grids.played, grids.quality, grids.score) == (100, 0.33, 0.33)
    assert (found.played, found.quality) == (88.89, 41.78)  # (66.67 + 100 + 100) / 3, (75 + .33 + 50) / 3
    assert found.score == 37.14
    assert found.coverage is None


def test_every_step_is_rounded_as_numpy_rounds() -> None:
    # a mean quality of 44.495, a quality of one game of 44.495, and a product of 33.335
    games = [suite_score(episodes(name, score)).games[name].quality for name, score in (("a", 44.5), ("b", 44.49))]
    assert games == [44.5, 44.49]
    assert suite_score([*episodes("a", 44.5), *episodes("b", 44.49)]).quality == 44.5, "Python's round gives 44.49"
    assert suite_score(episodes("a", 44.495)).games["a"].quality == 44.5
    half = suite_score([*episodes("a", 66.67), EpisodeScore("a", "one", True, NAN)])
    assert (half.played, half.quality, half.score) == (50, 66.67, 33.34), "half to even, 33.335 * 100 is 3333.5"


def test_scores_below_0_which_eqbench_gives_count() -> None:
    content = {"meta": {"game_name": "eqbench"}, "episode scores": {"Aborted": 0, "Main Score": -49.4}}
    found = suite_score([episode_score(content, "", ""), *episodes("eqbench", 80, 90)]).games["eqbench"]
    assert (found.quality, found.episodes) == (40.2, 3)
    assert found.quality_estimate.low < 0, "the interval of scores without a lower bound"


def test_a_game_that_was_always_aborted_has_no_quality_but_counts_as_not_played() -> None:
    found = suite_score([*episodes("taboo", NAN, NAN), *episodes("grids", 80)])
    assert (found.played, found.quality, found.score) == (50, 80, 40)
    assert math.isnan(found.games["taboo"].quality)
    assert found.games["taboo"].score == 0
    assert suite_score(episodes("taboo", NAN)).score == 0


def test_an_episode_that_was_played_without_a_main_score_counts_as_played_alone() -> None:
    found = suite_score([*episodes("taboo", 100), EpisodeScore("taboo", "one", False, NAN)])
    assert (found.played, found.quality, found.score) == (100, 100, 100)


def test_missing_episodes_and_games_flatter_the_score_and_show_in_the_coverage() -> None:
    found = suite_score(episodes("taboo", 100, 100), {"taboo": 6, "grids": 2})
    assert found.score == 100
    assert found.coverage == 2 / 8
    assert (found.games["grids"].episodes, found.games["grids"].expected) == (0, 2)


def test_a_suite_that_was_not_played_has_no_score_rather_than_0() -> None:
    found = suite_score([], {"taboo": 6})
    assert (found.score, found.played, found.quality) == (None, None, None)
    assert found.coverage == 0


def test_intervals() -> None:
    game = suite_score(episodes("taboo", 0, 100, NAN, NAN)).games["taboo"]
    low, high = game.quality_estimate.low, game.quality_estimate.high
    assert (low, high) == (pytest.approx(0, abs=1), pytest.approx(100, abs=1)), "two episodes say nothing"
    wilson = binomtest(2, 4).proportion_ci(method="wilson")
    played = game.played_estimate
    assert (played.low, played.high) == pytest.approx((100 * wilson.low, 100 * wilson.high))
    [certain] = suite_score([*episodes("taboo", 100)] * 20).games.values()
    assert certain.played_estimate.interval(".1f") == "83.9 to 100.0"
    assert suite_score(episodes("taboo", 70)).games["taboo"].quality_estimate.low is None


@pytest.mark.parametrize("content", [[], {}, {"episode scores": {}}, {"episode scores": {"Aborted": "no"}}])
def test_content_without_scores_is_refused(content) -> None:
    with pytest.raises(ValueError, match="no episode scores with Aborted"):
        episode_score(content, "a", "b")


@pytest.mark.parametrize(
    ("aborted", "main", "found"),
    [
        (0, 1e9, "game 'taboo', not aborted: Main Score is 1000000000.0; needed: a number up to 100"),
        (0, -math.inf, "Main Score is -inf"),
        (0, 100.01, "Main Score is 100.01"),
        (0, math.nan, "Main Score is nan"),
        (0, None, "Main Score is None"),
        (0, "80", "Main Score is '80'"),
        (0, True, "Main Score is True"),
        (0, 10**400, "an integer of 1,329 bits"),
        (1, math.inf, "game 'taboo', aborted: Main Score is inf"),
        (1, [1], "a list of 1 item"),
    ],
)
def test_a_score_that_no_game_gives_is_refused_with_its_game(aborted: int, main, found: str) -> None:
    content = {"meta": {"game_name": "taboo"}, "episode scores": {"Aborted": aborted, "Success": 1, "Main Score": main}}
    with pytest.raises(ValueError, match="needed: a number up to 100") as error:
        episode_score(content, "folder", "x")
    assert found in str(error.value)


@pytest.mark.parametrize("main", [math.nan, None])
def test_an_aborted_game_needs_no_score(main) -> None:
    assert math.isnan(episode_score({"episode scores": {"Aborted": 1, "Main Score": main}}, "g", "e").main_score)


def test_episodes_with_such_scores_are_left_out_with_their_file(tmp_path: Path, capsys) -> None:
    for number, main in enumerate((80, 1e9, math.nan)):
        folder = tmp_path / f"game/0_easy/episode_{number}"
        folder.mkdir(parents=True)
        (folder / "scores.json").write_text(json.dumps({"episode scores": {"Aborted": 0, "Main Score": main}}))
    assert [score.main_score for score in read_scores(tmp_path)] == [80]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert all(f"episode_{number} is left out: game 'game'" in line for number, line in enumerate(said, 1))
    assert max(map(len, said)) <= 300 + len(str(tmp_path))


def test_the_folder_names_the_game_of_scores_without_meta() -> None:
    content = {"meta": {}, "episode scores": {"Aborted": 1, "Main Score": None}}
    found = episode_score(content, "grids", "lines")
    assert (found.game, found.experiment, found.aborted) == ("grids", "lines", True)
    assert math.isnan(found.main_score)


def test_a_published_evaluation_is_reproduced(tmp_path: Path) -> None:
    if not PUBLISHED.is_file():
        pytest.skip(f"needs {PUBLISHED}")
    with tarfile.open(PUBLISHED) as archive:
        archive.extractall(tmp_path, filter="data")
    published = json.loads(next(tmp_path.glob("*.val.json")).read_text())
    found = {suite: suite_score(read_scores(tmp_path / suite)) for suite in ("clem", "static")}
    assert found["clem"].score == published["clemscore"] == 29.28
    assert found["static"].score == published["statscore"] == 56.46
    assert sum(game.episodes for game in found["clem"].games.values()) == 158
    assert sum(game.episodes for game in found["static"].games.values()) == 302
