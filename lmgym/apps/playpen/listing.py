"""`playpen list games|models|backends|keys`, in Playpen's printed shape."""

import os
import textwrap

from lmgym.apps.playpen.registries.games import ALL, GameRegistry
from lmgym.apps.playpen.registries.keys import KEY_FILE, VARIABLES, find_key_file, read_keys
from lmgym.apps.playpen.registries.models import BACKENDS, ModelRegistry
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.console import say
from lmgym.errors import InputError
from lmgym.origin import PACKAGED

WIDTH = 70


def list_games(registry: GameRegistry, selector: str, verbose: bool) -> None:
    """A name with its description each, and with `verbose` the spec. Raises InputError if none matches."""
    say("Listing all available games (use -v option to see the whole specs)")
    specs = registry.select(selector)
    say(f"Found '{len(specs)}' game specs that match the game_selector='{selector}'")
    for spec in specs:
        say(f"{spec.name}:")
        _say_wrapped(str(spec.get("description") or ""))
        if verbose:
            _say_wrapped(f"GameSpec: {spec}")


def list_models(registry: ModelRegistry, selector: str, verbose: bool) -> None:
    """A line each, and with `verbose` the spec. Raises InputError if none matches."""
    say("Listing all available models by name (use -v option to see the whole specs)")
    specs = registry.specs if selector == ALL else [registry.select(selector)]
    say(f"Found '{len(specs)}' registered model specs:")
    for spec in specs:
        say(f"{spec.name} -> {spec.get('backend')} ({spec.source})")
        if verbose:
            _say_wrapped(f"ModelSpec: {spec}")


def list_backends(selector: str, verbose: bool) -> None:
    """A line each, and with `verbose` what it is. Raises InputError for an unknown one."""
    say("Listing all supported backends (use -v option to see what they are)")
    found = {name: what for name, what in BACKENDS.items() if selector in (ALL, name)}
    if not found:
        raise InputError(f"there is no backend {selector}; needed: one of {', '.join(BACKENDS)}")
    say(f"Found '{len(found)}' supported backends.")
    say("Then you can use models that specify one of the following backends:")
    for name, what in found.items():
        say(f"{name} ({PACKAGED})")
        if verbose:
            _say_wrapped(what)


def list_keys() -> None:
    """A line for each backend: whether it has a key, and where it is from. No key is printed."""
    path = find_key_file()
    keys = read_keys(path)
    say(f"Listing all registered keys in {path or f'{KEY_FILE} (there is none) and the environment'}")
    for backend, variable in VARIABLES.items():
        of_file = bool(str(keys.get(backend, {}).get("api_key", "")).strip())
        of_environment = bool(os.environ.get(variable, "").strip())
        source = variable if of_environment else str(path) if of_file else f"needed: {variable}, or {KEY_FILE}"
        say(f"* [{' active ' if of_environment or of_file else 'inactive'}] {backend}: {source}")


def say_found(selector: str, spec: Spec) -> None:
    """The line of `playpen run` on a model that was selected."""
    say(f"Found registered model spec that unifies with {selector} -> {spec}")


def _say_wrapped(text: str) -> None:
    """Indented, as Playpen wraps it."""
    for line in textwrap.wrap(text, WIDTH, initial_indent="\t", subsequent_indent="\t"):
        say(line)
