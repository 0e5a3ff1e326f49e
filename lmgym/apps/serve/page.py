"""The page of the chat server: its files, and the requests that it makes.

| path | |
|---|---|
| / | the page; its files are /page/NAME |
| /page/state | this browser's session, begun by a cookie if there is none |
| /page/chat/ACTION, /page/arena/ACTION | a command of the session, answered by the conversation after it |
| /page/sessions, /page/results, /page/export | earlier sessions, the arena's ratings, pairs for training |
"""

import asyncio
import hmac
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from lmgym.apps.chat.session import ChatSession
from lmgym.apps.chat.session_commands import ENOUGH, flags_for, next_commands
from lmgym.apps.serve.chat_models import ChatModels
from lmgym.apps.serve.guard import Refusal
from lmgym.apps.serve.page_arena import results
from lmgym.apps.serve.page_files import HEADERS, add_files
from lmgym.apps.serve.page_sessions import (
    ARENA,
    CHAT,
    MOST_LISTED,
    PageSession,
    PageSessions,
    SavedSessions,
    pairs_of,
    votes_of,
)
from lmgym.apps.serve.page_views import session_view, why_view

LONGEST_TEXT = 40_000
"""characters of a message"""
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Number = Annotated[int, Field(ge=0, le=10**6)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Action(Strict):
    """The arguments of an action; each reads its own."""

    text: Text = ""
    number: Number = 0
    numbers: list[Number] = Field(default=[], max_length=1024)
    turn: Number | None = None
    on: bool = False
    name: str = Field(default="", max_length=300)


class Settings(Strict):
    """The controls that changed."""

    policy: str | None = Field(default=None, max_length=300)
    best_of: Number | None = None
    temperature: float | None = None
    max_new_tokens: Number | None = None
    weights: dict[str, float] | None = Field(default=None, max_length=100)
    persona: Text | None = None
    first_message: Text | None = None


class Export(Strict):
    scope: Literal["session", "all"] = "session"


Work = Callable[[ChatSession, Action, Any], Any]
GENERATE: dict[str, Work] = {
    "say": lambda session, act, progress: session.say(act.text, progress),
    "retry": lambda session, act, progress: session.retry(progress),
    "edit": lambda session, act, progress: session.edit(act.text, act.turn, progress),
    "more": lambda session, act, progress: session.more(act.number, progress),
}
"""actions that need the models"""
DECIDE: dict[str, Work] = {
    "pick": lambda session, act, _: session.pick(act.number),
    "write": lambda session, act, _: session.write(act.text),
    "tie": lambda session, act, _: session.tie(*act.numbers),
    "reject": lambda session, act, _: session.reject(),
    "undo": lambda session, act, _: session.undo(),
    "back": lambda session, act, _: session.back(act.number),
    "blind": lambda session, act, _: session.set_blind(act.on),
}
IN_ARENA = ("say", "pick", "tie", "reject", "back")
"""the rest would show who wrote what, or let a vote be changed with the names in view"""


def add_page(app: FastAPI, models: ChatModels, sessions_folder: str | Path) -> None:
    """Adds the page and its routes to the application."""
    sessions, saved = PageSessions(models, Path(sessions_folder)), SavedSessions(Path(sessions_folder))
    add_files(app, "page.html")
    _add_sessions(app, models, sessions, saved)
    _add_lists(app, models, sessions, saved)


def _add_sessions(app: FastAPI, models: ChatModels, sessions: PageSessions, saved: SavedSessions) -> None:
    @app.post("/page/state", include_in_schema=False)
    async def state(request: Request):
        page, cookie = sessions.find(_cookie(request)), ""
        if page is None:
            cookie, page = sessions.begin()
        answer = JSONResponse(_state(page, models), headers=HEADERS)
        if cookie:
            answer.set_cookie(_cookie_name(request), cookie, httponly=True, samesite="strict", path="/")
        return answer

    @app.post("/page/settings", include_in_schema=False)
    async def settings(body: Settings, request: Request):
        page = _checked(request, sessions)
        return await _use(page, asyncio.to_thread, lambda: page.change(body.model_dump()), lambda _: page.settings())

    @app.post("/page/resume", include_in_schema=False)
    async def resume(body: Action, request: Request):
        page = _checked(request, sessions)
        one = await asyncio.to_thread(saved.find, body.name)
        shown: Callable[[Any], Any] = lambda problems: {**_state(page, models), "problems": problems}  # noqa: E731
        return await _use(page, models.run, lambda: page.resume(one), shown)

    @app.post("/page/{mode}/{action}", include_in_schema=False)
    async def act(mode: Literal["chat", "arena"], action: str, body: Action, request: Request):
        page = _checked(request, sessions)
        session = page.session(mode)
        if action == "why" and mode == CHAT:
            return await _use(page, models.run, lambda: why_view(session, body.number), lambda found: found)
        known = {**GENERATE, **DECIDE}
        if action not in known or (mode == ARENA and action not in IN_ARENA):
            raise Refusal(
                404, f"no action of that name; needed: one of {', '.join(IN_ARENA if mode == ARENA else known)}"
            )
        _check(session, mode, action, body)
        if action == "more":
            page.check_count(body.number)
        run = models.run if action in GENERATE else asyncio.to_thread

        def work() -> Any:
            if mode == ARENA and action == "say":
                page.draw()
            return known[action](session, body, page.noting(models.progress))

        return await _use(page, run, work, lambda _: session_view(session))


def _add_lists(app: FastAPI, models: ChatModels, sessions: PageSessions, saved: SavedSessions) -> None:
    @app.post("/page/progress", include_in_schema=False)
    async def progress(request: Request):
        page = _checked(request, sessions)
        return {"busy": page.busy, "waiting": models.waiting, "progress": page.progress}

    @app.post("/page/sessions", include_in_schema=False)
    async def earlier(request: Request):
        page = _checked(request, sessions)
        own = {page.chat.path.stem, page.arena.path.stem}
        found = await asyncio.to_thread(saved.all)
        return [one.view() | {"current": one.path.stem in own} for one in found[:MOST_LISTED]]

    @app.post("/page/results", include_in_schema=False)
    async def arena_results(request: Request):
        _checked(request, sessions)
        return await asyncio.to_thread(lambda: results(votes_of(saved.all())))

    @app.post("/page/export", include_in_schema=False)
    async def export(body: Export, request: Request):
        page = _checked(request, sessions)
        return await _use(page, asyncio.to_thread, lambda: _export(page, body.scope, saved), lambda found: found)


def _state(page: PageSession, models: ChatModels) -> dict[str, Any]:
    has_arena = len(models.policies) > 1
    return {
        "csrf": page.csrf,
        "policies": list(models.policies),
        "scorers": list(models.judges),
        "max_best_of": models.defaults.max_best_of,
        "settings": page.settings(),
        CHAT: session_view(page.chat),
        ARENA: session_view(page.arena) if has_arena else None,
        "busy": page.busy,
    }


def _export(page: PageSession, scope: str, saved: SavedSessions) -> dict[str, Any]:
    """The pairs as JSONL, and the commands that train on them. Raises Refusal if there are none."""
    own = [(s.conversation_id, s.exchanges) for s in (page.chat, page.arena)]
    earlier = [(one.content.conversation_id or one.path.stem, one.content.exchanges) for one in reversed(saved.all())]
    rows = pairs_of(own if scope == "session" else earlier)
    if not rows:
        raise Refusal(409, "nothing to export yet: prefer a reply or write your own; ties and rejections make no pairs")
    decisions = len({(row["group"], row["turn"]) for row in rows})
    name = f"pairs_{page.chat.conversation_id}.jsonl" if scope == "session" else "pairs_all.jsonl"
    known = page.models.revisions(page.policy)["generator"]
    model = [] if "server" in known or "model" not in known else ["--model", known["model"]]
    dpo = [
        "lmgym",
        "train",
        "dpo",
        name,
        *model,
        "--lora_rank",
        "16",
        "--merge_adapter",
        "--learning_rate",
        "1e-5",
        *flags_for(len(rows)),
    ]
    return {
        "name": name,
        "pairs": len(rows),
        "decisions": decisions,
        "enough": ENOUGH,
        "jsonl": "".join(f"{json.dumps(row)}\n" for row in rows),
        "commands": [next_commands(page.chat, name, len(rows))[0], shlex.join([*dpo, "--output", "outputs/dpo"])],
    }


def _check(session: ChatSession, mode: str, action: str, body: Action) -> None:
    """Raises Refusal where the terminal's words would name its commands."""
    is_open = session.head is not None and session.last.is_open
    if action in ("say", "edit", "write") and not body.text.strip():
        raise Refusal(409, "the text is empty; write something first")
    if action != "say" and action not in ("blind", "back") and session.head is None:
        raise Refusal(409, "there is no message yet; write one first")
    if action == "say" and is_open:
        raise Refusal(409, "decide about these replies first: choose the better one, a tie, or none")
    if mode == ARENA and action in ("pick", "tie", "reject") and not is_open:
        raise Refusal(409, "you have voted on this message; write the next one")


async def _use(page: PageSession, run: Callable[..., Any], work: Callable[[], Any], view: Callable[[Any], Any]) -> Any:
    """The view of what the work returns; one request of a browser at a time uses its session."""
    if page.busy:
        raise Refusal(409, "your last request is not done yet; wait for it", 1)

    def locked() -> Any:
        with page.lock:  # work whose time was up may still run
            try:
                return view(work())
            finally:
                page.progress = None

    page.busy = True
    try:
        return JSONResponse(await run(locked), headers=HEADERS)
    finally:
        page.busy = False


def _checked(request: Request, sessions: PageSessions) -> PageSession:
    """The browser's session. Raises Refusal without one, and for a request that its page did not make."""
    page = sessions.find(_cookie(request))
    if page is None:
        raise Refusal(403, "this page's session has ended; reload the page")
    if not hmac.compare_digest(request.headers.get("x-csrf-token", "").encode(), page.csrf.encode()):
        raise Refusal(403, "the request does not come from this page; reload the page")
    return page


def _cookie_name(request: Request) -> str:
    """Of this server: cookies of one machine are shared by all its ports."""
    return f"lmgym_page_{request.url.port or 80}"


def _cookie(request: Request) -> str:
    return request.cookies.get(_cookie_name(request), "")
