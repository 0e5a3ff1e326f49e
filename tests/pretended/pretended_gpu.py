"""A GPU that is pretended: tensors compute on the CPU, say that they are on cuda:0, and refuse what a GPU refuses.

Design decisions:
- Every call of torch from Python is seen (a TorchFunctionMode), within a backward and on other threads too. A tensor
  bears a mark that says where it is; its memory is the CPU's.
- Refused: operations over tensors on either side, numbers drawn for a GPU by a CPU's generator, numpy of a GPU's
  tensor, collectives of NCCL over a CPU's tensors, and while a graph is captured whatever waits for the CPU.
- A captured graph is the list of its calls, replayed with the arguments they had: what Python counts stands still in
  it as it does on a GPU.
- What makes a real GPU and the CPU wait for each other warns, where `torch.cuda.set_sync_debug_mode("warn")` asks for
  it, in the real one's words: a number that Python reads, and a copy across that is not `non_blocking`.
- Not shown: time, memory, rounding, what a kernel does not know, streams side by side, several GPUs.
"""

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_iter, tree_map_only

GPU, CPU = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))), torch.device("cpu")
MARK = "on_pretended_gpu"
MAY_MIX = {"__getitem__", "__setitem__", "_has_compatible_shallow_copy_type", "copy_", "set_", "to", "type_as"}
WAITS = {
    "__bool__", "__float__", "__index__", "__int__", "allclose", "cpu", "equal", "item", "masked_select", "nonzero",
    "tolist", "unique",
}  # fmt: skip


class Refused(RuntimeError):
    """An error that a real GPU would have raised."""


class PretendedGPU(TorchFunctionMode):
    """To be entered once a thread; pretended_cuda.py does so, and answers for torch.cuda."""

    def __init__(self) -> None:
        super().__init__()
        self.tape: list[tuple[Any, Any, Any, Any]] | None = None
        """the calls of the graph that is being captured: function, arguments by place and by name, result"""
        self.warns = False
        """of waits"""
        self.unseen_on_gpu = False
        """whether tensors that Python sees for the first time are the GPU's: gradients, and what a backward kept"""

    def has(self, tensor: torch.Tensor) -> bool:
        """True if a tensor is on the GPU."""
        return getattr(tensor, MARK, self.unseen_on_gpu)

    @contextlib.contextmanager
    def backward_from(self, roots: Any) -> Iterator[None]:
        """The mode within a backward, which torch begins outside of it."""
        before = self.unseen_on_gpu
        self.unseen_on_gpu = any(getattr(root, MARK, False) for root in tree_iter(roots))
        try:
            with self:
                yield
        finally:
            self.unseen_on_gpu = before

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if func is torch.device or name == "_parse_to":
            return func(*args, **kwargs)
        if name in ("__get__", "__set__"):
            return self._attribute(name, func, args)
        if name in ("is_pinned", "pin_memory"):
            return args[0] if name == "pin_memory" else False
        if name == "get_device":
            return GPU.index if self.has(args[0]) else -1
        if name in ("numpy", "__array__") and self.has(args[0]):
            raise TypeError(f"can't convert {GPU} device type tensor to numpy. Use Tensor.cpu() first")
        if name in ("cpu", "cuda"):
            func, name, args, kwargs = torch.Tensor.to, "to", (args[0], CPU if name == "cpu" else GPU), {}
        return self._run(func, name, args, kwargs)

    def _attribute(self, kind: str, func: Any, args: Any) -> Any:
        tensor, which = args[0], func.__self__.__name__
        here, found = self.has(tensor), func(*args)
        if kind == "__set__" and which == "data":
            setattr(tensor, MARK, self.has(args[1]))
        if kind == "__get__" and which == "device":
            return GPU if here and found.type == "cpu" else found
        if kind == "__get__" and which in ("is_cuda", "is_cpu"):
            return here == (which == "is_cuda")
        if isinstance(found, torch.Tensor) and found is not tensor:
            setattr(found, MARK, here)
        return found

    def _run(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        given = args[:1] if name == "__deepcopy__" else (args, kwargs)  # and not what is copied already
        tensors = [x for x in tree_iter(given) if isinstance(x, torch.Tensor)]
        wanted, args, kwargs = self._wanted(name, args, kwargs)
        here = any(map(self.has, tensors)) if wanted is None else wanted
        sides = [self.has(x) for x in tensors]
        crosses = name in ("to", "copy_", "tensor", "as_tensor") and here != all(sides or [False])
        masks = name in ("__getitem__", "__setitem__") and any(
            x.dtype == torch.bool and x.dim() for x in tree_iter(args[1]) if isinstance(x, torch.Tensor)
        )
        waits = crosses or ((masks or name in WAITS) and any(sides))
        self._refuse(name, args, kwargs, tensors, here, waits)
        if waits and self.warns and not kwargs.get("non_blocking"):
            warnings.warn(f"called a synchronizing CUDA operation: {name}", stacklevel=3)
        found = func(*args, **kwargs)
        if name == "to" and found is tensors[0] and self.has(found) != here:
            found = found.clone()
        for new in tree_iter(found):
            if isinstance(new, torch.Tensor) and all(new is not old for old in tensors):
                setattr(new, MARK, here)
        if self.tape is not None:
            self.tape.append((func, args, kwargs, found))
        return found

    def _wanted(self, name: str, args: Any, kwargs: Any) -> tuple[bool | None, Any, Any]:
        """True if the result was asked for on the GPU, None where nothing was said; the arguments without a GPU."""
        kwargs.pop("pin_memory", None)
        said = [kwargs["device"]] if kwargs.get("device") is not None else []
        if name == "to":
            said += [x for x in args[1:2] if _is_device(x) or isinstance(x, torch.Tensor)]
        if not said:
            return None, args, kwargs
        if isinstance(said[0], torch.Tensor):
            return self.has(said[0]), args, kwargs
        if torch.device(said[0]).type != "cuda":
            return False, args, kwargs
        if "device" in kwargs:
            kwargs["device"] = CPU
        else:
            args = (args[0], CPU, *args[2:])
        return True, args, kwargs

    def _refuse(self, name: str, args: Any, kwargs: Any, tensors: list[torch.Tensor], here: bool, waits: bool) -> None:
        """Raises Refused."""
        sides = [self.has(x) for x in tensors]
        odd = [tuple(x.shape) for x, side in zip(tensors, sides, strict=True) if not side and x.dim()]
        if any(sides) and odd and name not in MAY_MIX:
            raise Refused(f"{name}: expected all tensors to be on the same device; on the CPU are those of {odd}")
        if name == "__getitem__" and any(sides) and not sides[0]:
            raise Refused("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        generator = kwargs.get("generator")
        if here and generator is not None and not getattr(generator, MARK, False):
            raise Refused(f"{name}: expected a 'cuda' device type for generator but found 'cpu'")
        if self.tape is not None and waits:
            raise Refused(f"{name}: operation not permitted when stream is capturing")


def _is_device(given: Any) -> bool:
    if isinstance(given, str):
        return given.split(":")[0] in ("cpu", "cuda")
    return isinstance(given, torch.device) or (isinstance(given, int) and not isinstance(given, bool))


def on_the_gpu(found: Any) -> Any:
    """All its tensors as the GPU's."""
    return tree_map_only(torch.Tensor, _marked, found)


def _marked(tensor: torch.Tensor) -> torch.Tensor:
    setattr(tensor, MARK, True)
    return tensor
