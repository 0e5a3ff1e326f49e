"""The conversation that an agent reads: the round so far, by the wordings of a prompt set.

Messages to the agent are turns of the user; what the agent has said itself are turns of the bot, each after a message
that says what it is. So roles alternate, as chat templates require.
"""

from lmgym.apps.debate.formats import CHOSEN, DEBATERS, FIRST, JUDGE, SECOND, Format, Slot, other
from lmgym.apps.debate.prompts.wordings import Prompts
from lmgym.apps.debate.transcript import Speech, Transcript
from lmgym.text import Conversation, Turn

HEARD = {"question": "question_heard", "pick": "pick_heard", "shown_scratchpad": "scratchpad_heard"}
OF_KIND = {
    "speech": ("opening", "speech", "speech_past"),
    "scratchpad": ("scratchpad", "scratchpad_past"),
    "shown_scratchpad": ("shown_scratchpad", "scratchpad_past"),
    "position": ("position", "position_past"),
    "question": ("question", "question_past"),
    "pick": ("pick", "pick_past"),
    "reasoning": ("reasoning", "reasoning_past"),
    "verdict": ("verdict",),
}
"""the tags that a slot's own speakers need"""


def needed_tags(format: Format) -> set[str]:
    """The tags that a round of this format may use."""
    tags = {"overall", "judge", "before_debate_judge"}
    tags |= {tag for kind in format.kinds for tag in OF_KIND[kind]}
    if format.debaters:
        tags |= {"debater", "before_debate"}
    if "speech" in format.kinds:
        tags |= {"speech_heard"}
        tags |= {"opponent_speech"} if len(format.debaters) > 1 and not format.isolated else set()
    return tags | ({HEARD[kind] for kind in format.kinds & HEARD.keys()} if format.debaters else set())


def conversation_for(prompts: Prompts, transcript: Transcript, agent: str, slot: int) -> Conversation:
    """The conversation that the agent reads when it acts in that slot."""
    order = transcript.format.slots
    values = _values(transcript, agent)

    def wording(tag: str, of: Slot | Speech, speaker: str = agent) -> str:
        limit = order[of.slot].max_tokens if isinstance(of, Speech) else of.max_tokens
        given = values | {"SPEAKER": speaker, "ROUND": of.round, "MAX_TOKENS": limit}
        return prompts.text(tag, given, transcript.seed)

    turns: list[Turn] = []
    waiting = [wording(f"before_debate{'_judge' * (agent == JUDGE)}", order[slot])] if _knows_side(order, slot) else []
    for speech in transcript.heard_by(agent, slot):
        if speech.speaker == agent:
            tag = OF_KIND[speech.kind][-1]
            turns += [Turn("user", "\n\n".join([*waiting, wording(tag, speech)])), Turn("bot", speech.text)]
            waiting = []
        else:
            heard = "speech_heard" if agent == JUDGE else "opponent_speech"
            waiting.append(f"{wording(HEARD.get(speech.kind, heard), speech, speech.speaker)}\n{speech.text}")
    spoken = any(s.kind == "speech" for s in transcript.heard_by(agent, slot) if s.speaker == agent)
    kind = order[slot].kind
    waiting.append(wording("opening" if kind == "speech" and not spoken else kind, order[slot]))
    system = "\n\n".join(wording(tag, order[slot]) for tag in ("overall", "judge" if agent == JUDGE else "debater"))
    return Conversation((*turns, Turn("user", "\n\n".join(waiting))), system)


def judge_conversation(prompts: Prompts, transcript: Transcript, slot: int | None = None) -> Conversation:
    """The conversation that the judge reads if it decides after the slots before `slot` (None: all)."""
    order = transcript.format.slots
    last = len(order) - 1
    shown = transcript if slot is None else transcript.up_to(slot)
    return conversation_for(prompts, shown, JUDGE, last)


def speakers_of(slot: Slot, picked: str) -> tuple[str, ...]:
    """The agents that act in a slot, if the judge has picked this debater."""
    return tuple(picked if speaker == CHOSEN else speaker for speaker in slot.speakers)


def _knows_side(order: tuple[Slot, ...], slot: int) -> bool:
    """False before a debater has chosen its answer: that prompt has the text and both answers itself."""
    return order[slot].kind != "position"


def _values(transcript: Transcript, agent: str) -> dict[str, object]:
    positions, question = transcript.positions, transcript.question
    values: dict[str, object] = {
        "NAME": agent,
        "TOPIC": question.question,
        "BACKGROUND_TEXT": question.text,
        "FIRST_NAME": FIRST,
        "SECOND_NAME": SECOND,
        "FIRST_POSITION": positions[FIRST],
        "SECOND_POSITION": positions[SECOND],
        "FIRST_OPTION": question.options[0],
        "SECOND_OPTION": question.options[1],
    }
    if agent in DEBATERS:
        values |= {
            "OPPONENT_NAME": other(agent),
            "POSITION": positions[agent],
            "OPPONENT_POSITION": positions[other(agent)],
        }
    return values
