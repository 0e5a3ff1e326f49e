"""The policies that `lmgym lab score` takes: as `lmgym ab` does, and a run's folder; a tokenizer is tried first."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lmgym.apps.world.arms import MOST_WEIGHT_BYTES
from lmgym.apps.world.grammar import BOT_TEMPLATES, WORDS, Grammar, Sentence
from lmgym.apps.world.policies import BOTS, GOLD, RANDOM, read_policy
from lmgym.apps.world.world import World
from lmgym.errors import InputError, listed, shown, shown_path
from lmgym.runs.layout import model_of


def resolve_policies(names: Sequence[str], world: World) -> list[str]:
    """The policies as `load_policies` reads them, with the models of runs.

    Raises InputError for what names no policy, a folder that is no model, and a tokenizer that cannot say the
    sentences of the world's bots.
    """
    specs = [read_policy(name) for name in names]
    bases = {spec.base: model_of(spec.base) for spec in specs if spec.base != BOTS and not spec.served}
    for name in dict.fromkeys(bases.values()):
        check_tokenizer(_load_tokenizer(name), name, world)
    return [
        f"{bases.get(spec.base, spec.base)}@{model_of(spec.scorer)}:{spec.best_of}"
        if spec.best_of
        else bases.get(spec.base, spec.base)
        for spec in specs
    ]


def are_small(specs: Sequence[str]) -> bool:
    """True if all models are folders here of few weights, or the world's bots."""
    parts = {part for spec in map(read_policy, specs) for part in (spec.base, spec.scorer)} - {"", BOTS, GOLD, RANDOM}
    files = [file for part in parts for file in Path(part).glob("*.safetensors")]
    return all(Path(part).is_dir() for part in parts) and sum(f.stat().st_size for f in files) <= MOST_WEIGHT_BYTES


def _load_tokenizer(name: str) -> Any:
    """As generation loads it: an adapter's folder has one too."""
    from lmgym.models.loading import load_tokenizer
    from lmgym.models.sources import base_of_adapter

    return load_tokenizer(name, role="scorer" if base_of_adapter(name) else "model")


def check_tokenizer(tokenizer: Any, name: str, world: World) -> None:
    """Raises InputError unless each sentence of the bots comes back from the tokenizer as the same for the world.

    The same: of one kind, about the same things; case and the number of spaces do not matter.
    """
    grammar = world.grammar
    sentences = bot_sentences(grammar)
    ids = tokenizer([f" {sentence}" for sentence in sentences], add_special_tokens=False).input_ids
    back = tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    lost = [
        (sentence, text)
        for sentence, text in zip(sentences, back, strict=True)
        if _read(grammar.parse(sentence)) != _read(grammar.parse(text))
    ]
    if not lost:
        return
    missing = dict.fromkeys(
        word for sentence, text in lost for word in WORDS.findall(sentence) if word not in WORDS.findall(text.lower())
    )
    words = f"; it has no {listed(missing, 6)}" if missing else ""
    raise InputError(
        f"the tokenizer of {shown_path(name)} cannot say what world {world.seed} reads: of {len(sentences)} sentences "
        f"of its bots {len(lost)} do not come back, such as {shown(lost[0][0])} as {shown(lost[0][1].strip())}{words}; "
        "needed: a tokenizer that gives them back, as of `lmgym world-policy`, or of a model that knows English"
    )


def bot_sentences(grammar: Grammar) -> list[str]:
    """Every template of the world's bots, with each thing in it, and each adjective."""
    vocabulary = grammar.vocabulary
    things = [
        (thing, group[(place + 1) % len(group)])
        for group in vocabulary.topics.values()
        for place, thing in enumerate(group)
    ]
    adjectives = vocabulary.adjectives
    assert len(adjectives) <= len(things)
    return list(
        dict.fromkeys(
            template.format(n=thing, m=other, a=adjectives[place % len(adjectives)])
            for templates in BOT_TEMPLATES.values()
            for template in templates
            for place, (thing, other) in enumerate(things)
        )
    )


def _read(sentences: Sequence[Sentence]) -> list[tuple[str, tuple[str, ...]]]:
    """Kinds and things of a text's sentences, as the world reads them."""
    return [(sentence.kind, sentence.things) for sentence in sentences]
