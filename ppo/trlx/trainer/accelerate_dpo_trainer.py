"""`DPOConfig`, where trlx programs import it from; DPO is refused."""

from ppo.trlx.data.method_configs import DPOConfig as DPOConfig
