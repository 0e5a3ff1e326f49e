"""The models that are registered without a file of the user's. Facts are from the models' own pages on the hub."""

from typing import Any

APACHE = {"name": "Apache 2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"}
META = {"name": "Meta", "url": "https://github.com/meta-llama/llama-models/blob/main/models/llama3_1/LICENSE"}


def _chat_model(name: str, source: str, date: str, size: str, languages: str, context: str, licence: Any, eos: str,
                **config: Any) -> dict[str, Any]:  # fmt: skip
    """An entry of a chat model of the hub or of a folder, as Playpen writes them."""
    return {
        "model_name": name, "backend": "huggingface_local", "huggingface_id": source, "release_date": date,
        "open_weight": True, "parameters": size, "languages": languages.split(), "context_size": context,
        "license": licence, "model_config": {**config, "premade_chat_template": True, "eos_to_cull": eos},
    }  # fmt: skip


LLAMA = ("meta-llama/Meta-Llama-3.1-8B-Instruct", "2024-07-23", "8B", "en de fr it pt hi es th", "128k", META)
SMOL_END, LLAMA_END = "<\\|im_end\\|>", "<\\|eot_id\\|>"

MODELS: tuple[dict[str, Any], ...] = (
    _chat_model("Meta-Llama-3.1-8B-Instruct", *LLAMA, LLAMA_END, requires_api_key=True),
    _chat_model("llama3-8b", *LLAMA, LLAMA_END, requires_api_key=True),
    _chat_model(
        "smol-135m", "HuggingFaceTB/SmolLM-135M-Instruct", "2024-09-04", "135M", "en", "2048", APACHE, SMOL_END
    ),
    # the folder that `lmgym get smollm2-135m` makes
    _chat_model("smollm2-135m", "outputs/models/smollm2-135m", "2024-10-31", "135M", "en", "8k", APACHE, SMOL_END),
    {
        "model_name": "gpt4o-mini", "model_id": "gpt-4o-mini-2024-07-18", "backend": "openai",
        "release_date": "2024-07-18", "open_weight": False, "parameters": "", "languages": ["en"],
        "context_size": "128k", "license": {"name": "OpenAI", "url": "https://openai.com/policies/row-terms-of-use/"},
        "model_config": {},
    },
)  # fmt: skip
