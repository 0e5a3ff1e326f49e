"""Programs written for trlx, with `from ppo import trlx` in place of `import trlx`: see docs/coming_from.md."""

from lmgym.runs.refusals import end_in_one_line
from ppo.trlx.training import train as train

end_in_one_line()
