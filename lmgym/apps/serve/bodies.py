"""The bodies of requests in each dialect, and the replies to score that they hold."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from lmgym.apps.serve.rendered import read_rendered
from lmgym.apps.serve.served_scorers import Sample
from lmgym.data.json_rows import refuse_unusable_value
from lmgym.data.rejections import RowError
from lmgym.data.rows import read_conversation
from lmgym.data.text_forms import RENDERED
from lmgym.errors import InputError, shown
from lmgym.text import Conversation, as_reply, reply_text

Template = Literal["reparse", "raw"]
"""of a rendered text: read back into messages, or given to the scorer as it is"""


CHAT = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hi, how are you?"}]
TEXT = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\nHi, how are you?<|im_end|>\n"


def _example(**fields: Any) -> ConfigDict:
    """Settings of a body that show an example in the OpenAPI description."""
    return ConfigDict(protected_namespaces=(), json_schema_extra={"examples": [fields]})


class GetReward(BaseModel):
    """OpenRLHF's: texts in the policy's template, with the prompts of each."""

    model_config = _example(query=[TEXT], prompts=["Hello!"], labels=[None])

    query: list[str] | str
    prompts: list[str | None] | str | None = None
    labels: Any = None
    """not read: a scorer needs none"""
    model: str | None = None
    template: Template | None = None


class Classify(BaseModel):
    """vLLM's and SGLang's: texts that are rendered, or messages that end in a reply."""

    model_config = _example(input=[TEXT])

    model: str | None = None
    input: list[str] | str | None = None
    messages: list[dict[str, Any]] | None = None
    use_activation: bool | None = None
    activation: bool | None = None
    """its name before vLLM 0.11.2"""
    template: Template | None = None


class Embeddings(BaseModel):
    """OpenAI's embeddings, whose last number is the score, as SGLang gives verl a reward."""

    model_config = _example(input=[TEXT])

    model: str | None = None
    input: list[str] | str
    encoding_format: Literal["float", "base64"] = "float"
    template: Template | None = None


class Pair(BaseModel):
    """Two replies to a prompt."""

    model_config = ConfigDict(extra="forbid")

    prompt: str | list[dict[str, Any]]
    a: str
    b: str


class Score(BaseModel):
    """lmgym's own: conversations that end in a reply, and pairs of replies."""

    model_config = _example(
        conversations=[CHAT], pairs=[{"prompt": "Hello!", "a": "Hi!", "b": "Go away."}]
    ) | ConfigDict(extra="forbid")

    conversations: list[Any] = []
    """each messages, {"messages": [...]}, {"prompt": ..., "reply": ...}, or a rendered text"""
    pairs: list[Pair] = []
    scorers: list[str] | None = None
    """names; all of the server's if it is left out"""
    group_size: int | None = Field(None, ge=2, le=1024)
    """replies to a prompt that a judge compares: those that other requests of the run send are waited for"""
    template: Template | None = None


@dataclass(frozen=True)
class Read:
    """Replies to score, and how their texts were read."""

    samples: list[Sample]
    template: str
    """messages, prompt (a text without marks behind its prompt), reparse or raw; several are joined by +"""


def read_texts(texts: Sequence[str] | str, template: Template, prompts: Sequence[str | None] = ()) -> Read:
    """The replies of rendered texts. Raises InputError for one without a reply."""
    texts = [texts] if isinstance(texts, str) else texts
    given = list(prompts) if len(prompts) == len(texts) else [None] * len(texts)
    found = []
    for number, (text, prompt) in enumerate(zip(texts, given, strict=True)):
        try:
            found.append(_read_text(text, template, prompt))
        except InputError as error:
            raise InputError(f"text {number}: {error}") from None
    return _joined(found)


def read_messages(messages: Any) -> Read:
    """The reply that ends a chat."""
    return _joined([_split(messages)])


def read_score(body: Score, template: Template) -> Read:
    """The replies of conversations, and behind them the two of each pair."""
    found = []
    try:
        for where, conversation in enumerate(body.conversations):
            place = f"conversations[{where}]"
            found.append(_read_any(conversation, template))
        for where, pair in enumerate(body.pairs):
            place = f"pairs[{where}]"
            found += [_read_any({"prompt": pair.prompt, "reply": reply}, template) for reply in (pair.a, pair.b)]
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    except RowError as error:
        raise InputError(f"{place}, {error.field}: {error.found}") from None
    return _joined(found)


def _joined(found: Sequence[tuple[Sample, str]]) -> Read:
    for sample, _ in found:
        refuse_unusable_value(words_in(sample), "text")
    return Read([sample for sample, _ in found], "+".join(dict.fromkeys(template for _, template in found)))


def words_in(sample: Sample) -> list[str]:
    """Every text of a sample."""
    turns = [text for turn in sample.conversation.turns for text in (turn.text, turn.extra)]
    reply = [sample.reply] if isinstance(sample.reply, str) else [sample.reply.text, sample.reply.extra]
    return [sample.text or "", sample.conversation.persona, sample.conversation.tools, *turns, *reply]


def _read_text(text: str, template: Template, prompt: str | None = None) -> tuple[Sample, str]:
    if not text.strip():
        raise InputError("it is empty; needed: a rendered chat that ends in a reply")
    if template == "raw":
        return Sample(Conversation(()), "", text), "raw"
    conversation, reply = read_rendered(text, prompt)
    is_plain = prompt is not None and conversation.turns[0].text == prompt.strip()
    return Sample(conversation, reply), "prompt" if is_plain else "reparse"


def _read_any(value: Any, template: Template) -> tuple[Sample, str]:
    if isinstance(value, str):
        return _read_text(value, template)
    if isinstance(value, list):
        return _split(value)
    if isinstance(value, dict) and value.keys() <= {"messages", "tools"} and "messages" in value:
        return _split(value["messages"], value.get("tools"))
    if isinstance(value, dict) and value.keys() <= {"prompt", "reply", "tools"} and {"prompt", "reply"} <= value.keys():
        prompt, reply = value["prompt"], value["reply"]
        if not isinstance(reply, str):
            raise InputError(f"the reply is {shown(reply)}; needed: text")
        if isinstance(prompt, str) and RENDERED.match(prompt):
            return _read_text(prompt + reply, template)
        asked = read_conversation(prompt, "prompt", value.get("tools"))
        if not any(turn.text for turn in asked.turns):
            raise InputError("the prompt is empty; needed: a turn of the user")
        return Sample(asked, reply_text(reply), sent=reply), "messages"
    raise InputError(
        f"found {shown(value)}; needed: messages, an object with messages or with prompt and reply (and perhaps "
        "tools), or a rendered text"
    )


def _split(messages: Any, tools: Any = None) -> tuple[Sample, str]:
    """The last turn, which must be the bot's, as the reply to the turns before it."""
    chat = read_conversation(messages, "messages", tools)
    turns = chat.turns
    if len(turns) < 2 or turns[-1].speaker != "bot":
        found = "no message" if not turns else f"{len(turns):,} turns, the last of the {turns[-1].speaker}"
        raise InputError(f"found {found}; needed: a message of the user and behind it the assistant's to score")
    last = messages[-1] if isinstance(messages, list) else {}
    content = last.get("content", last.get("value"))
    sent = replace(turns[-1], text=content) if isinstance(content, str) else turns[-1]
    return Sample(replace(chat, turns=turns[:-1]), as_reply(turns[-1]), sent=as_reply(sent)), "messages"
