"""Players of backend huggingface_local: a causal model in this process, with adapters, in 4 or 8 bits, its template.

4 and 8 bits have never been run: they need bitsandbytes and a GPU. Tests cover what is refused.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from lmgym.apps.playpen.model_settings import CulledReplies, context_size, culled_end
from lmgym.apps.playpen.registries.specs import Spec
from lmgym.errors import InputError, TooLong, shown, shown_path
from lmgym.generation.protocol import Completion, Progress, Sampling
from lmgym.runs.files import read_json
from lmgym.text import Conversation, render_all, tokenize_texts

TOKENIZER_FILE = "tokenizer_config.json"


def load_local_player(spec: Spec, config: Mapping[str, Any]) -> CulledReplies:
    """The model of an entry. Raises InputError for one that does not load and for settings that do not fit."""
    name = local_source(spec)
    bits = bits_of(spec.name, config)
    size = context_size(spec)
    end = culled_end(config)
    # here: torch takes seconds to import, and what is refused above needs none
    from lmgym.models.loading import load_tokenizer

    tokenizer = load_tokenizer(name, bool(config.get("trust_remote_code")))
    set_template(spec.name, tokenizer, config, has_template(name))
    model = _load_model(name, config, bits)
    from lmgym.generation.local_generation import LocalGenerator

    generator = LocalGenerator(model, tokenizer)
    limit = min(size or generator.max_length, generator.max_length)
    return CulledReplies(_WithinContext(generator, spec.name, limit), end)


def local_source(spec: Spec) -> str:
    """The folder or hub id. Raises InputError without one, and for the folder of `lmgym get` that is not there."""
    name = spec.get("huggingface_id")
    if not name or not isinstance(name, str):
        raise InputError(f"{spec.name} ({shown_path(spec.source)}) has no huggingface_id; needed: a folder or a hub id")
    if name.startswith("outputs/models/") and not Path(name).is_dir():
        raise InputError(f"there is no folder {name}; needed: lmgym get {Path(name).name}, in this folder")
    return name


def bits_of(name: str, config: Mapping[str, Any]) -> int:
    """4, 8, or 0 for whole weights. Raises InputError for both, and if bitsandbytes or a GPU is missing."""
    chosen = [bits for bits in (4, 8) if config.get(f"load_in_{bits}bit")]
    if len(chosen) > 1:
        raise InputError(f"{name} has both load_in_4bit and load_in_8bit; needed: one of them")
    if not chosen:
        return 0
    import torch

    if importlib.util.find_spec("bitsandbytes") is None or not torch.cuda.is_available():
        raise InputError(
            f"{name} has load_in_{chosen[0]}bit, which needs bitsandbytes (pip install bitsandbytes) and a GPU; "
            "needed: both, or leave it out"
        )
    return chosen[0]


def has_template(source: str) -> bool:
    """True for a folder whose tokenizer's files hold a chat template; in that of a trained model it may be plain."""
    folder = Path(source).expanduser()
    try:
        return (folder / "chat_template.jinja").is_file() or "chat_template" in read_json(folder / TOKENIZER_FILE)
    except (OSError, ValueError):
        return False


def set_template(name: str, tokenizer: Any, config: Mapping[str, Any], is_written: bool = False) -> None:
    """Give the tokenizer the entry's chat template. Raises InputError for one that is not there, or that fails.

    A tokenizer without a template was given a plain one as it was loaded, unless that `is_written` in its files.
    """
    from lmgym.templates import BOS_TEMPLATE, FLAT_TEMPLATE, check_template

    custom = config.get("custom_chat_template")
    if config.get("premade_chat_template"):
        if not is_written and tokenizer.chat_template in (FLAT_TEMPLATE, BOS_TEMPLATE):
            raise InputError(
                f"{name} has premade_chat_template, and its tokenizer has none; needed: custom_chat_template instead"
            )
    elif custom:
        if not isinstance(custom, str):
            raise InputError(f"custom_chat_template of {name} is {shown(custom)}; needed: a template's text")
        tokenizer.chat_template = custom
        check_template(tokenizer, name)


def _load_model(name: str, config: Mapping[str, Any], bits: int) -> Any:
    """The model, with its adapter merged in unless it is quantised."""
    import torch

    from lmgym.models.config_fields import refuse_encoder
    from lmgym.models.damage import readable
    from lmgym.models.forward.policies import read_causal
    from lmgym.models.loading import load_config
    from lmgym.models.quantized import loading_arguments
    from lmgym.models.sources import refuse_pickles

    trust = bool(config.get("trust_remote_code"))
    settings = load_config(name, trust)
    refuse_encoder(name, settings)
    device, dtype = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    model = read_causal(name, settings, trust, dtype, **loading_arguments(bits))
    if adapter := config.get("peft_model"):
        from peft import PeftModel

        refuse_pickles(str(adapter))
        fit = f"; needed: a folder with adapter_config.json, trained on {shown_path(name)}"
        with readable("peft_model", str(adapter), fit):
            model = PeftModel.from_pretrained(model, adapter)
        model = model if bits else model.merge_and_unload()
    return (model if bits else model.to(device)).eval()


@final
class _WithinContext:
    """A local generator that refuses prompts beyond the entry's context."""

    def __init__(self, generator: Any, name: str, limit: int) -> None:
        self.generator, self.name, self.limit = generator, name, limit

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n replies to each conversation. Raises TooLong for one that leaves no room for a reply."""
        tokenizer = self.generator.tokenizer
        prompts = tokenize_texts(tokenizer, render_all(tokenizer, conversations))
        longest = max(map(len, prompts), default=0)
        if longest + sampling.max_new_tokens > self.limit:
            raise TooLong(
                f"a prompt has {longest} tokens, and the context_size of {self.name} is {self.limit}, of which a reply "
                f"takes {sampling.max_new_tokens}; needed: a shorter game, or fewer tokens (-L)"
            )
        return self.generator.generate(prompts, n, sampling, progress)
