"""API keys: of the environment, or of key.json in the current folder or in ~/.clemcore. They are never printed.

The generators read a key from an environment variable for each request and keep none, so a key of a file is put into
the variable of its backend.
"""

import os
from collections.abc import Mapping
from json import JSONDecodeError
from pathlib import Path
from typing import NamedTuple

from lmgym.errors import InputError, shown_path
from lmgym.generation.model_specs import OPENAI_URL, ORGANIZATION
from lmgym.masking import remember
from lmgym.origin import ENVIRONMENT, Origin, origin_of
from lmgym.runs.files import read_json

KEY_FILE = "key.json"
HOME = ".clemcore"


class ServedBackend(NamedTuple):
    """A backend with OpenAI's HTTP interface: its address, its key's environment variable, and what it is."""

    url: str
    variable: str
    about: str
    needs_key: bool = True


COMPATIBLE = "OPENAI_COMPATIBLE_API_KEY"
SERVED_BACKENDS = {
    "openai": ServedBackend(OPENAI_URL, "OPENAI_API_KEY", "OpenAI's HTTP interface at api.openai.com"),
    "openai_compatible": ServedBackend(
        "http://127.0.0.1:8000/v1", COMPATIBLE, "the same interface at any address: vLLM, llama.cpp, Ollama", False
    ),
    "generic_openai_compatible": ServedBackend(
        "http://127.0.0.1:8000/v1", COMPATIBLE, "openai_compatible, by the name that clemcore has for it", False
    ),
    "google": ServedBackend(
        "https://generativelanguage.googleapis.com/v1beta/openai", "GOOGLE_API_KEY", "Gemini, by OpenAI's interface"
    ),
    "mistral": ServedBackend("https://api.mistral.ai/v1", "MISTRAL_API_KEY", "Mistral, by OpenAI's interface"),
    "cohere": ServedBackend(
        "https://api.cohere.ai/compatibility/v1", "COHERE_API_KEY", "Cohere, by OpenAI's interface"
    ),
    "openrouter": ServedBackend(
        "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", "OpenRouter, by OpenAI's interface"
    ),
    "llamacpp": ServedBackend(
        "http://127.0.0.1:8080/v1",
        "LLAMACPP_API_KEY",
        "a server of llama.cpp: llama-server -hf HUGGINGFACE_ID, or pip install 'llama-cpp-python[server]' and "
        "python3 -m llama_cpp.server --port 8080 --model FILE.gguf",
        False,
    ),
}
"""backends with OpenAI's interface, by the names that clemcore has for them"""
VARIABLES = {name: backend.variable for name, backend in SERVED_BACKENDS.items()} | {
    "anthropic": "ANTHROPIC_API_KEY",
    "huggingface": "HF_TOKEN",
}
"""environment variable of each backend's key"""
_from_file: dict[tuple[str, str], Origin] = {}
"""the file that a key was taken from, by its variable and the key"""


def find_key_file() -> Path | None:
    """key.json of the current folder, else that of ~/.clemcore, else None."""
    return next((p for p in (Path.cwd() / KEY_FILE, Path.home() / HOME / KEY_FILE) if p.is_file()), None)


def read_keys(path: Path | None) -> Mapping[str, Mapping[str, str]]:
    """The file's fields by backend, keys included, which are masked from here on (lmgym/masking.py).

    Raises InputError for a faulty file, without any of its text.
    """
    if path is None:
        return {}
    try:
        fields = read_json(path)
        fault = (
            ""
            if isinstance(fields, dict) and all(isinstance(value, dict) for value in fields.values())
            else "no object of objects"
        )
    except (OSError, ValueError) as error:
        fault = f"line {error.lineno}: {error.msg}" if isinstance(error, JSONDecodeError) else type(error).__name__
    if fault:
        raise InputError(
            f'{shown_path(path)} is no file of keys ({fault}); needed: such as {{"openai": {{"api_key": "..."}}}}'
        )
    for value in fields.values():
        remember(str(value.get("api_key", "")).strip())
    return fields


def origin_of_keys(path: Path) -> Origin:
    """The origin of a file of keys: that of ~/.clemcore is the user's own configuration."""
    return Origin(str(path)) if path == Path.home() / HOME / KEY_FILE else origin_of(path)


def origin_of_key(backend: str) -> Origin | None:
    """Where the backend's key would come from; None without one."""
    path = find_key_file()
    variable = VARIABLES[backend]
    if (key := os.environ.get(variable, "")).strip():
        return _from_file.get((variable, key), ENVIRONMENT)
    return origin_of_keys(path) if path and str(read_keys(path).get(backend, {}).get("api_key", "")).strip() else None


def address_of_keys(backend: str) -> tuple[str, Origin]:
    """(the base_url of the backend in key.json, or "", the origin of that file)."""
    path = find_key_file()
    return str(read_keys(path).get(backend, {}).get("base_url", "")), origin_of_keys(path or Path(KEY_FILE))


def organization_of(backend: str, others: Mapping[str, str]) -> str:
    """The organisation that goes with a key: of key.json, else of the environment for OpenAI itself; "" for none."""
    own = (others.get("organisation") or others.get("organization") or "").strip()
    return own or (os.environ.get(ORGANIZATION, "").strip() if backend == "openai" else "")


def provide_key(backend: str, required: bool) -> tuple[str, Mapping[str, str]]:
    """(environment variable that holds the backend's key, other fields of its entry in key.json).

    The variable is set from key.json unless the environment has it. It is "" if there is no key and none is required.
    Raises InputError for a key that is required and missing.
    """
    path = find_key_file()
    entry = read_keys(path).get(backend, {})
    variable = VARIABLES[backend]
    if not os.environ.get(variable, "").strip() and str(entry.get("api_key", "")).strip():
        os.environ[variable] = str(entry["api_key"]).strip()
        assert path is not None
        _from_file[variable, os.environ[variable]] = origin_of_keys(path)
    others = {name: str(value) for name, value in entry.items() if name != "api_key"}
    if os.environ.get(variable, "").strip():
        return variable, others
    if required:
        place = shown_path(path) if path else f"{KEY_FILE} (copy key.json.template)"
        raise InputError(
            f"there is no API key of {backend}; needed: the environment variable {variable}, or api_key of {backend} "
            f"in {place}"
        )
    return "", others
