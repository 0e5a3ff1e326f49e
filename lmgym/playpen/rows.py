"""Records of episodes as rows to learn from: one a player's view, with `messages` and `meta`.

The game master and programmed players have no row, nor a player who never spoke. Neighbouring messages of one role are
one message, separated by a blank line, as the player's model saw them.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmgym.console import say
from lmgym.errors import InputError, one_line, shown_path
from lmgym.playpen.episodes import SCORES
from lmgym.runs.files import read_json

GAME_MASTER, PROGRAMMED = "GM", ("programmatic", "mock")
SUCCESS, FAILURE, ABORTED = "success", "failure", "aborted"


def read_rows(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of all interactions.json below a folder; those that cannot be read are reported and left out.

    Raises InputError if there is none.
    """
    paths = sorted(folder.rglob("interactions.json"))
    if not paths:
        raise InputError(
            f"there is no interactions.json in {shown_path(folder)}; needed: a folder of clembench's results"
        )
    for path in paths:
        try:
            found = rows_of(read_json(path), _outcome(path.with_name(SCORES)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            reason = one_line(f"{type(error).__name__}: {error}", 120)
            say(f"{shown_path(path)} is left out: {reason}; needed: whole interactions", error=True)
            continue
        yield from found


def rows_of(interactions: Mapping[str, Any], outcome: str | None) -> list[dict[str, Any]]:
    """The rows of an episode. Raises KeyError and the like for interactions in another form."""
    rows, meta = [], interactions["meta"]
    for name, player in interactions["players"].items():
        if name == GAME_MASTER or player["model_name"] in PROGRAMMED:
            continue
        messages = _messages(interactions["turns"], name)
        if any(message["role"] == "assistant" for message in messages):
            found = {
                "game": meta["game_name"], "experiment": meta["experiment_name"], "task_id": meta["game_id"],
                "game_id": meta["game_id"], "player_name": name, "game_role": player["game_role"],
                "model": player["model_name"], "outcome": outcome,
            }  # fmt: skip
            rows.append({"messages": messages, "meta": found})
    return rows


def _messages(turns: Sequence[Sequence[Mapping[str, Any]]], player: str) -> list[dict[str, str]]:
    """What the player read and said, up to its last reply."""
    messages: list[dict[str, str]] = []
    for event in (event for turn in turns for event in turn):
        if player not in (event["to"], event["from"]) or event["to"] == event["from"]:
            continue
        role, text = "assistant" if event["from"] == player else "user", str(event["action"]["content"])
        if messages and messages[-1]["role"] == role:
            messages[-1]["content"] += f"\n\n{text}"
        else:
            messages.append({"role": role, "content": text})
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    return messages


def _outcome(path: Path) -> str | None:
    """Of scores.json; None if it is not there, or says nothing."""
    try:
        scores = read_json(path)["episode scores"]
        names = {ABORTED: "Aborted", SUCCESS: "Success", FAILURE: "Lose"}
        return next((outcome for outcome, name in names.items() if scores.get(name) == 1), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def matching(rows: Iterator[dict[str, Any]], **wanted: Any) -> Iterator[dict[str, Any]]:
    """The rows whose meta has these values, each one value or several; None accepts all."""
    for row in rows:
        meta = row.get("meta") or {}
        if all(
            v is None or meta.get(n) in (v if isinstance(v, list | tuple | set) else (v,)) for n, v in wanted.items()
        ):
            yield row
