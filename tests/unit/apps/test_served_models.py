"""A served model wherever one can stand: chat, A/B tests, games, debates, audits, Playpen; and where none can."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from servers import Server

from lmgym.apps.debate.audit.command import run_audit
from lmgym.apps.debate.experiments import best_of_n, self_play
from lmgym.apps.debate.tournament.running import run_tournament
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.registries.models import load_models
from lmgym.cli.main import main
from lmgym.errors import InputError
from lmgym.generation import model_server
from lmgym.scoring.named_scorers import load_scorer, read_names
from lmgym.text import Conversation, Turn


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without waiting, and no API key from the environment."""
    monkeypatch.setattr(model_server, "FIRST_WAIT", 0.01)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def run(*words: object, lines: str = "") -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], input=lines)


def test_a_chat_with_a_server_shows_its_replies_and_names_it_in_the_session(serve, tmp_path: Path) -> None:
    server: Server = serve("good")
    done = run("chat", f"openai:{server.url}#tiny", "--best_of", 2, "--json", "--sessions", tmp_path, lines="hello\n")
    assert done.exit_code == 0, done.output
    turn = json.loads(done.stdout)
    assert [reply["text"] for reply in turn["candidates"]] == ["0.0 to hello", "0.1 to hello"]
    [session] = tmp_path.iterdir()
    header = json.loads(session.read_text().splitlines()[0])
    assert header["models"]["generator"] == {"kind": "ServedGenerator", "server": server.url, "model": "tiny"}


def test_the_best_of_copies_is_said(serve, tmp_path: Path) -> None:
    spec = f"openai:{serve('copies').url}#tiny"
    done = run("chat", spec, "--best_of", 3, "--sessions", tmp_path, lines="hello\nhello\n")
    assert done.stderr.count("gave 3 equal replies at temperature 0.9") == 1


@pytest.mark.parametrize("spec", ["openai:http://127.0.0.1:1/v1#m", "openai:gpt-4o-mini", "ollama:qwen"])
@pytest.mark.parametrize("command", [
    ("chat", "{}"), ("ab", "bots", "{}"), ("deploy", "{}", "--output", "logs"), ("ab", "bots", "{}@gold:2"),
    ("games", "play", "blackjack", "--agent", "{}"), ("serve", "chat", "a={}", "--port", "0"),
])  # fmt: skip
def test_a_mistake_is_one_line_and_leaves_no_file(spec: str, command: tuple, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*(word.format(spec) for word in command))
    assert done.exit_code == 2
    assert done.stderr.startswith("error: ")
    assert re.search("cannot be reached|needs a key|is no model", done.stderr)
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_ab_test_of_a_served_policy_does_not_depend_on_how_many_requests_run_at_once(serve, tmp_path: Path) -> None:
    found = []
    for name, concurrency in (("a", 1), ("b", 8)):
        server = serve("vllm")
        words = ("--users", 8, "--days", 3, "--concurrency", concurrency)
        policies = ("bots", f"vllm:{server.url}", f"vllm:{server.url}@random:2")
        done = run("ab", *policies, *words, "--output", tmp_path / name)
        assert done.exit_code == 0, done.output
        record = json.loads((tmp_path / name / "ab.json").read_text())
        found.append([arm | {"seconds": 0, "policy": ""} for arm in record["policies"]])
    assert found[0] == found[1]


def test_a_served_policy_in_several_processes_is_refused(serve) -> None:
    done = run("ab", "bots", f"openai:{serve('good').url}#tiny", "--processes", 2)
    assert "--processes 2 with a served policy; needed: 1, and requests at once: --concurrency" in done.stderr


def test_a_served_agent_plays_a_game_by_its_texts_alone(serve) -> None:
    server = serve("good")
    spec = f"openai:{server.url}#tiny"
    done = run("games", "play", "blackjack", "--agent", spec, "--episodes", 3)
    assert done.exit_code == 0, done.output
    assert f"{spec} in blackjack: mean return" in done.stdout
    assert "policy: " in done.stdout
    for words in (("shop",), ("blackjack", "--policy_over", "actions")):
        asked = len(server.requests)
        done = run("games", "play", *words, "--agent", spec)
        assert "is served; needed: a folder, a hub id" in done.stderr
        assert len(server.requests) == asked


def test_a_served_debater_is_judged_by_a_served_judge(serve, tmp_path: Path) -> None:
    speaks, judges = serve("vllm"), serve("names_a_debater")
    config = replace(
        self_play.CONFIG,
        model=f"vllm:{speaks.url}",
        judge_model=f"openai:{judges.url}#tiny",
        rounds=2,
        output=str(tmp_path),
    )
    run_tournament(config, self_play.setup)
    rows = [json.loads(line) for line in (tmp_path / "transcripts.jsonl").read_text().splitlines()]
    assert [row["verdict"]["p_first"] for row in rows] == [0.5, 0.5]  # both orders: P(Debater_A) is always 3/4
    assert all(speech["text"] for row in rows for speech in row["speeches"] if speech["speaker"] != "judge")
    assert {row["body"]["top_logprobs"] for row in judges.requests} == {20}
    assert all("logprobs" not in row["body"] for row in speaks.requests)


def test_a_judge_without_log_probabilities_is_refused_before_anything_is_said(serve, tmp_path: Path) -> None:
    server = serve("good")
    spec = f"openai:{server.url}#tiny"
    for experiment in (self_play, best_of_n):
        config = replace(experiment.CONFIG, model=spec, judge_model=spec, output=str(tmp_path / "out"))
        asked = len(server.requests)
        with pytest.raises(InputError, match="gives no log-probabilities, which a judge needs; needed: a server with"):
            run_tournament(config, experiment.setup)
        assert len(server.requests) == asked + 1, "the judge's check alone"
    with pytest.raises(InputError, match="gives no log-probabilities, which are needed here"):
        run_tournament(replace(config, judge_model="anthropic:http://127.0.0.1:1#m"), self_play.setup)
    assert not (tmp_path / "out").exists()


def test_a_served_judge_is_audited(serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--questions", "2", "--output", str(tmp_path)]
    run_audit([f"openai:{serve('names_a_debater').url}#tiny", *words])
    [name] = [row for row in json.loads((tmp_path / "audit.json").read_text())["biases"] if row["bias"] == "name"]
    assert name["effect"]["value"] == pytest.approx(0.25)
    with pytest.raises(InputError, match="gives no log-probabilities"):
        run_audit([f"openai:{serve('good').url}#tiny", *words])


def test_playpen_takes_a_served_model_and_a_folder_without_an_entry(serve, small_models: dict[str, Path]) -> None:
    server = serve("good")
    teacher = Model(load_models().select(f"openai:{server.url}#tiny"), 0.7, 9)
    assert teacher.descriptor == "tiny-t0.7"
    asked = [Conversation((Turn("user", "hello"),))]
    assert teacher.generator.reply(asked, 1, teacher.sampling)[0][0].text == "0.0 to hello"
    assert teacher.usage
    assert teacher.usage.requests == 1
    with pytest.raises(InputError, match="needed: huggingface_local, whose weights are here"):
        _ = teacher.model
    with pytest.raises(InputError, match="cannot be reached"):
        Model(load_models().select("openai:http://127.0.0.1:1/v1#tiny")).refuse_unusable()
    folder = load_models().select(str(small_models["llama"]))
    assert folder.get("huggingface_id") == str(small_models["llama"])
    with pytest.raises(InputError, match="no model matches 'nowhere'"):
        load_models().select("nowhere")


def test_what_reads_weights_or_given_texts_refuses_a_server() -> None:
    done = run("eval", "openai:gpt-4o-mini", "--suite", "gsm8k")
    assert done.exit_code == 2
    assert "is a served model, which gives no log-probabilities of given texts here; needed: a folder" in done.stderr
    with pytest.raises(InputError, match="is a served model; needed: judge:vllm:http://127"):
        load_scorer("vllm:http://127.0.0.1:1")


def test_served_policies_are_named_after_their_models() -> None:
    words = (
        "vllm:http://a:1,http://b:2,x=openai:http://c:3/v1#m,openai:http://c:3/v1#qwen/tiny,vllm:outputs/short/model"
    )
    assert read_names(words) == {
        "a_1": "vllm:http://a:1,http://b:2",
        "x": "openai:http://c:3/v1#m",
        "tiny": "openai:http://c:3/v1#qwen/tiny",
        "short": "vllm:outputs/short/model",
    }
