"""`lmgym from nyu`: which entry is read, and files and values that are none."""

import copy
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from nyu_configs import DEBATER, EXPERIMENT, TRAINING, both, changed, text_of, translated

from lmgym.apps.migration.commands import Translation
from lmgym.apps.migration.nyu import of_nyu
from lmgym.cli.main import main
from lmgym.errors import InputError


def test_the_only_entry_needs_no_name_and_several_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(yaml.safe_dump({"first one": EXPERIMENT, "second": EXPERIMENT}, sort_keys=False))
    done = CliRunner().invoke(main, ["from", "nyu", str(file)])
    assert (done.exit_code, done.output.splitlines()) == (
        0, [f"lmgym from nyu {file} 'first one'", f"lmgym from nyu {file} second"],
    )  # fmt: skip
    for words in (("second",), ("--configuration", "second"), ("--configuration=second", "--test")):
        assert [one.command for one in of_nyu(file, words, None)] == ["second.py"]
    with pytest.raises(InputError, match=r"no entry 'secnd'; did you mean second\? its entries: first one, second"):
        list(of_nyu(file, ("secnd",), None))


REPEATED = "\n".join([f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else '1'] * 10)}]" for n in range(9)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mine: &a\n  agents: *a\n", "has a value that is within itself, by an anchor; needed: values that end"),
        ("mine: {agents: &a [1, [2, *a]]}", "has a value that is within itself, by an anchor"),
        (f"mine:\n  agents: 1\n{REPEATED}", "has more than 100,000 values, with those that it repeats"),
        ("mine: !!python/object/apply:os.system [id]", "needed: a YAML or JSON config"),
        ("mine: [", "needed: a YAML or JSON config"),
        ("- mine", "holds a list of 1 item; needed: names and values"),
        ("", "needed: names and values"),
        ("mine: 3", "has no entry; needed: a YAML file of NYU's debate project"),
        ("mine: {a: 1}", "has a; needed: agents, as of an experiment, model_name"),
        ("mine: {agents: 3}", "agents=3; needed: debaters and judge"),
        ("mine: {agents: {debaters: 3, judge: {}}}", "debaters=3; needed: a list"),
        ("mine: {agents: {debaters: [3], judge: {}}}", "a debater is 3; needed: its model_settings"),
        ("#" * 2_000_001, "has 2,000,001 bytes; needed: a YAML file of NYU's"),
    ],
)  # fmt: skip
def test_a_file_of_something_else_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=said) as refused:
        list(of_nyu(file, (), None))
    assert str(refused.value).isprintable()
    with pytest.raises(InputError, match=r"No such file .* needed: a YAML file of NYU's"):
        list(of_nyu(tmp_path / "absent.yaml", (), None))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"agents__judge__model_settings__model_type": "gpt5"}, "model_type='gpt5'; needed: one of llama, llama3"),
        ({"num_speeches": "two"}, "num_speeches=two; needed: a whole number"),
        ({"flip": "perhaps"}, "flip=perhaps; needed: true or false"),
        ({"alternate": True}, "flip and alternate are true"),
        ({"speech_structure": "duel"}, "speech_structure='duel'; needed: one of default_debate"),
        ({"tournament": {"tournament_type": "custom", "custom_matchups": [["a", "b"]]}}, "a custom matchup is"),
        ({"tournament": {"tournament_type": "custom", "custom_matchups": 3}}, "custom_matchups=3; needed: pairs"),
        ({"tournament__tournament_type": "custom"}, "tournament_type=custom without custom_matchups"),
        ({"tournament": {"custom_matchups": [["chance", "sft 1"]]}}, "tournament_type=round_robin; needed: custom or"),
        ({"agents__debaters": both(is_human=True, offline_file_path="x")}, "more than one of is_human, served and off"),
        ({"convert_to_double_consultancy": True}, "convert_to_double_consultancy needs default_debate and debaters"),
        ({"prompt_config__use_hardcoded_topics": True}, "hardcoded_topic_config has no topic with two positions"),
        ({"agents__debaters": both(model_type="arbitrary_attribute")}, "arbitrary_attribute, which is a judge's"),
    ],
)  # fmt: skip
def test_a_value_that_means_nothing_is_named(change: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said) as refused:
        translated(changed(EXPERIMENT, **change), tmp_path)
    assert str(refused.value).isprintable()


def test_flags_of_the_scripts_are_read_and_others_refused(tmp_path: Path) -> None:
    [found] = translated(EXPERIMENT, tmp_path, "mine", "--num_iters=50", "--log_level", "DEBUG", "--local")
    assert found.flags["questions"] == 50
    for words in (("--num_iters", "many"), ("--num_iters", "0"), ("--rounds", "3")):
        with pytest.raises(InputError, match="needed: "):
            translated(EXPERIMENT, tmp_path, *words)
    with pytest.raises(InputError, match="does not tell which script it is for; needed: --trainer sft, dpo or ppo"):
        translated(TRAINING, tmp_path)
    with pytest.raises(InputError, match="--trainer kto: the project trains by sft, dpo, ppo"):
        translated(TRAINING, tmp_path, trainer="kto")


def leaves(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each part of nested settings."""
    if path:
        yield path
    if isinstance(values, dict | list):
        for key in values if isinstance(values, dict) else range(len(values)):
            yield from leaves(values[key], (*path, key))


def translated_or_refused(entry: dict[str, Any], folder: Path) -> list[Translation]:
    """The commands for an entry; none for one that is refused in one line."""
    try:
        return translated(entry, folder, file="sft_config.yaml")
    except InputError as error:
        if not str(error).isprintable():
            raise
        return []


ODD = (True, -1, 0, 0.5, float("nan"), 10**400, "", "x\nEND\ntouch ran", "\"'\\{x}", [], ["x", 1], {"a": 1}, "${a}")


TOPICS = changed(
    EXPERIMENT,
    agents__debaters=[DEBATER, {"model_settings": DEBATER["model_settings"] | {"alias": "b", "model_file_path": "b"}}],
    prompt_config={"use_hardcoded_topics": True, "hardcoded_topic_config": {"topic": "Who?", "positions": ["a", "b"]}},
)


@pytest.mark.parametrize("base", [EXPERIMENT, TOPICS, TRAINING], ids=["experiment", "topics", "training"])
def test_no_value_of_any_setting_breaks_a_translation(base: dict, tmp_path: Path) -> None:
    """Each is refused in one line, or becomes Python that compiles, and lines of a shell that are whole."""
    for path in leaves(base):
        for value in ODD:
            entry = copy.deepcopy(base)
            place = entry
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
            for one in translated_or_refused(entry, tmp_path):
                assert all(line.isprintable() for line in one.remarks), (path, value)
                for command in one.before:
                    if command.startswith("cat"):
                        assert command.count("\nEND") == 1
                        compile(text_of(one), "experiment", "exec")
                others = [command for command in one.before if not command.startswith("cat")]
                assert "touch" not in shlex.split(str(replace(one, before=others))), (path, value)
