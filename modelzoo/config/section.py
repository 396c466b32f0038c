"""What all sections of the settings are."""

from pydantic import BaseModel, ConfigDict

__all__ = ["Section"]


class Section(BaseModel):
    """A group of settings; an unknown key is an error and no value is converted in silence."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, allow_inf_nan=False)
