"""Players: an entry's settings, a local model with an adapter and a template, and replies from servers."""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from lmgym.apps.playpen.local_player import bits_of, set_template
from lmgym.apps.playpen.model_settings import CulledReplies, context_size, culled_end
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.registries.keys import VARIABLES
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.errors import InputError, ServerError, TooLong
from lmgym.generation import model_server
from lmgym.generation.anthropic_server import AnthropicGenerator
from lmgym.generation.protocol import Completion, Sampling, ScriptedGenerator
from lmgym.generation.request_limits import RequestLimits
from lmgym.text import Conversation, Turn

HELLO = Conversation((Turn("user", "hello"),), persona="You are kind.")
KEY = "sk-ant-never-to-be-seen"


def culled(text: str, pattern: str) -> str:
    replies = CulledReplies(ScriptedGenerator([text]), culled_end({"eos_to_cull": pattern}))
    return replies.reply([HELLO], 1, Sampling())[0][0].text


def test_an_eos_is_removed_at_the_end_of_a_reply_and_nowhere_else() -> None:
    pattern = "<\\|im_end\\|>"
    assert culled("say <|im_end|> twice<|im_end|>\n", pattern) == "say <|im_end|> twice"
    assert culled("say <|im_end|> once", pattern) == "say <|im_end|> once"
    assert culled(" plain ", "") == "plain"
    with pytest.raises(InputError, match="is not a regular expression"):
        culled_end({"eos_to_cull": "("})


@pytest.mark.parametrize(("size", "tokens"), [("2048", 2048), (300, 300), ("128k", 131_072), ("", None), (None, None)])
def test_a_context_size_is_a_number_of_tokens(size: object, tokens: int | None) -> None:
    assert context_size(Spec({"context_size": size})) == tokens


def test_a_context_size_that_is_none_is_refused() -> None:
    for size in ("many", "0", -5):
        with pytest.raises(InputError, match="is no number of tokens"):
            context_size(Spec({"model_name": "a", "context_size": size}))


def test_quantised_weights_are_refused_without_bitsandbytes_and_a_gpu() -> None:
    assert bits_of("a", {}) == 0
    with pytest.raises(InputError, match="both load_in_4bit and load_in_8bit"):
        bits_of("a", {"load_in_4bit": True, "load_in_8bit": True})
    import torch

    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="load_in_8bit, which needs bitsandbytes"):
            bits_of("a", {"load_in_8bit": True})


def test_a_premade_template_must_be_there_and_a_custom_one_is_used(tokenizers) -> None:
    tokenizer = tokenizers["gpt2"]
    before = tokenizer.chat_template
    try:
        with pytest.raises(InputError, match="premade_chat_template, and its tokenizer has none"):
            set_template("a", tokenizer, {"premade_chat_template": True})
        set_template("a", tokenizer, {"custom_chat_template": "{{ messages[0].content }}"})
        assert tokenizer.chat_template == "{{ messages[0].content }}"
    finally:
        tokenizer.chat_template = before


def test_a_local_player_replies_with_its_adapter_within_its_context(talkative_models, tmp_path) -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    source = str(talkative_models["llama"])
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(source), LoraConfig(r=2, target_modules="all-linear"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=5.0)
    model.save_pretrained(tmp_path / "adapter")

    def texts(config: dict, size: object = "400") -> list[str]:
        fields = {"model_name": "a", "backend": "huggingface_local", "huggingface_id": source, "model_config": config}
        player = Model(Spec({**fields, "context_size": size}), 0.0, 16)
        return [completion.text for [completion] in player.generator.reply([HELLO], 1, player.sampling)]

    assert texts({}) != texts({"peft_model": str(tmp_path / "adapter")})
    with pytest.raises(TooLong, match="the context_size of a is 20"):
        texts({}, 20)
    with pytest.raises(InputError, match=r"no peft_model loads from .*: adapter_config.json"):
        texts({"peft_model": str(tmp_path)})


class Answers(BaseHTTPRequestHandler):
    """Anthropic's interface on a loopback: `answers` are (status, content, headers), the last for ever."""

    answers: list[tuple]
    requests: list[dict]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        headers = {name: self.headers[name] for name in ("x-api-key", "anthropic-version")}
        self.requests.append({"path": self.path, "body": body, **headers})
        status, content, headers = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Silent."""


def message(text: str, reason: str = "end_turn") -> dict:
    usage = {"input_tokens": 10, "output_tokens": 4}
    return {"content": [{"type": "text", "text": text}], "stop_reason": reason, "usage": usage}


@pytest.fixture
def anthropic(monkeypatch):
    """A generator at a server with these answers, and the requests it got."""
    monkeypatch.setattr(model_server, "FIRST_WAIT", 0.01)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    servers = []

    def make(*answers: tuple, **settings):
        kind = type("Handler", (Answers,), {"answers": list(answers), "requests": []})
        servers.append(HTTPServer(("127.0.0.1", 0), kind))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{servers[-1].server_port}"
        return AnthropicGenerator("claude", url, **settings), kind.requests

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


def test_anthropics_interface_gets_its_fields_and_tokens_are_counted(anthropic) -> None:
    generator, requests = anthropic(
        (200, message("hi"), {}), (200, message("cut", "max_tokens"), {}), limits=RequestLimits(1)
    )
    chat = Conversation((*HELLO.turns, Turn("bot", "yes"), Turn("user", "and?")), persona=HELLO.persona)
    sampling = Sampling(9, 0.5, top_k=3, top_p=0.9, stop=("END",))
    assert generator.reply([chat], 2, sampling) == [
        [Completion("hi", "eos", tokens=4), Completion("cut", "length", tokens=4)]
    ]
    assert requests[0]["path"] == "/v1/messages"
    assert (requests[0]["x-api-key"], requests[0]["anthropic-version"]) == (KEY, "2023-06-01")
    assert requests[0]["body"] == {
        "model": "claude", "max_tokens": 9, "temperature": 0.5, "top_k": 3, "top_p": 0.9, "system": "You are kind.",
        "stop_sequences": ["END"],
        "messages": [
            {"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes"},
            {"role": "user", "content": "and?"},
        ],
    }  # fmt: skip
    usage = generator.usage
    assert (usage.requests, usage.prompt_tokens, usage.completion_tokens) == (2, 20, 8)
    assert usage.cost(3.0, 15.0) == pytest.approx((20 * 3 + 8 * 15) / 1e6)


def test_anthropics_limits_are_waited_for_and_its_refusals_named(anthropic) -> None:
    busy = (429, {"error": "rate_limit"}, {"Retry-After": "0.01"})
    generator, requests = anthropic(
        busy, (529, {"error": "overloaded"}, {}), (200, b"{}", {}), (200, message("hi"), {})
    )
    assert generator.reply([HELLO], 1, Sampling())[0][0].text == "hi"
    assert len(requests) == 4
    generator, _ = anthropic((401, {"error": f"bad {KEY}"}, {}))
    with pytest.raises(InputError, match="in the environment variable ANTHROPIC_API_KEY") as caught:
        generator.reply([HELLO], 1, Sampling())
    assert KEY not in str(caught.value)
    generator, _ = anthropic((400, {"error": {"message": "prompt is too long: 9 tokens"}}, {}))
    with pytest.raises(TooLong):
        generator.reply([HELLO], 1, Sampling())
    generator, requests = anthropic((500, {}, {}), retries=1)
    with pytest.raises(ServerError, match="no usable answer in 2 tries"):
        generator.reply([HELLO], 1, Sampling())
    with pytest.raises(InputError, match=r"temperature=1\.5"):
        generator.reply([HELLO], 1, Sampling(temperature=1.5))
    with pytest.raises(InputError, match="is not encrypted"):
        AnthropicGenerator("claude", "http://example.org")


@pytest.mark.parametrize(
    ("backend", "address"),
    [
        ("google", "https://generativelanguage.googleapis.com/v1beta/openai"),
        ("mistral", "https://api.mistral.ai/v1"),
        ("cohere", "https://api.cohere.ai/compatibility/v1"),
        ("openrouter", "https://openrouter.ai/api/v1"),
        ("llamacpp", "http://127.0.0.1:8080/v1"),
        ("openai", "https://api.openai.com/v1"),
    ],
)
def test_a_backend_has_its_own_address_and_key_and_another_address_by_its_entry(
    backend: str, address: str, serve, monkeypatch, tmp_path
) -> None:
    from toy_games import without_keys

    without_keys(monkeypatch, tmp_path)
    server, variable = serve("good"), VARIABLES[backend]
    if backend != "llamacpp":
        with pytest.raises(InputError, match=f"no API key of {backend}; needed: the environment variable {variable}"):
            _ = Model(Spec({"model_name": "a", "backend": backend})).generator
    monkeypatch.setenv(variable, "sk-of-this-test")
    monkeypatch.setenv("OPENAI_ORGANIZATION", "org-of-the-environment")
    assert Model(Spec({"model_name": "a", "backend": backend})).generator.generator.base_url == address
    config = {"base_url": server.url}
    player = Model(Spec({"model_name": "a", "model_id": "b", "backend": backend, "model_config": config}), 0.5, 9)
    [[reply]] = player.generator.reply([HELLO], 1, player.sampling)
    assert reply.text.endswith("to hello")
    [row] = server.requests
    assert (row["body"]["model"], row["authorization"]) == ("b", "Bearer sk-of-this-test")
    own = "org-of-the-environment" if backend == "openai" else None
    assert row["headers"].get("openai-organization") == own


def test_an_organisation_of_key_json_goes_with_its_key(serve, monkeypatch, tmp_path) -> None:
    from toy_games import without_keys

    without_keys(monkeypatch, tmp_path)
    monkeypatch.setenv("OPENAI_ORGANIZATION", "org-of-the-environment")
    server = serve("good")
    key = {"api_key": "sk-of-this-test", "organisation": "org-7", "base_url": server.url}
    Path("key.json").write_text(json.dumps({"openai": key}))
    player = Model(Spec({"model_name": "a", "backend": "openai"}))
    player.generator.reply([HELLO], 1, player.sampling)
    assert server.requests[0]["headers"]["openai-organization"] == "org-7"
    os.environ.pop("OPENAI_API_KEY")


def test_a_model_has_what_trainers_of_clemcore_call() -> None:
    from toy_games import scripted

    model = scripted(["yes"], "a")
    model.set_gen_args(temperature=0.7, max_tokens=9)
    assert (str(model), model.sampling) == ("a-t0.7", Sampling(9, 0.7))
    sent, answer, text = model.generate_response([{"role": "user", "content": "say"}])
    assert (sent[0]["content"], answer["choices"][0]["message"]["content"], text) == ("say", "yes", "yes")
    assert Model.to_identifier([model, scripted([], "b")]) == "a-t0.7--b-t0.0"
    assert Model.to_identifier([model] * 3).startswith("group-3p-")
    assert Model.to_infos([model]) == {"0": {"model_name": "a", "backend": "huggingface_local"}}
    assert (model.model_spec.model_name, model.spec["backend"]) == ("a", "huggingface_local")
