"""A prompt set of NYU's debate project as a set here: a Python file with PROMPTS, for an experiment's file."""

import re
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

from lmgym.apps.debate.prompts.wordings import FOR_JUDGE, VALUES
from lmgym.apps.migration.commands import Translation, display
from lmgym.apps.migration.nyu_entries import Entry, file_name
from lmgym.errors import InputError, shown

TAGS = {
    "overall_system": "overall",
    "debater_system": "debater",
    "judge_system": "judge",
    "pre_debate": "before_debate",
    "pre_debate_judge": "before_debate_judge",
    "pre_opening_speech": "opening",
    "pre_speech": "speech",
    "pre_previous_speech": "speech_past",
    "pre_opponent_speech": "opponent_speech",
    "pre_debater_a_speech_judge": "speech_heard",
    "debater_scratchpad": "scratchpad",
    "previous_debater_scratchpad": "scratchpad_past",
    "judge_question_instructions": "question",
    "pre_judge_questions": "question_heard",
    "post_round_judge": "reasoning",
    "post_round_judge_without_reasoning": "verdict",
}
"""tags here by theirs"""
SENTENCES = {
    "pre_debater_b_speech_judge": "one wording precedes the speeches of both debaters, speech_heard",
    "judge_decision": "the judge replies with a name alone",
    "judge_decision_for_debater": "debaters do not read the verdict",
}
OF_JUDGE = {
    "NAME": "FIRST_NAME",
    "OPPONENT_NAME": "SECOND_NAME",
    "POSITION": "FIRST_POSITION",
    "OPPONENT_POSITION": "SECOND_POSITION",
}
"""values that the judge reads, by theirs: those of the first debater, and of its opponent"""
VALUE = re.compile("<([A-Z][A-Z_]*)>")


def is_prompt_set(values: Mapping[str, Any]) -> bool:
    """True for an entry of prompts.yaml: tags with contents, one of which is the project's."""
    contents = [isinstance(value, Mapping) and "content" in value for value in values.values()]
    return bool(contents) and all(contents) and bool(TAGS.keys() & values.keys())


def translate_prompts(entry: Entry) -> list[Translation]:
    """The commands that write the file of a set and check it. Raises InputError for contents that are no texts."""
    given = {name: _wordings(entry, name, value["content"]) for name, value in entry.values.items()}
    found = Translation(file_name(entry), program="python3")
    base = _base(given)
    if base == "open_debate" and "pre_speech" in given:
        given["position"] = given.pop("pre_speech")
    if "pre_opening_speech" in given and "pre_speech" in given:  # theirs follow each other
        pairs = list(zip_longest(given["pre_opening_speech"], given["pre_speech"]))
        first = pairs[0]
        given["pre_opening_speech"] = [
            "\n".join(part or first[i] or "" for i, part in enumerate(pair)) for pair in pairs
        ]
    prompts: dict[str, list[str]] = {}
    for name, texts in given.items():
        tag = TAGS.get(name, "position" if name == "position" else None)
        if tag is None:
            found.lines.append(f"{name}: {SENTENCES.get(name, 'no equivalent')}")
            continue
        prompts[tag] = [_renamed(tag, text) for text in texts]
        for value in sorted({value for text in prompts[tag] for value in VALUE.findall(text)} - VALUES.keys()):
            found.lines.append(f"{name}: nothing fills in <{value}>; the file's check refuses it")
    found.before.append(f"cat > {found.command} <<'END'\n{_file(entry, base, prompts)}END")
    found.lines.append(
        f"in the file of a tournament: from {found.command.removesuffix('.py')} import PROMPTS, in place of lmgym's"
    )
    return [found]


def _wordings(entry: Entry, name: str, content: Any) -> list[str]:
    texts = [content] if isinstance(content, str) else content
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"{shown(entry.name)}: {shown(name)} has content={display(content)}; needed: a text or several"
        )
    return texts


def _base(given: Mapping[str, Any]) -> str:
    """The set here that has the tags which theirs lacks."""
    if "pre_debate" not in given:
        return "judge"
    if "judge_system" not in given:
        return "open_debate"
    return "debate" if "pre_opponent_speech" in given else "consultancy"


def _renamed(tag: str, text: str) -> str:
    """A wording with the values that its reader has here."""
    if tag not in FOR_JUDGE:
        return text
    names = OF_JUDGE | ({"NAME": "SPEAKER", "OPPONENT_NAME": "SPEAKER"} if tag == "speech_heard" else {})
    return VALUE.sub(lambda match: f"<{names.get(match[1], match[1])}>", text)


def _file(entry: Entry, base: str, prompts: Mapping[str, list[str]]) -> str:
    """The file of a set; its texts stand in it as Python's literals, a line of theirs a line."""
    lines = [f'"""A prompt set of NYU\'s debate project: {re.sub(r"[^A-Za-z0-9 ._-]", "", entry.name)[:60]}."""', ""]
    lines += [f"from lmgym.apps.debate.prompts.{base} import PROMPTS as OURS"]
    lines += ["from lmgym.apps.debate.prompts.wordings import read_prompts", "", "PROMPTS = OURS | {"]
    for tag, texts in prompts.items():
        lines.append(f'    "{tag}": (')
        for text in texts:
            parts = text.splitlines(keepends=True) or [""]
            lines += ["        (", *(f"            {part!r}" for part in parts), "        ),"]
        lines.append("    ),")
    check = 'print(len(read_prompts(PROMPTS, ()).wordings), "tags have wordings")'
    return "\n".join([*lines, "}", "", 'if __name__ == "__main__":', f"    {check}", ""])
