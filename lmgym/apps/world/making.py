"""`lmgym world`, `world-model`, `world-policy` and `baselines`."""

from pathlib import Path
from typing import Any

from lmgym.apps.world.users import NOISE
from lmgym.config import SEED, Range
from lmgym.console import say
from lmgym.data.column_kinds import TEXT
from lmgym.data.columns import read_columns, require_columns
from lmgym.data.json_rows import is_chat
from lmgym.data.records import read_records
from lmgym.errors import MOST_STEPS, MOST_TOKENS, InputError, shown, shown_path
from lmgym.shell import command

RETENTION = Range(-5, 10)
FEWEST_CHATS = 16
ROWS = Range(1, MOST_STEPS, also=(None,), hint="none for all")


def make_world(output: str, rows: int, seed: int, retention: float = NOISE.retention) -> None:
    """Writes a world's tables and prints their sizes."""
    from lmgym.apps.world.tables import write_world

    RETENTION.check("retention", retention)
    Range(1, MOST_STEPS).check("rows", rows)
    SEED.check("seed", seed)
    sizes = write_world(output, rows, seed, retention)
    say(f"{output}: " + ", ".join(f"{name} {size:,}" for name, size in sizes.items()))


def make_world_model(world: str, output: str, steps: int, rows: int | None, seed: int) -> None:
    """Pretrains a small model on the chats of a world's logs, without labels."""
    from lmgym.apps.world.pretraining import pretrain_small_model
    from lmgym.messages import from_transcript

    Range(1, 10**6).check("steps", steps)
    ROWS.check("rows", rows)
    SEED.check("seed", seed)
    path = Path(world) / "logs.parquet"
    if not path.is_file():
        raise InputError(f"{world} has no logs.parquet; make it with `{command('lmgym', 'world', '--output', world)}`")
    columns = read_columns(str(path), dict.fromkeys(("input_text", "output_text"), TEXT), max_rows=rows)
    require_columns(columns, [("input_text",), ("output_text",)])
    texts = zip(*(columns.table[name].to_pylist() for name in ("input_text", "output_text")), strict=True)
    known = [(from_transcript(chat), reply) for chat, reply in texts if chat and reply]
    if len(known) < FEWEST_CHATS:
        raise InputError(f"{shown_path(path)} has {len(known)} chats with a reply; needed: at least {FEWEST_CHATS}")
    chats, replies = [chat for chat, _ in known], [reply for _, reply in known]
    accuracy = pretrain_small_model(output, chats, replies, steps=steps, seed=seed)
    say(f"{output}: scores a chat's own reply above another chat's in {accuracy:.1%} of pairs (chance 50%)")


def make_world_policy(
    world: str, output: str, layers: int = 2, width: int = 64, pieces: int | None = None, seed: int = 0
) -> None:
    """Makes an untrained Llama and a tokenizer of a world's words, for `sft/` to start from."""
    from lmgym.apps.world.pretraining import make_untrained_policy

    Range(1, 1000).check("layers", layers)
    Range(1, 65_536).check("width", width)
    Range(1, MOST_TOKENS, also=(None,), hint="none for whole words").check("pieces", pieces)
    SEED.check("seed", seed)
    path = Path(world) / "sft.parquet"
    if not path.is_file():
        raise InputError(f"{world} has no sft.parquet; make it with `{command('lmgym', 'world', '--output', world)}`")
    messages = _messages(path)
    make_untrained_policy(output, messages, layers, width, pieces=pieces, seed=seed)
    say(f"{output}: an untrained model of {layers} layers, width {width}, and a tokenizer of the world's words")


def _messages(path: Path) -> list[str]:
    """The texts of a world's chats. Raises InputError for a row without a chat."""
    texts: list[str] = []
    for record in read_records(str(path)):
        chat: Any = record.fields.get("messages")
        whole = is_chat(chat) and all(isinstance(message, dict) for message in chat)
        contents: list[Any] = [message.get("content") for message in chat] if whole else [None]
        if record.fault or not all(isinstance(content, str) for content in contents):
            found = record.fault.found if record.fault else f"messages are {shown(chat)}"
            raise InputError(f"{shown_path(path)}, row {record.line}: {found}; needed: a chat; make the world again")
        texts += contents
    if not texts:
        raise InputError(f"{shown_path(path)} has no chat in a column messages; make the world again")
    return texts


def show_baselines(world: str, rows: int | None) -> None:
    """Prints the baselines of a world."""
    from lmgym.apps.world.baselines import baselines

    ROWS.check("rows", rows)
    for name, rho in baselines(world, rows).items():
        say(f"{name:14} {rho:.3f}")
