"""A reward of ten lines in plain Python, for ppo/experiments/friendly_answers.py."""

from collections.abc import Sequence


def friendly_answers(replies: Sequence[str]) -> list[float]:
    """Replies that speak to the reader, ask something and do not repeat words: 0 to 1."""
    rewards = []
    for reply in replies:
        words = [word.strip(".,:;!?") for word in reply.lower().split()]
        speaks = min(4, words.count("you") + words.count("your")) / 4
        varied = len(set(words)) / max(1, len(words))
        rewards.append((0.7 * speaks + 0.3 * ("?" in reply)) * varied)
    return rewards
