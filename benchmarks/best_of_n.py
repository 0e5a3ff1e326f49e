"""A best-of-N turn: ours beside transformers' generate with scoring in batches, on shape S, in fp32 and bf16.

    .venv/bin/python benchmarks/best_of_n.py        # writes benchmarks/results/best_of_n.json

A context of 400 tokens, N replies of 48 new tokens at temperature 1, two scorers of at most 512 tokens. CPU seconds of
one thread, pinned to a core, all interleaved. `generate` reads the context once: its cache is expanded. Its scoring
has the quickest batch. Generation and scoring count in the precision that is quicker, each side by itself. Greedy
replies in fp32 are asserted equal first, and scores within 1e-5 (bf16: 0.05).
Every turn begins from nothing; `session` is ten turns of one conversation, where ours goes on from turn to turn.
"""

import argparse
import datetime
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from generation import expanded_cache
from shared import ROOT, describe_machine, make_shape, pin_command, write_result
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from lmgym.data.records import read_records
from lmgym.data.truncation import truncate
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.messages import from_transcript
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.models.saving import save_classifier
from lmgym.scoring.scorers import HFScorer
from lmgym.text import Conversation, Turn, render, tokenize_texts

CONTEXT, NEW, WINDOW = 400, 48, 512
TURNS, OPENING = 10, 60  # of the session: its turns, and words of the first line
SCORING_BATCHES = (1, 4, 16)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
TOLERANCES = {"fp32": 1e-5, "bf16": 0.05}


def build(data: Path, folder: Path) -> tuple[Path, list[Path], list[str]]:
    """The folders of a policy with its tokenizer and of two scorers, untrained, and texts of people."""
    texts = [str(record.fields["chosen"]) for record in read_records(str(data))]
    make_shape("S", folder / "policy", texts)
    tokenizer = load_tokenizer(str(folder / "policy"))
    scorers = []
    for seed in (1, 2):
        make_shape("S", folder / f"trunk_{seed}", texts, seed=seed)
        model, _ = load_classifier(str(folder / f"trunk_{seed}"), tokenizer, seed=seed)
        scorers.append(folder / f"scorer_{seed}")
        save_classifier(model, model.state_dict(), scorers[-1], tokenizer, {"reduce": "logit", "max_length": WINDOW})
    return folder / "policy", scorers, texts


def context_of(tokenizer, texts: list[str], tokens: int) -> Conversation:
    """A chat of people whose prompt has exactly so many tokens."""
    words = " ".join(turn.text for text in texts for turn in from_transcript(text).turns).split()
    half = words[: tokens // 4]
    for count in range(tokens, 0, -1):
        line = " ".join(words[len(half) : len(half) + count])
        chat = Conversation((Turn("user", " ".join(half)), Turn("bot", "i see. go on."), Turn("user", line)))
        [ids] = tokenize_texts(tokenizer, [render(tokenizer, chat)])
        if len(ids) == tokens:
            return chat
    raise ValueError(f"no context of {tokens} tokens out of these texts")


class Theirs:
    """transformers: `generate` from an expanded cache, then plain classifiers over padded batches."""

    def __init__(self, policy, tokenizer, scorers: list[Path], dtype: torch.dtype) -> None:
        self.policy, self.tokenizer, self.batch = policy, tokenizer, SCORING_BATCHES[-1]
        self.scorers = [AutoModelForSequenceClassification.from_pretrained(folder, dtype=dtype) for folder in scorers]

    def forget(self) -> None:
        """Nothing stays anyway."""

    @torch.inference_mode()
    def generate(self, chat: Conversation, n: int, greedy: bool = False) -> list[str]:
        """n replies, as text."""
        [ids] = tokenize_texts(self.tokenizer, [render(self.tokenizer, chat)])
        inputs = torch.tensor([ids])
        mask = torch.ones_like(inputs)
        choice = {"do_sample": False} if greedy else {"do_sample": True, "top_k": 0}
        found = self.policy.generate(
            input_ids=inputs.repeat(n, 1), attention_mask=mask.repeat(n, 1), max_new_tokens=NEW, eos_token_id=None,
            pad_token_id=self.tokenizer.pad_token_id, past_key_values=expanded_cache(self.policy, inputs, mask, n),
            **choice,
        )  # fmt: skip
        return self.tokenizer.batch_decode(found[:, len(ids) :], skip_special_tokens=True)

    @torch.inference_mode()
    def score(self, chat: Conversation, replies: list[str]) -> list[torch.Tensor]:
        """Scores of each scorer."""
        found = []
        for model in self.scorers:
            [fitted] = truncate(self.tokenizer, [chat], [replies], WINDOW)
            scores = []
            for start in range(0, len(fitted.ids), self.batch):
                rows = {"input_ids": fitted.ids[start : start + self.batch]}
                inputs = self.tokenizer.pad(rows, return_tensors="pt")
                scores.append(model(**inputs).logits[:, 0])
            found.append(torch.cat(scores).float())
        return found


class Ours:
    """LocalGenerator and HFScorer."""

    def __init__(self, policy, tokenizer, scorers: list[Path], dtype: torch.dtype) -> None:
        self.generator = LocalGenerator(policy, tokenizer)
        self.scorers = [HFScorer.load(folder, dtype=dtype) for folder in scorers]

    def forget(self) -> None:
        """Nothing of former turns stays."""
        for keeper in (self.generator, *self.scorers):
            if keeper.prefix:
                keeper.prefix.ids = []

    def generate(self, chat: Conversation, n: int, greedy: bool = False) -> list[str]:
        """n replies, as text."""
        sampling = Sampling(max_new_tokens=NEW, temperature=0 if greedy else 1, ends_at_eos=False)
        return [completion.text for completion in self.generator.reply([chat], n, sampling)[0]]

    def score(self, chat: Conversation, replies: list[str]) -> list[torch.Tensor]:
        """Scores of each scorer."""
        return [scorer.score([chat] * len(replies), replies) for scorer in self.scorers]


Spent = dict[str, float]  # CPU seconds of a turn's two parts


def turn(way: Any, chat: Conversation, n: int, spent: Spent) -> None:
    """The part of a turn that a user waits for; adds its CPU seconds."""
    began = time.process_time()
    replies = way.generate(chat, n)
    generated = time.process_time()
    way.score(chat, replies)
    spent["generate"] += generated - began
    spent["score"] += time.process_time() - generated


def session(way: Any, lines: list[str], replies: list[str], n: int, spent: Spent) -> None:
    """Ten turns; what was said before is the same for all ways."""
    turns: tuple[Turn, ...] = ()
    for line, reply in zip(lines, replies, strict=True):
        chat = Conversation((*turns, Turn("user", line)))
        turn(way, chat, n, spent)
        turns = (*chat.turns, Turn("bot", reply))


def assert_alike(ways: dict[str, Any], chat: Conversation, lines: list[str], replies: list[str]) -> None:
    """Greedy replies are equal in fp32, and scores alike, also where the session's windows cut."""
    first = ways["transformers fp32"]
    greedy = first.generate(chat, 2, greedy=True)
    assert ways["ours fp32"].generate(chat, 2, greedy=True) == greedy, "the greedy replies differ"
    mixed = first.generate(chat, 5)
    turns = tuple(
        t for line, reply in zip(lines, replies, strict=True) for t in (Turn("user", line), Turn("bot", reply))
    )
    for where in (chat, Conversation((*turns, Turn("user", "and now?")))):
        expected = first.score(where, mixed)
        for name, way in ways.items():
            for a, b in zip(expected, way.score(where, mixed), strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=TOLERANCES[name.split()[1]])


def interleaved(ways: dict[str, Any], work: Callable[[Any, Spent], None], repetitions: int) -> dict:
    """Medians of CPU seconds by way and part, each side's with the quicker precision of each part, and the ratio."""
    runs: dict[str, list[Spent]] = {name: [] for name in ways}
    for _ in range(repetitions):
        for name, way in ways.items():
            way.forget()
            runs[name].append({"generate": 0.0, "score": 0.0})
            work(way, runs[name][-1])
    medians = {
        name: {part: statistics.median(spent[part] for spent in found) for part in ("generate", "score")}
        for name, found in runs.items()
    }
    best = {
        side: sum(min(medians[f"{side} {dtype}"][part] for dtype in DTYPES) for part in ("generate", "score"))
        for side in ("transformers", "ours")
    }
    return {"medians": medians, "best": best, "ratio": best["transformers"] / best["ours"], "seconds": runs}


def choose_batch(theirs: Theirs, chat: Conversation) -> None:
    """Keep the size at which batched scoring is quickest, tried once each on 16 replies."""
    replies, spent = theirs.generate(chat, 16), {}
    for size in SCORING_BATCHES:
        theirs.batch = size
        began = time.process_time()
        theirs.score(chat, replies)
        spent[size] = time.process_time() - began
    theirs.batch = min(spent, key=lambda size: spent[size])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="*", default=[4, 16, 64])
    parser.add_argument("--sessions", type=int, nargs="*", default=[], help="N of the sessions, which take longer")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data/hh-rlhf-harmless")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/best_of_n.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if pin_command(arguments.core):
        os.sched_setaffinity(0, {arguments.core})
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        home, scorers, texts = build(arguments.data, Path(folder))
        tokenizer = load_tokenizer(str(home))
        ways: dict[str, Any] = {}
        for name, dtype in DTYPES.items():
            policy = AutoModelForCausalLM.from_pretrained(home, dtype=dtype)
            ways[f"transformers {name}"] = Theirs(policy, tokenizer, scorers, dtype)
            ways[f"ours {name}"] = Ours(policy, tokenizer, scorers, dtype)
    chat = context_of(tokenizer, texts, CONTEXT)
    words = " ".join(chat.turns[-1].text.split()).split()
    lines = [" ".join(words[:OPENING]), *(" ".join(words[10 * i : 10 * i + 15]) for i in range(1, TURNS))]
    replies = ways["transformers fp32"].generate(chat, TURNS)
    assert_alike(ways, chat, lines, replies)
    peers = {name: way for name, way in ways.items() if isinstance(way, Theirs)}
    for way in peers.values():
        choose_batch(way, chat)
    record = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": describe_machine(),
        "context": CONTEXT, "new_tokens": NEW, "scoring_batch": {name: way.batch for name, way in peers.items()},
        "turn": {}, "session": {},
    }  # fmt: skip
    print("CPU seconds of generation + scoring, medians; scoring in batches of", record["scoring_batch"])
    print(f"{'':14}" + "".join(f"{name:>20}" for name in ways), "ratio of each side's quicker precisions")
    for kind, ns, work in (
        ("turn", arguments.n, lambda way, n, spent: turn(way, chat, n, spent)),
        ("session", arguments.sessions, lambda way, n, spent: session(way, lines, replies, n, spent)),
    ):
        for n in ns:
            found = interleaved(ways, lambda way, spent, n=n, work=work: work(way, n, spent), arguments.repetitions)
            record[kind][str(n)] = found
            parts = [f"{m['generate']:.2f} + {m['score']:.2f}" for m in found["medians"].values()]
            print(f"{kind:8} N={n:<4}" + "".join(f"{part:>20}" for part in parts), f"{found['ratio']:.2f}", flush=True)
    record["load_average_at_end"] = os.getloadavg()[0]
    write_result(arguments.output, record)


if __name__ == "__main__":
    main()
