"""Real preference pairs as token ids, so that every contender trains exactly the same tokens.

Prompt and suffixes are tokenised apart, so that both sides of a pair have the same ids of the prompt.
"""

import gzip
import json
import os
from pathlib import Path

from transformers import PreTrainedTokenizerBase

PAIRS_FILE = Path(__file__).resolve().parents[2] / "shared/data/hh-rlhf-harmless/pairs.jsonl.gz"
REPLY_MARK = "\n\nAssistant:"


def read_pairs(path: Path = PAIRS_FILE) -> list[dict[str, str]]:
    """The pairs, each with `chosen` and `rejected` whole. Raises ValueError where the data are absent."""
    if not path.exists():
        raise ValueError(f"no preference pairs at {path}; pass --data with a .jsonl.gz of chosen/rejected")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def split_pair(chosen: str, rejected: str) -> tuple[str, str, str] | None:
    """(prompt, chosen suffix, rejected suffix): the prompt ends with the last reply mark of both. None without one."""
    common = os.path.commonprefix([chosen, rejected])  # noqa: RUF071 (characters are meant, not paths)
    mark = common.rfind(REPLY_MARK)
    if mark < 0:
        return None
    end = mark + len(REPLY_MARK)
    return chosen[:end], chosen[end:], rejected[end:]


def tokenize_pair(texts: tuple[str, str, str], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[int]]:
    """Ids of a prompt and its two suffixes, each suffix closed by eos."""
    prompt, chosen, rejected = (tokenizer.encode(text, add_special_tokens=False) for text in texts)
    return {
        "prompt_ids": prompt,
        "chosen_ids": [*chosen, tokenizer.eos_token_id],
        "rejected_ids": [*rejected, tokenizer.eos_token_id],
    }


def write_token_pairs(
    pairs: list[dict[str, str]], tokenizer: PreTrainedTokenizerBase, path: Path, max_length: int
) -> dict[str, float]:
    """Write the pairs both of whose sides fit `max_length` tokens to a JSONL; returns counts, with what was left out.

    Tails are written without the prompt. Nothing is truncated: a truncated pair could lose what tells its sides apart.
    """
    kept, without_prompt, identical, too_long = [], 0, 0, 0
    for pair in pairs:
        texts = split_pair(pair["chosen"], pair["rejected"])
        if texts is None:
            without_prompt += 1
        elif texts[1] == texts[2]:
            identical += 1
        else:
            ids = tokenize_pair(texts, tokenizer)
            longest_tail = max(len(ids["chosen_ids"]), len(ids["rejected_ids"]))
            if len(ids["prompt_ids"]) + longest_tail > max_length:
                too_long += 1
            else:
                kept.append(ids)
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(ids) + "\n" for ids in kept)
    unfinished.rename(path)  # the finished name appears only when all is there
    prompt_tokens = sum(len(ids["prompt_ids"]) for ids in kept)
    tail_tokens = sum(len(ids["chosen_ids"]) + len(ids["rejected_ids"]) for ids in kept)
    return {
        "pairs_read": len(pairs),
        "pairs_kept": len(kept),
        "left_out_too_long": too_long,
        "left_out_identical_sides": identical,
        "left_out_without_shared_prompt": without_prompt,
        "max_length": max_length,
        "mean_prompt_tokens": prompt_tokens / len(kept),
        "mean_tail_tokens": tail_tokens / (2 * len(kept)),
        "mean_sequence_tokens": (2 * prompt_tokens + tail_tokens) / (2 * len(kept)),
        "shared_prompt_share_of_tokens": 2 * prompt_tokens / (2 * prompt_tokens + tail_tokens),
    }
