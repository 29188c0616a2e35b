"""A small base model and a small instruction world that come with the package, so a study runs offline.

`world` makes the examples, `pretrain` builds the base from nothing, `BASE` is the built one.
"""

from pathlib import Path
from typing import Final

BASE: Final = Path(__file__).parent / "base"
