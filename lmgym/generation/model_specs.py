"""Any model by one spec, wherever a model talks, plays, teaches or judges.

    FOLDER, owner/name            in this process
    vllm:URL[,URL...][#MODEL]     servers of vLLM that run; a conversation always goes to the same one of them
    vllm:FOLDER, vllm:owner/name  a server of vLLM that this process starts, and that ends with it
    openai:URL#MODEL              any server with OpenAI's interface; openai:MODEL is OpenAI's own
    anthropic:MODEL               Anthropic; anthropic:URL#MODEL another server with its interface

Keys come from the environment: OPENAI_API_KEY, ANTHROPIC_API_KEY, and VLLM_API_KEY for servers of vLLM.
"""

import atexit
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from lmgym.console import say
from lmgym.errors import InputError, listed, one_line, shown
from lmgym.generation.anthropic_server import BASE_URL, AnthropicGenerator
from lmgym.generation.model_server import Usage, parse_address
from lmgym.generation.openai_server import CONCURRENCY, KEY, ServedGenerator, list_models
from lmgym.generation.protocol import Generator
from lmgym.generation.request_limits import RequestLimits

NEEDED = "a folder, a hub id, vllm:URL, vllm:FOLDER, openai:URL#MODEL, openai:MODEL or anthropic:MODEL"
OPENAI_URL = "https://api.openai.com/v1"
KEYS = {"vllm": "VLLM_API_KEY", "openai": KEY, "anthropic": "ANTHROPIC_API_KEY"}
ORGANIZATION = "OPENAI_ORGANIZATION"
"""environment variable of the organisation at OpenAI, which goes to OpenAI alone"""
LONGEST = 4096  # tokens of a prompt and its reply at a server of our own, whose memory grows with them
LOGS = Path("outputs/vllm")


@dataclass(frozen=True)
class ModelSpec:
    """A parsed spec. Without `urls`, a vllm model is served by this process's own server."""

    kind: Literal["local", "vllm", "openai", "anthropic"]
    model: str
    """empty: the one that the server lists"""
    urls: tuple[str, ...] = ()

    @property
    def served(self) -> bool:
        """True if a server replies: it has no weights, no tokenizer and no logits here."""
        return self.kind != "local"


def read_model_spec(text: str) -> ModelSpec:
    """The parsed spec. Raises InputError for an unknown form, an address that is none, and a key that is missing."""
    kind, colon, rest = text.partition(":")
    if os.path.exists(text) or not (colon or text == "vllm"):
        return ModelSpec("local", text)
    if kind not in KEYS or not rest:
        hint = "openai:" + text + "#MODEL or vllm:" + text if "//" in rest else NEEDED
        raise InputError(f"{shown(text)} is no model; needed: {one_line(hint)}")
    if kind == "vllm":
        return _read_vllm(text, rest)
    url, sharp, model = rest.rpartition("#")
    if not sharp and "//" in model:
        url, model = model, ""
    if "//" not in url and (url or re.match(r"localhost\b|[0-9.]+:|/", model)):
        raise InputError(f"{shown(text)} has no http:// before the address; needed: {kind}:http://HOST:PORT/v1#MODEL")
    if not (model or kind == "openai"):
        raise InputError(f"{shown(text)} names no model; needed: {kind}:MODEL, or {kind}:URL#MODEL")
    if url:
        _check_address(url, kind)
    elif not os.environ.get(KEYS[kind], "").strip():
        raise InputError(
            f"{shown(text)} needs a key; needed: the environment variable {KEYS[kind]}, or {kind}:URL#MODEL for a "
            "server of your own"
        )
    found: Any = kind
    return ModelSpec(found, model, (url.rstrip("/"),) if url else ())


def _read_vllm(text: str, rest: str) -> ModelSpec:
    if "://" not in rest:
        if not os.path.exists(rest) and (":" in rest or re.match("localhost|[0-9.]+$", rest)):
            raise InputError(f"{shown(text)} has no http:// before the address; needed: vllm:http://HOST:PORT")
        return ModelSpec("vllm", os.path.expanduser(rest))
    addresses, _, model = rest.partition("#")
    urls = [url.strip().rstrip("/").removesuffix("/v1") for url in addresses.split(",")]
    for url in urls:
        _check_address(url, "vllm")
    return ModelSpec("vllm", model, tuple(f"{url}/v1" for url in urls))


def _check_address(url: str, kind: str) -> None:
    """Raises InputError, without repeating the address, which may contain a secret."""
    try:
        parse_address(url)
    except InputError:
        raise InputError(
            f"the address behind {kind}: is no plain one; needed: such as http://127.0.0.1:8000/v1, without a name, "
            f"password or query (a key goes into the environment variable {KEYS[kind]})"
        ) from None


def load_generator(
    text: str,
    limits: RequestLimits | int | None = None,
    top_logprobs: int = 0,
    reasoning_effort: str = "",
    timeout: float | None = None,
) -> Generator:
    """The generator of a spec. A server is asked for its models, and what it has counted is said at the exit.

    `limits`, or a number of requests at a time (None: 8), hold for servers; with `top_logprobs` their replies have so
    many likely tokens at each place; `timeout` is of a request, in seconds. Raises InputError for what does not load, a
    server that does not answer, a model that it does not serve, and log-probabilities of an interface without them.
    """
    spec = read_model_spec(text)
    if not spec.served:
        from lmgym.generation.local_generation import load_causal

        return load_causal(text)
    shared = limits if isinstance(limits, RequestLimits) else RequestLimits(limits or CONCURRENCY)
    within: dict[str, Any] = {"limits": shared, "reasoning_effort": reasoning_effort}
    within |= {"timeout": timeout} if timeout else {}
    generator: Any
    if spec.kind == "anthropic":
        if top_logprobs:
            raise InputError(
                f"{shown(text)} gives no log-probabilities, which are needed here; needed: a folder, a hub id, "
                "vllm:URL, or openai:URL#MODEL of a server that gives them"
            )
        generator = AnthropicGenerator(spec.model, spec.urls[0] if spec.urls else BASE_URL, **within)
        say(f"{text}: the interface takes no seed, so that no reply can be repeated", error=True)
    else:
        vllm = spec.kind == "vllm"
        urls = spec.urls or ((f"{_own_server(spec.model).url}/v1",) if vllm else (OPENAI_URL,))
        model = _find_model(text, spec.model, urls, KEYS[spec.kind], vllm)
        generator = ServedGenerator(
            urls,
            model,
            key_variable=KEYS[spec.kind],
            top_logprobs=top_logprobs,
            vllm=vllm,
            organization="" if spec.urls or vllm else os.environ.get(ORGANIZATION, "").strip(),
            **within,
        )
    atexit.register(_say_usage, f"{text}, with log-probabilities" if top_logprobs else text, generator.usage)
    return generator


def _say_usage(text: str, usage: Usage) -> None:
    if usage.requests:
        say(f"{text}: {usage}", error=True)


def _find_model(text: str, model: str, urls: Sequence[str], variable: str, vllm: bool) -> str:
    """The model's name, the first that is listed by default. Raises InputError if a server does not list it."""
    for url in urls:
        rows = list_models(url, variable)
        names = [row["id"] for row in rows]
        if vllm and not any(row.get("owned_by") == "vllm" for row in rows):
            raise InputError(
                f"{one_line(url, 80)} is a server, and not vLLM's; needed: openai:{one_line(url, 80)}#"
                f"{one_line(names[0] if names else 'MODEL', 40)}"
            )
        if not model and (vllm or len(names) == 1):
            model = names[0]
        # some list a tag with each name (Ollama), or patterns of names (LiteLLM)
        known = any(name == model or name.partition(":")[0] == model or "*" in name for name in names)
        if not model or (names and not known):
            found = f"does not serve {shown(model, 40)}" if model else f"lists {len(names)} models"
            served = f", one of {listed(names)}" if names else ", a model that it serves"
            raise InputError(f"{one_line(url, 80)} {found}; needed: {text.split('#')[0]}#MODEL{served}")
    return model


@cache
def _own_server(model: str) -> Any:
    """A VLLMServer that has been started with the model; it ends with this process."""
    import torch

    from lmgym.generation.vllm_server import ServerOptions, VLLMServer
    from lmgym.models.config_fields import context_length
    from lmgym.models.loading import load_config

    dtype = "bfloat16" if torch.cuda.is_available() else "float32"  # as in this process
    length = min(context_length(load_config(model)), LONGEST)
    log = LOGS / f"{re.sub('[^A-Za-z0-9_.-]+', '_', model).strip('_.')}.log"
    server = VLLMServer(ServerOptions(model, dtype, length, served_name=model), log)
    say(f"starting vLLM with {model}, in {dtype}, for {length:,} tokens; its log: {log}", error=True)
    return server.start()
