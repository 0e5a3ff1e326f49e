"""The loop closes: 30 picks of a person make a scorer that agrees with that person more often than the one before.

    .venv/bin/python benchmarks/flywheel.py        # five seeds; writes benchmarks/results/flywheel.json

A seed is a world of its own words, an old scorer of what everybody agrees on, and a person with hidden tastes. What all
people agree on (`agreed_worth`: on topic, not rude, not dull) is what an old scorer can learn from anybody. On what a
reply has besides (`TASTES`) this person has an opinion that nobody told the old scorer: loves one kind of sentence,
hates another. The bot says each kind by the toss of a coin, so the tastes have nothing to do with what all agree on.

The person types lines into a session and picks 30 times among six replies, `%export prefs`
writes the picks, `hh_pairwise` trains a new scorer from the old one on them, and a session with both judges 300 pairs
of replies to other lines. Beside that, scorers that were trained on picks made at random in sessions of the same lines.
SEEDS and the criterion (`judge`) were fixed before any of these seeds was run; settings were chosen on seeds from 100.
"""

import argparse
import contextlib
import io
import json
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest
from shared import ROOT, describe_machine, write_result

from lmgym.apps.chat.actions import ChatView, Response
from lmgym.apps.chat.session import ChatSession
from lmgym.apps.chat.session_commands import respond
from lmgym.apps.world.grammar import BOT_TEMPLATES, pick
from lmgym.apps.world.users import message
from lmgym.apps.world.utility import FEATURES, WEIGHTS
from lmgym.apps.world.world import World
from lmgym.generation.protocol import Sampling, ScriptedGenerator
from lmgym.scoring.protocol import Scorer
from lmgym.text import Conversation, Turn, messages, to_transcript

SEEDS = (1, 2, 3, 4, 5)
PICKS, TURNS_A_CHAT, BEST_OF, UNSEEN, RANDOM_SCORERS = 30, 2, 6, 300, 3
P_GAIN, MOST_RANDOM_GAIN = 0.01, 0.02
OLD_PAIRS, ANNOTATOR_NOISE = 3000, 0.4
MODEL = {"layers": 1, "width": 64, "vocab_size": 512, "max_length": 256}
COMMON = ("--precision", "fp32", "--max_length", "128", "--save_updates", "-1", "--tracking", "none")
OLD_FLAGS = (*COMMON, "--learning_rate", "3e-3", "--epochs", "2", "--global_batch", "32", "--micro_batch", "32")
NEW_FLAGS = (*COMMON, "--learning_rate", "5e-4", "--epochs", "10", "--global_batch", "16", "--micro_batch", "16")
# what a reply may have besides its statement: the kinds of sentence of the world's grammar that show it
TASTES = {
    "questions": ("question",),
    "opinions": ("like", "dislike"),
    "small talk": ("small_talk",),
    "warm words": ("warm",),
}
WANDERS_OFF, MANNERS = 0.3, (0.7, 0.15, 0.15)  # how often the bot leaves the topic; says something, or is dull, or rude
AGREED = ("on_topic", "off_topic", "rude", "dull")
AGREED_SHARE, TASTE, NOISE = 0.5, 3.0, 0.5  # of this person: noise is the scale of a Gumbel variable
TALKATIVE = 0.3
Choose = Callable[[Conversation, Sequence[str]], int]


def bot_reply(world: World, conversation: Conversation, rng: np.random.Generator) -> str:
    """Two sentences: one that all agree on how good it is, and one that is a matter of taste."""
    draw, grammar = random.Random(int(rng.integers(1 << 60))), world.grammar
    topic = grammar.topic_of[grammar.named_things(conversation)[0]]
    if draw.random() < WANDERS_OFF:
        topic = pick(draw, [name for name in world.topics if name != topic])
    manner = draw.choices(("statement", "dull", "rude"), MANNERS)[0]
    closing = pick(draw, TASTES[pick(draw, tuple(TASTES))])
    return " ".join(grammar.say(draw, BOT_TEMPLATES[kind], topic) for kind in (manner, closing))


def lines_of_a_chat(world: World, rng: random.Random, turns: int) -> list[str]:
    """A person's messages in a chat, which do not depend on the replies."""
    topic = pick(rng, world.topics)
    return [message(world.grammar, rng, topic, TALKATIVE, opening=not turn) for turn in range(turns)]


def agreed_worth(world: World, conversations: Sequence[Conversation], replies: Sequence[str]) -> NDArray[np.float64]:
    """Utility [n] of replies to everyone, by the world's features and the weights of AGREED."""
    columns = [FEATURES.index(name) for name in AGREED]
    return world.features(conversations, replies)[:, columns] @ np.array([WEIGHTS[name] for name in AGREED])


@dataclass
class Person:
    """Loves one thing in replies and hates another, both drawn by the seed, and chooses with noise."""

    world: World
    seed: int
    loves: str = field(init=False)
    hates: str = field(init=False)
    rng: np.random.Generator = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.loves, self.hates = random.Random(f"tastes {self.seed}").sample(sorted(TASTES), 2)
        self.rng = np.random.default_rng([self.seed, 0])

    def worth(self, conversation: Conversation, replies: Sequence[str]) -> NDArray[np.float64]:
        """Utility [n] of replies to this person."""
        found = AGREED_SHARE * agreed_worth(self.world, [conversation] * len(replies), replies)
        return found + TASTE * np.array([self._has(r, self.loves) - self._has(r, self.hates) for r in replies])

    def choose(self, conversation: Conversation, replies: Sequence[str]) -> int:
        """The index of the reply that the person picks: the best by worth and Gumbel noise (Luce 1959)."""
        noise = self.rng.gumbel(scale=NOISE, size=len(replies))
        return int(np.argmax(self.worth(conversation, replies) + noise))

    def _has(self, reply: str, taste: str) -> float:
        return float(any(sentence.kind in TASTES[taste] for sentence in self.world.grammar.parse(reply)))


@dataclass(frozen=True)
class Comparison:
    """A new scorer beside the old one on the same pairs: how often each agrees with the person, and McNemar's test.

    `gained` pairs are right with the new scorer alone, `lost` ones with the old alone; p is the exact two-sided one of
    their binomial (McNemar 1947).
    """

    old: float
    new: float
    gained: int
    lost: int
    p: float

    @property
    def change(self) -> float:
        """In agreement."""
        return self.new - self.old


@dataclass(frozen=True)
class Outcome:
    """The result of one seed. `ceiling` is the share of choices that agree with the person's utility without noise."""

    seed: int
    loves: str
    hates: str
    preferences: int
    picks: Comparison
    random_picks: tuple[Comparison, ...]
    ceiling: float
    cpu_seconds: float


def compare(old: Sequence[bool], new: Sequence[bool]) -> Comparison:
    """Comparison of two scorers on the same pairs, by whether each was right."""
    before, after = np.asarray(old, dtype=bool), np.asarray(new, dtype=bool)
    gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
    p = float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return Comparison(float(before.mean()), float(after.mean()), gained, lost, p)


def judge(outcomes: Sequence[Outcome]) -> list[str]:
    """The parts of the criterion that are not met; empty if the loop closes.

    In each seed the person's picks gain with p < P_GAIN, and more than random picks do; over all seeds, random picks
    change agreement by at most MOST_RANDOM_GAIN on average. (A single scorer
    may drift towards a taste with random picks, but not the mean over many.)
    """
    faults = []
    for outcome in outcomes:
        picks, changes = outcome.picks, [comparison.change for comparison in outcome.random_picks]
        if not (picks.gained > picks.lost and picks.p < P_GAIN):
            faults.append(f"seed {outcome.seed}: {picks.gained} gained, {picks.lost} lost, p = {picks.p:.3g}")
        if changes and max(changes) >= picks.change:
            faults.append(f"seed {outcome.seed}: random picks gain {max(changes):.3f}, the person's {picks.change:.3f}")
    changes = [comparison.change for outcome in outcomes for comparison in outcome.random_picks]
    if len(outcomes) == len(SEEDS) and mean(changes) > MOST_RANDOM_GAIN:
        faults.append(f"random picks gain {mean(changes):.3f} on average")
    return faults


def make_old_scorer(world: World, folder: Path, initialisation: int) -> Path:
    """A small scorer from scratch, of pairs that people judged by what everybody agrees on."""
    from lmgym.models.small_models import make_small_model

    words, rng = random.Random(f"old {world.seed}"), np.random.default_rng([world.seed, 1])
    conversations: list[Conversation] = []
    for _ in range(OLD_PAIRS):
        turns: tuple[Turn, ...] = ()
        for line in lines_of_a_chat(world, words, words.randint(1, TURNS_A_CHAT)):
            spoken = (Turn("bot", bot_reply(world, Conversation(turns), rng)),) if turns else ()
            turns = (*turns, *spoken, Turn("user", line))
        conversations += [Conversation(turns)] * 2
    replies = [bot_reply(world, conversation, rng) for conversation in conversations]
    worth = agreed_worth(world, conversations, replies) + rng.gumbel(scale=ANNOTATOR_NOISE, size=len(replies))
    rows = []
    for i in range(0, len(replies), 2):
        better, other = (i, i + 1) if worth[i] > worth[i + 1] else (i + 1, i)
        sides = [[{"role": "assistant", "content": replies[place]}] for place in (better, other)]
        rows.append({"prompt": messages(conversations[i]), "chosen": sides[0], "rejected": sides[1]})
    (folder / "agreed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = [to_transcript(conversation, reply) for conversation, reply in zip(conversations, replies, strict=True)]
    make_small_model(folder / "small", "llama", texts, seed=world.seed + 1000 * initialisation, **MODEL)
    return train(folder / "small", folder / "agreed.jsonl", folder / "old", OLD_FLAGS)


def train(model: Path, dataset: Path, output: Path, flags: Sequence[str]) -> Path:
    """The scorer that hh_pairwise makes of a model by these flags, its words kept in `output`.log; in this process."""
    from lmgym.runs.flags import override
    from reward_models.experiments.hh_pairwise import CONFIG
    from reward_models.train import train_pairwise

    places = ("--model", str(model), "--dataset", str(dataset), "--output", str(output))
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        train_pairwise(override(CONFIG, [*places, *flags]))
    output.with_suffix(".log").write_text(said.getvalue())
    return output / "model"


def load_judges(**folders: Path) -> dict[str, Scorer]:
    """Scorers by name, as `--scorers name=PATH,...` of the experiment `hh` loads them."""
    from lmgym.scoring.named_scorers import load_scorers

    return load_scorers(",".join(f"{name}={path}" for name, path in folders.items()))


def open_session(
    world: World, judges: dict[str, Scorer], select: str, best_of: int, folder: Path, seed: int
) -> ChatView:
    """A session with the world's bot; replies differ with the seed."""
    bot = ScriptedGenerator(lambda conversation, rng: bot_reply(world, conversation, rng))
    return ChatView(ChatSession(bot, judges, select, best_of, Sampling(seed=seed), folder=folder / "sessions"))


def enter(chat: ChatView, line: str) -> Response:
    """Types a line. Raises RuntimeError where the session answers with an error."""
    shown = respond(chat, line)
    if not shown.ok:
        raise RuntimeError(f"{line!r}: {shown.text}")
    return shown


def pick_and_train(world: World, old: Path, choose: Choose, folder: Path) -> tuple[Path, set[Conversation], int]:
    """PICKS picks in a session with the old scorer, exported and trained on; (new scorer, prompts, preferences)."""
    folder.mkdir()
    chat = open_session(world, load_judges(old=old), "old", BEST_OF, folder, seed=0)
    words = random.Random(f"lines {world.seed}")
    for _ in range(PICKS // TURNS_A_CHAT):
        for line in lines_of_a_chat(world, words, TURNS_A_CHAT):
            exchange = enter(chat, line).exchange
            assert exchange is not None
            place = choose(exchange.prompt, [candidate.text for candidate in exchange.candidates])
            enter(chat, f"%pick {place + 1}")
        enter(chat, "%back 0")
    enter(chat, f"%export prefs {folder / 'prefs.jsonl'}")
    prompts = {exchange.prompt for exchange in chat.session.exchanges.values()}
    preferences = len((folder / "prefs.jsonl").read_text().splitlines())
    return train(old, folder / "prefs.jsonl", folder / "new", NEW_FLAGS), prompts, preferences


def agreement_on_unseen(chat: ChatView, person: Person, seen: set[Conversation]) -> tuple[dict[str, list[bool]], float]:
    """By scorer, whether it agrees with the person on each of UNSEEN pairs; and the ceiling of agreement.

    The person picks in a session of best of 2, among different replies to lines that are not among those `seen`.
    """
    words, world = random.Random(f"unseen {person.seed}"), person.world
    right: dict[str, list[bool]] = {name: [] for name in chat.session.judges}
    ceiling: list[float] = []
    while len(ceiling) < UNSEEN:
        for line in lines_of_a_chat(world, words, TURNS_A_CHAT):
            exchange = enter(chat, line).exchange
            assert exchange is not None
            replies = [candidate.text for candidate in exchange.candidates]
            if replies[0] == replies[1] or exchange.prompt in seen or len(ceiling) == UNSEEN:
                continue
            place = person.choose(exchange.prompt, replies)
            enter(chat, f"%pick {place + 1}")
            worth = person.worth(exchange.prompt, replies)
            ceiling.append(float(worth[place] > worth[1 - place]) + 0.5 * float(worth[0] == worth[1]))
            for name, column in exchange.columns.items():
                right[name].append(column[place] > column[1 - place])  # type: ignore[operator]
        enter(chat, "%back 0")
    return right, mean(ceiling)


def run_seed(seed: int, folder: Path, random_scorers: int = RANDOM_SCORERS, initialisation: int = 0) -> Outcome:
    """The whole loop in a folder, once with the person's picks and `random_scorers` times with random picks.

    Another `initialisation` draws other first weights for the old scorer, in the same world and with the same person.
    """
    began = time.process_time()
    world = World(seed)
    person = Person(world, seed)
    old = make_old_scorer(world, folder, initialisation)
    new, seen, preferences = pick_and_train(world, old, person.choose, folder / "picks")
    folders = {"old": old, "new": new}
    for number in range(1, random_scorers + 1):
        draw = random.Random(f"lot {number} {seed}")
        scorer, also_seen, _ = pick_and_train(
            world, old, lambda _, replies, draw=draw: draw.randrange(len(replies)), folder / f"random_{number}"
        )
        folders[f"random_{number}"] = scorer
        seen |= also_seen
    chat = open_session(world, load_judges(**folders), "new", 2, folder, seed=1_000_000)
    right, ceiling = agreement_on_unseen(chat, person, seen)
    random_picks = tuple(compare(right["old"], right[f"random_{number}"]) for number in range(1, random_scorers + 1))
    picks, seconds = compare(right["old"], right["new"]), time.process_time() - began
    return Outcome(seed, person.loves, person.hates, preferences, picks, random_picks, ceiling, seconds)


def table(outcomes: Sequence[Outcome]) -> str:
    """Markdown."""
    lines = [
        "| seed | loves, hates | agrees: old | new | gained, lost | p | random picks | ceiling |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for o in outcomes:
        random_picks = " ".join(f"{comparison.new:.3f}" for comparison in o.random_picks)
        lines.append(
            f"| {o.seed} | {o.loves}, {o.hates} | {o.picks.old:.3f} | {o.picks.new:.3f} "
            f"| {o.picks.gained}, {o.picks.lost} | {o.picks.p:.1e} | {random_picks} | {o.ceiling:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument(
        "--random_scorers", type=int, default=RANDOM_SCORERS, help="scorers a seed that are trained on random picks"
    )
    parser.add_argument("--initialisation", type=int, default=0, help="other first weights of the old scorers")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/flywheel.json")
    arguments = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    outcomes: list[Outcome] = []
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(run_seed(seed, Path(folder), arguments.random_scorers, arguments.initialisation))
        print(table(outcomes[-1:]).splitlines()[-1], f"{outcomes[-1].cpu_seconds:.0f} CPU s", flush=True)
    changes = [comparison.change for outcome in outcomes for comparison in outcome.random_picks] or [0.0]
    record = {
        "settings": {
            "picks": PICKS,
            "best_of": BEST_OF,
            "unseen": UNSEEN,
            "random_scorers": arguments.random_scorers,
            "initialisation": arguments.initialisation,
            "old": OLD_FLAGS,
            "new": NEW_FLAGS,
        },
        "machine": describe_machine(),
        "faults": judge(outcomes),
        "mean_change_of_random_picks": mean(changes),
        "seeds": [asdict(outcome) for outcome in outcomes],
    }
    write_result(arguments.output, record, "world", "rows", "method")
    print(table(outcomes), f"random picks change agreement by {mean(changes):+.3f} on average", sep="\n\n")
    print("\n".join(record["faults"]) or "the loop closes: the criterion is met in every seed")


if __name__ == "__main__":
    main()
