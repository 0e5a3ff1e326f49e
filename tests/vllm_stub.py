"""A server with the part of vLLM's HTTP that training uses, over our own engine: `python vllm_stub.py MODEL [LIE ...]`.

It receives weights by the real `WeightReceiver`, and loads adapters by peft. Each LIE is a fault that real servers have
had; LIE@N begins with transfer N. Prints its port. Its process can be killed as a real one.
"""

import copy
import dataclasses
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from lmgym.generation.local_generation import LocalGenerator
from lmgym.generation.protocol import Sampling
from lmgym.generation.vllm_plugin.lmgym_vllm import WeightReceiver, compare_layers

MODEL, LIES = sys.argv[1], set(sys.argv[2:])
TOKENIZER = AutoTokenizer.from_pretrained(MODEL)


class Worker(WeightReceiver):
    """A worker with one model. Its stale prefix cache: a prompt is answered by the weights that first saw it."""

    def __init__(self) -> None:
        self.rank, self.device = 0, torch.device("cpu")
        self.model_runner = self
        self.models = {"policy": self.load()}
        self.seen: dict[tuple, LocalGenerator] = {}
        self.lock, self.transfers, self.replying = threading.Lock(), 0, 0
        self.sleeps, self.slept = False, 0

    def load(self):
        return AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()

    def get_model(self):
        return self.models["policy"]

    def lies(self, lie: str) -> bool:
        """It has this fault now."""
        return lie in LIES or any(
            one.startswith(f"{lie}@") and self.transfers >= int(one.partition("@")[2]) for one in LIES
        )

    @torch.no_grad()
    def reload_weights(self, weights_iterator) -> None:
        self.begin_transfer()
        model = copy.deepcopy(self.models["policy"])
        own = dict(model.named_parameters())
        for name, weight in weights_iterator:
            if not (
                self.lies("keeps_weights")
                or (self.lies("misses_norms") and "norm" in name)
                or (self.lies("keeps_a_layer") and name.endswith("layers.1.mlp.up_proj.weight"))
            ):
                own[name].copy_(weight)
        late, self.former = getattr(self, "former", model), model
        self.models["policy"] = late if self.lies("is_late") else model

    def begin_transfer(self) -> None:
        assert not self.replying, "weights arrive while replies are being made"
        assert not self.sleeps, "weights arrive while it sleeps"
        self.transfers += 1

    def add_adapter(self, name: str, path: str) -> None:
        self.begin_transfer()
        if self.lies("keeps_adapter") and len(self.models) > 1:
            self.models[name] = next(reversed(self.models.values()))
        else:
            self.models[name] = PeftModel.from_pretrained(self.load(), path).eval().merge_and_unload()

    def lmgym_compare(self, samples, newest_adapter: bool) -> dict:
        newest = next(reversed(self.models.values())) if newest_adapter else self.models["policy"]
        return compare_layers(newest, samples, self.device)

    def complete(self, body: dict) -> dict:
        assert not self.sleeps, "a request arrives while it sleeps"
        prompt, name = body["prompt"], body["model"]
        if self.lies("answers_the_first_prompt"):
            self.first = prompt = getattr(self, "first", prompt)
        key = (name, *prompt)
        generator = self.seen.get(key) or LocalGenerator(self.models[name], TOKENIZER)
        if "stale_cache" in LIES:
            self.seen[key] = generator
        ends = body["stop_token_ids"]
        generator.eos = ends
        temperature = 0.0 if "ignores_temperature" in LIES else body["temperature"]
        sampling = Sampling(body["max_tokens"], temperature, stop=tuple(body.get("stop", ())), seed=body["seed"])
        [[reply]] = generator.generate([prompt], 1, sampling)
        logprobs = [x - 0.01 * self.lies("biased") for x in reply.logprobs]
        if self.lies("garbage_ids"):
            garbage = tuple((7 * id_ + 5) % len(TOKENIZER) for id_ in reply.ids)
            reply = dataclasses.replace(reply, ids=garbage)
        finish = "length" if reply.finish_reason == "length" else "stop"
        choice = {"text": reply.text, "finish_reason": finish, "token_ids": list(reply.ids), "logprobs": None}
        if "no_logprobs" not in LIES:
            choice["logprobs"] = {"token_logprobs": logprobs}
        return {"model": name, "choices": [choice], "usage": {"prompt_tokens": len(prompt)}}


WORKER = Worker()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/is_sleeping":
            return self.answer({"is_sleeping": WORKER.sleeps})
        if self.path == "/v1/models":
            rows = [{"id": name, "max_model_len": 256, "parent": None if name == "policy" else "policy"}
                    for name in WORKER.models]  # fmt: skip
            return self.answer({"data": rows})
        return self.answer({"version": "0.32.0"} if self.path == "/version" else {})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "null")
        try:
            self.answer(self.find(body))
        except KeyError as error:
            self.answer({"error": {"message": f"The model {error} does not exist."}}, 404)
        except Exception as error:
            self.answer({"error": {"message": f"{type(error).__name__}: {error}"}}, 500)

    def find(self, body) -> dict:
        match self.path:
            case "/v1/completions":
                WORKER.replying += 1
                try:
                    with WORKER.lock:
                        return WORKER.complete(body)
                finally:
                    WORKER.replying -= 1
            case "/tokenize":
                return {"tokens": TOKENIZER(body["prompt"], add_special_tokens=False).input_ids}
            case "/collective_rpc":
                return {"results": [getattr(WORKER, body["method"])(**body["kwargs"])]}
            case "/v1/load_lora_adapter":
                WORKER.add_adapter(body["lora_name"], body["lora_path"])
                return {}
            case "/v1/unload_lora_adapter":
                WORKER.models.pop(body["lora_name"])
                return {}
            case "/sleep?level=1" if not WORKER.lies("has_no_sleep"):
                WORKER.sleeps, WORKER.slept = True, WORKER.slept + 1
                return {"status": "sleeping", "level": 1}
            case "/wake_up":
                if WORKER.lies("dies_at_wake") and WORKER.slept == 1:
                    os._exit(1)
                WORKER.sleeps = WORKER.lies("sleeps_on")
                return {"status": "awake"}
            case "/slept":
                return {"times": WORKER.slept}
            case "/reset_prefix_cache":
                return {"success": True}
            case "/lies":  # a new server, with these faults
                LIES.clear()
                LIES.update(body)
                WORKER.__init__()
                return {}
        raise KeyError(self.path)

    def answer(self, value: dict, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


if __name__ == "__main__":
    torch.set_num_threads(1)
    server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", 0))), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
