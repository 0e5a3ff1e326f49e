"""Token ids and their log-probabilities from vLLM servers: the sampler of a run whose engine is vLLM.

Design decisions:
- Prompts are token ids and replies are read as token ids; the server's tokenizer, chat template, and parsers of tools
  and reasoning have no part in it.
- A reply is a request of its own, whose seed is a function of its prompt's seed and its number: other requests change
  nothing but the rounding.
- End-of-turn ids are those of the policy here, sent with each request, not those of the server's files.
"""

import asyncio
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import numpy as np

from lmgym.errors import InputError, ServerError, listed, one_line, shown
from lmgym.generation.model_server import NEEDED, Ask, Counted, ModelServer, encodable, run
from lmgym.generation.model_specs import KEYS
from lmgym.generation.openai_server import SEED_STEP, SEEDS
from lmgym.generation.protocol import Completion, FinishReason, Progress, Sampling, seeds_of
from lmgym.generation.request_limits import RequestLimits
from lmgym.text import Conversation, render_all, tokenize_texts
from lmgym.turn_ends import turn_ends

TIMEOUT = 900.0  # seconds of a reply: with many at a time on a CPU each takes long
NEEDED_HERE = NEEDED | {404: "a vLLM server of this model at {base} (GET {base}/models lists them)"}


@dataclass(frozen=True)
class VLLMServerClient:
    """The requests to a vLLM server, other than those for text. `url` has no /v1. Raises ServerError for a dead one."""

    url: str

    def get(self, path: str) -> Any:
        """The JSON of an answer; an empty one is None."""
        return self._request("GET", path)

    def post(self, path: str, body: Any = None, timeout: float = 60.0) -> Any:
        """The same of a POST. Raises InputError with the server's words if it refuses."""
        return self._request("POST", path, body, timeout)

    def call(self, method: str, timeout: float, **values: Any) -> list[Any]:
        """The results of each worker's method; see lmgym/generation/vllm_plugin. Raises InputError if it has none."""
        body = {"method": method, "kwargs": values, "timeout": timeout}
        try:
            return self.post("/collective_rpc", body, timeout)["results"]
        except InputError as error:
            raise InputError(
                f"{self.url} takes no weights ({one_line(str(error), 100)}); needed: a server started by lmgym engine "
                "serve, or --lora_rank 16, whose adapters any vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING loads"
            ) from error

    def _request(self, method: str, path: str, body: Any = None, timeout: float = 60.0) -> Any:
        import httpx

        server = model_server(self.url, "", 1)
        headers = {"Authorization": f"Bearer {key}"} if (key := server.key()) else {}
        try:
            with httpx.Client(trust_env=False, timeout=timeout) as client:
                answer = client.request(method, self.url + path, json=body, headers=headers)
        except httpx.HTTPError as error:
            raise ServerError(f"{self.url}{path}: {type(error).__name__}: {server.printable(str(error))}") from None
        text = server.printable(answer.text)
        if answer.status_code >= 500:
            raise ServerError(f"{self.url}{path}: status {answer.status_code}: {text}")
        if answer.status_code != 200:
            raise InputError(f"{self.url}{path}: status {answer.status_code}: {text}")
        try:
            return answer.json() if answer.content[:1] in (b"{", b"[") else None
        except ValueError:
            raise ServerError(f"{self.url}{path}: an answer that is no JSON: {text}") from None


def model_server(url: str, model: str, concurrency: int, retries: int = 2) -> ModelServer:
    """The settings of requests for text to a vLLM server."""
    header = ("Authorization", "Bearer {}")
    return ModelServer(
        f"{url}/v1", "/completions", model, TIMEOUT, retries, KEYS["vllm"], RequestLimits(concurrency), header
    )


@final
@dataclass
class VLLMGenerator:
    """Samples from the servers at `urls`, which have the same model; a prompt goes to the same one each time."""

    urls: Sequence[str]
    model: str
    """the name in requests: the served model's, or an adapter's"""
    tokenizer: Any
    eos: list[int]
    max_length: int
    generation_config: Any = None
    """the policy's, as transformers has it"""
    concurrency: int = 64
    """requests at a time"""
    vocabulary: int = 0
    """ids that the policy has; 0: not known"""

    def reply(
        self, conversations: Sequence[Conversation], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n replies to each conversation, rendered here by the tokenizer's chat template."""
        prompts = tokenize_texts(self.tokenizer, render_all(self.tokenizer, conversations))
        return self.generate(prompts, n, sampling, progress)

    def generate(
        self, prompts: Sequence[list[int]], n: int, sampling: Sampling, progress: Progress | None = None
    ) -> list[list[Completion]]:
        """n completions of each prompt of token ids.

        With top-k, top-p or a penalty, log-probabilities are those after it. Raises InputError for what the server
        refuses, and ServerError for one that gives no usable answer.
        """
        if n < 1 or not all(prompts):
            raise InputError(f"n={n} replies to prompts of {min(map(len, prompts), default=1)} tokens; needed: 1 each")
        sampling = sampling.with_stops(turn_ends(self.tokenizer).stops)
        seeds, received = seeds_of(sampling, len(prompts)), 0
        content, extras = self._content(sampling)

        async def request(client: Any, ask: Ask, prompt: list[int], seed: int) -> Completion:
            nonlocal received
            values = {"model": self.model, "prompt": prompt, "seed": seed % SEEDS, **content, "extra_body": extras}
            send = partial(client.completions.with_raw_response.create, **values)
            [reply] = await ask(send, partial(self._read, self.model, sampling), _advice)
            received += 1
            if progress:
                progress(received, len(prompts) * n)
            return reply

        async def ask_server(url: str) -> dict[int, list[Completion]]:
            own = [i for i, prompt in enumerate(prompts) if self._place(prompt) == url]

            async def work(client: Any, ask: Ask) -> list[Completion]:
                seeded = [(prompts[i], seeds[i] + number * SEED_STEP) for i in own for number in range(n)]
                return await asyncio.gather(*(request(client, ask, *one) for one in seeded))

            import openai

            server = model_server(url, self.model, self.concurrency)
            replies = await server.session(openai, openai.AsyncOpenAI, work) if own else []
            return {i: replies[place * n : (place + 1) * n] for place, i in enumerate(own)}

        async def ask_all() -> list[dict[int, list[Completion]]]:
            return await asyncio.gather(*map(ask_server, self.urls))

        try:
            found = {i: replies for of_server in run(ask_all()) for i, replies in of_server.items()}
        except InputError as error:
            if "does not exist" in str(error) and "@" in self.model:  # an adapter, which a new process does not have
                raise ServerError(f"a server no longer has {self.model}: it was started anew") from error
            raise
        return [found[i] for i in range(len(prompts))]

    def _place(self, prompt: list[int]) -> str:
        """The server of a prompt, which has its keys and values from the last time."""
        return self.urls[zlib.crc32(np.asarray(prompt, np.int64).tobytes()) % len(self.urls)]

    def _content(self, sampling: Sampling) -> tuple[dict[str, Any], dict[str, Any]]:
        """The settings of a request: those of OpenAI's interface, and vLLM's own."""
        content: dict[str, Any] = {
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "logprobs": 0,
        }
        if sampling.stop:
            content["stop"] = list(sampling.stop)
        return content, {
            "top_k": sampling.top_k or -1,
            "min_p": 0.0,
            "repetition_penalty": sampling.repetition_penalty,
            "return_token_ids": True,
            "ignore_eos": True,  # the server's own; ours are in stop_token_ids
            "stop_token_ids": self.eos if sampling.ends_at_eos else [],
        }

    def _read(self, model: str, sampling: Sampling, answer: Any) -> Counted:
        """The reply of an answer. Raises an error if ids or log-probabilities are missing."""
        [choice] = answer["choices"]
        ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        if answer["model"] != model:
            raise ValueError(f"the reply is of {shown(answer['model'])}, asked was {shown(model)}")
        if len(ids) != len(logprobs) or not 0 < len(ids) <= sampling.max_new_tokens:
            raise ValueError(f"{len(ids)} ids with {len(logprobs)} log-probabilities")
        if self.vocabulary and not 0 <= min(ids) <= max(ids) < self.vocabulary:
            raise ValueError(f"ids from {min(ids)} to {max(ids)}, of a policy that has {self.vocabulary:,}")
        by_eos = sampling.ends_at_eos and ids[-1] in self.eos
        reason: FinishReason = "eos" if by_eos else "length" if choice["finish_reason"] == "length" else "stop"
        sampled = ids[:-1] if by_eos else ids
        text = self.tokenizer.decode(sampled, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        text = text[: sampling.find_stop(text)]
        reply = Completion(encodable(text), reason, tuple(ids), tuple(map(float, logprobs)), len(ids))
        return [reply], int((answer.get("usage") or {}).get("prompt_tokens") or 0), len(ids)


def _advice(status: int, text: str) -> str:
    return NEEDED_HERE.get(status, "a request that vLLM accepts")


def refuse_unfit_server(url: str, model: str, tokenizer: Any, prompt: Sequence[int], max_length: int) -> str:
    """The name of the model that a running server serves. `prompt` is one of the run's.

    Raises InputError for a server that is not vLLM, that serves several models without a `model` being named, that
    reads the prompt's text as other ids, or whose context is shorter than `max_length`.
    """
    text = tokenizer.decode(prompt)
    client = VLLMServerClient(url)
    try:
        served = {entry["id"]: entry for entry in client.get("/v1/models")["data"] if not entry.get("parent")}
        version = client.get("/version")["version"]
        name = model or (next(iter(served)) if len(served) == 1 else "")
        body = {"prompt": text, "add_special_tokens": False, "model": name}
        ids = client.post("/tokenize", body)["tokens"] if name in served else None
    except (ServerError, InputError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise InputError(
            f"{url} does not answer as vLLM does ({one_line(str(error), 120)}); needed: vllm:URL of a running vLLM "
            "server, such as vllm:http://127.0.0.1:8000, or openai:URL#model where no training is done"
        ) from error
    if ids is None:
        raise InputError(f"{url} (vLLM {version}) serves {listed(served)}; needed: one of them, as vllm:URL#model")
    if ids != tokenizer(text, add_special_tokens=False).input_ids:
        raise InputError(
            f"the vocabulary of {shown(name)} at {url} is not the policy's: the same text is other ids; needed: a "
            "server of the same base model"
        )
    if (length := int(served[name].get("max_model_len") or 0)) < max_length:
        raise InputError(
            f"{url} reads {length} tokens and a prompt with its reply may have {max_length}; needed: a server with "
            "--max-model-len of that, a smaller --max_prompt, or fewer --max_new_tokens"
        )
    return name


def refuse_lying_server(generator: VLLMGenerator, prompt: Sequence[int]) -> None:
    """Raises InputError for servers that ignore seeds or the temperature."""
    prompt = list(prompt[:12])  # less than a block of a prefix cache, whose rounding may differ
    hot = Sampling(24, temperature=2.0, seed=1, ends_at_eos=False)  # 2 is the most that vLLM takes
    for url in generator.urls:
        one = replace(generator, urls=[url])
        first, again, other = (one.generate([prompt], 1, replace(hot, seed=seed))[0][0] for seed in (1, 1, 2))
        greedy = one.generate([prompt], 1, replace(hot, temperature=0.0))[0][0]
        faults = {
            "gives other replies for the same seed": first.ids != again.ids,
            "ignores the seed or the temperature: two seeds give the same reply at temperature 2": first.ids
            == other.ids,
            "ignores the temperature: the greedy reply is a sampled one": greedy.ids == first.ids,
        }
        for fault, found in faults.items():
            if found:
                raise InputError(f"{url} {fault}; needed: vLLM, or lmgym's own engine: leave --engine out")
