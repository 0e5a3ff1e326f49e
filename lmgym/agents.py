"""The import path that LlamaGym's users know: `from lmgym.agents import Agent`."""

from lmgym.apps.agents.agent import Agent as Agent
from lmgym.apps.agents.training import train as train
from lmgym.apps.agents.value_head import AutoModelForCausalLMWithValueHead as AutoModelForCausalLMWithValueHead
from lmgym.runs.refusals import end_in_one_line

end_in_one_line()
