"""The set of open debates: Debater_A chooses the answer that it argues for, Debater_B has the other one."""

from lmgym.apps.debate.prompts import debate

PROMPTS = debate.PROMPTS | {
    "position": (
        "The text:\n<BACKGROUND_TEXT>\n\nThe question: <TOPIC>\n1: <FIRST_OPTION>\n2: <SECOND_OPTION>\n\n"
        "Which answer will you argue for? Reply with 1 or 2."
    ),
    "position_past": "You chose your answer.",
}
