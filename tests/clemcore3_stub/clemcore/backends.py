"""Models."""


class ModelSpec(dict):
    """Fields."""

    @classmethod
    def from_dict(cls, fields):
        """Of fields."""
        return cls(fields)

    def to_dict(self):
        """The fields."""
        return dict(self)


class Model:
    """A model of a spec."""

    def __init__(self, model_spec=None):
        self.model_spec = model_spec

    @property
    def name(self):
        """Its name."""
        return self.model_spec["model_name"]

    def set_gen_args(self, **settings):
        """Settings of its replies."""
        self.settings = settings


class CustomResponseModel(Model):
    """The game's own script replies."""
