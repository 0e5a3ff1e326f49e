"""The registry of models: model_registry.json of the current folder before the packaged entries.

A selector is a name or a part of a spec. It is unified with the first entry that it does not contradict, so that its
extra keys are added to the entry's.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmgym.apps.playpen.registries import packaged
from lmgym.apps.playpen.registries.keys import (
    SERVED_BACKENDS,
    VARIABLES,
    address_of_keys,
    find_key_file,
    origin_of_key,
    read_keys,
)
from lmgym.apps.playpen.registries.specs import (
    SOURCE_FIELD,
    Spec,
    one_of,
    read_entries,
    read_selector,
    refuse_misspelt,
    unify,
)
from lmgym.errors import InputError, one_line, shown, shown_path
from lmgym.generation.model_specs import read_model_spec
from lmgym.origin import ENVIRONMENT, TYPED, Origin, may_ask, origin_of, refuse
from lmgym.scoring.named_scorers import name_of

REGISTRY = "model_registry.json"
PROGRAMMED = "_player_programmed"
SERVED = "spec"
MOCKS = ("mock", "programmatic")
BACKENDS = {
    "huggingface_local": "a folder or hub id of a causal model, in this process",
    **{name: backend.about for name, backend in SERVED_BACKENDS.items()},
    "anthropic": "Anthropic's Messages interface",
    SERVED: "a served model by its spec as the name: vllm:URL, vllm:FOLDER, openai:URL#MODEL, anthropic:MODEL",
    PROGRAMMED: "replies by each game's own script: mock",
}
"""what each backend is, by its name in a registry"""
CONFIG_KEYS = frozenset({
    "peft_model", "load_in_8bit", "load_in_4bit", "premade_chat_template", "custom_chat_template", "eos_to_cull",
    "requires_api_key", "multimodality", "trust_remote_code", "base_url",
})  # fmt: skip
KEYS = frozenset({
    "model_name", "backend", "model_id", "huggingface_id", "release_date", "open_weight", "parameters", "languages",
    "context_size", "license", "model_config", SOURCE_FIELD,
})  # fmt: skip


@dataclass(frozen=True)
class ModelRegistry:
    """The entries, custom ones first."""

    specs: Sequence[Spec]

    def select(self, selector: str | dict[str, Any]) -> Spec:
        """The entry that has the fields of a name or a part of a spec, else the one that they unify with.

        The spec of a served model, and a folder, need no entry (lmgym/generation/model_specs.py).
        Raises InputError for none, for several in the same file, and for an unknown backend.
        """
        fields = read_selector(selector, "model_name") if isinstance(selector, str) else selector
        if fields.get("model_name") in MOCKS:
            return Spec({"backend": PROGRAMMED, **fields})
        if isinstance(selector, str) and selector == fields.get("model_name") and (found := _without_entry(selector)):
            return found
        unified = [(unify(fields, spec.fields), spec.source) for spec in self.specs]
        matches = [Spec(found, source) for found, source in unified if found is not None]
        # entries that have all of the selector's fields come before those to which it would add some
        having = [spec for spec in self.specs if unify(fields, spec.fields) == dict(spec.fields)]
        matches = having or matches
        names = [*dict.fromkeys(spec.name for spec in self.specs), MOCKS[0]]
        given = str(fields.get("model_name", selector))
        if not matches and {"model_name", "backend"} <= fields.keys():
            matches = [Spec(fields, TYPED)]
        spec = one_of(matches, "model", given, names)
        check_backend(spec)
        return spec


def _without_entry(name: str) -> Spec | None:
    """The spec of a model that is named by itself: served, or a model's folder. None for the name of an entry."""
    if read_model_spec(name).served:
        return Spec({"model_name": name_of(name), "backend": SERVED, "model_id": name}, TYPED)
    if "/" in name and (Path(name) / "config.json").is_file():
        own = {"model_name": name_of(name), "backend": "huggingface_local", "huggingface_id": name}
        return Spec(own, TYPED)
    return None


def load_models(folder: Path | None = None) -> ModelRegistry:
    """The registry of a folder, by default the current one. Raises InputError for a faulty file, with the line."""
    with suppress(InputError):  # to mask its keys in what is printed; a faulty file is refused where a key is needed
        read_keys(find_key_file())
    path = (folder or Path.cwd()) / REGISTRY
    custom = _read_models(path) if path.exists() else []
    return ModelRegistry([*custom, *(Spec(fields) for fields in packaged.MODELS)])


def refuse_unnamed(spec: Spec, selector: str) -> None:
    """Raises InputError for an entry whose code or address only a file names, with the selector that names it too."""
    asked, config = read_selector(selector, "model_name").get("model_config"), spec.get("model_config")
    typed: Mapping[str, Any] = asked if isinstance(asked, dict) else {}
    found: Mapping[str, Any] = config if isinstance(config, dict) else {}
    name = one_line(spec.name, 40)
    if found.get("trust_remote_code") and not typed.get("trust_remote_code") and spec.source.is_file:
        refuse(
            spec.source,
            f"trust_remote_code of {name}, code that comes with the model",
            _needed("run it", name, "'trust_remote_code':true"),
        )
    if spec.get("backend") == SERVED:
        words = str(spec.get("model_id") or spec.name)
        if read_model_spec(words).urls and not may_ask(spec.source):
            refuse(spec.source, f"the address {one_line(words, 80)}", "to ask it: that as the model")
    elif spec.get("backend") in VARIABLES and not typed.get("base_url"):
        _refuse_unasked_address(name, str(spec.get("backend")), found.get("base_url"), spec.source)


def _refuse_unasked_address(name: str, backend: str, address: Any, origin: Origin) -> None:
    """Of an entry's base_url or, without one, that of its backend in key.json."""
    if not address:
        address, origin = address_of_keys(backend)
    key = origin_of_key(backend)
    if address and not may_ask(origin, key):
        url = one_line(str(address), 80)
        sent = f"which would get the key {VARIABLES[backend]} of {shown_path(key)}" if key else "which has no key here"
        needed = _needed("ask it", name, f"'base_url':'{url}'")
        beside = f", or a key of {backend} in key.json beside it" if key != ENVIRONMENT else ""
        refuse(origin, f"the address {url} of {name}, {sent}", needed + beside)


def _needed(purpose: str, name: str, setting: str) -> str:
    return f"to {purpose}: \"{{'model_name':'{name}','model_config':{{{setting}}}}}\" as the model"


def check_backend(spec: Spec) -> None:
    """Raises InputError for a spec whose backend does not exist."""
    if spec.get("backend") not in BACKENDS:
        raise InputError(
            f"model {shown(spec.name)} of {shown_path(spec.source)} has the backend {shown(spec.get('backend'))}; "
            f"needed: one of {', '.join(BACKENDS)}"
        )


def _read_models(path: Path) -> list[Spec]:
    entries, text = read_entries(path)
    for number, entry in enumerate(entries, 1):
        refuse_misspelt(path, text, entry, KEYS)
        config = entry.get("model_config", {})
        if not isinstance(config, dict):
            raise InputError(
                f"{shown_path(path)}: model_config of entry {number} is {shown(config)}; needed: an object"
            )
        refuse_misspelt(path, text, config, CONFIG_KEYS)
        if missing := [name for name in ("model_name", "backend") if not isinstance(entry.get(name), str)]:
            raise InputError(f"{shown_path(path)}: entry {number} has no {missing[0]}; needed: model_name and backend")
    return [Spec({k: v for k, v in entry.items() if k != SOURCE_FIELD}, origin_of(path)) for entry in entries]
