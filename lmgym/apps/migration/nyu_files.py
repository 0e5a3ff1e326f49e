"""The Python file of a tournament, as a command that writes it."""

import re
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

APP = "lmgym.apps.debate"
MODULES = {
    f"{APP}.data": ("quality", "read_questions"),
    f"{APP}.formats": (
        "FIRST", "JUDGE", "JUDGE_TOKENS", "Format", "Slot",
        "consultancy", "debate", "double_consultancy", "judge_alone",
    ),
    f"{APP}.players.best_of_n": ("BestOfNPlayer",),
    f"{APP}.players.judges": ("RandomJudge",),
    f"{APP}.players.models": ("LazyPlayer", "model_judge", "model_player"),
    f"{APP}.players.recorded": ("RecordedPlayer",),
    f"{APP}.players.scripted": ("ScriptedPlayer", "say_letters", "say_position"),
    f"{APP}.prompts.consultancy": ("PROMPTS of consultancy",),
    f"{APP}.prompts.debate": ("PROMPTS of debate",),
    f"{APP}.prompts.open_debate": ("PROMPTS of open_debate",),
    f"{APP}.questions": ("Question",),
    f"{APP}.tournament.config": ("Tournament", "TournamentConfig"),
    f"{APP}.tournament.files": ("questions_of", "read_transcripts"),
    f"{APP}.tournament.running": ("run_tournament",),
    "lmgym.generation.protocol": ("Sampling",),
    "lmgym.runs.flags": ("override",),
    "lmgym.runs.launch": ("launch",),
}  # fmt: skip
"""where the names in a file come from"""
QUESTIONS = {
    "quality": "read_questions(config.dataset, quality)[: config.questions]",
    "debates": "questions_of(read_transcripts(config.dataset))[: config.questions]",
    "previous": 'questions_of(read_transcripts(config.previous_run or "PREVIOUS_RUN"))[: config.questions]',
    "recorded": "questions_of(recorded)",
}
CHOICE = """VERDICT = Slot((JUDGE,), "verdict", max_tokens=JUDGE_TOKENS)
CHOICE = Format("open_debate", (Slot((FIRST,), "position"), VERDICT))"""
NAME_FIRST = '''def name_first(round, agent, rng) -> str:
    """A judge that always names the first debater."""
    return FIRST'''


LONGEST = 120  # characters of a line


@dataclass
class Parts:
    """The parts of a tournament's file, as expressions of Python."""

    config: Mapping[str, Any]
    questions: str
    """a key of QUESTIONS, or a list of questions"""
    players: Mapping[str, str]
    judge: str
    judge_name: str
    format: str


def write_file(name: str, parts: Parts, title: str) -> str:
    """The command that writes the file of a tournament."""
    return f"cat > {name} <<'END'\n{file_of(parts, title)}END"


def file_of(parts: Parts, title: str) -> str:
    """The file of a tournament. Values from elsewhere stand in it as Python's literals."""
    body = _setup(parts)
    head = [_config(parts.config)]
    head += [CHOICE] if parts.format == "CHOICE" else []
    head += ["", "", NAME_FIRST] if "name_first" in parts.judge else []
    end = 'if __name__ == "__main__":\n    launch(lambda: run_tournament(override(CONFIG), setup))\n'
    text = "\n".join([*head, "", "", *body, "", "", end])
    imports = "\n".join(_imports(text, _prompts(parts.format)))
    return f'"""{title}, of NYU\'s debate project."""\n\n{imports}\n\n{text}'


def literal(value: Any) -> str:
    """A value as Python's literal."""
    if isinstance(value, str) and value.isprintable() and not set('"\\') & set(value):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' * (len(value) == 1)})"
    return repr(value)


def _config(settings: Mapping[str, Any]) -> str:
    """The CONFIG of a file, over as many lines as it needs."""
    words = [f"{key}={literal(value)}" for key, value in settings.items()]
    whole = f"CONFIG = TournamentConfig({', '.join(words)})"
    if len(whole) <= LONGEST:
        return whole
    # names have no spaces, so that lines break between the items of a tuple
    wrapper = textwrap.TextWrapper(LONGEST, " " * 4, " " * 8, break_long_words=False, break_on_hyphens=False)
    lines = [wrapper.fill(f"{word},") for word in words]
    return "\n".join(["CONFIG = TournamentConfig(", *lines, ")"])


def _prompts(format: str) -> str:
    """The set of wordings of a format."""
    if format == "CHOICE":
        return "open_debate"
    return "consultancy" if "consultancy" in format else "debate"


def _setup(parts: Parts) -> list[str]:
    lines = ["def setup(config: TournamentConfig) -> Tournament:"]
    lines.append('    """The debaters, judge and questions of the entry."""')
    if parts.questions == "recorded":
        lines.append('    recorded = read_transcripts(config.transcripts or "TRANSCRIPTS")')
    lines.append(f"    questions = {QUESTIONS.get(parts.questions, parts.questions)}")
    lines.append(f"    judge = {parts.judge}")
    if parts.players:
        players = (f"        {literal(name)}: {player}," for name, player in parts.players.items())
        lines += ["    players = {", *players, "    }"]
    given = [
        "questions",
        "players" if parts.players else "{}",
        "judge",
        parts.format,
        "PROMPTS",
        literal(parts.judge_name),
    ]
    lines.append(f"    return Tournament({', '.join(given)})")
    return lines


def _imports(text: str, prompts: str) -> list[str]:
    """The imports of a file's names, without those that only stand within its texts."""
    code = re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", "''", text)
    lines = []
    for module, names in MODULES.items():
        plain = [name.partition(" of ")[0] for name in names if name.partition(" of ")[2] in ("", prompts)]
        used = [name for name in plain if re.search(rf"(?<![\w.]){name}\b(?!=)", code)]
        if used:
            lines.append(f"from {module} import {', '.join(used)}")
    return lines
