"""`ILQLConfig`, where trlx programs import it from; ILQL is refused."""

from ppo.trlx.data.method_configs import ILQLConfig as ILQLConfig
