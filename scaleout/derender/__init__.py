"""Generated token ids → events with what travels beside them. Knows no wire format, no engine and no HTTP."""

from scaleout.derender.derenderer import Derenderer
from scaleout.derender.fold import fold
from scaleout.derender.state import DerenderState

__all__ = ["DerenderState", "Derenderer", "fold"]
