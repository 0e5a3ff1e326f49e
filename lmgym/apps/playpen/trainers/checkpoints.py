"""Shared by the example trainers: the learner's source, the rows, and the folder and entry of what was trained."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lmgym.apps.games.dialogue.rows import RowFilter, write_dialogue_rows
from lmgym.apps.playpen.model_settings import context_size, model_config
from lmgym.apps.playpen.players import Model
from lmgym.apps.playpen.registries.games import GameRegistry
from lmgym.apps.playpen.registries.specs import SOURCE_FIELD, Spec
from lmgym.config import StageConfig
from lmgym.console import say
from lmgym.errors import InputError, listed, shown_path
from lmgym.origin import origin_of
from lmgym.runs.files import read_json
from lmgym.runs.flags import override

Stage = TypeVar("Stage", bound=StageConfig)
CORRECTIONS = {"embed_token": "embed_tokens"}
"""misspelt names of modules in Playpen's trainers, and the layer's own"""
MOST_CONTEXT = 4096
ENTRY = "model_registry_entry.json"


@dataclass(frozen=True)
class LearnerSource:
    """A learner's weights and limits."""

    model: str
    context: int
    bits: int


def learner_source(learner: Model) -> LearnerSource:
    """The learner's folder or hub id.

    Raises InputError for one that is not in this process, or has an adapter, and for a chat template that it would not
    be trained with: after the training, it could not be played.
    """
    spec, config = learner.spec, model_config(learner.spec)
    if spec.get("backend") != "huggingface_local":
        raise InputError(
            f"the learner {learner.name} is of backend {spec.get('backend')}; needed: huggingface_local, whose weights "
            "can be trained"
        )
    if config.get("peft_model"):
        raise InputError(
            f"the learner {learner.name} has peft_model {shown_path(config['peft_model'])}; needed: a learner without "
            "an adapter, or its merged weights as huggingface_id"
        )
    if config.get("custom_chat_template"):
        raise InputError(
            f"the learner {learner.name} has custom_chat_template, with which no stage trains; needed: its tokenizer "
            "saved with that template, and premade_chat_template"
        )
    from lmgym.apps.playpen.local_player import bits_of, has_template, local_source, set_template
    from lmgym.models.loading import load_tokenizer

    source = local_source(spec)
    tokenizer = load_tokenizer(source, bool(config.get("trust_remote_code")))
    set_template(learner.name, tokenizer, config, has_template(source))
    size = min(context_size(spec) or MOST_CONTEXT, MOST_CONTEXT)
    return LearnerSource(source, size, bits_of(learner.name, config))


def successful_rows(rows: Path, folder: Path, games: GameRegistry) -> Path:
    """A file of the rows whose game succeeded, of the games that the user chose if any. Raises InputError for none."""
    if not rows.is_file():
        raise InputError(
            f"there is no {shown_path(rows)}; needed: python3 examples/trl/data_utils.py RESULTS, which writes it"
        )
    path = folder / "rows.jsonl"
    chosen = tuple(games.names) if games.is_chosen else ()
    found = write_dialogue_rows(str(rows), path, RowFilter(outcome=("success",), game=chosen))
    say(f"{len(found)} rows of games that were won, in {path}")
    return path


def with_flags(config: Stage, flags: Sequence[str], folder: Path) -> Stage:
    """The config with the flags of the command. Raises InputError for flags that do not fit, and for --output."""
    changed = override(config, list(flags))
    if changed.output != str(folder):
        raise InputError(f"--output {shown_path(changed.output)}; needed: leave it out, the trainer writes {folder}")
    return changed


def corrected_modules(model: str, modules: str) -> str:
    """Names of modules with Playpen's misspelt ones corrected, and reported; without a head that is the embeddings.

    Raises InputError for a model that does not load its config.
    """
    from lmgym.models.loading import load_config

    names = [CORRECTIONS.get(name, name) for name in modules.split(",")]
    for before, after in zip(modules.split(","), names, strict=True):
        if before != after:
            say(f"modules_to_save: {before} is no module's name and was corrected to {after}")
    if load_config(model).tie_word_embeddings and "lm_head" in names and "embed_tokens" in names:
        names.remove("lm_head")
        say("modules_to_save: lm_head shares its weights with embed_tokens; both train as one")
    return ",".join(names)


def keep_checkpoint(learner: Model, folder: Path, result: str, suffix: str) -> Path:
    """Renames a run's model/ or adapter/ to checkpoint-N, after N updates, and prints the entry that plays it.

    The entry is loaded once before it is printed. Raises InputError if it does not load.
    """
    if not (folder / result).is_dir():
        raise InputError(f"{shown_path(folder)} has no {result}; found {listed(p.name for p in folder.iterdir())}")
    target = folder / f"checkpoint-{last_update(folder)}"
    shutil.rmtree(target, ignore_errors=True)
    (folder / result).rename(target)
    config = dict(model_config(learner.spec))
    entry = {
        **{name: value for name, value in learner.spec.fields.items() if name != SOURCE_FIELD},
        "model_name": f"{learner.name}-{suffix}",
        "model_config": config | ({"peft_model": str(target)} if result == "adapter" else {}),
    } | ({} if result == "adapter" else {"huggingface_id": str(target)})
    from lmgym.apps.playpen.local_player import load_local_player

    load_local_player(Spec(entry, origin_of(folder / ENTRY)), entry["model_config"])
    (folder / ENTRY).write_text(json.dumps([entry], indent=2) + "\n", encoding="utf-8")
    say("To play with the trained model, add this entry to model_registry.json:")
    for line in json.dumps(entry, indent=2, ensure_ascii=False).splitlines():
        say(line)
    return target


def last_update(folder: Path) -> int:
    """The number of updates of a run, from its metrics."""
    steps = [json.loads(line).get("step", 0) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    record = read_json(folder / "run.json")
    return int(record.get("best_update") or max(steps, default=0))
