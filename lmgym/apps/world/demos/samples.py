"""`python -m lmgym.apps.world.demos.samples MODEL PROMPTS SCORER OUTPUT SEED`: replies to prompts, and their scores."""

import json
import sys
from pathlib import Path

SAMPLES, MAX_NEW_TOKENS, TEMPERATURE = 4, 48, 0.7


def sample(model: str, prompts: Path, scorer: Path, output: Path, seed: int) -> None:
    """Writes a row per prompt: replies[SAMPLES], scores[SAMPLES] and finished[SAMPLES], if they end by themselves."""
    from lmgym.generation.local_generation import load_causal
    from lmgym.generation.protocol import Sampling
    from lmgym.scoring.scorers import HFScorer
    from lmgym.text import Conversation, Turn

    questions = list(dict.fromkeys(json.loads(line)["prompt"] for line in prompts.read_text().splitlines()))
    conversations = [Conversation((Turn("user", question),)) for question in questions]
    completions = load_causal(model).reply(conversations, SAMPLES, Sampling(MAX_NEW_TOKENS, TEMPERATURE, seed=seed))
    texts = [[reply.text.strip() for reply in replies] for replies in completions]
    asked = [conversation for conversation in conversations for _ in range(SAMPLES)]
    scores = HFScorer.load(scorer).score(asked, [text for of_prompt in texts for text in of_prompt])
    rows = zip(questions, texts, scores.reshape(-1, SAMPLES).tolist(), completions, strict=True)
    output.write_text("".join(
        json.dumps({
            "prompt": question, "replies": replies, "scores": of_prompt,
            "finished": [reply.finish_reason == "eos" for reply in found],
        }) + "\n"
        for question, replies, of_prompt, found in rows
    ))  # fmt: skip


if __name__ == "__main__":
    prompts, scorer, output = map(Path, sys.argv[2:5])
    sample(sys.argv[1], prompts, scorer, output, int(sys.argv[5]))
