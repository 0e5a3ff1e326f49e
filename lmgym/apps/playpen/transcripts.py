"""`clem transcribe`: recorded episodes as pages to read, transcript.html beside each interactions.json."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from lmgym.apps.games.dialogue.records import GAME_MASTER
from lmgym.apps.playpen.registries.games import GameRegistry
from lmgym.apps.playpen.rescoring import episodes_by_game
from lmgym.console import say
from lmgym.errors import one_line, shown_path
from lmgym.runs.files import write_text

TRANSCRIPT = "transcript.html"
STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}div{margin:.6rem 0;"
    "padding:.5rem .8rem;border-radius:.5rem;background:#eee;white-space:pre-wrap}b{display:block;font-size:.8rem}"
    ".said{margin-left:8rem;background:#dbeafe}.noted{margin:.6rem 4rem;background:#fef3c7}hr{border:0;border-top:"
    "1px solid #ddd}"
)


def transcribe(results: str, registry: GameRegistry, selectors: Sequence[str]) -> None:
    """Writes a page for each episode below a folder. Raises InputError if there are none."""
    for name, episodes in sorted(episodes_by_game(results, registry, selectors).items()):
        failures = 0
        for episode in episodes:
            try:
                write_text(episode.folder / TRANSCRIPT, page_of(episode.records.interactions or {}))
            except (KeyError, TypeError, AttributeError) as error:
                failures += 1
                why = one_line(f"{type(error).__name__}: {error}", 100)
                say(f"{shown_path(episode.folder)} is left out: {why}; needed: whole interactions", error=True)
        say(f"{name}: {len(episodes) - failures} files {TRANSCRIPT}")


def page_of(interactions: Mapping[str, Any]) -> str:
    """The page of an episode's interactions. All text is escaped."""
    meta, players = interactions["meta"], interactions["players"]
    title = f"{meta['game_name']}, {meta['experiment_name']}, instance {meta['game_id']}"
    parts = [f"<!doctype html><meta charset=utf-8><title>{escape(title)}</title><style>{STYLE}</style>"]
    parts.append(f"<h1>{escape(title)}</h1><ul>")
    for name, player in players.items():
        parts.append(f"<li>{escape(', '.join(str(one) for one in (name, *_role(player)) if one))}</li>")
    parts.append("</ul>")
    for turn in interactions["turns"]:
        parts.append("<hr>")
        parts.extend(_event(event) for event in turn)
    return "\n".join(parts) + "\n"


def _role(player: Mapping[str, Any]) -> tuple[Any, Any]:
    return player.get("game_role"), player.get("model_name")


def _event(event: Mapping[str, Any]) -> str:
    """A message, or a decision of the game."""
    sender, receiver, action = event["from"], event["to"], event["action"]
    kind = "said" if sender != GAME_MASTER else "noted" if receiver == GAME_MASTER else "told"
    head = f"{action['type']}" if kind == "noted" else f"{sender} to {receiver}"
    return f"<div class={kind}><b>{escape(head)}</b>{escape(str(action['content']))}</div>"
