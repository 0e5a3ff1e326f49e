"""A best-of-N turn: ours beside the original's way and transformers' num_return_sequences, on shape S in fp32.

    .venv/bin/python benchmarks/best_of_n.py        # writes benchmarks/results/best_of_n.json

A context of 400 tokens, N replies of 48 new tokens at temperature 1, two scorers of at most 512 tokens. CPU seconds of
one thread, pinned to a core, all interleaved; before that greedy replies are asserted equal, and scores within 1e-5.
Every turn begins from nothing; `session` is ten turns of one conversation, where ours goes on from turn to turn.
"""

import argparse
import datetime
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import describe_machine, pin_command
from shapes import make_shape
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from lmgym.data.records import read_records
from lmgym.data.truncation import truncate
from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.models.loading import load_classifier, load_tokenizer
from lmgym.models.saving import save_classifier
from lmgym.scoring.scorers import HFScorer
from lmgym.text import Conversation, Turn, from_transcript, render, tokenize_texts

ROOT = Path(__file__).resolve().parent.parent
CONTEXT, NEW, WINDOW = 400, 48, 512
TURNS, OPENING = 10, 60  # of the session: its turns, and words of the first line
SCORING_BATCHES = (4, 16, 64)


def build(data: Path, folder: Path) -> tuple[Any, Path, list[Path], list[str]]:
    """A policy, its folder with the tokenizer, two scorers' folders, and texts of people; all of shape S, untrained."""
    texts = [str(record.fields["chosen"]) for record in read_records(str(data))]
    make_shape("S", folder / "policy", texts)
    tokenizer = load_tokenizer(str(folder / "policy"))
    scorers = []
    for seed in (1, 2):
        make_shape("S", folder / f"trunk_{seed}", texts, seed=seed)
        model, _ = load_classifier(str(folder / f"trunk_{seed}"), tokenizer, seed=seed)
        scorers.append(folder / f"scorer_{seed}")
        save_classifier(model, model.state_dict(), scorers[-1], tokenizer, {"reduce": "logit", "max_length": WINDOW})
    policy = AutoModelForCausalLM.from_pretrained(folder / "policy", dtype=torch.float32).eval()
    return policy, folder / "policy", scorers, texts


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
    """transformers: `generate`, then plain classifiers; `replicated` is the original's way, a forward a reply."""

    def __init__(self, policy, tokenizer, scorers: list[Path], replicated: bool, batch: int = 1) -> None:
        self.policy, self.tokenizer, self.replicated, self.batch = policy, tokenizer, replicated, batch
        self.scorers = [AutoModelForSequenceClassification.from_pretrained(f, dtype=torch.float32) for f in scorers]

    def generate(self, chat: Conversation, n: int, greedy: bool = False) -> list[str]:
        """n replies, as text."""
        [ids] = tokenize_texts(self.tokenizer, [render(self.tokenizer, chat)])
        rows = n if self.replicated or greedy else 1
        inputs = torch.tensor([ids] * rows)
        choice = {"do_sample": False} if greedy else {"do_sample": True, "top_k": 0, "num_return_sequences": n // rows}
        found = self.policy.generate(
            input_ids=inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=NEW, eos_token_id=None,
            pad_token_id=self.tokenizer.pad_token_id, **choice,
        )  # fmt: skip
        return self.tokenizer.batch_decode(found[:, len(ids) :], skip_special_tokens=True)

    @torch.inference_mode()
    def score(self, chat: Conversation, replies: list[str]) -> list[torch.Tensor]:
        """Scores of each scorer, batch after batch, padded on the right; all without the same oldest turns."""
        found = []
        for model in self.scorers:
            [fitted] = truncate(self.tokenizer, [chat], [replies], WINDOW)
            rows, size = fitted.ids, 1 if self.replicated else self.batch
            scores = []
            for start in range(0, len(rows), size):
                inputs = self.tokenizer.pad({"input_ids": rows[start : start + size]}, return_tensors="pt")
                scores.append(model(**inputs).logits[:, 0])
            found.append(torch.cat(scores))
        return found


class Ours:
    """LocalGenerator and HFScorer."""

    def __init__(self, policy, tokenizer, scorers: list[Path]) -> None:
        self.generator = LocalGenerator(policy, tokenizer)
        self.scorers = [HFScorer.load(folder) for folder in scorers]

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


def turn(way: Any, chat: Conversation, n: int) -> None:
    """The part of a turn that a user waits for."""
    way.score(chat, way.generate(chat, n))


def session(way: Any, lines: list[str], replies: list[str], n: int) -> None:
    """Ten turns; what was said before is the same for all ways."""
    turns: tuple[Turn, ...] = ()
    for line, reply in zip(lines, replies, strict=True):
        chat = Conversation((*turns, Turn("user", line)))
        turn(way, chat, n)
        turns = (*chat.turns, Turn("bot", reply))


def assert_alike(ways: dict[str, Any], chat: Conversation, lines: list[str], replies: list[str]) -> None:
    """Greedy replies are equal, and scores within 1e-5, also where the session's windows cut."""
    [first, *others] = ways.values()
    greedy = first.generate(chat, 2, greedy=True)
    mixed = first.generate(chat, 5)
    turns = tuple(
        t for line, reply in zip(lines, replies, strict=True) for t in (Turn("user", line), Turn("bot", reply))
    )
    long = Conversation((*turns, Turn("user", "and now?")))
    for other in others:
        assert other.generate(chat, 2, greedy=True) == greedy, "the greedy replies differ"
        for where in (chat, long):
            for a, b in zip(first.score(where, mixed), other.score(where, mixed), strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def interleaved(work: dict[str, Callable[[], None]], before: Callable[[], None], repetitions: int) -> dict:
    """Medians of CPU seconds by way, and how many times ours each of the others takes."""
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for run in work.values():
        before()
        run()
    for _ in range(repetitions):
        for name, run in work.items():
            before()
            began = time.process_time()
            run()
            seconds[name].append(time.process_time() - began)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "medians": medians,
        "ratios": {name: medians[name] / medians["ours"] for name in work if name != "ours"},
        "seconds": seconds,
    }


def best_batch(theirs: Theirs, chat: Conversation) -> int:
    """The size at which batched scoring is quickest, tried once each on 64 replies."""
    replies, spent = theirs.generate(chat, 64), {}
    for size in SCORING_BATCHES:
        theirs.batch = size
        began = time.process_time()
        theirs.score(chat, replies)
        spent[size] = time.process_time() - began
    return min(spent, key=lambda size: spent[size])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="*", default=[4, 16, 64])
    parser.add_argument("--sessions", type=int, nargs="*", default=[4, 16], help="N of the sessions")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared/data/hh-rlhf-harmless")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/best_of_n.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if pin_command(arguments.core):
        os.sched_setaffinity(0, {arguments.core})
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        policy, home, scorers, texts = build(arguments.data, Path(folder))
        tokenizer = load_tokenizer(str(home))
        ours = Ours(policy, tokenizer, scorers)
        ways = {
            "original": Theirs(policy, tokenizer, scorers, replicated=True),
            "transformers": Theirs(policy, tokenizer, scorers, replicated=False, batch=16),
            "ours": ours,
        }
        chat = context_of(tokenizer, texts, CONTEXT)
        words = " ".join(chat.turns[-1].text.split()).split()
        lines = [" ".join(words[:OPENING]), *(" ".join(words[10 * i : 10 * i + 15]) for i in range(1, TURNS))]
        replies = ways["transformers"].generate(chat, TURNS)
        assert_alike(ways, chat, lines, replies)
        ways["transformers"].batch = best_batch(ways["transformers"], chat)
        record = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": describe_machine(),
            "context": CONTEXT, "new_tokens": NEW, "scoring_batch": ways["transformers"].batch,
            "turn": {}, "session": {},
        }  # fmt: skip
        if arguments.output.exists():  # turns and sessions may be measured one after the other
            before = json.loads(arguments.output.read_text())
            record |= {kind: before[kind] for kind in ("turn", "session")}
        print(f"{'':16} {'original':>10} {'transformers':>12} {'ours':>8}   ratios   (CPU seconds, medians)")
        for kind, ns, work in (
            ("turn", arguments.n, lambda way, n: turn(way, chat, n)),
            ("session", arguments.sessions, lambda way, n: session(way, lines, replies, n)),
        ):
            for n in ns:
                found = interleaved(
                    {name: lambda way=way, n=n, work=work: work(way, n) for name, way in ways.items()},
                    ours.forget, arguments.repetitions if kind == "turn" else max(1, arguments.repetitions // 2),
                )  # fmt: skip
                record[kind][str(n)] = found
                m, r = found["medians"], found["ratios"]
                print(
                    f"{kind:8} N={n:<5} {m['original']:>10.2f} {m['transformers']:>12.2f} {m['ours']:>8.2f}   "
                    f"{r['original']:.2f} {r['transformers']:.2f}",
                    flush=True,
                )
    arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
