"""A package of verifiers 0.4: copy two words. The reward is the share of letters that are right, in order."""

import random
from difflib import SequenceMatcher

import verifiers.v1 as vf

WORDS = "cat dog sun tea red map pen cup hat sea big old new hot wet dry fun bee owl fox ant cow pig hen".split()  # noqa: SIM905


class CopyData(vf.TaskData):
    answer: str


class CopyTask(vf.Task[CopyData]):
    @vf.reward(weight=1.0)
    async def letters(self, trace: vf.Trace) -> float:
        return SequenceMatcher(None, trace.last_reply.strip().lower(), self.data.answer).ratio()

    @vf.metric
    async def exact(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip().lower() == self.data.answer)


class CopyConfig(vf.TasksetConfig):
    number: int = 400


class CopyTaskset(vf.Taskset[CopyTask, CopyConfig]):
    def load(self):
        chance = random.Random(0)
        for _ in range(self.config.number):
            answer = " ".join(chance.sample(WORDS, 2))
            yield CopyTask(CopyData(prompt=f"Copy: {answer}", answer=answer), self.config.task)


__all__ = ["CopyTaskset"]
