"""Reads the answers of servers with OpenAI's HTTP interface: texts, thoughts, what was withheld, likely tokens."""

from collections.abc import Callable, Mapping
from typing import Any

from lmgym.errors import one_line
from lmgym.generation.model_server import Counted, Refusal, encodable
from lmgym.generation.protocol import Completion, FinishReason, LikelyTokens, Sampling
from lmgym.text import REASONING

Warn = Callable[[str, str], None]
"""says a fault of the server, by its kind, each kind once"""
CALLS = "tool_calls"
FILTER = "content_filter"


def read_replies(api: str, sampling: Sampling, warn: Warn, answer: Any) -> Counted:
    """The replies in an answer, at least one. Raises an error if it does not follow the interface."""
    choices = answer["choices"]
    if not choices:
        raise TypeError("no choice")
    usage = answer.get("usage") or {}
    read, written = (int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens"))
    tokens = written if len(choices) == 1 else 0
    replies = [_completion(choice, api == "chat", sampling, tokens) for choice in choices]
    if api == "chat" and any(choice["message"].get(CALLS) for choice in choices):
        warn("calls", f"returned {CALLS} beside the text, which lacks that part; needed: a server without this parser")
    if any(one.finish_reason == "length" and not one.text for one in replies):
        warn(
            "thoughts",
            f"gave a reply that ended at {sampling.max_new_tokens:,} tokens, within its thoughts; needed: more tokens",
        )
    return replies, read, written


def withheld(refusal: Refusal) -> str:
    """The words of a content filter that refuses a request, as Azure's does; empty of any other refusal."""
    named = FILTER in (refusal.error.get("code"), refusal.error.get("type"))
    return one_line(f"{FILTER}: {refusal.error.get('message') or refusal.text}", 200) if named else ""


def _completion(choice: Mapping[str, Any], chat: bool, sampling: Sampling, tokens: int) -> Completion:
    """The reply up to its first stop string. Servers report "stop" for an eos too; vLLM's `stop_reason` differs."""
    message = choice["message"] if chat else {"content": choice["text"]}
    thought = next((found for name in REASONING if isinstance(found := message.get(name), str) and found), "")
    finish, why = choice.get("finish_reason"), ""
    if finish == FILTER:
        why = f"finish_reason {FILTER}"
    elif isinstance(refusal := message.get("refusal"), str) and refusal:
        why = one_line(refusal, 200)
    text = message["content"]
    if text is None and (why or (thought and finish == "length")):
        text = ""
    if not isinstance(text, str):
        raise TypeError("a choice without text")
    text = "" if why else text
    end, stop = sampling.find_stop(text), choice.get("stop_reason", "unknown")
    reason: FinishReason = "length" if finish == "length" else "eos"
    if end is not None or (sampling.stop and finish == "stop" and isinstance(stop, str)):
        reason = "stop"
    likely, logprobs = _read_likely(choice.get("logprobs")), _read_logprobs(choice.get("logprobs"))
    ids = tuple(int(i) for i in choice.get("token_ids") or ())
    tokens = len(ids) or len(logprobs) or tokens
    return Completion(
        encodable(text[:end]),
        reason,
        ids,
        logprobs,
        tokens,
        likely=likely,
        reasoning=encodable(thought),
        withheld=encodable(why),
    )


def _read_likely(logprobs: Any) -> tuple[LikelyTokens, ...]:
    """The likeliest tokens by place, of either interface; none of a server that does not give them."""
    if not isinstance(logprobs, dict):
        return ()
    if "content" in logprobs:
        places = [
            (place["token"], {top["token"]: float(top["logprob"]) for top in place["top_logprobs"]})
            for place in logprobs["content"] or ()
        ]
    else:
        places = list(zip(logprobs.get("tokens") or (), logprobs.get("top_logprobs") or (), strict=False))
    return tuple(LikelyTokens(token, {text: float(p) for text, p in top.items()}) for token, top in places)


def _read_logprobs(logprobs: Any) -> tuple[float, ...]:
    """The log-probability of each token, of either interface; none of a server that does not give all of them."""
    if not isinstance(logprobs, dict):
        return ()
    places = logprobs.get("content")
    found = logprobs.get("token_logprobs") if places is None else [place.get("logprob") for place in places]
    return tuple(map(float, found)) if found and None not in found else ()
