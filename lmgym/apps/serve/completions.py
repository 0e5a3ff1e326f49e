"""Requests of chat completions in OpenAI's form, and best-of-N that answers them."""

import secrets
import time
import uuid
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ConfigDict

from lmgym.apps.chat.exchanges import Candidate, generate_candidates
from lmgym.apps.serve.chat_models import ChatModels
from lmgym.config import Range
from lmgym.data.json_rows import refuse_unusable_value
from lmgym.data.rows import read_conversation
from lmgym.errors import MOST_SCORE, MOST_TOGETHER, InputError, TooLong, did_you_mean, listed, one_line, shown
from lmgym.generation.context_fitting import fit
from lmgym.generation.protocol import Generator, Sampling
from lmgym.scoring.ranking import NOBODY, ranks, score_replies, selecting_scores
from lmgym.text import REASONING, Conversation, messages, render_all, tokenize_texts

MOST_STOPS = 64
UNSUPPORTED = {
    "tools": "no tools: replies are text",
    "functions": "no functions: replies are text",
    "response_format": "text, whose format the prompt asks for",
    "logprobs": "none: log-probabilities are not sent",
    "top_logprobs": "none: log-probabilities are not sent",
    "logit_bias": "none",
    "presence_penalty": "0; repetition_penalty is supported",
    "frequency_penalty": "0; repetition_penalty is supported",
    "audio": "text alone",
}
"""fields that change the replies and cannot be followed: what is needed instead"""
NEUTRAL: tuple[Any, ...] = (None, False, 0, [], {}, "", {"type": "text"})
"""values of those that ask for nothing"""


class BestOf(BaseModel):
    """The field `lmgym` of a request: how the reply is chosen."""

    model_config = ConfigDict(extra="forbid")

    best_of: int | None = None
    """candidates to generate and score"""
    select: str | None = None
    """the scorer that selects"""
    blend: dict[str, float] | None = None
    """or weights of scorers, of their standardised scores"""


class StreamOptions(BaseModel):
    """Options of the end of a stream."""

    include_usage: bool | None = None


class ChatCompletion(BaseModel):
    """A request. Other fields are ignored, or refused if they would change the replies: see UNSUPPORTED."""

    model_config = ConfigDict(extra="allow")

    messages: list[dict[str, Any]]
    model: str | None = None
    n: int | None = None
    """candidates to return, best first"""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    """its newer name, which counts if both are given"""
    stop: str | list[str] | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    lmgym: BestOf | None = None


@dataclass(frozen=True)
class Asked:
    """A request that was read and checked."""

    policy: str
    conversation: Conversation
    n: int
    best_of: int
    sampling: Sampling
    weights: dict[str, float]
    ignored: list[str]
    """fields that were not read"""


def read_completion(body: ChatCompletion, models: ChatModels) -> Asked:
    """The request with the server's defaults. Raises InputError or RowError for what cannot be answered."""
    policy = models.find(body.model)
    extra = body.model_extra or {}
    for name, needed in UNSUPPORTED.items():
        if extra.get(name) not in NEUTRAL:
            raise InputError(f"{name} is not supported; needed: {needed}")
    ignored = sorted(name for name, value in extra.items() if name not in UNSUPPORTED and value is not None)
    conversation = _read_messages(body.messages, models.defaults.persona)
    n, best_of = _read_counts(body, models)
    sampling = _read_sampling(body, models, policy)
    best_of = best_of if sampling.temperature else n  # greedy candidates are equal
    return Asked(policy, conversation, n, best_of, sampling, _weights(body, models), ignored)


def _read_messages(rows: list[dict[str, Any]], persona: str) -> Conversation:
    if not rows:
        raise InputError("messages are empty; needed: at least one message of the user")
    conversation = read_conversation(rows, "messages")
    refuse_unusable_value(messages(conversation), "messages")
    turns = conversation.turns
    if not turns or turns[-1].speaker == "bot":
        found = "the assistant's" if turns else "a system message"
        raise InputError(f"the last message is {found}; needed: one of the user, or a tool's, to reply to")
    if turns[-1].speaker == "user" and not turns[-1].text:
        raise InputError("the last message is empty; needed: text to reply to")
    return conversation if conversation.persona else replace(conversation, persona=persona)


def _read_counts(body: ChatCompletion, models: ChatModels) -> tuple[int, int]:
    """(candidates to return, candidates to generate)."""
    asked, defaults = body.lmgym or BestOf(), models.defaults
    limit = Range(1, defaults.max_best_of, hint="the server's --max_best_of")
    n = 1 if body.n is None else body.n
    limit.check("n", n)
    if asked.best_of is not None:
        limit.check("best_of", asked.best_of)
    best_of = asked.best_of or (defaults.best_of if models.judges else n)
    if n > best_of:
        raise InputError(f"n={n} is above best_of={best_of}; needed: lmgym.best_of of {n} or more, or a smaller n")
    return n, best_of


def _read_sampling(body: ChatCompletion, models: ChatModels, policy: str) -> Sampling:
    length = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    if length is not None:
        Range(1, MOST_TOGETHER).check("max_tokens", length)
    stops = [body.stop] if body.stop and isinstance(body.stop, str) else body.stop
    if stops and len(stops) > MOST_STOPS:
        raise InputError(f"{len(stops):,} stop strings; needed: at most {MOST_STOPS}")
    given: dict[str, Any] = {
        "max_new_tokens": length,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "repetition_penalty": body.repetition_penalty,
        "stop": tuple(stops) if stops else None,
        "ends_at_eos": False if body.ignore_eos else None,
        "seed": secrets.randbits(31) if body.seed is None else body.seed,
    }
    sampling = replace(models.defaults.sampling[policy], **{k: v for k, v in given.items() if v is not None})
    context = getattr(models.policies[policy], "max_length", MOST_TOGETHER)
    if sampling.max_new_tokens >= context:
        found = f"max_tokens={sampling.max_new_tokens:,} is too long for the context of {context:,} tokens"
        raise TooLong(f"{found}; needed: fewer, beside the messages")
    return sampling


def _weights(body: ChatCompletion, models: ChatModels) -> dict[str, float]:
    asked = body.lmgym or BestOf()
    if asked.select is not None and asked.blend is not None:
        raise InputError("lmgym has both select and blend; needed: one of them")
    weights = {asked.select: 1.0} if asked.select is not None else asked.blend or models.defaults.weights
    for name, weight in weights.items():
        if name not in models.judges:
            near, served = did_you_mean(name, models.judges), listed(models.judges)
            raise InputError(f"no scorer {shown(name)} is served; {near}needed: one of {served}")
        Range(-MOST_SCORE, MOST_SCORE).check(f"blend of {name}", weight)
    return dict(weights)


@dataclass(frozen=True)
class Choice:
    """A candidate that is returned."""

    candidate: Candidate
    rank: int | None
    """among all candidates by what selects, 1 is best, equal ones share a rank; None if nothing scored them"""
    selected: bool


@dataclass(frozen=True)
class Answer:
    """Candidates, best first, and how they came about."""

    choices: list[Choice]
    prompt_tokens: int
    generated_tokens: int
    """of all candidates"""
    selected_by: str
    dropped_turns: int
    notes: list[str]


def answer(models: ChatModels, asked: Asked) -> Answer:
    """Generates, scores and ranks; for the thread of the models. Raises TooLong if the last message does not fit."""
    generator = models.policies[asked.policy]
    fitted, dropped, shortened = fit(generator, asked.conversation, asked.sampling)
    if shortened:
        room = f"beside a reply of {asked.sampling.max_new_tokens:,} tokens"
        raise TooLong(
            f"the last message is at least {shortened:,} tokens too long {room}; needed: less, or fewer max_tokens"
        )
    seed = asked.sampling.seed
    assert isinstance(seed, int)
    found, more, notes = generate_candidates(generator, fitted, asked.best_of, asked.sampling, seed, models.progress)
    dropped += more
    if dropped:
        notes = [f"the {dropped:,} oldest turns were left out: the conversation is too long for the model"]
    # the scorers see the whole conversation, as in `lmgym chat` and `lmgym score`
    table = score_replies(models.judges, asked.conversation, [one.text for one in found])
    notes += [one_line(f"{name} failed: {why}") for name, why in table.failed.items()]
    column, selected_by = selecting_scores(table.scores, asked.weights)
    if asked.weights and selected_by == NOBODY:
        raise RuntimeError(notes[-1])
    places = sorted(range(len(found)), key=lambda i: -(column[i] or 0.0)) if column else list(range(len(found)))
    ranked = ranks(column) if column else [None] * len(found)
    scored = [replace(one, scores={name: of[i] for name, of in table.scores.items()}) for i, one in enumerate(found)]
    choices = [Choice(scored[i], ranked[i], i == places[0]) for i in places[: asked.n]]
    read = _count_tokens(generator, fitted)
    models.metrics.add("lmgym_generated_tokens_total", sum(one.tokens for one in found), policy=asked.policy)
    return Answer(choices, read, sum(one.tokens for one in found), selected_by, dropped, notes)


def _count_tokens(generator: Generator, conversation: Conversation) -> int:
    """Tokens of the prompt; 0 for a generator that has none."""
    tokenizer = getattr(generator, "tokenizer", None)
    return 0 if tokenizer is None else len(tokenize_texts(tokenizer, render_all(tokenizer, [conversation]))[0])


class Writer:
    """Writes an answer as OpenAI's server does, whole or in chunks of a stream."""

    def __init__(self, models: ChatModels, asked: Asked) -> None:
        self.models, self.asked = models, asked
        self.head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": asked.policy}

    def whole(self, found: Answer) -> dict[str, Any]:
        """The object of an answer."""
        choices = [
            {
                "index": i,
                "message": {"role": "assistant", "content": one.candidate.text, "refusal": None} | _thought(one),
                "logprobs": None,
                "finish_reason": _finish(one),
                "lmgym": _opinion(one),
            }
            for i, one in enumerate(found.choices)
        ]
        about = {"usage": _usage(found), "lmgym": self._about(found)}
        return self.head | {"object": "chat.completion", "choices": choices} | about

    def chunks(self, found: Answer, with_usage: bool) -> list[dict[str, Any]]:
        """The objects of a stream: of each choice its role, its text and its end; then the usage, if asked for."""
        rows = list[dict[str, Any]]()
        for i, one in enumerate(found.choices):
            text = one.candidate.text
            for delta, finish, more in (
                ({"role": "assistant", "content": ""}, None, {}),
                *(((thought, None, {}),) if (thought := _thought(one)) else ()),
                ({"content": text}, None, {}),
                ({}, _finish(one), {"lmgym": _opinion(one)}),
            ):
                choice = {"index": i, "delta": delta, "logprobs": None, "finish_reason": finish} | more
                rows.append(self.head | {"object": "chat.completion.chunk", "choices": [choice]})
        rows[-1]["lmgym"] = self._about(found)
        if with_usage:
            rows = [row | {"usage": None} for row in rows]
            rows.append(self.head | {"object": "chat.completion.chunk", "choices": [], "usage": _usage(found)})
        return rows

    def _about(self, found: Answer) -> dict[str, Any]:
        """The identity of the models, and what a client cannot see in the choices."""
        asked = self.asked
        about: dict[str, Any] = {
            "best_of": asked.best_of,
            "selected_by": found.selected_by,
            "seed": asked.sampling.seed,
            "generated_tokens": found.generated_tokens,
            "dropped_turns": found.dropped_turns,
            "notes": found.notes,
            "ignored": asked.ignored,
        }
        return about | {"models": self.models.revisions(asked.policy)}


def _finish(one: Choice) -> str:
    return "length" if one.candidate.finish_reason == "length" else "stop"


def _thought(one: Choice) -> dict[str, str]:
    """What the model wrote to itself, under the name that vLLM gives it."""
    return {REASONING[0]: one.candidate.thought} if one.candidate.thought else {}


def _opinion(one: Choice) -> dict[str, Any]:
    return {"rewards": one.candidate.scores, "rank": one.rank, "selected": one.selected}


def _usage(found: Answer) -> dict[str, int]:
    """Tokens of the prompt and of the choices that are returned."""
    written = sum(one.candidate.tokens for one in found.choices)
    total = found.prompt_tokens + written
    return {"prompt_tokens": found.prompt_tokens, "completion_tokens": written, "total_tokens": total}
