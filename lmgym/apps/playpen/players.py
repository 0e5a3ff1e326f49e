"""Models that play: a registry's entry as a generator, loaded when it is first needed."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lmgym.apps.playpen.model_settings import CulledReplies, culled_end, model_config
from lmgym.apps.playpen.registries.keys import provide_key
from lmgym.apps.playpen.registries.models import PROGRAMMED, SERVED
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.errors import InputError
from lmgym.generation.model_server import Usage
from lmgym.generation.model_specs import load_generator
from lmgym.generation.protocol import Generator, Sampling

OPENAI_URL, LOCAL_URL = "https://api.openai.com/v1", "http://127.0.0.1:8000/v1"
OPENAI_COMPATIBLE = ("openai", "openai_compatible", "generic_openai_compatible")


@dataclass(frozen=True)
class Model:
    """A model of the registry with the settings of its replies."""

    spec: Spec
    temperature: float = 0.0
    max_tokens: int = 300

    @property
    def name(self) -> str:
        """The model's name."""
        return self.spec.name

    def get_name(self) -> str:
        """The model's name, as trainers written for clemcore ask for it."""
        return self.name

    @property
    def model(self) -> Any:
        """The transformers model, with its adapter merged in. Raises InputError for one that is not in this process."""
        return self._local.model

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of `model`, with the entry's chat template. Raises InputError likewise."""
        return self._local.tokenizer

    @property
    def _local(self) -> Any:
        if self.spec.get("backend") != "huggingface_local":
            backend = self.spec.get("backend")
            raise InputError(f"{self.name} is of backend {backend}; needed: huggingface_local, whose weights are here")
        generator: Any = self.generator  # see load_local_player
        return generator.generator.generator

    @property
    def descriptor(self) -> str:
        """The name of the player's folder, such as llama3-8b-t0.0."""
        return f"{self.name}-t{float(self.temperature)}"

    @property
    def is_programmed(self) -> bool:
        """True for mock: each game's own script replies."""
        return self.spec.get("backend") == PROGRAMMED

    @cached_property
    def generator(self) -> Generator:
        """The source of replies. Raises InputError for a model that does not load, and for a missing key."""
        return make_generator(self.spec)

    def refuse_unusable(self) -> None:
        """Raises InputError for a model that does not load, a missing key, and a server that is down."""
        if not self.is_programmed and isinstance(self.generator, CulledReplies):
            self.generator.refuse_unreachable()

    @property
    def usage(self) -> Usage | None:
        """The tokens and cost that a server has counted so far; None for a model in this process."""
        return getattr(self.generator, "usage", None) if "generator" in vars(self) else None

    @property
    def sampling(self) -> Sampling:
        """The settings of its replies."""
        return Sampling(self.max_tokens, self.temperature)


def make_generator(spec: Spec) -> Generator:
    """The generator of an entry. Raises InputError for a model that does not load, and for a missing key."""
    backend, config = str(spec.get("backend")), model_config(spec)
    if backend == "huggingface_local":
        from lmgym.apps.playpen.local_player import load_local_player

        if config.get("requires_api_key") and not Path(str(spec.get("huggingface_id"))).is_dir():
            provide_key("huggingface", required=True)
        return load_local_player(spec, config)
    model = str(spec.get("model_id") or spec.name)
    if backend == SERVED:
        return CulledReplies(load_generator(model), None)
    if backend in OPENAI_COMPATIBLE:
        from lmgym.generation.openai_server import ServedGenerator

        variable, others = provide_key(backend, required=backend == "openai")
        default = OPENAI_URL if backend == "openai" else LOCAL_URL
        url = str(config.get("base_url") or others.get("base_url") or default)
        return CulledReplies(ServedGenerator(url, model, key_variable=variable), culled_end(config))
    if backend == "anthropic":
        from lmgym.generation.anthropic_server import BASE_URL, AnthropicGenerator

        variable, others = provide_key(backend, required=True)
        url = str(config.get("base_url") or others.get("base_url") or BASE_URL)
        return CulledReplies(AnthropicGenerator(model, url, key_variable=variable), culled_end(config))
    raise InputError(f"{spec.name} has no generator: each game's own script replies for {PROGRAMMED}")
