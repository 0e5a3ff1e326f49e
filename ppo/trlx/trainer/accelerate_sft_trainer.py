"""`SFTConfig`, where trlx programs import it from."""

from ppo.trlx.data.method_configs import SFTConfig as SFTConfig
