"""Replies to read: to the same prompts before and after training, and whole episodes turn by turn."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from lmgym.console import clean
from lmgym.report.charts import histogram
from lmgym.report.panels import Panel, figure
from lmgym.report.run_files import Row, RunFiles, is_number

MOST_PAIRS, MOST_EPISODES, MOST_UPDATES = 16, 8, 6
MOST_HISTOGRAMS = 4
LONGEST = 3000  # characters of a text


def shown(text: Any) -> str:
    """A text of a model or of data for a page: control and bidi characters are displayed, a long one is cut."""
    text = str(text)
    cut = clean(text[:LONGEST])
    return cut if len(text) <= LONGEST else f"{cut}… ({len(text):,} characters in all)"


def replies(run: RunFiles) -> list[Panel]:
    """Replies before and after training, side by side, with every score."""
    found = _first_and_last(run)
    if not found:
        return []
    first, last = min(found), max(found)
    return [_pairs(found[first], found[last], first, last)]


def _first_and_last(run: RunFiles) -> dict[int, list[Row]]:
    """Rows of the first and of the last evaluation, by update."""
    kind = "evaluation" if run.sample_updates("evaluation") else ""
    updates = run.sample_updates(kind)
    return {update: rows for update in updates[:1] + updates[-1:] if (rows := run.samples(kind, update))}


def _pairs(before: Sequence[Row], after: Sequence[Row], first: int, last: int) -> Panel:
    old = {_key(row): row for row in before}
    rows: list[Row] = []
    for row in [row for row in after if not row.get("turn")][:MOST_PAIRS]:
        then = old.get(_key(row)) if first != last else None
        if isinstance(row.get("replies"), list):
            rows.append({"prompt": prompt_of(row), "given": _given(then, row)})
        else:
            rows.append({"prompt": prompt_of(row), "before": _reply(then), "after": _reply(row)})
    title = "Replies before and after training" if first != last else "Replies to held-out prompts"
    about = f"The same held-out prompts, after {first:,} and after {last:,} updates, with every score."
    return Panel("replies", title, about if first != last else f"After {last:,} updates.", pairs=rows, wide=True)


def prompt_of(row: Row) -> str:
    """The prompt, without the "Bot:" at its end that the reply would follow."""
    return shown(str(row.get("prompt", "")).removesuffix("\nBot:"))


def _key(row: Row) -> tuple[Any, ...]:
    return row.get("row", row.get("task")), row.get("agent"), row.get("turn", 0)


def _reply(row: Row | None) -> Row | None:
    """The text, and (name, figure) of every score."""
    if row is None:
        return None
    scores = [(name, value) for name, value in scores_of(row).items()]
    notes = [f"{row['tokens']} tokens"] if is_number(row.get("tokens")) else []
    if row.get("finish") == "length":
        notes.append("cut at the limit")
    if row.get("error"):
        notes.append(f"failed: {shown(row['error'])}")
    return {"text": shown(row.get("reply", "")).strip(), "scores": scores, "notes": ", ".join(notes)}


def _given(before: Row | None, after: Row) -> list[Row]:
    """Replies of the data, with a reward model's scores before and after."""
    then = before["replies"] if before else [{}] * len(after["replies"])
    return [
        {
            "name": shown(r.get("name")),
            "text": shown(r.get("text")).strip(),
            "before": b.get("score"),
            "after": r.get("score"),
        }
        for b, r in zip(then, after["replies"], strict=False)
    ]


def scores_of(row: Row) -> dict[str, float]:
    """Every score of a sampled reply: its reward, those of the scorers that it is made of, and the monitors'."""
    reward = row.get("reward")
    total: Any = sum(reward) if isinstance(reward, list) and all(map(is_number, reward)) else reward
    found: dict[str, float] = {"reward": total} if is_number(total) else {}
    found |= {name: v for name, v in _numbers(row.get("scores")) if name not in found}
    return found | {name if name not in found else f"{name}, watched": v for name, v in _numbers(row.get("monitors"))}


def _numbers(values: Any) -> Iterable[tuple[str, float]]:
    items = values.items() if isinstance(values, Mapping) else ()
    return [(shown(name), value) for name, value in items if is_number(value)]


def score_distributions(run: RunFiles) -> list[Panel]:
    """A histogram per score over all sampled replies of an evaluation, before and after."""
    found = _first_and_last(run)
    if not found or any(isinstance(row.get("replies"), list) for row in found[max(found)]):
        return []
    panels = []
    scored = {update: [scores_of(row) for row in rows] for update, rows in found.items()}
    names = dict.fromkeys(name for scores in scored[max(scored)] for name in scores)
    for number, name in enumerate(list(names)[:MOST_HISTOGRAMS]):
        samples = {
            f"after {update:,} updates": [scores[name] for scores in rows if name in scores]
            for update, rows in scored.items()
        }
        if any(len(set(values)) > 1 for values in samples.values()):
            about = "Over the replies to all held-out prompts."
            panels.append(Panel(f"scores_{number}", f"Distribution: {name}", about, histogram(samples, name)))
    return panels


def conversations(run: RunFiles) -> list[Panel]:
    """Episodes turn by turn, with each turn's reward and mean advantage, of some iterations and evaluations."""
    kinds = {kind: set(run.sample_updates(kind, "episodes")) for kind in ("rollouts", "evaluation")}
    if any(kinds.values()):
        chosen = _spread(sorted(set().union(*kinds.values())), MOST_UPDATES)
        episodes = [
            _game(kind, game)
            for update in chosen
            for kind, updates in kinds.items()
            if update in updates
            for game in run.games(kind, update, MOST_EPISODES)
        ]
    else:
        chosen = _spread(run.sample_updates("rollouts"), MOST_UPDATES)
        episodes = [episode for update in chosen for episode in _episodes(update, run.samples("rollouts", update))]
    if not episodes:
        return []
    about = "What the policy did, turn by turn. A positive advantage makes a reply more likely, a negative one less."
    return [Panel("conversations", "Episodes", about, episodes=episodes, wide=True)]


def _spread(updates: Sequence[int], most: int) -> list[int]:
    if len(updates) <= most:
        return list(updates)
    return [updates[round(i * (len(updates) - 1) / (most - 1))] for i in range(most)]


def _episodes(update: int, rows: Sequence[Row]) -> list[Row]:
    episodes = []
    for (task, agent), turns in groupby(rows, key=lambda row: (row.get("task"), row.get("agent"))):
        listed = list(turns)
        episodes.append(
            {
                "update": update,
                "name": f"{shown(agent)}, episode {task}" if agent else f"episode {task}",
                "total": listed[-1].get("episode_reward"),
                "turns": [_turn(row) for row in listed],
            }
        )
    return episodes[:MOST_EPISODES]


def _game(kind: str, game: Row) -> Row:
    """A recorded game: the turns of all agents in their order; of those that are not trained only what they said."""
    left = {agent: iter(turns) for agent, turns in game["agents"].items()}
    turns = []
    for said in game["actions"]:
        for agent, reply in said.items():
            own = next(left.get(agent, iter(())), None)
            name = shown(agent) if len({*left, agent}) > 1 else ""
            if own is None:
                turns.append(
                    {"prompt": "", "text": shown(reply).strip(), "scores": [], "notes": f"{name}, not trained"}
                )
            else:
                turn = _turn(own | {"prompt": _seen(own), "tokens": len(own.get("ids", ()))})
                turns.append(turn | {"notes": ", ".join(filter(None, (name, turn["notes"])))})
    returns = game["returns"]
    word = "evaluation, " if kind == "evaluation" else ""
    by_agent = [f"{shown(agent)} {figure(value)}" for agent, value in returns.items()] if len(returns) > 1 else []
    return {
        "update": game.get("update"),
        "name": f"{word}episode {game.get('episode')}" + (f": {', '.join(by_agent)}" if by_agent else ""),
        "total": "" if by_agent else next(iter(returns.values()), None),
        "turns": turns,
    }


def _seen(turn: Row) -> str:
    if "messages" not in turn:
        return str(turn.get("prompt", ""))
    return "\n\n".join(f"{message.get('role')}: {message.get('content')}" for message in turn["messages"])


def _turn(row: Row) -> Row:
    reply = _reply(row)
    assert reply is not None
    advantage = row.get("advantage")
    if is_number(advantage):
        reply["scores"] = [*reply["scores"], ("advantage", advantage)]
    return reply | {"prompt": prompt_of(row)}
