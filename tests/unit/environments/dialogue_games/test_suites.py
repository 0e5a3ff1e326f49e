"""Suite scores: by hand, with missing ones, and those of a published evaluation."""

import json
import math
import tarfile
from pathlib import Path

import pytest

from lmgym.environments.dialogue_games.records import read_scores
from lmgym.environments.dialogue_games.suites import EpisodeScore, episode_score, suite_score

PUBLISHED = Path(__file__).parents[5] / "shared/data/playpen-eval/llama3-8b-base.tar.xz"
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
    assert game.quality_error == pytest.approx(1.959964 * math.sqrt(5000) / math.sqrt(2))
    z, n = 1.959964, 4  # Wilson's interval of 2 out of 4
    assert game.played_error == pytest.approx(100 * z / (1 + z * z / n) * math.sqrt(0.25 / n + z * z / (4 * n * n)))


@pytest.mark.parametrize("content", [[], {}, {"episode scores": {}}, {"episode scores": {"Aborted": "no"}}])
def test_content_without_scores_is_refused(content) -> None:
    with pytest.raises(ValueError, match="no episode scores with Aborted"):
        episode_score(content, "a", "b")


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
