"""One spec for any model: what it is read as, what is refused before anything loads, and what is asked of servers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from patience import PATIENCE
from servers import Server

from lmgym.errors import InputError
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.model_specs import ModelSpec, load_generator, read_model_spec
from lmgym.generation.protocol import Sampling
from lmgym.generation.request_limits import RequestLimits
from lmgym.models.sources import refuse_served
from lmgym.text import Conversation, Turn

ASKED = [Conversation((Turn("user", f"question {i}"),)) for i in range(12)]
SAMPLED = Sampling(max_new_tokens=8, temperature=0.7, seed=3)
KEY = "sk-never-to-be-seen-0123456789"


@pytest.fixture(autouse=True)
def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("text", "spec"), [
    ("owner/name", ModelSpec("local", "owner/name")),
    ("vllm:http://a:8000/", ModelSpec("vllm", "", ("http://a:8000/v1",))),
    ("vllm:http://a:1/v1,https://b/x#m", ModelSpec("vllm", "m", ("http://a:1/v1", "https://b/x/v1"))),
    ("vllm:owner/name@main", ModelSpec("vllm", "owner/name@main")),
    ("openai:http://a:1/v1/#qwen3:0.6b", ModelSpec("openai", "qwen3:0.6b", ("http://a:1/v1",))),
    ("openai:http://a:1/v1", ModelSpec("openai", "", ("http://a:1/v1",))),
    ("anthropic:http://a:1#m", ModelSpec("anthropic", "m", ("http://a:1",))),
])  # fmt: skip
def test_a_spec_is_read_without_loading_anything(text: str, spec: ModelSpec) -> None:
    assert read_model_spec(text) == spec
    assert spec.served == (spec.kind != "local")


def test_a_folder_that_is_called_like_a_spec_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("vllm", "openai:m"):
        Path(name).mkdir()
        assert read_model_spec(name) == ModelSpec("local", name)
        refuse_served(name)


@pytest.mark.parametrize(("text", "message"), [
    ("vllm", "no model; needed: a folder, a hub id, vllm:URL"),
    ("openai:", "no model; needed: a folder"),
    ("ollama:qwen", "no model; needed: a folder"),
    ("http://a:1/v1", "needed: openai:http://a:1/v1#MODEL or vllm:http://a:1/v1"),
    ("vllm:localhost:8000", "no http:// before the address; needed: vllm:http://HOST:PORT"),
    ("openai:127.0.0.1:8000/v1#m", "no http:// before the address; needed: openai:http://HOST:PORT/v1#MODEL"),
    ("openai:gpt-4o-mini", "needs a key; needed: the environment variable OPENAI_API_KEY, or openai:URL#MODEL"),
    ("anthropic:claude", "needs a key; needed: the environment variable ANTHROPIC_API_KEY"),
    ("anthropic:http://a:1", "names no model; needed: anthropic:MODEL"),
    ("vllm:ftp://a", "behind vllm: is no plain one; needed: such as http://127.0.0.1:8000/v1"),
])  # fmt: skip
def test_what_is_no_spec_is_refused_in_a_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_model_spec(text)
    assert message in str(error.value)
    assert len(str(error.value)) < 300


def test_a_password_in_an_address_is_not_repeated() -> None:
    for kind in ("vllm", "openai", "anthropic"):
        with pytest.raises(InputError, match="without a name, password") as error:
            read_model_spec(f"{kind}:http://me:{KEY}@127.0.0.1:1/v1#m")
        assert KEY not in str(error.value)


def test_a_folder_is_loaded_in_this_process(small_models: dict[str, Path]) -> None:
    assert isinstance(load_generator(str(small_models["llama"])), LocalGenerator)


@pytest.mark.parametrize(("mode", "spec", "message"), [
    ("good", "openai:{url}#nope", "does not serve 'nope'; needed: openai:{url}#MODEL, one of tiny"),
    ("serves_two", "openai:{url}", "lists 2 models; needed: openai:{url}#MODEL, one of tiny, other"),
    ("good", "vllm:{url}", "is a server, and not vLLM's; needed: openai:{url}#tiny"),
    ("checks_key", "openai:{url}#tiny", "status 401: .*; needed: a key .* variable OPENAI_API_KEY"),
    ("checks_key", "vllm:{url}", "status 401: .*; needed: a key .* variable VLLM_API_KEY"),
    ("no_list", "openai:{url}", "lists 0 models; needed: openai:{url}#MODEL, a model that it serves"),
    ("good", "openai:http://127.0.0.1:1/v1#m", r"cannot be reached \(Connection refused\)"),
])  # fmt: skip
def test_a_server_that_cannot_answer_is_refused_at_the_start(serve, mode: str, spec: str, message: str) -> None:
    server: Server = serve(mode)
    with pytest.raises(InputError, match=message.format(url=server.url)):
        load_generator(spec.format(url=server.url))
    assert server.requests == []


def test_an_address_without_its_path_is_refused(serve) -> None:
    base = serve("good").url.split("/good")[0]
    with pytest.raises(InputError, match=r"status 404: .*needed: an address that ends before /models, often in /v1"):
        load_generator(f"openai:{base}#tiny")


def test_the_only_model_of_a_server_needs_no_name_and_a_server_without_a_list_needs_one(serve) -> None:
    for mode, behind in (("good", ""), ("no_list", "#any"), ("vllm", "")):
        server = serve(mode)
        kind = "vllm" if mode == "vllm" else "openai"
        [[reply]] = load_generator(f"{kind}:{server.url}{behind}").reply(ASKED[:1], 1, SAMPLED)
        assert reply.text == "3.0 to question 0"
        assert server.requests[0]["body"]["model"] == (behind[1:] or "tiny")


def test_vllm_is_sent_neutral_settings_too_and_asked_for_ids(serve) -> None:
    server = serve("vllm")
    [replies] = load_generator(f"vllm:{server.url}").reply(ASKED[:1], 2, SAMPLED)
    body = server.requests[0]["body"]
    assert (body["top_k"], body["repetition_penalty"], body["return_token_ids"]) == (0, 1.0, True)
    assert [(reply.ids, reply.tokens) for reply in replies] == [((0, 1, 2), 3), ((0, 1, 2, 3), 4)]


def test_several_servers_share_by_prompt_whatever_else_is_asked(serve) -> None:
    servers = [serve("vllm"), serve("vllm"), serve("vllm")]
    generator = load_generator("vllm:" + ",".join(server.url for server in servers))
    seeds = Sampling(max_new_tokens=8, temperature=0.7, seed=tuple(range(12)))
    together = generator.reply(ASKED, 2, seeds)
    shares = [{row["body"]["messages"][-1]["content"] for row in server.requests} for server in servers]
    assert all(shares)
    assert sum(map(len, shares)) == len(ASKED), "a conversation went to two servers"
    backwards = Sampling(max_new_tokens=8, temperature=0.7, seed=tuple(range(11, -1, -1)))
    assert generator.reply(ASKED[::-1], 2, backwards)[::-1] == together
    for number in (0, 7):
        assert generator.reply(ASKED[number : number + 1], 2, Sampling(8, 0.7, seed=number)) == [together[number]]
    assert shares == [{row["body"]["messages"][-1]["content"] for row in server.requests} for server in servers]


def test_a_limit_of_requests_holds_over_all_servers(serve) -> None:
    servers = [serve("stalls"), serve("stalls")]
    from lmgym.generation.openai_server import ServedGenerator

    generator = ServedGenerator(
        [server.url for server in servers], "tiny", timeout=1, retries=0, limits=RequestLimits(3)
    )
    with pytest.raises(RuntimeError, match="no answer within timeout=1 s"):
        generator.reply(ASKED, 1, SAMPLED)
    assert sum(len(server.requests) for server in servers) == 3


def test_log_probabilities_of_an_interface_without_them_are_refused() -> None:
    with pytest.raises(InputError, match=r"gives no log-probabilities.*needed: a folder, a hub id, vllm:URL"):
        load_generator("anthropic:http://127.0.0.1:1#m", top_logprobs=20)


def test_what_was_asked_is_said_at_the_exit_without_the_key(serve) -> None:
    code = (
        "from lmgym.generation.model_specs import load_generator\n"
        "from lmgym.generation.protocol import Sampling\n"
        "from lmgym.text import Conversation, Turn\n"
        f"generator = load_generator('openai:{serve('echoes_key').url}#tiny')\n"
        "generator.reply([Conversation((Turn('user', 'a'),))], 2, Sampling())\n"
        "load_generator('openai:http://127.0.0.1:1/v1#tiny')\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"OPENAI_API_KEY": KEY},
        timeout=PATIENCE,
    )
    assert "#tiny: 1 request, 0 tokens read, 14 written" in found.stderr
    assert KEY not in found.stdout + found.stderr


def test_what_needs_weights_refuses_a_served_model() -> None:
    from lmgym.generation.local_generation import load_causal

    for name in ("vllm:http://127.0.0.1:1", "openai:gpt-4o-mini"):
        with pytest.raises(InputError, match="is a served model, which gives no weights here; needed: a folder"):
            load_causal(name)
