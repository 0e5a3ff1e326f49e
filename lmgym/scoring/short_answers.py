"""A reward of ten lines in plain Python, for `lmgym demo --real`."""

from collections.abc import Sequence


def short_answers(replies: Sequence[str], topics: Sequence[str]) -> list[float]:
    """Replies that end, name the topic, speak to the reader and do not repeat words: 0 to 1."""
    rewards = []
    for reply, topic in zip(replies, topics, strict=True):
        words = [word.strip(".,:;!?") for word in reply.lower().split()]
        ends = reply.rstrip().endswith((".", "!", "?"))
        speaks = "you" in words or "your" in words
        varied = len(set(words)) / max(1, len(words))
        rewards.append((ends + speaks + (topic in words)) / 3 * varied)
    return rewards
