"""Programs written for trlx, with `from ppo import trlx` in place of `import trlx`: see docs/coming_from.md."""

from ppo.trlx.training import train as train
