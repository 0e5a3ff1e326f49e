"""Models, games and keys by name, and what `playpen list` prints of them."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from toy_games import TOY, without_keys

from lmgym.apps.playpen.clembench.clembench_game import open_game
from lmgym.apps.playpen.commands import clem, playpen
from lmgym.apps.playpen.listing import list_games, list_models
from lmgym.apps.playpen.players import make_generator
from lmgym.apps.playpen.registries.games import load_games, read_checkout
from lmgym.apps.playpen.registries.keys import VARIABLES, provide_key, read_keys
from lmgym.apps.playpen.registries.models import load_models, refuse_unnamed
from lmgym.apps.playpen.registries.specs import unify
from lmgym.errors import InputError
from lmgym.masking import masked
from lmgym.origin import PACKAGED

ROOT = Path(__file__).parents[4]
KEY = "sk-never-to-be-seen-0123"


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch) -> None:
    without_keys(monkeypatch, tmp_path)


def write(name: str, content: object) -> None:
    Path(name).write_text(content if isinstance(content, str) else json.dumps(content, indent=1))


def test_specs_unify_at_every_depth_unless_a_value_differs() -> None:
    assert unify({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}, "e": 4}) == {"a": 1, "b": {"c": 2, "d": 3}, "e": 4}
    assert unify({"b": {"c": 2}}, {"b": {"c": 3}}) is None
    assert unify({"b": {"c": 2}}, {"b": 2}) is None


def test_custom_entries_come_before_packaged_ones_and_extra_keys_are_added() -> None:
    write("model_registry.json", [{"model_name": "llama3-8b", "backend": "openai_compatible", "model_config": {}}])
    assert load_models().select("llama3-8b").get("backend") == "openai_compatible"
    found = load_models().select("{'model_name':'smol-135m','model_config':{'peft_model':'a'},'note':'mine'}")
    assert found.get("note") == "mine"
    assert found.get("model_config")["peft_model"] == "a"
    assert found.get("model_config")["premade_chat_template"] is True
    assert load_models().select("{'model_id':'gpt-4o-mini-2024-07-18'}").name == "gpt4o-mini"
    assert load_models().select("{'model_name':'new','backend':'anthropic'}").get("backend") == "anthropic"


def test_a_misspelt_key_is_refused_with_its_line_and_an_extra_one_is_kept() -> None:
    write("model_registry.json", '[\n {"model_name": "a",\n  "backend": "openai",\n  "hugginface_id": "x"}]')
    with pytest.raises(InputError, match=r"line 4: there is no key 'hugginface_id'; did you mean huggingface_id\?"):
        load_models()
    write("model_registry.json", '[{"model_name": "a", "backend": "openai",\n"model_config": {"eos_to_cul": "x"}}]')
    with pytest.raises(InputError, match=r"line 2: .*did you mean eos_to_cull\?"):
        load_models()
    write("model_registry.json", [{"model_name": "a", "backend": "openai", "colour": "x"}])
    assert load_models().select("a").get("colour") == "x"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"model_name": "a"', "line 1, is not JSON"),
        ("[3]", "entry 1 is 3; needed: an object"),
        ([{"backend": "openai"}], "entry 1 has no model_name"),
        ([{"model_name": "a", "backend": "openai", "model_config": 1}], "model_config of entry 1 is 1"),
    ],
)
def test_a_faulty_registry_is_refused(content: object, message: str) -> None:
    write("model_registry.json", content)
    with pytest.raises(InputError, match=message):
        load_models()


def test_a_name_that_matches_nothing_or_several_entries_is_refused() -> None:
    with pytest.raises(InputError, match=r"no model matches 'smol-135'; did you mean smol-135m\?"):
        load_models().select("smol-135")
    twice = {"model_name": "a", "backend": "openai"}
    write("model_registry.json", [twice, {**twice, "model_id": "b"}])
    with pytest.raises(InputError, match=r"2 entries of .* match 'a'"):
        load_models().select("a")
    assert load_models().select("{'model_name':'a','model_id':'b'}").get("model_id") == "b"
    with pytest.raises(InputError, match=r"selector .* is not JSON"):
        load_models().select("{'model_name'")
    with pytest.raises(InputError, match=r"has the backend 'nowhere'"):
        load_models().select("{'model_name':'b','backend':'nowhere'}")


def test_a_folder_that_is_no_checkout_and_a_template_with_its_placeholder_are_refused(tmp_path) -> None:
    with pytest.raises(InputError, match=r"is no checkout of clembench: no clemgame\.json"):
        load_games(str(tmp_path))
    write("game_registry.json", (ROOT / "game_registry.json.template").read_text())
    with pytest.raises(InputError, match="your/path/to/clembench is not a folder; needed: a checkout of clembench"):
        load_games()
    write("game_registry.json", '[\n{"benchmark_pth": "x"}]')
    with pytest.raises(InputError, match=r"line 2: .*did you mean benchmark_path\?"):
        load_games()
    write("game_registry.json", [{}])
    with pytest.raises(InputError, match="neither benchmark_path nor game_path"):
        load_games()


def test_a_game_of_a_checkout_without_players_is_refused(tmp_path) -> None:
    (tmp_path / "clemgame.json").write_text('{"game_name": "x"}')
    with pytest.raises(InputError, match="a game has no players"):
        read_checkout(tmp_path)


def test_keys_come_from_the_environment_or_the_file_and_are_masked() -> None:
    template = json.loads((ROOT / "key.json.template").read_text())
    assert {"openai", "anthropic"} <= template.keys()
    with pytest.raises(InputError, match=r"no API key of openai; needed: the environment variable OPENAI_API_KEY"):
        provide_key("openai", required=True)
    assert provide_key("openai_compatible", required=False) == ("", {})
    write("key.json", {"openai": {"api_key": KEY, "organisation": "us"}})
    assert provide_key("openai", required=True) == ("OPENAI_API_KEY", {"organisation": "us"})
    assert os.environ.pop("OPENAI_API_KEY") == KEY
    assert masked(f"sent {KEY} there") == "sent *** there"


def test_a_faulty_key_file_is_refused_without_its_text() -> None:
    for content in (f'["{KEY}"]', f'{{"openai": "{KEY}"}}', f'{{"openai": {{"api_key": "{KEY}"'):
        write("key.json", content)
        with pytest.raises(InputError, match="is no file of keys") as caught:
            read_keys(Path("key.json"))
        assert KEY not in str(caught.value)
        assert masked("text") == "text"


def test_models_are_printed_in_playpens_shape_without_keys(capsys) -> None:
    write("key.json", {"openai": {"api_key": KEY}})
    write("model_registry.json", [{"model_name": "mine", "backend": "openai", "note": KEY}])
    list_models(load_models(), "all", False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "Found '6' registered model specs:"
    assert lines[2] == f"mine -> openai ({Path.cwd() / 'model_registry.json'})"
    assert lines[3] == "Meta-Llama-3.1-8B-Instruct -> huggingface_local (packaged)"
    list_models(load_models(), "mine", True)
    out = capsys.readouterr().out
    assert 'ModelSpec: {"model_name":"mine"' in out
    assert KEY not in out
    assert "***" in out


def test_games_are_printed_in_playpens_shape(capsys) -> None:
    list_games(load_games(str(TOY)), "higher_lower", True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "Found '1' game specs that match the game_selector='higher_lower'"
    assert lines[2] == "higher_lower:"
    assert lines[3] == "  Find a number with a helper."
    assert lines[4].startswith('  GameSpec: {"game_name":"higher_lower"')


@pytest.mark.parametrize("group", [playpen, clem])
def test_both_commands_list(group) -> None:
    assert "gpt4o-mini -> openai (packaged)" in CliRunner().invoke(group, ["list", "models"]).output
    assert "huggingface_local (packaged)" in CliRunner().invoke(group, ["list", "backends"]).output
    assert "higher_lower:" in CliRunner().invoke(group, ["list", "--games", str(TOY)]).output


def test_a_player_of_each_backend_is_refused_without_what_it_needs() -> None:
    for name, message in (
        ("gpt4o-mini", "no API key of openai"),
        ("llama3-8b", "no API key of huggingface"),
        ("smollm2-135m", "needed: lmgym get smollm2-135m"),
        ("{'model_name':'claude','backend':'anthropic'}", "no API key of anthropic"),
        ("{'model_name':'x','backend':'huggingface_local'}", "has no huggingface_id"),
        ("mock", "has no generator"),
    ):
        with pytest.raises(InputError, match=message):
            make_generator(load_models().select(name))


def test_a_game_of_a_registry_that_nobody_named_is_listed_and_not_run(capsys) -> None:
    write("game_registry.json", [{"benchmark_path": str(TOY)}])
    found = load_games()
    list_games(found, "higher_lower", False)
    assert "higher_lower:" in capsys.readouterr().out
    for selector in ("higher_lower", "{'game_name':'higher_lower','players':2}", "{'benchmark':['toy']}"):
        for spec in found.select(selector):
            with pytest.raises(InputError, match=r" names higher_lower, code in .*; needed, to run it: --games .*json"):
                open_game(spec)
    [named] = load_games("game_registry.json").select("higher_lower")
    assert open_game(named).spec == named
    assert open_game(found.select("taboo")[0]).spec.name == "taboo"


def test_a_models_own_code_is_run_only_if_the_command_line_asks_for_it() -> None:
    entry = {"model_name": "mine", "backend": "huggingface_local", "huggingface_id": "a/b@" + "0" * 40}
    write("model_registry.json", [{**entry, "model_config": {"trust_remote_code": True}}])
    selector = "{'model_name':'mine','model_config':{'trust_remote_code':true}}"
    with pytest.raises(InputError, match=r"json names trust_remote_code of mine, .*; needed, to run it: ") as caught:
        refuse_unnamed(load_models().select("mine"), "mine")
    assert f'"{selector}" as the model' in str(caught.value)
    refuse_unnamed(load_models().select(selector), selector)
    refuse_unnamed(load_models().select("smol-135m"), "smol-135m")


EVIL, OWN = "http://evil.example/v1", "http://127.0.0.1:9/v1"


def registry_with(address: str, backend: str = "openai") -> None:
    entry = {"model_name": "a", "backend": backend, "model_config": {"base_url": address}}
    Path("model_registry.json").write_text(json.dumps([entry]))


@pytest.mark.parametrize("backend", ["openai", "openai_compatible", "generic_openai_compatible", "anthropic"])
def test_a_key_of_the_environment_goes_to_no_address_that_a_file_names(backend: str, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLES[backend], "sk-of-the-environment")
    registry_with(EVIL, backend)
    with pytest.raises(
        InputError, match=rf"names the address {EVIL} of a, which would get the key {VARIABLES[backend]} of the env"
    ):
        refuse_unnamed(load_models().select("a"), "a")
    named = f"{{'model_name':'a','model_config':{{'base_url':'{EVIL}'}}}}"  # as the message says
    refuse_unnamed(load_models().select(named), named)
    Path("model_registry.json").unlink()
    Path("key.json").write_text(json.dumps({backend: {"base_url": EVIL}}))
    entry = f"{{'model_name':'b','backend':'{backend}'}}"
    with pytest.raises(InputError, match=r"key.json names the address http://evil.example/v1 of b,"):
        refuse_unnamed(load_models().select(entry), entry)


def test_a_key_of_a_file_goes_to_addresses_in_the_files_beside_it_alone(tmp_path: Path) -> None:
    registry_with(OWN)
    Path("key.json").write_text(json.dumps({"openai": {"api_key": "sk-of-this-folder"}}))
    refuse_unnamed(load_models().select("a"), "a")
    Path("key.json").unlink()
    (tmp_path / ".clemcore").mkdir()
    (tmp_path / ".clemcore/key.json").write_text(json.dumps({"openai": {"api_key": "sk-of-the-home"}}))
    with pytest.raises(InputError, match=r"which would get the key OPENAI_API_KEY of .*\.clemcore/key.json;"):
        refuse_unnamed(load_models().select("a"), "a")


def test_an_address_of_a_file_is_not_asked_without_a_key_either_also_for_packaged_models(monkeypatch) -> None:
    registry_with(EVIL)
    with pytest.raises(InputError, match="of a, which has no key here; needed, to ask it: "):
        refuse_unnamed(load_models().select("a"), "a")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    packaged_ones = [spec for spec in load_models().specs if spec.source == PACKAGED]
    found = next(spec for spec in packaged_ones if spec.get("backend") == "openai")
    refuse_unnamed(found, found.name)  # to the address of its own backend
    Path("key.json").write_text(json.dumps({"openai": {"base_url": EVIL}}))
    with pytest.raises(InputError, match=r"key.json names the address http://evil.example/v1 of "):
        refuse_unnamed(found, found.name)


def test_the_users_own_file_of_keys_may_name_the_address_that_gets_a_key_of_the_environment(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("OPENAI_COMPATIBLE_API_KEY", "sk-of-the-environment")
    (tmp_path / ".clemcore").mkdir()
    (tmp_path / ".clemcore/key.json").write_text(json.dumps({"openai_compatible": {"base_url": OWN}}))
    selector = "{'model_name':'b','backend':'openai_compatible'}"
    refuse_unnamed(load_models().select(selector), selector)
    (tmp_path / ".clemcore/key.json").rename("key.json")  # where anybody may have written it
    with pytest.raises(InputError, match=r"key.json names the address"):
        refuse_unnamed(load_models().select(selector), selector)


def test_a_served_model_that_a_file_names_is_not_asked(monkeypatch) -> None:
    Path("model_registry.json").write_text(
        json.dumps([{"model_name": "a", "backend": "spec", "model_id": f"openai:{EVIL}#m"}])
    )
    with pytest.raises(InputError, match=r"json names the address openai:http://evil.example/v1#m; needed"):
        refuse_unnamed(load_models().select("a"), "a")
    refuse_unnamed(load_models().select(f"openai:{OWN}#m"), f"openai:{OWN}#m")
