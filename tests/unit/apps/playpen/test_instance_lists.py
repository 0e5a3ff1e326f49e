"""`playpen eval --instances`: lists in each form of playpen-data, what of them is played, and faulty ones."""

import json
import shutil
from pathlib import Path

import datasets
import pytest
from toy_games import TOY, SayGame, without_keys

from lmgym.apps.playpen import evaluation
from lmgym.apps.playpen.evaluation import EvalSettings, evaluate
from lmgym.apps.playpen.instance_lists import read_instances
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.registries.games import GameRegistry, load_games
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.errors import InputError

MOCK = Model(Spec({"model_name": "mock", "backend": "_player_programmed"}))
ROWS = [
    {"game": "say", "experiment": "easy", "task_id": 1},
    {"game": "say", "experiment": "easy", "task_id": 3},
    {"game": "tell", "experiment": "easy", "task_id": 0},
]


@pytest.fixture(autouse=True)
def in_an_empty_folder(monkeypatch, tmp_path) -> None:
    without_keys(monkeypatch, tmp_path)


@pytest.fixture
def registry(monkeypatch) -> GameRegistry:
    """Three games of four instances, of which no game of the list is of benchmark 2.0."""
    games = {name: SayGame(4, name) for name in ("say", "tell", "other")}
    monkeypatch.setattr(evaluation, "open_game", lambda spec: games[spec.name])
    return GameRegistry([game.spec for game in games.values()])


def write(rows: list[dict], name: str = "list.jsonl") -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def played(folder: str = "out/clem/mock-t0.0") -> list[str]:
    return sorted(str(path.parent.relative_to(folder)) for path in Path(folder).rglob("scores.json"))


def test_the_instances_of_a_list_are_played_and_no_others(registry, capsys) -> None:
    scores = evaluate(MOCK, registry, EvalSettings(folder="out", instances=write(ROWS)))
    assert played() == ["say/0_easy/episode_1", "say/0_easy/episode_3", "tell/0_easy/episode_0"]
    assert scores["clem"].coverage == 1
    assert scores["clem"].games["say"].expected == 2
    assert json.loads(Path("out/mock.coverage.json").read_text())["instances"] == "list.jsonl"
    assert "all instances were played" not in capsys.readouterr().out


def test_without_a_list_it_says_that_all_were_played_and_that_scores_do_not_compare(registry, capsys) -> None:
    chosen = GameRegistry(registry.specs, is_chosen=True)
    evaluate(MOCK, chosen, EvalSettings(folder="out"))
    line = "all instances were played: the score is not comparable with Playpen's"
    assert line in capsys.readouterr().out
    assert line.replace("'", "&#x27;") in Path("out/report.html").read_text()


def test_a_list_scores_its_part_of_a_folder_and_leaves_the_rest_in_place(registry) -> None:
    chosen = GameRegistry(registry.specs, is_chosen=True)
    evaluate(MOCK, chosen, EvalSettings(folder="out"))
    assert len(played()) == 12
    scores = evaluate(MOCK, chosen, EvalSettings(folder="out", skip_gameplay=True, instances=write(ROWS)))
    assert {name: game.episodes for name, game in scores["clem"].games.items()} == {"say": 2, "tell": 1}
    scores = evaluate(MOCK, chosen, EvalSettings(folder="out", game=("say",), instances="list.jsonl"))
    assert scores["clem"].games["say"].episodes == 2
    assert len(played()) == 12


def test_g_chooses_among_the_games_of_a_list(registry) -> None:
    evaluate(MOCK, registry, EvalSettings(folder="out", game=("tell",), instances=write(ROWS)))
    assert played() == ["tell/0_easy/episode_0"]
    with pytest.raises(InputError, match=r"list\.jsonl names no instance of other; it names say, tell"):
        evaluate(MOCK, registry, EvalSettings(game=("other",), instances="list.jsonl"))


def snapshot_of_the_hub(folder: str, place: str, has_readme: bool) -> str:
    """Two configs with two splits each, and a third config."""
    splits = ("train", "validation")
    configs = {"instances": ROWS, "instances-static": [{"game": "quiz", "experiment": "q", "task_id": 0}]}
    header = ["---", "configs:"]
    for config, rows in configs.items():
        header += [f"- config_name: {config}", "  data_files:"]
        for split in splits:
            path = place.format(config=config, split=split)
            header += [f"  - split: {split}", f"    path: {path}-*"]
            rest = [{"game": "say", "experiment": "easy", "task_id": 0}] if split == "train" else rows
            write(rest, f"{folder}/{path}-00000-of-00001.jsonl")
    write([{"messages": []}], f"{folder}/interactions/validation-00000-of-00001.jsonl")
    if has_readme:
        Path(folder, "README.md").write_text("\n".join([*header, "---", "# data"]))
    return folder


@pytest.mark.parametrize(
    ("place", "has_readme"),
    [("{config}/{split}", True), ("{config}/{split}", False), ("data/of-{config}/{split}", True)],
)
def test_the_validation_split_of_playpen_data_in_a_folder_is_read_by_suite(place: str, has_readme: bool) -> None:
    folder = snapshot_of_the_hub("playpen-data", place, has_readme)
    assert set(read_instances(folder, ["clem"]).games) == {"say", "tell"}
    assert set(read_instances(folder, ["clem", "static"]).games) == {"say", "tell", "quiz"}
    assert read_instances(f"{folder}:train", ["clem"]).games == {"say": {("easy", "0")}}


def test_a_data_set_of_the_hub_is_read_by_suite_and_split(monkeypatch) -> None:
    asked = []

    def load_dataset(name: str, config: str, *, split: str, **_: object) -> datasets.Dataset:
        asked.append((name, config, split))
        return datasets.Dataset.from_list([{**row, "experiment": config} for row in ROWS])

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = read_instances("colab-potsdam/playpen-data", ["clem", "static"])
    assert {experiment for experiment, _ in found.games["say"]} == {"instances", "instances-static"}
    read_instances("colab-potsdam/playpen-data:train", ["clem"])
    first = "colab-potsdam/playpen-data"
    assert asked == [(first, "instances", "validation"), (first, "instances-static", "validation"),
                     (first, "instances", "train")]  # fmt: skip


def test_ids_are_equal_whether_a_file_holds_them_as_numbers_or_as_text() -> None:
    import pandas

    pandas.DataFrame([{**row, "task_id": float(row["task_id"])} for row in ROWS]).to_csv("list.csv", index=False)
    pandas.DataFrame(ROWS).to_parquet("list.parquet")
    text = write([{**row, "task_id": str(row["task_id"])} for row in ROWS])
    found = [read_instances(name, ["clem"]).games for name in ("list.csv", "list.parquet", text)]
    assert found == [{"say": {("easy", "1"), ("easy", "3")}, "tell": {("easy", "0")}}] * 3


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"game": "nay", "experiment": "e", "task_id": 1}], r"names games that are not here: nay; looked in "),
        ([{**ROWS[0], "task_id": 9}, ROWS[1]], r"names 1 task that say \(.*\) does not have, such as 'easy 9'"),
        ([{**ROWS[0], "experiment": "hard"}], "such as 'hard 1'; it has 4 of easy"),
        ([ROWS[0], {"game": "say", "experiment": "easy"}], r"list\.jsonl, line 2 has no task_id; found game"),
        ([{"messages": [], "meta": {}}], "line 1 has no game; found messages, meta; needed: game, experiment, task_id"),
        ([{**ROWS[0], "task_id": None}], "line 1 has no task_id"),
        ([], r"list\.jsonl names no instance; needed: rows of game, experiment, task_id"),
    ],
)  # fmt: skip
def test_a_faulty_list_is_refused_in_one_line_before_anything_is_played(rows, message: str, registry) -> None:
    with pytest.raises(InputError, match=message) as error:
        evaluate(MOCK, registry, EvalSettings(folder="out", instances=write(rows)))
    assert len(str(error.value)) <= 300
    assert "\n" not in str(error.value)
    assert not Path("out").exists()


def test_an_empty_name_of_a_list_does_not_play_all(registry) -> None:
    with pytest.raises(InputError, match="--instances is empty; needed: a file"):
        evaluate(MOCK, registry, EvalSettings(folder="out", instances=""))
    assert not Path("out").exists()


def test_the_list_is_compared_with_a_checkout_without_running_its_code(tmp_path) -> None:
    shutil.copytree(TOY, tmp_path / "checkout")
    (tmp_path / "checkout/higher_lower/master.py").write_text("raise SystemExit('run')")
    row = {"game": "higher_lower", "experiment": "small", "task_id": 9}
    with pytest.raises(InputError, match=r"names 1 task that higher_lower \(checkout/higher_lower\) does not have"):
        evaluate(MOCK, load_games("checkout"), EvalSettings(folder="out", instances=write([row])))
    with pytest.raises(InputError, match=r"not here: nay; looked in checkout, our own games"):
        evaluate(MOCK, load_games("checkout"), EvalSettings(instances=write([{**row, "game": "nay"}])))


def clemcore_3(top: Path, name: str = "qwen") -> None:
    """Results as clemcore 3.7.2 writes them: no temperature, no numbers, an instance's id as its folder."""
    for game, number, main in (("taboo", 12, 44.5), ("taboo", 7, 44.49), ("wordle", 0, None)):
        folder = top / name / game / "low_en" / f"instance_{number:05d}"
        folder.mkdir(parents=True)
        (folder / "instance.json").write_text(json.dumps({"game_id": number}))
        meta = {"game_name": game, "experiment_name": "low_en", "game_id": number, "clem_version": "3.7.2"}
        scores = {"Aborted": int(main is None), "Main Score": main if main is not None else float("nan")}
        (folder / "scores.json").write_text(json.dumps({"meta": meta, "episode scores": scores}))
    (top / name / "run.json").write_text(json.dumps({"clem_version": "3.7.2"}))


def test_a_folder_of_clemcore_3_is_scored_without_a_registry_and_nothing_is_played_into_it(tmp_path) -> None:
    clemcore_3(tmp_path / "out/clem")
    player = Model(Spec({"model_name": "qwen"}))
    scores = evaluate(player, GameRegistry([]), EvalSettings(folder="out", skip_gameplay=True))
    assert (scores["clem"].games["taboo"].quality, scores["clem"].score) == (44.5, 22.25)
    assert json.loads(Path("out/qwen.val.json").read_text()) == {"statscore": None, "clemscore": 22.25}
    rows = write([{"game": "taboo", "experiment": "low_en", "task_id": 7}])
    part = evaluate(player, GameRegistry([]), EvalSettings(folder="out", skip_gameplay=True, instances=rows))
    assert part["clem"].quality == 44.49
    with pytest.raises(InputError, match=r"no episode of other-t0\.0 is in out, which holds qwen; needed"):
        evaluate(Model(Spec({"model_name": "other"})), GameRegistry([]), EvalSettings(folder="out", skip_gameplay=True))
    with pytest.raises(InputError, match=r"holds results of clemcore 3 \(qwen\); needed: --skip_gameplay"):
        evaluate(MOCK, load_games(), EvalSettings(folder="out", game=("taboo",)))
    assert sorted(path.name for path in (tmp_path / "out/clem").iterdir()) == ["qwen"]


def clembench_games(monkeypatch, hub: list[dict] | None) -> GameRegistry:
    """Games of a checkout, of which two are of benchmark 2.0, and a hub with these rows, or none that answers."""
    games, own = {name: SayGame(4, name) for name in ("say", "tell", "other")}, evaluation.open_game
    monkeypatch.setattr(evaluation, "open_game", lambda spec: games.get(spec.name) or own(spec))

    def load_dataset(name: str, config: str, *, split: str, **_: object) -> datasets.Dataset:
        if hub is None:
            raise ConnectionError("no route to the hub")
        assert (name, config, split) == ("colab-potsdam/playpen-data", "instances", "validation")
        return datasets.Dataset.from_list(hub)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    tags = {"say": ["2.0"], "tell": ["2.0"], "other": ["toy"]}
    return GameRegistry([Spec({**games[name].spec.fields, "benchmark": tags[name]}, "tests") for name in games])


def test_a_checkouts_games_are_played_on_the_validation_split_by_default(monkeypatch, capsys) -> None:
    registry = clembench_games(monkeypatch, ROWS)
    evaluate(MOCK, registry, EvalSettings(folder="out", suite="clem"))
    assert played() == ["say/0_easy/episode_1", "say/0_easy/episode_3", "tell/0_easy/episode_0"]
    assert json.loads(Path("out/mock.coverage.json").read_text())["instances"] == "colab-potsdam/playpen-data"
    assert "all instances were played" not in capsys.readouterr().out
    evaluate(MOCK, registry, EvalSettings(folder="one", suite="clem", game=("tell",)))
    assert played("one/clem/mock-t0.0") == ["tell/0_easy/episode_0"]
    evaluate(MOCK, registry, EvalSettings(folder="two", suite="all", game=("other", "say")))
    assert [path.split("/")[0] for path in played("two/clem/mock-t0.0")] == ["other"] * 4 + ["say"] * 2
    assert "all instances were played" in capsys.readouterr().out
    evaluate(MOCK, registry, EvalSettings(folder="whole", suite="clem", instances="all"))
    assert len(played("whole/clem/mock-t0.0")) == 8


def test_without_the_hub_it_says_how_to_play_and_scores_of_records_need_none(monkeypatch) -> None:
    registry = clembench_games(monkeypatch, None)
    with pytest.raises(
        InputError, match="validation split of colab-potsdam/playpen-data, which cannot be read"
    ) as caught:
        evaluate(MOCK, registry, EvalSettings(folder="out", suite="clem"))
    assert "--instances FILE with its rows of game, experiment, task_id, or --instances all" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not Path("out").exists()
    evaluate(MOCK, registry, EvalSettings(folder="out", suite="clem", instances=write(ROWS)))
    evaluate(MOCK, registry, EvalSettings(folder="out", suite="clem", skip_gameplay=True))
    evaluate(MOCK, load_games(), EvalSettings(folder="own", suite="clem", game=("taboo",)))
