"""`lmgym from nyu`: what entries in the shape of NYU's debate project become; the files that it prints are played."""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from launching import BIN, launch, run
from nyu_configs import DEBATER, EXPERIMENT, RANDOM, STORY, both, changed, config_of, text_of, translated
from printed_blocks import ROOT, written_file

from lmgym.apps.debate.tournament.config import TournamentConfig
from lmgym.cli.main import main
from lmgym.errors import InputError


def test_an_experiment_becomes_a_file_and_the_command_that_plays_it(tmp_path: Path) -> None:
    [found] = translated(EXPERIMENT, tmp_path)
    assert config_of(found) == TournamentConfig("mine", sides="flipped", temperature=0.5)
    assert found.flags == {"model": "models/sft", "dataset": "quality.jsonl"}
    text = text_of(found)
    assert '"sft_1": model_player(config.model, config.temperature, config.concurrency),' in text
    assert '"chance": ScriptedPlayer(say_letters),' in text
    assert 'return Tournament(questions, players, judge, debate(rounds=2), PROMPTS, "random-judge")' in text
    assert found.remarks == ["alias=sft 1 is sft_1: a name has letters, digits, '.', '_' and '-', and is one debater's"]
    assert str(found).splitlines()[-3:] == [
        "lmgym debate mine.py \\", "    --dataset quality.jsonl \\", "    --model models/sft",
    ]  # fmt: skip


TOPIC = {"use_hardcoded_topics": True, "hardcoded_topic_config": {"topic": "Who?", "positions": ["A", 'B"']}}


@pytest.mark.parametrize(
    ("change", "settings", "in_text"),
    [
        ({"flip": False}, {"sides": "fixed"}, ""),
        ({"flip": None, "alternate": True}, {"sides": "alternate"}, ""),
        ({"batch_size": 8}, {"batch": 8}, ""),
        ({"multi_round_branching": "single_random"}, {"branching": "one"}, ""),
        ({"tournament__tournament_type": "self_play_only"}, {"pairs": "self_play"}, ""),
        (
            {"tournament": {"tournament_type": "custom", "custom_matchups": [["chance", "sft 1"]]}},
            {"pairs": "custom", "custom": ("chance:sft_1",)},
            "",
        ),
        (
            {"tournament": {"tournament_type": "capped_round_robin", "custom_matchups": [["chance", "sft 1"]]}},
            {"pairs": "capped", "custom": ("chance:sft_1",)},
            "",
        ),
        (
            {"enable_self_debate": True},
            {"pairs": "custom", "custom": ("sft_1:chance", "sft_1:sft_1", "chance:chance")},
            "",
        ),
        ({"speech_structure": "default_consultancy", "num_speeches": 1}, {}, "consultancy(rounds=1), PROMPTS"),
        ({"speech_structure": "empty_round"}, {}, "Tournament(questions, {}, judge, judge_alone(), PROMPTS"),
        ({"speech_structure": "OPEN_DEBATE"}, {}, "import PROMPTS"),
        (
            {"prompt_config": TOPIC},
            {},
            "[Question(\"Who?\", (\"A\", 'B\"'))]",
        ),
        (
            {"previous_run": {"file_path": "2024-01-30", "replicate_topics": True}},
            {},
            'questions_of(read_transcripts(config.previous_run or "PREVIOUS_RUN"))[: config.questions]',
        ),
        ({"dataset__dataset_type": "quality_debates"}, {}, "questions_of(read_transcripts(config.dataset))"),
        (
            {"agents__debaters": both(best_of_n={"n": 4, "opponent_n": 2, "maxmin": True})},
            {},
            'BestOfNPlayer(ScriptedPlayer(say_letters), judge, 4, 2, "min")',
        ),
        (
            {"agents__debaters": both(scratchpad={"use_scratchpad": True, "scratchpad_word_limit": 100})},
            {},
            "debate(rounds=2).with_scratchpads(tokens=100)",
        ),
        (
            {"agents__debaters": both(scratchpad={"use_scratchpad": True, "scratchpad_public": True})},
            {},
            "debate(rounds=2).with_scratchpads(shown=True)",
        ),
        ({"agents__judge__model_settings__model_type": "deterministic"}, {}, "judge = ScriptedPlayer(name_first)"),
    ],
)  # fmt: skip
def test_settings_of_experiments(change: dict, settings: dict, in_text: str, tmp_path: Path) -> None:
    [found] = translated(changed(EXPERIMENT, **change), tmp_path)
    config = config_of(found)
    assert {name: getattr(config, name) for name in settings} == settings
    assert in_text in text_of(found)


def test_each_debater_samples_as_it_is_told(tmp_path: Path) -> None:
    def debater(alias: str, **params: Any) -> dict[str, Any]:
        settings = {"model_type": "mistral", "model_file_path": f"models/{alias}", "alias": alias}
        return {"model_settings": settings | {"generation_params": params}}

    debaters = [
        debater("a", temperature="2e-1", top_p="0.9", max_new_tokens="60"),
        debater("b", do_sample=False, use_generation_penalties=True),
    ]
    debaters[1]["model_settings"]["nucleus"] = False
    [found] = translated(changed(EXPERIMENT, agents__debaters=debaters), tmp_path)
    text = text_of(found)
    assert '"a": model_player("models/a", 0.2, config.concurrency, Sampling(top_p=0.9)),' in text
    assert '"b": model_player("models/b", 0.0, config.concurrency, Sampling(repetition_penalty=1.2)),' in text
    assert config_of(found).speech_tokens == 60
    assert "model" not in found.flags
    assert sum(line.startswith("nucleus=false: there is no beam search") for line in found.lines) == 1
    assert "use_generation_penalties=true: a speech has no penalty on its length" in found.lines


def test_of_a_part_of_a_capped_round_robin_only_the_models_that_play_are_loaded(tmp_path: Path) -> None:
    settings = DEBATER["model_settings"]
    debaters = [{"model_settings": settings | {"alias": name, "model_file_path": f"models/{name}"}} for name in "abc"]
    tournament = {"tournament_type": "capped_round_robin", "custom_matchups": [["a", "c"]]}
    [found] = translated(changed(EXPERIMENT, agents__debaters=debaters, tournament=tournament), tmp_path)
    made_by = {name: text_of(found).partition(f'"{name}": ')[2].partition("(")[0] for name in "abc"}
    assert made_by == {"a": "model_player", "b": "LazyPlayer", "c": "model_player"}
    assert config_of(found).custom == ("a:c",)
    [found] = translated(
        changed(EXPERIMENT, agents__debaters=debaters, tournament=tournament), tmp_path, "--num_iters=3"
    )
    assert "questions" not in found.flags
    assert "num_iters: a capped round robin plays the questions of each pair's part" in found.lines


def test_texts_are_sent_to_a_company_by_the_users_word_alone(tmp_path: Path) -> None:
    judge = {"model_settings": {"model_type": "openai", "alias": "judge", "model_file_path": "ft:gpt-4"}}
    served = {"model_settings": DEBATER["model_settings"] | {"served": True, "alias": "served"}}
    agents = {"debaters": [DEBATER, served], "judge": judge}
    [found] = translated(changed(EXPERIMENT, agents=agents), tmp_path)
    assert found.asked["judge_model"] == (
        "model_type=openai: openai:ft:gpt-4, to which the texts of the rounds are then sent"
    )
    assert "--judge_model JUDGE_MODEL" in str(found)
    assert "openai" not in str(found)
    assert '"served": model_player("MODEL_OF_served", ' in text_of(found)
    assert "fill in \"MODEL_OF_served\" in the file: served=true: vllm:URL of a server of 'models/sft'" in found.lines


def test_recorded_debaters_are_judged_anew_a_command_a_run(tmp_path: Path) -> None:
    debaters = [
        {"model_settings": {"model_type": "offline", "alias": name, "offline_file_path": path}}
        for name, path in (("32", "2024-08-15"), ("48", "/runs/2024-08-14"), ("49", "/runs/2024-08-14"))
    ]
    entry = changed(
        EXPERIMENT,
        agents__debaters=debaters,
        convert_to_double_consultancy=True,
        flip=False,
        tournament__tournament_type="self_play_only",
    )
    first, second = translated(entry, tmp_path, "--num_iters", "7")
    assert first.flags == {"convert": "double", "transcripts": "outputs/transcripts/2024-08-15", "rounds": 7}
    assert second.flags == first.flags | {"transcripts": "/runs/2024-08-14", "output": "outputs/debates/mine_2"}
    assert "double_consultancy(rounds=2)" in text_of(first)
    assert not second.before
    mixed = changed(EXPERIMENT, agents__debaters=[*debaters, RANDOM])
    with pytest.raises(InputError, match="offline_file_path or is_human beside others; needed: either kind"):
        translated(mixed, tmp_path)
    with pytest.raises(InputError, match="32 and 48 meet with speeches of two recorded runs; needed: tournament_type="):
        translated(changed(entry, tournament=None), tmp_path)
    replication = {"tournament_type": "replication", "replication_file_paths": ["2024-08-18", "2024-08-19"]}
    found = translated(changed(EXPERIMENT, agents__debaters=[], tournament=replication), tmp_path)
    assert [one.flags["transcripts"] for one in found] == [
        "outputs/transcripts/2024-08-18", "outputs/transcripts/2024-08-19",
    ]  # fmt: skip


def test_speeches_are_replayed_whatever_the_type_of_model(tmp_path: Path) -> None:
    """As in the project: offline_file_path decides. A debater in no pair, and a judge, replay nothing."""
    replays = {"model_settings": RANDOM["model_settings"] | {"alias": "old", "offline_file_path": "2024-08-15 "}}
    [found] = translated(changed(EXPERIMENT, agents__debaters=[replays]), tmp_path)
    assert found.flags["transcripts"] == "outputs/transcripts/2024-08-15"
    assert "RecordedPlayer(recorded)" in text_of(found)
    custom = {"tournament_type": "custom", "custom_matchups": [["sft 1", "chance"]]}
    [found] = translated(changed(EXPERIMENT, agents__debaters=[DEBATER, RANDOM, replays], tournament=custom), tmp_path)
    assert "transcripts" not in found.flags
    assert '"old"' not in text_of(found)
    assert "old is in no matchup, and is left out" in found.lines
    capped = {"tournament_type": "capped_round_robin", "custom_matchups": [["sft 1", "chance"]]}
    with pytest.raises(InputError, match="old is recorded and in no pair, but the parts of a capped round robin count"):
        translated(changed(EXPERIMENT, agents__debaters=[DEBATER, RANDOM, replays], tournament=capped), tmp_path)
    [found] = translated(changed(EXPERIMENT, agents__judge__model_settings__offline_file_path="gpt-4o"), tmp_path)
    assert "transcripts" not in found.flags
    assert "offline_file_path=gpt-4o of the judge: speeches of debaters alone are replayed" in found.lines


def test_best_of_recorded_samples_is_named_and_not_dropped(tmp_path: Path) -> None:
    replays = {"model_settings": RANDOM["model_settings"] | {"offline_file_path": "2024-08-15"}, "best_of_n": {"n": 4}}
    [found] = translated(changed(EXPERIMENT, agents__debaters=[replays]), tmp_path)
    assert any(
        line.startswith("best_of_n=4: recorded rounds keep the speeches that were chosen;") for line in found.lines
    )


def test_peoples_debates_are_the_data_set_that_the_entry_names(tmp_path: Path) -> None:
    human = {"model_settings": RANDOM["model_settings"] | {"is_human": True}}
    dataset = {"dataset_type": "quality_debates", "full_dataset_file_path": "debates.jsonl"}
    [found] = translated(changed(EXPERIMENT, agents__debaters=[human], dataset=dataset), tmp_path)
    assert found.flags["transcripts"] == "debates.jsonl"
    assert not found.asked
    [found] = translated(
        changed(EXPERIMENT, agents__debaters=[human], dataset={"dataset_type": "quality_debates"}), tmp_path
    )
    assert found.asked["transcripts"].startswith("is_human: the JSON or JSONL file")


def test_more_pairs_than_theirs_would_play_are_named(tmp_path: Path) -> None:
    debaters = [{"model_settings": RANDOM["model_settings"] | {"alias": name}} for name in "abcd"]
    [found] = translated(changed(EXPERIMENT, agents__debaters=debaters), tmp_path)
    assert config_of(found).pairs == "round_robin"
    assert "6 pairs: all of them are played; run_debate plays the first 4" in found.lines
    [found] = translated(changed(EXPERIMENT, agents__debaters=debaters[:3]), tmp_path)
    assert not [line for line in found.lines if "pairs" in line]


def test_each_setting_without_an_equivalent_has_a_line(tmp_path: Path) -> None:
    entry = changed(
        EXPERIMENT,
        prompt_config__is_memorized=True,
        previous_run={"file_path": "2024-01-30", "replicate_topics": True, "merge_results": True},
        dataset__shuffle_deterministically=True,
        new_setting=3,
        flip_everything=False,
    )
    entry["agents"]["debaters"][0]["model_settings"] |= {"override_prompt": "Mine", "speed": 3}
    [found] = translated(entry, tmp_path)
    assert found.flags["merge_results"] == found.flags["previous_run"] == "outputs/transcripts/2024-01-30"
    lines = [line for line in found.remarks if not line.startswith("alias")]
    assert [line.partition("=")[0] for line in lines] == [
        "model_settings.speed", "override_prompt", "dataset.shuffle_deterministically", "prompt_config.is_memorized",
        "new_setting",
    ]  # fmt: skip
    assert 'Tournament(..., own_prompts={"sft_1": PROMPTS | {...}})' in lines[1]
    assert lines[-1] == "new_setting=3: no equivalent"


def lmgym(folder: Path, *words: str) -> subprocess.CompletedProcess:
    return run(launch("fork", *words, script=BIN / "lmgym"), cwd=folder, HOME=str(folder))


PLAYED = {
    "debate": ({}, "judge: accuracy"),
    "open_debate": (
        {"speech_structure": "open_debate", "agents__judge__model_settings__model_type": "repetitive"},
        "judge: accuracy",
    ),
    "best_of_n": ({"agents__debaters": both(best_of_n={"n": 2, "opponent_n": 1})}, "judge: accuracy"),
    "trees": ({"multi_round_branching": "half", "num_speeches": 1}, "preference rows of"),
    "notes": (
        {"agents__debaters": both(scratchpad={"use_scratchpad": True, "scratchpad_public": True})},
        "judge: accuracy",
    ),
}


@pytest.mark.parametrize("name", PLAYED)
def test_what_is_printed_is_played_as_it_stands(name: str, tmp_path: Path) -> None:
    change, said = PLAYED[name]
    entry = changed(EXPERIMENT, **{"agents__debaters": both(), **change})
    (tmp_path / "quality.jsonl").write_text(json.dumps(STORY))
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump({"mine": entry}))
    printed = CliRunner().invoke(main, ["from", "nyu", str(tmp_path / "experiment.yaml")])
    assert printed.exit_code == 0
    script = printed.output.partition("\nEND\n")
    (tmp_path / "mine.py").write_text(script[0].partition("<<'END'\n")[2] + "\n")
    [command] = [line for line in script[2].replace("\\\n", " ").splitlines() if not line.startswith("#")]
    done = lmgym(tmp_path, *shlex.split(command)[1:])
    assert done.returncode == 0, done.stderr
    assert said in done.stdout


def test_a_model_that_is_not_there_is_one_line_when_its_experiment_is_played(tmp_path: Path) -> None:
    (tmp_path / "quality.jsonl").write_text(json.dumps(STORY))
    [found] = translated(changed(EXPERIMENT, agents__debaters=[DEBATER]), tmp_path)
    (tmp_path / "mine.py").write_text(text_of(found))
    done = lmgym(tmp_path, "debate", "mine.py", *found.words)
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if not line.startswith("$")]
    assert line.startswith("error: no model config loads from models/sft:")


def test_the_page_shows_what_its_entry_becomes(tmp_path: Path) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text(written_file("docs/from_nyu.md", "experiment.yaml"))
    done = CliRunner().invoke(main, ["from", "nyu", str(file), "Simple Tournament"])
    page = (ROOT / "docs/from_nyu.md").read_text()
    shown = done.output.partition("\nEND\n")[2]
    assert f"```text\n{shown}```\n" in page
