"""The static suite from rows: questions with one right answer, as games of one player and one turn.

A row has `question` (or `prompt`) and `answer`; `choices` (or `options`), whose answer is a letter, an index or a text
among them; and optionally `task` (or `game`), the name of its game. Rows come from a file or a data set of the hub.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any, final

from lmgym.apps.games.dialogue.records import Records
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.data.records import read_records
from lmgym.environments.protocol import Observation, StepResult
from lmgym.errors import InputError, shown, shown_path
from lmgym.generation.protocol import ReplyScript
from lmgym.origin import origin_of
from lmgym.text import Conversation, Turn

SEAT = "Player 1"
ASK = "Reply with the answer only."
ASK_LETTER = "Reply with the letter of the right answer only."


def read_static_games(source: str, split: str = "validation") -> "list[StaticGame]":
    """The games of rows. Raises InputError for rows without a question or an answer, and for none."""
    by_task: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for number, record in enumerate(read_records(source, split), 1):
        if record.fault:
            raise InputError(f"{shown_path(record.file)}, line {record.line}: {record.fault}")
        row = record.fields
        by_task[str(row.get("task") or row.get("game") or "static")].append(_instance(row, number, source))
    if not by_task:
        raise InputError(f"{shown_path(source)} has no rows; needed: rows with question and answer")
    return [StaticGame(name, source, instances) for name, instances in sorted(by_task.items())]


def _instance(row: Mapping[str, Any], number: int, source: str) -> dict[str, Any]:
    question, answer = row.get("question") or row.get("prompt"), row.get("answer")
    if not isinstance(question, str) or answer is None:
        raise InputError(f"{shown_path(source)}, row {number}: needed: question (or prompt), a text, and answer")
    choices = row.get("choices") or row.get("options") or ()
    if not isinstance(choices, list | tuple):
        raise InputError(f"{shown_path(source)}, row {number} has the choices {shown(choices)}; needed: a list")
    if not choices:
        return {"game_id": number, "prompt": f"{question}\n\n{ASK}", "answers": [str(answer)]}
    texts = [str(choice) for choice in choices]
    if len(texts) > len(ascii_uppercase):
        raise InputError(f"{shown_path(source)}, row {number} has {len(texts)} choices; needed: at most 26")
    index = _index(answer, texts)
    if index is None:
        raise InputError(f"{shown_path(source)}, row {number}: the answer {shown(answer)} is not among its choices")
    listed = "\n".join(f"{letter}. {text}" for letter, text in zip(ascii_uppercase, texts, strict=False))
    prompt = f"{question}\n\n{listed}\n\n{ASK_LETTER}"
    return {"game_id": number, "prompt": prompt, "answers": [ascii_uppercase[index], texts[index]]}


def _index(answer: Any, texts: Sequence[str]) -> int | None:
    if isinstance(answer, int) and not isinstance(answer, bool):
        return answer if 0 <= answer < len(texts) else None
    if str(answer) in texts:
        return texts.index(str(answer))
    letter = str(answer).strip().upper()
    place = ascii_uppercase.find(letter) if len(letter) == 1 else -1
    return place if 0 <= place < len(texts) else None


@final
class StaticGame:
    """The questions of one task."""

    seats: Sequence[str] = (SEAT,)

    def __init__(self, name: str, source: str, instances: Sequence[Mapping[str, Any]]) -> None:
        fields = {"game_name": name, "description": f"questions of {source}", "players": 1, "benchmark": ["static"]}
        self.spec, self.instances = Spec(fields, origin_of(source)), instances

    def experiments(self) -> Sequence[Mapping[str, Any]]:
        """One experiment with all questions."""
        return [{"name": self.spec.name, "game_instances": self.instances}]

    def environment(self) -> "Question":
        """A new environment."""
        return Question(self.spec.name)

    def script(self, seat: str) -> ReplyScript:
        """mock: an empty reply."""
        return lambda conversation, rng: ""


@final
class Question:
    """One question: the Main Score is 100 for the right answer and 0 for another; an empty reply aborts."""

    def __init__(self, game: str) -> None:
        self.game, self.reply = game, ""
        self.task: Mapping[str, Any] = {}

    def reset(self, task: Mapping[str, Any], seed: int) -> Mapping[str, Observation]:
        """Ask the question."""
        self.task, self.reply = task, ""
        return {SEAT: Observation(Conversation((Turn("user", task["instance"]["prompt"]),)))}

    def step(self, actions: Mapping[str, str]) -> StepResult:
        """Take the answer."""
        self.reply = actions[SEAT]
        return StepResult(terminated=True)

    def records(self) -> Records:
        """clembench's records and scores."""
        instance = self.task["instance"]
        aborted = not self.reply.strip()
        right = not aborted and _is_right(self.reply, instance["answers"])
        model = (self.task.get("players") or {}).get(SEAT, "model")
        meta = {"game_name": self.game, "experiment_name": self.game, "game_id": instance["game_id"]}
        players = {SEAT: {"player_name": SEAT, "game_role": "Answerer", "model_name": model}}
        turn = [
            {"from": "GM", "to": SEAT, "action": {"type": "send message", "content": instance["prompt"]}},
            {"from": SEAT, "to": "GM", "action": {"type": "get message", "content": self.reply}},
        ]
        main = float("nan") if aborted else 100.0 * right
        scores = {"Aborted": int(aborted), "Success": int(right), "Lose": int(not aborted and not right)}
        return Records(
            {"meta": meta, "players": players, "turns": [turn]},
            (),
            {"meta": meta, "episode scores": {**scores, "Main Score": main}},
        )


def _is_right(reply: str, answers: Sequence[str]) -> bool:
    """The reply is an answer, or a letter with what follows it, as "B. Paris"."""
    text = reply.strip().rstrip(".").casefold()
    if text in [answer.strip().rstrip(".").casefold() for answer in answers]:
        return True
    letter = re.match(r"\(?([a-z])[.):]", text)
    return bool(letter and len(answers) > 1 and letter[1] == answers[0].casefold())
