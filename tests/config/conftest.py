"""Property tests share two cores with other work, so none is timed."""

from hypothesis import settings

settings.register_profile("untimed", settings(deadline=None))
settings.load_profile("untimed")
