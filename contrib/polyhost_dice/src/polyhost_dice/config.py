"""The ``[plugins.dice]`` table."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from polyhost.config import PROJECT_SETTABLE


class DiceConfig(BaseModel):
    """``sides``: from 2 to 1000; a project file may choose it."""

    model_config = ConfigDict(extra="forbid")

    sides: Annotated[int, Field(ge=2, le=1000), PROJECT_SETTABLE] = 6
