"""For docs/do/dead-letters.md."""

from tests.documentation.stand_ins.rely_delivery import prepare

__all__ = ["prepare"]
