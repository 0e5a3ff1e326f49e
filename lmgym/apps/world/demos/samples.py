"""`python -m lmgym.apps.world.demos.samples MODEL PROMPTS OUTPUT SEED`: replies to each prompt, and their rewards."""

import json
import sys
from pathlib import Path

SAMPLES, MAX_NEW_TOKENS, TEMPERATURE = 8, 40, 0.7


def sample(model: str, prompts: Path, output: Path, seed: int) -> None:
    """Writes a row per prompt: replies[SAMPLES] and rewards[SAMPLES]."""
    from lmgym.generation.local_generation import load_causal
    from lmgym.generation.protocol import Sampling
    from lmgym.scoring.friendly_answers import friendly_answers
    from lmgym.text import Conversation, Turn

    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    conversations = [Conversation((Turn("user", row["prompt"]),)) for row in rows]
    sampling = Sampling(MAX_NEW_TOKENS, TEMPERATURE, seed=seed)
    completions = load_causal(model).reply(conversations, SAMPLES, sampling)
    lines = []
    for row, replies in zip(rows, completions, strict=True):
        texts = [reply.text.strip() for reply in replies]
        rewards = friendly_answers(texts)
        lines.append(json.dumps({**row, "replies": texts, "rewards": rewards}) + "\n")
    output.write_text("".join(lines))


if __name__ == "__main__":
    sample(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
