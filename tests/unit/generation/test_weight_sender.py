"""Buckets of weights: their bytes, their checksums, and a transfer to another process."""

import multiprocessing
from typing import Any

import pytest
import torch

from lmgym.errors import InputError, ServerError
from lmgym.generation.vllm_plugin.lmgym_vllm import WeightReceiver, checksum, layout
from lmgym.generation.weight_sender import WeightSender, buffers_of, pack

ITEMS = [("a", "bfloat16", [3]), ("b", "float32", [2, 2]), ("c", "bfloat16", [])]
WEIGHTS = [torch.tensor([1.0, 2.0, 3.0]), torch.arange(4.0).view(2, 2), torch.tensor(5.0)]


def test_a_bucket_holds_each_weight_at_a_multiple_of_eight_bytes() -> None:
    assert layout(ITEMS) == ([(0, 6), (8, 24), (24, 26)], 32)
    buffer = pack(ITEMS, WEIGHTS)
    assert buffer[:6].view(torch.bfloat16).tolist() == [1, 2, 3]
    assert buffer[8:24].view(torch.float32).tolist() == [0, 1, 2, 3]
    assert buffer[24:26].view(torch.bfloat16).tolist() == [5]


def test_a_checksum_sees_another_number_and_another_order() -> None:
    buffer = torch.arange(4, dtype=torch.int64).view(torch.uint8)
    assert checksum(buffer) == ["6", str(0 * 1 + 1 * 3 + 2 * 5 + 3 * 7)]
    swapped = torch.tensor([1, 0, 2, 3]).view(torch.uint8)
    assert checksum(swapped)[0] == "6"
    assert checksum(swapped) != checksum(buffer)


def receive(queue: Any, answers: Any, fails: bool) -> None:
    """A worker in a process of its own, which is asked through queues."""

    class Worker(WeightReceiver):
        rank, device, model_runner = 0, torch.device("cpu"), None
        found: dict[str, list]

        def get_model(self) -> torch.nn.Module:
            return torch.nn.Module()

        def reload_weights(self, weights_iterator) -> None:
            self.found = {}
            for name, weight in weights_iterator:
                if fails and name == "b":
                    raise RuntimeError("no room for b")
                self.found[name] = weight.float().tolist()

    worker = Worker()
    worker.model_runner = worker
    while (asked := queue.get()) is not None:
        method, values = asked
        try:
            answers.put((getattr(worker, method)(**values), getattr(worker, "found", {})))
        except Exception as error:
            answers.put((error, {}))


@pytest.fixture
def worker():
    """(a call as `WeightSender` makes it, what was loaded); `fails` in the middle of a transfer if it is told to."""
    context, found = multiprocessing.get_context("spawn"), []
    processes = []

    def start(fails: bool = False):
        queue, answers = context.Queue(), context.Queue()
        process = context.Process(target=receive, args=(queue, answers, fails))
        process.start()
        processes.append((process, queue))

        def call(method: str, timeout: float, **values: Any) -> list[Any]:
            queue.put((method, values))
            answer, loaded = answers.get(timeout=60)
            if isinstance(answer, Exception):
                raise ServerError(str(answer))
            found.append(loaded)
            return [answer]

        return call, found

    yield start
    for process, queue in processes:
        queue.put(None)
        process.join(30)


def test_weights_arrive_in_their_dtypes_and_other_bytes_are_refused(worker) -> None:
    call, found = worker()
    sender = WeightSender([("http://127.0.0.1:9", call)], 1)
    buckets = [ITEMS[:2], ITEMS[2:]]
    sender.send(buckets, buffers_of(buckets, [WEIGHTS[:2], WEIGHTS[2:]]))
    assert found[-1] == {"a": [1, 2, 3], "b": [[0, 1], [2, 3]], "c": 5}

    def altered(method: str, timeout: float, **values: Any) -> list[Any]:
        [answer] = call(method, timeout, **values)
        return [{"checksums": [answer["checksums"][0], ["0", "0"]]}]

    sender.servers = [("http://127.0.0.1:9", altered)]
    with pytest.raises(InputError, match="received other weights than were sent: 1 of 2 buckets differ"):
        sender.send(buckets, buffers_of(buckets, [WEIGHTS[:2], WEIGHTS[2:]]))
    sender.close()


def test_a_receiver_that_fails_midway_is_told_at_once_by_its_own_words(worker) -> None:
    call, _ = worker(fails=True)
    sender = WeightSender([("http://127.0.0.1:9", call)], 1)
    buckets = [[item] for item in ITEMS]
    with pytest.raises(ServerError, match="no room for b"):
        sender.send(buckets, buffers_of(buckets, [[weight] for weight in WEIGHTS]))
    sender.close()
