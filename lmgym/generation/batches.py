"""Replies from the batch interfaces of OpenAI and Anthropic: cheaper, within a day, and waited for across restarts.

The id of a batch that was sent is kept before it is waited for, so that the same questions are never sent twice: the
next process waits for the same batch. Sources of the fields: https://platform.openai.com/docs/api-reference/batch and
https://docs.anthropic.com/en/api/creating-message-batches.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from lmgym.console import say
from lmgym.errors import InputError, ServerError, one_line, shown_path
from lmgym.generation.model_server import Ask, Counted, Needed
from lmgym.generation.protocol import Completion
from lmgym.runs.files import read_json, write_json

FIRST_LOOK, LONGEST_LOOK = 2.0, 60.0  # seconds between looks at a batch, which double
SAY_SECONDS = 300.0
ENDED = ("completed", "expired", "cancelled", "failed", "ended")
Contents = Mapping[str, Mapping[str, Any]]
"""bodies of requests by their names, each a digest of its body"""
Reply = Callable[[Any], Completion]
"""a reply from the answer to one request"""


class Batches(Protocol):
    """A batch interface; all methods are coroutines on a client of its package."""

    async def submit(self, client: Any, ask: Ask, contents: Contents) -> str:
        """The id of a new batch."""
        ...

    async def look(self, client: Any, ask: Ask, batch: str) -> Mapping[str, Any]:
        """The batch as it stands: `status`, and what its results need."""
        ...

    async def results(self, client: Any, ask: Ask, found: Mapping[str, Any]) -> dict[str, Any]:
        """The answers by name; a request that failed is missing."""
        ...


class OpenAIBatches:
    """Of OpenAI: a file of requests, a batch, a file of answers."""

    def __init__(self, needed: Needed) -> None:
        self.needed = needed

    async def submit(self, client: Any, ask: Ask, contents: Contents) -> str:
        """Uploads the requests and starts their batch."""
        endpoint = "/v1/chat/completions"
        rows = [
            json.dumps({"custom_id": name, "method": "POST", "url": endpoint, "body": body})
            for name, body in contents.items()
        ]
        file = ("questions.jsonl", "\n".join(rows).encode())
        [sent] = await ask(
            partial(client.files.with_raw_response.create, file=file, purpose="batch"), _one, self.needed
        )
        create = partial(
            client.batches.with_raw_response.create,
            input_file_id=sent["id"],
            endpoint=endpoint,
            completion_window="24h",
        )
        [batch] = await ask(create, _one, self.needed)
        return str(batch["id"])

    async def look(self, client: Any, ask: Ask, batch: str) -> Mapping[str, Any]:
        """The batch."""
        [found] = await ask(partial(client.batches.with_raw_response.retrieve, batch), _one, self.needed)
        return found

    async def results(self, client: Any, ask: Ask, found: Mapping[str, Any]) -> dict[str, Any]:
        """The lines of its file of answers with status 200."""
        if not found.get("output_file_id"):
            return {}
        content = partial(client.files.with_raw_response.content, found["output_file_id"])
        rows = await ask(content, _lines, self.needed)
        return {
            r["custom_id"]: r["response"]["body"] for r in rows if (r.get("response") or {}).get("status_code") == 200
        }


class AnthropicBatches:
    """Of Anthropic: one request with all questions, and a list of results."""

    def __init__(self, needed: Needed) -> None:
        self.needed = needed

    async def submit(self, client: Any, ask: Ask, contents: Contents) -> str:
        """Starts the batch. The client's own parameters stay out of the bodies."""
        rows = [
            {
                "custom_id": name,
                "params": {k: v for k, v in body.items() if not k.startswith("extra_")} | body["extra_body"],
            }
            for name, body in contents.items()
        ]
        create = partial(client.messages.batches.with_raw_response.create, requests=rows)
        [batch] = await ask(create, _one, self.needed)
        return str(batch["id"])

    async def look(self, client: Any, ask: Ask, batch: str) -> Mapping[str, Any]:
        """The batch."""
        [found] = await ask(partial(client.messages.batches.with_raw_response.retrieve, batch), _one, self.needed)
        return {"status": found["processing_status"], "id": found["id"]}

    async def results(self, client: Any, ask: Ask, found: Mapping[str, Any]) -> dict[str, Any]:
        """The messages of requests that succeeded."""
        # by its id, and not at the address that the answer names, which would get the key
        path = f"/v1/messages/batches/{found['id']}/results"
        options = {"headers": {"X-Stainless-Raw-Response": "true"}}
        rows = await ask(partial(client.get, path, cast_to=object, options=options), _lines, self.needed)
        return {r["custom_id"]: r["result"]["message"] for r in rows if r["result"]["type"] == "succeeded"}


async def replies_by_batch(
    batches: Batches, client: Any, ask: Ask, contents: Contents, record: Path, server: str
) -> dict[str, Any]:
    """The answers by name, of a batch that is sent, or was sent before with these contents; `record` keeps its id.

    Raises ServerError for a batch that failed as a whole.
    """
    key = hashlib.sha256("\0".join(sorted(contents)).encode()).hexdigest()
    kept = read_json(record) if record.is_file() else {}
    batch = kept.get(key)
    if batch is None:
        batch = await batches.submit(client, ask, contents)
        write_json(record, kept | {key: batch})
        say(f"{server}: {len(contents):,} questions are sent as batch {batch}", error=True)
    else:
        say(f"{server}: batch {batch} has these {len(contents):,} questions already", error=True)
    say(
        f"it may take a day; the same command waits for it again after an interruption ({shown_path(record)})",
        error=True,
    )
    began = said = time.monotonic()
    pause = FIRST_LOOK
    while (found := await batches.look(client, ask, batch))["status"] not in ENDED:
        if time.monotonic() - said >= SAY_SECONDS:
            said = time.monotonic()
            say(f"batch {batch}: {found['status']} for {(said - began) / 60:,.0f} min", error=True)
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_LOOK)
    answers = await batches.results(client, ask, found)
    write_json(record, {k: v for k, v in read_json(record).items() if k != key})
    if not answers:
        why = one_line(json.dumps(found.get("errors") or found["status"]), 200)
        raise ServerError(
            f"{server}: batch {batch} has no answer ({why}); needed: the same command, which sends it again"
        )
    return answers


def names_of(contents: Sequence[Mapping[str, Any]]) -> list[str]:
    """A name for each body: a digest."""
    return [hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:32] for body in contents]


def _one(answer: Any) -> Counted:
    if not isinstance(answer, dict) or not answer.get("id"):
        raise TypeError("an answer without an id")
    return [answer], 0, 0


def _lines(answer: Any) -> Counted:
    return (answer if isinstance(answer, list) else [answer]), 0, 0


def refuse_batches(kind: str) -> None:
    """Raises InputError for a server without a batch interface."""
    if kind not in ("openai", "anthropic"):
        raise InputError(f"--batch with a model of {kind}; needed: openai:MODEL or anthropic:MODEL, which have batches")
