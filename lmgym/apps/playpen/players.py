"""Models that play: a registry's entry as a generator, loaded when it is first needed."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from lmgym.apps.playpen.model_settings import CulledReplies, culled_end, model_config
from lmgym.apps.playpen.registries.keys import SERVED_BACKENDS, organization_of, provide_key
from lmgym.apps.playpen.registries.models import PROGRAMMED, SERVED
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.errors import InputError
from lmgym.generation.model_server import Usage
from lmgym.generation.model_specs import load_generator
from lmgym.generation.protocol import Generator, Sampling
from lmgym.messages import from_messages


@dataclass(eq=False)
class Model:
    """A model of the registry with the settings of its replies. What clemcore's trainers call, it has too."""

    spec: Spec
    temperature: float = 0.0
    max_tokens: int = 300

    @property
    def name(self) -> str:
        """The model's name."""
        return self.spec.name

    def __str__(self) -> str:
        return self.descriptor

    def get_name(self) -> str:
        """The model's name."""
        return self.name

    @property
    def model_spec(self) -> Spec:
        """The registry's entry."""
        return self.spec

    def set_gen_args(self, temperature: float | None = None, max_tokens: int | None = None) -> None:
        """Other settings of its replies, from now on."""
        self.temperature = self.temperature if temperature is None else temperature
        self.max_tokens = self.max_tokens if max_tokens is None else max_tokens

    def generate_response(self, messages: Sequence[Mapping[str, str]]) -> tuple[Any, Any, str]:
        """(the messages, the reply as OpenAI's interface has it, the reply) to messages of a chat.

        Raises InputError for mock, which replies within a game alone.
        """
        sent = [dict(message) for message in messages]
        [[completion]] = self.generator.reply([from_messages(sent)], 1, self.sampling)
        answer = {"choices": [{"message": {"role": "assistant", "content": completion.text}}]}
        return sent, answer, completion.text

    @staticmethod
    def to_identifier(player_models: "Sequence[Model]") -> str:
        """The name of the folder of players: NAME-tT--NAME-tT."""
        name = "--".join(player.descriptor for player in player_models)
        if len(player_models) <= 2:
            return name
        return f"group-{len(player_models)}p-{hashlib.sha1(name.encode()).hexdigest()[:8]}"

    @staticmethod
    def to_infos(player_models: "Sequence[Model]") -> dict[str, Any]:
        """The entries by place, without keys."""
        return {str(place): model.spec.public for place, model in enumerate(player_models)}

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
    if served := SERVED_BACKENDS.get(backend):
        from lmgym.generation.openai_server import ServedGenerator

        variable, others = provide_key(backend, required=served.needs_key)
        url = str(config.get("base_url") or others.get("base_url") or served.url)
        generator = ServedGenerator(url, model, key_variable=variable, organization=organization_of(backend, others))
        return CulledReplies(generator, culled_end(config))
    if backend == "anthropic":
        from lmgym.generation.anthropic_server import BASE_URL, AnthropicGenerator

        variable, others = provide_key(backend, required=True)
        url = str(config.get("base_url") or others.get("base_url") or BASE_URL)
        return CulledReplies(AnthropicGenerator(model, url, key_variable=variable), culled_end(config))
    raise InputError(f"{spec.name} has no generator: each game's own script replies for {PROGRAMMED}")
