"""Debates in few words, for models with little context: they read no text, so it is debated before letter judges."""

from lmgym.apps.debate.prompts import judge

PROMPTS = judge.PROMPTS | {
    "overall": "A debate.",
    "debater": "You are <NAME>.",
    "before_debate": "<TOPIC> Your answer: <POSITION>.",
    "opening": "Say why.",
    "speech": "Reply to <OPPONENT_NAME>.",
    "speech_past": "Round <ROUND>.",
    "opponent_speech": "<SPEAKER>:",
}
