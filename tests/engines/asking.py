"""Requests to a vLLM server as any program sends them, without lmgym's client."""

import json
import urllib.request
from pathlib import Path
from typing import Any

from lmgym.generation.local_generation import load_causal
from lmgym.generation.protocol import Sampling
from lmgym.text import Conversation, Turn, messages, render_all, tokenize_texts

CHATS = tuple(
    Conversation(tuple(Turn(("user", "bot")[i % 2], text) for i, text in enumerate(texts)), persona)
    for persona, *texts in (
        ("", "How do I start saving money?"),
        ("You are a terse assistant.", "Hello", "Hi. How can I help?", "What should I cook\ntoday?"),
        ("", "Wie geht es dir? ñ 你好 🎈"),
    )
)
NEW_TOKENS, TOLERANCE = 16, 1e-4


def ask(url: str, path: str, **fields: Any) -> Any:
    """The answer of a server, as JSON where it is that."""
    request = urllib.request.Request(url + path, json.dumps(fields).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as response:
        text = response.read().decode()
    return json.loads(text) if text.startswith("{") else text


def check_served_as_ours(url: str, folder: Path, name: str = "model") -> list[tuple[int, ...]]:
    """Asserts that a server renders chats as we do, and gives the greedy ids and log-probabilities of our engine."""
    ours = load_causal(str(folder))
    prompts = tokenize_texts(ours.tokenizer, render_all(ours.tokenizer, CHATS))
    expected = [replies[0] for replies in ours.generate(prompts, 1, Sampling(NEW_TOKENS, temperature=0))]
    settings = {"model": name, "max_tokens": NEW_TOKENS, "temperature": 0, "return_token_ids": True}
    for chat, prompt, reply in zip(CHATS, prompts, expected, strict=True):
        [choice] = ask(url, "/v1/completions", prompt=prompt, logprobs=0, **settings)["choices"]
        assert tuple(choice["token_ids"]) == reply.ids
        gaps = [abs(a - b) for a, b in zip(choice["logprobs"]["token_logprobs"], reply.logprobs, strict=True)]
        assert max(gaps) < TOLERANCE, gaps
        answer = ask(url, "/v1/chat/completions", messages=messages(chat), **settings)
        [choice] = answer["choices"]
        assert answer["prompt_token_ids"] == prompt
        assert tuple(choice["token_ids"]) == reply.ids
        assert choice["finish_reason"] == ("length" if reply.finish_reason == "length" else "stop")
        if "\ufffd" not in reply.text:  # bytes that are no text, of which vLLM leaves out those at the end
            assert choice["message"]["content"].strip() == reply.text.strip()
    return [reply.ids for reply in expected]


def processes_of(name: str) -> dict[int, str]:
    """Pid and name of the processes whose LMGYM_TEST has this value."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"LMGYM_TEST={name}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "comm").read_text().strip()
        except OSError:
            continue
    return found
