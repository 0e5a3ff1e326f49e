"""The rollouts of the iterations in order: sampled when an iteration begins, or one iteration ahead, while one trains.

Design decisions:
- With `--async_rollouts 1` iteration i trains on what the weights from before iteration i - 1 sampled; iteration 0
  samples its own. If another process samples, a thread waits for it and for the rewards, and calls no collective: what
  failed is raised on all ranks where they join it. Otherwise it is played at once, with the same result.
- Whatever syncs other weights, evaluates or saves joins what is in flight first.
- If the sampler's server fails, it is started again or awaited (`sampler.recover`), gets the newest weights, and all
  ranks play the iteration again with the same tasks and seeds.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar, final

import torch

from lmgym.distributed.ranks import local_rank, raise_on_all_ranks
from lmgym.environments.scorer_reward import text_counts
from lmgym.errors import SERVER_FAILED, RunStopped, ServerError
from lmgym.runs.run import Run
from lmgym.runs.supervisor import Supervisor
from lmgym.training.reporting import show_notes
from ppo.check import Plan
from ppo.experience import LogprobMismatch
from ppo.journal import Journal
from ppo.monitoring.metrics import Clock, TimedReward, text_sums
from ppo.rewards import at_iteration
from ppo.rollouts import Played, Share, roll_out, share_of_iteration
from ppo.setup import TrainingComponents
from ppo.state import LoopState

TRIES = 3
"""to play again after the sampler's server failed"""
T = TypeVar("T")


@final
class PendingRollouts:
    """Gives the iterations their episodes. `state` is the loop's, at the first iteration of this process."""

    def __init__(self, plan: Plan, c: TrainingComponents, state: LoopState, run: Run, supervisor: Supervisor) -> None:
        self.plan, self.c, self.state, self.run, self.supervisor = plan, c, state, run, supervisor
        config = plan.config
        self.ahead = config.engine.async_rollouts > 0
        self.in_thread = self.ahead and c.sampler.runs_elsewhere
        self.journal: Journal | None = None
        if config.is_off_policy and not config.algorithm.max_refills:  # refills have other tasks than the iteration's
            self.journal = Journal(run, supervisor.run_id, plan.updates_per_iteration)
        self._reads_journal, self._has_read = self.journal is not None and state.iteration > 0, False
        self._next: Played | Future[Played] | None = None
        self._next_iteration = state.iteration
        if self.ahead and self._reads_journal and state.iteration < plan.iterations:
            # the checkpoint's random state is a later one
            self._next = self._recorded(state.iteration, restores_random_state=False)

    def take(self, iteration: int, clock: Clock) -> Played:
        """This rank's episodes of an iteration, which were sampled ahead and joined, or are sampled now. Collective."""
        played, self._next = self._next, None
        assert not isinstance(played, Future), "it was joined before the sync"
        return played or self._recorded(iteration) or self._play(iteration, clock)

    def begin_next(self, iteration: int, clock: Clock) -> None:
        """Begin to sample for an iteration, if rollouts are sampled ahead, by the weights of now; else let the sampler
        rest. Collective.
        """
        if not self.ahead:
            rest(self.c, self.run, self.supervisor)
        if not self.ahead or iteration >= self.plan.iterations:
            return
        self._next_iteration, self._next = iteration, self._recorded(iteration)
        if self._next is None and self.in_thread:
            self._next = self._play_in_thread(iteration)
        self._next = self._next or self._play(iteration, clock)

    def watch(self, mismatch: LogprobMismatch | None, clock: Clock) -> list[str]:
        """Judge what a server sampled by its distance from the trainer: a breach syncs and proves the weights again.

        Returns a warning after a good proof. Raises SyncError after one that failed. Collective.
        """
        c, state = self.c, self.state
        if mismatch is None or not c.sampler.runs_elsewhere:
            return []
        found = state.watch.breaches(mismatch.mean, mismatch.far, mismatch.ratio, mismatch.ratio_error)
        if not found:
            return []
        self.join(clock)
        wrong, which = "; ".join(found), f"iteration {state.iteration + 1}"
        show_notes([f"{which}: {wrong}; the server's weights are synced and proved again"], self.run)
        sync(c, self.run, self.supervisor, proves=True)
        rest(c, self.run, self.supervisor)
        mode, cap = self.plan.config.correction
        return [
            f"warning: the replies of {which} do not fit the trainer ({wrong}), though a new proof shows that the "
            f"server has its weights; the run goes on, corrected by {mode}, {cap:g}"
        ]

    def join(self, clock: Clock) -> None:
        """Wait for what is in flight. Raises on all ranks what failed on one. Collective."""
        future, iteration = self._next, self._next_iteration
        if isinstance(future, Future):
            before = clock.phase("generate")
            given = self.c, self.run, self.supervisor, lambda: raise_on_all_ranks(future.result)
            self._next = recovering(*given, lambda: self._once(iteration, self._updates, clock))
            clock.phase(before)

    def _play(self, iteration: int, clock: Clock) -> Played:
        return recovering(self.c, self.run, self.supervisor, lambda: self._once(iteration, self._updates, clock))

    def _once(self, iteration: int, updates: int, clock: Clock | None = None, alone: bool = False) -> Played:
        """Play an iteration by the weights from after so many updates, which were synced, and write it to the journal.
        Collective, unless this rank plays alone.
        """
        c = self.c
        reward = at_iteration(c.setup.reward_function, iteration, self.plan.iterations)
        before = text_counts(reward)
        timed = TimedReward(reward, clock) if reward and clock else reward
        config, share = self.plan.config, partial(self._share, iteration)
        given = c.setup, c.sampler.generator, c.tokenizer, c.sampling, config.rollout, share
        played = roll_out(*given, config.algorithm.max_refills, timed, alone)
        played.updates, played.texts = updates, text_sums(before, text_counts(reward))
        if self.journal:
            self.journal.write(iteration, played, keeps_random_state=not self.in_thread)
        return played

    def _share(self, iteration: int, refill: int = 0) -> Share:
        config = self.plan.config
        sizes = config.rollout.num_rollouts, config.algorithm.num_generations
        return share_of_iteration(self.c.setup, *sizes, config.optimizer.seed, iteration, refill)

    @property
    def _updates(self) -> int:
        """Number of updates up to now."""
        return self.state.iteration * self.plan.updates_per_iteration

    def _play_in_thread(self, iteration: int) -> Future[Played]:
        found: Future[Played] = Future()
        updates = self._updates

        def work() -> None:
            try:
                if torch.cuda.is_available():
                    torch.cuda.set_device(local_rank())  # each thread has a device of its own
                found.set_result(self._once(iteration, updates, alone=True))
            except BaseException as error:
                found.set_exception(error)

        # a daemon: a run that ends early does not wait for its server
        threading.Thread(target=work, name="rollouts", daemon=True).start()
        return found

    def _recorded(self, iteration: int, restores_random_state: bool = True) -> Played | None:
        """The journal's episodes of an iteration, in a resumed run as long as it has them. Collective."""
        if not self._reads_journal:
            return None
        assert self.journal is not None
        needed, share = not restores_random_state, self._share(iteration)
        played, why = self.journal.read(iteration, share, restores_random_state and not self.in_thread)
        if played is None:
            self._reads_journal = False
            if needed or "missing" not in why:
                show_notes([f"iteration {iteration + 1} is sampled anew, not from the journal: {why}"], self.run)
        elif not self._has_read:
            self._has_read = True
            show_notes([f"the rollouts of iteration {iteration + 1} are read from the journal"], self.run)
        return played


def sync(c: TrainingComponents, run: Run, supervisor: Supervisor, proves: bool = False) -> None:
    """Give the sampler the trained weights, and with `proves` prove that it has them. Nothing may be in flight.

    Raises SyncError if it does not have them. Collective.
    """
    recovering(c, run, supervisor, lambda: c.sampler.sync(c.engine.version, proves), lambda: None)


def rest(c: TrainingComponents, run: Run, supervisor: Supervisor) -> None:
    """Nothing is sampled until the next sync. Collective."""
    recovering(c, run, supervisor, c.sampler.rest)


def recovering(
    c: TrainingComponents,
    run: Run,
    supervisor: Supervisor,
    work: Callable[[], T],
    again: Callable[[], T] | None = None,
) -> T:
    """The result of `work`. If the sampler's server fails in it, recovers that, syncs the weights and calls `again`, by
    default `work`, up to TRIES times.

    Both must raise a ServerError on all ranks. Raises RunStopped after the last try. Collective.
    """
    failure: ServerError | None = None
    for number in range(1 + TRIES):
        try:
            if failure is None:
                return work()
            c.sampler.recover(failure)
            c.sampler.sync(c.engine.version)
            return (again or work)()
        except ServerError as error:
            if not c.sampler.runs_elsewhere:
                raise
            failure = error
        if number < TRIES:
            supervisor.heartbeat("waiting for the sampler's server")
            show_notes([f"warning: the sampler's server failed: {failure}; try {number + 1} of {TRIES} to go on"], run)
    raise RunStopped(
        f"the sampler's server failed {1 + TRIES} times: {failure}; the last checkpoint is good: once the server "
        "works, the same command goes on from it",
        "server_failed",
        SERVER_FAILED,
    )
