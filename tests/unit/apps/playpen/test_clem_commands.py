"""`clem run | score | transcribe | eval | list keys`, on records of ours and on files as clemcore writes them."""

import csv
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from toy_games import TOY, stub_python, without_keys

from lmgym.apps.playpen.commands import clem, playpen
from lmgym.apps.playpen.registries.games import load_games
from lmgym.apps.playpen.registries.models import load_models
from lmgym.apps.playpen.rescoring import score_results
from lmgym.apps.playpen.results_table import write_table
from lmgym.apps.playpen.transcripts import page_of
from lmgym.errors import InputError


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch, tmp_path) -> None:
    without_keys(monkeypatch, tmp_path)


def command(line: list[str], group=clem) -> str:
    done = CliRunner().invoke(group, line)
    assert done.exit_code == 0, done.output
    return done.output


def scores(top: str = "results") -> dict[str, dict]:
    return {str(p.parent): json.loads(p.read_text())["episode scores"] for p in Path(top).rglob("scores.json")}


def test_several_games_and_models_follow_one_option_and_duplicates_are_ignored() -> None:
    said = command(["run", "-g", "taboo", "grid_reference", "taboo", "-m", "mock", "mock", "-b", "3"])
    assert (said.count("taboo: 20 episodes"), said.count("grid_reference: 20 episodes")) == (1, 1)
    assert [path.name for path in Path("results").iterdir()] == ["mock-t0.0--mock-t0.0"]
    said = command(["run", "-g", "{'main_game':'taboo'}", "-g", "word_guess", "-m", "mock", "-r", "other"])
    assert sorted(path.name for path in Path("other/mock-t0.0").iterdir() if path.is_dir()) == ["taboo", "word_guess"]
    done = CliRunner().invoke(clem, ["run", "-g", "taboo", "-m", "mock", "-i", "instances_v2"])
    assert "taboo is one of our own games, which have no files; leave out" in str(done.output)


@pytest.mark.parametrize("game", ["taboo", "word_guess_critic", "grid_reference", "private_shared"])
def test_scoring_recorded_episodes_anew_gives_the_scores_that_they_had(game: str) -> None:
    command(["run", "-g", game, "-m", "mock"])
    before = scores()
    for path in Path("results").rglob("scores.json"):
        path.unlink()
    assert f"{game}: {len(before)} episodes scored" in command(["score"])
    assert scores() == before
    assert before


def test_a_reply_that_was_changed_in_the_records_changes_the_score(capsys) -> None:
    command(["run", "-g", "taboo", "-m", "mock"])
    path = next(Path("results").rglob("interactions.json"))
    content = json.loads(path.read_text())
    next(e for e in content["turns"][0] if e["from"] != "GM")["action"]["content"] = "no clue"
    path.write_text(json.dumps(content))
    broken = sorted(Path("results").rglob("instance.json"))[-1]
    broken.unlink()
    score_results("results", load_games(), ["taboo"])
    assert scores()[str(path.parent)]["Aborted"] == 1
    assert "taboo: 19 episodes scored, 1 failed" in capsys.readouterr().out


def test_games_of_a_checkout_are_scored_by_their_own_scorer(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.setenv("LMGYM_CLEMCORE", str(stub_python(tmp_path)))
    line = ["run", "-g", "higher_lower", "-m", "mock", "--games", str(TOY), "-r", "results"]
    command(line)
    before = scores()
    for path in Path("results").rglob("scores.json"):
        path.write_text("{}")
    score_results("results", load_games(str(TOY)), ["all"])
    assert scores() == before
    assert "higher_lower: 3 episodes scored" in capsys.readouterr().out
    score_results("results", load_games(), ["higher_lower"])
    assert "higher_lower: 3 episodes are left out: no game here has that name" in capsys.readouterr().err
    with pytest.raises(InputError, match=r"no recorded episode of nay; it holds episodes of higher_lower"):
        score_results("results", load_games(), ["nay"])


def write_scores(model: str, game: str, *main: float | None) -> None:
    for number, value in enumerate(main):
        folder = Path(f"results/{model}/{game}/0_easy/episode_{number}")
        folder.mkdir(parents=True, exist_ok=True)
        content = {"Aborted": int(value is None), "Main Score": float("nan") if value is None else value}
        (folder / "scores.json").write_text(json.dumps({"turn scores": {}, "episode scores": content}))


def table() -> dict[str, dict[str, str]]:
    return {row.pop(""): row for row in csv.DictReader(Path("results/results.csv").read_text().splitlines())}


def test_the_table_is_that_of_clemcore() -> None:
    """Header and cells as clemcore 3.7.2 wrote them for such scores."""
    write_scores("a-t0.0", "taboo", 44.5, 44.49, None)
    write_scores("a-t0.0", "wordle", None)
    write_scores("b-t0.0", "adventuregame", 100, 0)
    command(["eval", "--std"])
    head = Path("results/results.csv").read_text().splitlines()[0]
    assert head == (
        ',"-, clemscore","adventuregame, % Played","adventuregame, Quality Score","adventuregame, Quality Score (std)",'
        '"all, Average % Played","all, Average Quality Score","taboo, % Played","taboo, Quality Score",'
        '"taboo, Quality Score (std)","wordle, % Played","wordle, Quality Score","wordle, Quality Score (std)"'
    )
    first, second = table().values()
    assert (first["taboo, % Played"], first["taboo, Quality Score"]) == ("66.67", "44.5")
    assert (first["wordle, % Played"], first["wordle, Quality Score"]) == ("0.0", "")
    assert (first["all, Average % Played"], first["-, clemscore"]) == ("33.34", "14.84")
    assert (first["adventuregame, % Played"], second["adventuregame, Quality Score (std)"]) == ("", "70.71")
    raw = list(csv.DictReader(Path("results/raw.csv").read_text().splitlines()))
    assert len(raw) == 6 * 3
    assert [row["value"] for row in raw if row["metric"] == "Played"] == ["1", "1", "0", "0", "1", "1"]
    assert "<th>-, clemscore</th>" in Path("results/results.html").read_text()


def test_one_model_or_game_is_read_anew_and_the_others_are_those_of_raw_csv() -> None:
    write_scores("a-t0.0", "taboo", 50)
    write_scores("b-t0.0", "taboo", 20)
    write_table("results")
    shutil.rmtree("results/b-t0.0")
    write_scores("a-t0.0", "taboo", 80)
    write_table("results", model="a-", sort="clemscore")
    assert {name: row["-, clemscore"] for name, row in table().items()} == {"a-t0.0": "80.0", "b-t0.0": "20.0"}
    write_scores("a-t0.0", "wordle", 40)
    write_table("results", games=["wordle"])
    assert table()["a-t0.0"]["-, clemscore"] == "60.0"
    write_table("results")
    assert list(table()) == ["a-t0.0"]
    Path("results/raw.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"raw\.csv has no column game"):
        write_table("results", model="a-")


def test_a_folder_without_scores_is_refused() -> None:
    Path("results").mkdir()
    with pytest.raises(InputError, match=r"results holds no such scores\.json; needed: clem score -r FOLDER"):
        write_table("results")
    with pytest.raises(InputError, match="nowhere is not a folder"):
        write_table("nowhere")


def test_a_transcript_shows_who_said_what_to_whom_and_escapes_it() -> None:
    command(["run", "-g", "taboo", "-m", "mock"])
    path = next(Path("results").rglob("interactions.json"))
    content = json.loads(path.read_text())
    next(e for e in content["turns"][0] if e["from"] != "GM")["action"]["content"] = "<script>alert(1)</script>"
    path.write_text(json.dumps(content))
    assert "taboo: 20 files transcript.html" in command(["transcribe", "-g", "taboo"])
    page = path.with_name("transcript.html").read_text()
    assert "<b>Player 1 to GM</b>&lt;script&gt;alert(1)" in page
    assert "<b>GM to Player 2</b>" in page
    assert page.index("GM to Player 1") < page.index("Player 1 to GM") < page.index("GM to Player 2")
    with pytest.raises(KeyError):
        page_of({"meta": {}})


def test_keys_are_listed_by_backend_and_none_is_printed(monkeypatch) -> None:
    Path("key.json").write_text(json.dumps({"openai": {"api_key": "sk-of-the-file"}, "anthropic": {"api_key": ""}}))
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_environment")
    said = command(["list", "keys"])
    assert "* [ active ] openai: " in said
    assert "* [inactive] anthropic: needed: ANTHROPIC_API_KEY, or key.json" in said
    assert "* [ active ] huggingface: HF_TOKEN" in said
    assert "of-the-file" not in said
    assert "of_the_environment" not in said


def test_a_checkout_called_clembench_is_found_and_named_and_run_only_if_it_is_asked_for(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("LMGYM_CLEMCORE", str(stub_python(tmp_path)))
    shutil.copytree(TOY, "elsewhere/clembench")
    assert "higher_lower" not in command(["list", "games"]), "no other folder is searched"
    shutil.copytree(TOY, "clembench")
    said = command(["list", "games"])
    assert "clembench/ in this folder: 1 games; to run them: --games clembench" in said
    assert "higher_lower:" in said
    refused = CliRunner().invoke(playpen, ["eval", "mock", "-g", "higher_lower"])
    assert "needed, to run it: --games clembench" in refused.output
    command(["eval", "mock", "-g", "higher_lower", "--games", "clembench", "-r", "out"], playpen)
    assert len(scores("out")) == 3


def test_a_model_is_registered_changed_and_replaced() -> None:
    said = command(["register", "model", "-n", "mine", "-v", "backend=openai_compatible,model_id=m,load_in_8bit=true"])
    assert '"model_name":"mine"' in said
    entry = {"model_name": "mine", "backend": "openai_compatible", "model_id": "m"}
    assert json.loads(Path("model_registry.json").read_text()) == [{**entry, "model_config": {"load_in_8bit": True}}]
    assert load_models().select("mine").get("model_id") == "m"
    command(["register", "model", "-n", "mine", "-v", "model_id=n,base_url=http://127.0.0.1:9/v1"])
    [entry] = json.loads(Path("model_registry.json").read_text())
    assert (entry["model_id"], len(entry["model_config"])) == ("n", 2)
    command(["register", "model", "-n", "other", "-v", "backend=openai"])
    command(["register", "model", "-n", "mine", "-r", "-v", "backend=anthropic"])
    other, mine = json.loads(Path("model_registry.json").read_text())
    assert (other["model_name"], mine) == ("other", {"model_name": "mine", "backend": "anthropic"})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["model", "-n", "a", "-v", "model_id=m"], "has the backend None; needed: one of huggingface_local"),
        (["model", "-n", "a", "-v", "backend=opena"], "has the backend 'opena'; needed: one of"),
        (["model", "-n", "a", "-v", "backend=openai,modl_id=m"], "there is no key 'modl_id'; did you mean model_id?"),
        (["key", "-n", "opena", "-v", "api_key=sk-secret"], "no backend 'opena' with a key; did you mean openai?"),
        (["key", "-n", "openai", "-v", "sk-secret"], "needed: such as -v api_key=abc"),
        (["key", "-n", "openai", "-v", "key=sk-secret"], "a key has no 'key'; needed: api_key, base_url, organisation"),
    ],
)
def test_faulty_entries_are_refused_and_leave_no_file(line: list[str], message: str) -> None:
    done = CliRunner().invoke(clem, ["register", *line])
    assert done.exit_code == 2
    assert message in done.output
    assert "sk-secret" not in done.output
    assert not list(Path.cwd().iterdir())


def test_a_key_is_registered_for_its_owner_alone_and_not_printed(tmp_path) -> None:
    said = command(["register", "key", "-n", "openai", "-v", "api_key=sk-secret-1,organisation=org-1"])
    assert "openai has api_key, organisation" in said
    assert "sk-secret-1" not in said
    assert Path("key.json").stat().st_mode & 0o777 == 0o600
    assert "[ active ] openai" in command(["list", "keys"])
    command(["register", "key", "-n", "openai", "-v", "api_key=sk-secret-2"])
    assert json.loads(Path("key.json").read_text()) == {"openai": {"api_key": "sk-secret-2", "organisation": "org-1"}}
    command(["register", "key", "-n", "mistral", "-r", "-v", "api_key=sk-3"])
    assert json.loads(Path("key.json").read_text())["mistral"] == {"api_key": "sk-3"}


def test_the_key_file_that_is_read_is_the_one_that_is_changed(tmp_path, monkeypatch) -> None:
    home = tmp_path / "home"
    (home / ".clemcore").mkdir(parents=True)
    (home / ".clemcore/key.json").write_text("{}")
    monkeypatch.setattr(Path, "home", lambda: home)
    command(["register", "key", "-n", "cohere", "-v", "api_key=sk-1"])
    assert json.loads((home / ".clemcore/key.json").read_text()) == {"cohere": {"api_key": "sk-1"}}
    command(["register", "key", "-n", "cohere", "-v", "api_key=sk-2", "--cwd"])
    assert json.loads(Path("key.json").read_text()) == {"cohere": {"api_key": "sk-2"}}


def test_without_clembench_a_game_that_is_not_here_says_where_it_would_come_from() -> None:
    for selector in ("wordle", "{'benchmark':['2.0']}"):
        done = CliRunner().invoke(clem, ["run", "-g", selector, "-m", "mock"])
        assert (
            "clembench's games: its checkout, by --games CHECKOUT or game_registry.json of this folder" in done.output
        )
    Path("game_registry.json").write_text(json.dumps([{"benchmark_path": str(TOY)}]))
    assert "higher_lower:" in command(["list", "games"])
    done = CliRunner().invoke(clem, ["run", "-g", "higher_lower", "-m", "mock"])
    assert "higher_lower, code in" in done.output
    assert "needed, to run it: --games game_registry.json" in done.output
    done = CliRunner().invoke(clem, ["run", "-g", "wordle", "-m", "mock"])
    assert "did you mean word_guess? needed: one of higher_lower" in done.output


def test_two_games_of_one_name_in_a_registry_are_refused_by_every_selector(tmp_path) -> None:
    game = {"game_name": "twice", "players": 1, "game_path": str(TOY / "higher_lower")}
    Path("game_registry.json").write_text(json.dumps([game, {**game, "players": 2}]))
    for selector in ("twice", "all", "{'game_name':'twice'}"):
        done = CliRunner().invoke(clem, ["run", "-g", selector, "-m", "mock", "--games", "game_registry.json"])
        assert "2 entries of game_registry.json match" in done.output
        assert "twice, twice" in done.output
