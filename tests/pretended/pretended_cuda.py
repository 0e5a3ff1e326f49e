"""The answers of torch.cuda, torch.accelerator and NCCL where a GPU is pretended (pretended_gpu.py)."""

import contextlib
import functools
import threading
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.attention.varlen
import torch.utils.checkpoint
from pretended_gpu import GPU, MARK, PretendedGPU, Refused, on_the_gpu
from torch.utils._pytree import tree_iter

NAME, BYTES = "Pretended GPU", 80 << 30
MODE = PretendedGPU()
COLLECTIVES = (
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all_single", "broadcast", "reduce",
    "reduce_scatter", "reduce_scatter_tensor",
)  # fmt: skip


class Stream:
    """One after the other; also an event."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.cuda_stream = 0

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None: ...

    def wait(self, *_: Any) -> None:
        """For what is done already."""

    record = synchronize = wait_event = wait_stream = wait

    def record_event(self, *_: Any) -> "Stream":
        """Done."""
        return Stream()

    def query(self) -> bool:
        """Done."""
        return True

    def is_capturing(self) -> bool:
        """True while a graph is captured."""
        return MODE.tape is not None

    def elapsed_time(self, _: Any) -> float:
        """Milliseconds."""
        return 1.0


class Graph:
    """The calls that were made while it was captured."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.tape: list[Any] = []

    def capture_begin(self, *_: Any, **__: Any) -> None:
        """From here on."""
        MODE.tape = self.tape

    def capture_end(self) -> None:
        """To here."""
        MODE.tape = None

    def replay(self) -> None:
        """Overwrites the results of the capture; a view of one shows what it is a view of."""
        warns, MODE.warns = MODE.warns, False  # the CPU launches a graph, and waits for none of it
        for func, args, kwargs, found in self.tape:
            for old, new in zip(tree_iter(found), tree_iter(func(*args, **kwargs)), strict=True):
                if isinstance(old, torch.Tensor) and old is not new and old.data_ptr() != new.data_ptr():
                    old.copy_(new)
        MODE.warns = warns


class Generator(torch.Generator):
    """A CPU's, that says for which device it was made."""

    def __new__(cls, device: Any = "cpu") -> "Generator":
        """Of a device."""
        made = super().__new__(cls, "cpu")
        setattr(made, MARK, torch.device(device).type == "cuda")
        return made


def install() -> None:
    """For the rest of the process, on all its threads."""
    _replace_cuda()
    _replace_accelerator()
    _replace_autograd()
    _replace_loading()
    _replace_collectives()
    _replace_attention()
    _replace_parameters()
    run = threading.Thread.run

    def with_the_mode(thread: threading.Thread) -> None:
        with MODE:
            run(thread)

    threading.Thread.run = with_the_mode  # type: ignore[method-assign]
    MODE.__enter__()


def _set(module: Any, **answers: Any) -> None:
    """Functions that answer this, whatever they are asked."""
    for name, answer in answers.items():
        setattr(module, name, lambda *_, answer=answer, **__: answer)


def _replace_cuda() -> None:
    cuda: Any = torch.cuda
    properties = SimpleNamespace(name=NAME, total_memory=BYTES, major=9, minor=0, multi_processor_count=132)
    _set(
        cuda, is_available=True, is_initialized=True, _lazy_init=None, init=None, device_count=8, set_device=None,
        current_device=GPU.index, get_device_name=NAME, get_device_capability=(9, 0),
        get_device_properties=properties, mem_get_info=(BYTES * 7 // 8, BYTES), is_bf16_supported=True,
        synchronize=None, empty_cache=None, ipc_collect=None, reset_peak_memory_stats=None, manual_seed=None,
        manual_seed_all=None, set_rng_state=None, set_rng_state_all=None, memory_allocated=1 << 20,
        memory_reserved=1 << 20, max_memory_allocated=1 << 20, max_memory_reserved=1 << 20, memory_stats={},
        get_allocator_backend="native", current_stream=Stream(), default_stream=Stream(),
        stream=contextlib.nullcontext(), device=contextlib.nullcontext(),
    )  # fmt: skip
    cuda.get_rng_state, cuda.get_rng_state_all = lambda *_: torch.get_rng_state(), lambda: [torch.get_rng_state()]
    cuda.is_current_stream_capturing = lambda: MODE.tape is not None
    cuda.Stream, cuda.Event, cuda.CUDAGraph = Stream, Stream, Graph
    cuda.set_sync_debug_mode = lambda mode: setattr(MODE, "warns", mode not in (0, "default"))
    _set(cuda.nvtx, range_push=0, range_pop=0)
    _set(torch._C, _cuda_getCurrentRawStream=0)  # what bitsandbytes takes when it is imported beside a GPU
    _set(torch.Tensor, record_stream=None)
    torch.Generator = Generator  # type: ignore[misc, assignment]
    fork = torch.random.fork_rng
    torch.random.fork_rng = lambda devices=None, *rest, **named: fork([], *rest, **named)  # type: ignore[assignment]


def _replace_accelerator() -> None:
    _set(
        torch.accelerator, is_available=True, device_count=8, current_accelerator=torch.device("cuda"),
        current_device_index=GPU.index, set_device_index=None, current_stream=Stream(), synchronize=None,
    )  # fmt: skip


def _replace_autograd() -> None:
    real, run = torch.autocast, torch.autograd.graph._engine_run_backward

    class Autocast(real):  # type: ignore[misc, valid-type]
        """The CPU's: it is the CPU that computes."""

        def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
            super().__init__("cpu" if device_type == "cuda" else device_type, *args, **kwargs)

    def backward(roots: Any, *args: Any, **kwargs: Any) -> Any:
        with MODE.backward_from(roots):
            return run(roots, *args, **kwargs)

    def described(tensor: torch.Tensor) -> dict[str, Any]:
        return {"shape": tensor.shape, "dtype": tensor.dtype}

    # checkpointing compares what a forward keeps, which Python sees there for the first time, with what is made again
    torch.utils.checkpoint._allowed_determinism_checks_to_fns["default"] = described
    torch.autocast = torch.amp.autocast = torch.amp.autocast_mode.autocast = Autocast  # type: ignore[misc]
    torch.autograd.graph._engine_run_backward = backward
    torch.autograd._engine_run_backward = backward  # type: ignore[attr-defined]


def _replace_loading() -> None:
    load = torch.load

    @functools.wraps(load)
    def loaded(file: Any, map_location: Any = None, **kwargs: Any) -> Any:
        if isinstance(map_location, str | torch.device) and torch.device(map_location).type == "cuda":
            return on_the_gpu(load(file, map_location="cpu", **kwargs))
        return load(file, map_location=map_location, **kwargs)

    torch.load = loaded


def _replace_collectives() -> None:
    """NCCL is Gloo, that takes the GPU's tensors alone."""
    core: Any = dist.distributed_c10d
    begin, new = core.init_process_group, core.new_group

    def init_process_group(backend: Any = None, *args: Any, device_id: Any = None, **kwargs: Any) -> None:
        begin("gloo" if backend == "nccl" else backend, *args, **kwargs)

    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, **kwargs: Any) -> Any:
        return new(ranks, timeout, "gloo" if backend == "nccl" else backend, **kwargs)

    def of_the_gpu(collective: Any) -> Any:
        @functools.wraps(collective)
        def checked(*args: Any, **kwargs: Any) -> Any:
            for given in tree_iter((args, kwargs)):
                if isinstance(given, torch.Tensor) and not MODE.has(given):
                    raise Refused(f"{collective.__name__}: no backend type associated with device type cpu")
            return collective(*args, **kwargs)

        return checked

    replaced = {name: of_the_gpu(getattr(core, name)) for name in COLLECTIVES}
    for module in (dist, core):
        _set(module, get_backend="nccl", is_nccl_available=True, _get_object_coll_device=GPU)
        for name, function in {**replaced, "init_process_group": init_process_group, "new_group": new_group}.items():
            setattr(module, name, function)


def _replace_attention() -> None:
    """Flash attention over rows of different lengths, row by row: what its kernel is documented to compute."""

    def varlen_attn(
        query: Any, key: Any, value: Any, cu_seq_q: Any, cu_seq_k: Any, max_q: int, max_k: int, *, scale: float,
        window_size: tuple[int, int], enable_gqa: bool,
    ) -> torch.Tensor:  # fmt: skip
        assert query.dtype in (torch.float16, torch.bfloat16), "flash attention knows no other type"
        assert query.shape[-1] % 8 == 0, "head_size must be a multiple of 8"
        assert query.shape[-1] <= 256, "flash attention has no wider heads"
        assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32
        warns, MODE.warns = MODE.warns, False  # a kernel reads the lengths; the CPU does not wait for them
        asking, seen = (edges.diff().tolist() for edges in (cu_seq_q, cu_seq_k))
        MODE.warns = warns
        assert (max(asking), max(seen)) == (max_q, max_k)
        found = []
        for q, k, v in zip(query.split(asking), key.split(seen), value.split(seen), strict=True):
            last = torch.arange(len(q), device=q.device)[:, None] + len(k) - len(q)  # aligned at the end
            place = torch.arange(len(k), device=q.device)
            mask = place <= last + window_size[1]
            if window_size[0] >= 0:
                mask = mask & (place >= last - window_size[0])
            q, k, v = (states.transpose(0, 1).float() for states in (q, k, v))
            one = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=enable_gqa)
            found.append(one.transpose(0, 1).to(query.dtype))
        return torch.cat(found)

    torch.nn.attention.varlen.varlen_attn = varlen_attn


def _replace_parameters() -> None:
    """A parameter is where its data are; torch makes one without a call that the mode sees."""
    make = torch.nn.Parameter.__new__

    def made(cls: Any, data: Any = None, requires_grad: bool = True, **_: Any) -> Any:  # libraries hand on attributes
        found = make(cls, data, requires_grad)
        if isinstance(data, torch.Tensor):
            setattr(found, MARK, MODE.has(data))
        return found

    torch.nn.Parameter.__new__ = made  # type: ignore[assignment]
