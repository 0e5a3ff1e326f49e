"""Replies to read: to the same prompts before and after training or of several runs, and whole episodes."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from lmgym.console import clean
from lmgym.report.charts import histogram
from lmgym.report.key_figures import after_update
from lmgym.report.panels import Panel, figure
from lmgym.report.run_files import Row, RunFiles, is_number

MOST_PAIRS, MOST_EPISODES, MOST_UPDATES = 40, 8, 6
MOST_HISTOGRAMS = 4
LONGEST = 3000  # characters of a text


def shown(text: Any, longest: int = LONGEST) -> str:
    """A text of a model or of data for a page: control and bidi characters are displayed, a long one is cut."""
    text = str(text)
    cut = clean(text[:longest])
    return cut if len(text) <= longest else f"{cut}… ({len(text):,} characters in all)"


def replies(run: RunFiles) -> list[Panel]:
    """Replies before and after training, or a data set's replies with their scores then, side by side."""
    found = _first_and_last(run)
    if not found:
        return []
    first, last = min(found), max(found)
    old = {_key(row): row for row in found[first]} if first != last else {}
    chosen = _first_turns(found[last])
    side = "after" if last else "before"
    rows = [_before_and_after(old.get(_key(row)), row, side) for row in chosen[:MOST_PAIRS]]
    of_data = any(isinstance(row.get("replies"), list) for row in chosen)
    what = "Replies of held-out rows, with their scores" if of_data else "Replies to held-out prompts"
    number = f"The first {len(rows)} of {len(chosen):,}" if len(chosen) > len(rows) else f"{len(rows)}"
    noun = f"held-out {'rows' if of_data else 'prompts'}"
    if first == last:
        title = what if last else f"{what}, before training"
        only = "" if last else " No evaluation of the trained model has been made."
        return [Panel("replies", title, f"{number} {noun}, {after_update(last)}.{only}", pairs=rows, wide=True)]
    title = f"{what} before and after training" if of_data else "Replies before and after training"
    about = f"{number} {noun}, {after_update(first)} and {after_update(last)}."
    return [Panel("replies", title, about, pairs=rows, wide=True)]


def _first_and_last(run: RunFiles) -> dict[int, list[Row]]:
    """Rows of the first evaluation and of that of the model that is kept, or of the last, by update."""
    kind = "evaluation" if run.sample_updates("evaluation") else ""
    updates = run.sample_updates(kind)
    kept = [update for update in updates if update == run.kept_update] or updates[-1:]
    return {update: rows for update in updates[:1] + kept if (rows := run.samples(kind, update))}


def _first_turns(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if not row.get("turn")]


def _before_and_after(before: Row | None, after: Row, side: str) -> Row:
    """A prompt with its replies as sides, and the change of the reward, of the margin or of the score; `side` is what
    `after` is: "before" where the trained model was not evaluated.
    """
    if isinstance(after.get("replies"), list):
        return {"prompt": prompt_of(after), "sides": _given(before, after, side), "changes": _change(before, after)}
    sides = [_reply(row) | {"name": name} for name, row in (("before", before), (side, after)) if row is not None]
    return {"prompt": prompt_of(after), "sides": sides, "changes": _change(before, after)}


def compared(runs: Mapping[str, RunFiles]) -> list[Panel]:
    """Replies of several runs to the same held-out prompts side by side, of the model of each that is kept."""
    of_runs, updates, titles = [], [], []
    for name, run in runs.items():
        found = _first_and_last(run)
        if not found:
            return []
        updates.append(f"{name} {after_update(max(found))}")
        titles.append(name if max(found) else f"{name}, {after_update(0)}")
        of_runs.append({(*_key(row), str(row.get("prompt"))): row for row in _first_turns(found[max(found)])})
    shared = [key for key in of_runs[0] if all(key in rows for rows in of_runs)]
    rows = [_side_by_side({name: rows[key] for name, rows in zip(titles, of_runs, strict=True)}) for key in shared]
    if not rows:
        return []
    number = f"The first {MOST_PAIRS} of {len(rows):,}" if len(rows) > MOST_PAIRS else f"{len(rows)}"
    about = f"{number} held-out rows that all runs have: {', '.join(updates)}."
    return [Panel("replies", "Replies side by side", about, pairs=rows[:MOST_PAIRS], wide=True)]


def _side_by_side(rows: Mapping[str, Row]) -> Row:
    (base, first), *others = rows.items()
    changes = [change | {"of": f"{name} − {base}"} for name, row in others for change in _change(first, row)]
    if not isinstance(first.get("replies"), list):
        return {
            "prompt": prompt_of(first),
            "sides": [_reply(row) | {"name": name} for name, row in rows.items()],
            "changes": changes,
        }
    sides = []
    for number, reply in enumerate(first["replies"]):
        scores = [
            (name, row["replies"][number]["score"])
            for name, row in rows.items()
            if number < len(row.get("replies") or ()) and is_number(row["replies"][number].get("score"))
        ]
        sides.append({"name": shown(reply.get("name")), "text": shown(reply.get("text")).strip(), "scores": scores})
    return {"prompt": prompt_of(first), "sides": sides, "changes": changes}


def _change(before: Row | None, after: Row) -> list[Row]:
    """The change of what a row is judged by, with its name: the margin of a pair, a reply's score, or the reward."""
    then, now = ({} if row is None else _judged(row) for row in (before, after))
    return [{"name": name, "by": value - then[name]} for name, value in now.items() if name in then][:1]


def _judged(row: Row) -> dict[str, float]:
    if not isinstance(row.get("replies"), list):
        return scores_of(row)
    scores = [score for reply in row["replies"] if is_number(score := reply.get("score"))]
    if len(scores) != len(row["replies"]) or len(scores) not in (1, 2):
        return {}
    return {"score": scores[0]} if len(scores) == 1 else {"margin": scores[0] - scores[1]}


def prompt_of(row: Row) -> str:
    """The prompt, without the "Bot:" at its end that the reply would follow."""
    return shown(str(row.get("prompt", "")).removesuffix("\nBot:")).strip()


def _key(row: Row) -> tuple[Any, ...]:
    return row.get("row", row.get("task")), row.get("agent"), row.get("turn", 0)


def _reply(row: Row) -> Row:
    """The text, and (name, figure) of every score."""
    scores = [(name, value) for name, value in scores_of(row).items()]
    notes = [f"{row['tokens']} token{'' if row['tokens'] == 1 else 's'}"] if is_number(row.get("tokens")) else []
    if row.get("finish") == "length":
        notes.append("cut at the limit")
    if row.get("error"):
        notes.append(f"failed: {shown(row['error'])}")
    return {"text": shown(row.get("reply", "")).strip(), "scores": scores, "notes": ", ".join(notes)}


def _given(before: Row | None, after: Row, side: str) -> list[Row]:
    """Replies of the data, with a reward model's scores before and after."""
    alone = "score" if side == "after" else "score before"
    then = before["replies"] if before else [{}] * len(after["replies"])
    sides = []
    for old, new in zip(then, after["replies"], strict=False):
        was = [("score before", old["score"])] if is_number(old.get("score")) else []
        now = [("after" if was else alone, new["score"])] if is_number(new.get("score")) else []
        sides.append({"name": shown(new.get("name")), "text": shown(new.get("text")).strip(), "scores": [*was, *now]})
    return sides


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
    panels, drawn = list[Panel](), list[dict[str, list[float]]]()
    scored = {update: [scores_of(row) for row in rows] for update, rows in found.items()}
    names = dict.fromkeys(name for scores in scored[max(scored)] for name in scores)
    for number, name in enumerate(list(names)[:MOST_HISTOGRAMS]):
        samples = {
            after_update(update): [scores[name] for scores in rows if name in scores] for update, rows in scored.items()
        }
        repeats = samples in drawn  # a reward of one scorer is that scorer's score
        drawn.append(samples)
        if not repeats and any(len(set(values)) > 1 for values in samples.values()):
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
    advantage = row.get("advantage")
    if is_number(advantage):
        reply["scores"] = [*reply["scores"], ("advantage", advantage)]
    return reply | {"prompt": prompt_of(row)}
