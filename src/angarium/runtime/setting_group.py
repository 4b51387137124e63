"""What the groups of settings share: how they print, and the types of their fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from angarium.runtime import urls
from angarium.runtime.setting_values import check, key_name
from angarium.runtime.urls import redacted

Port = Annotated[int, Field(ge=0, le=65535)]
# Scripts use doubles, which are exact up to this number.

Positive = Annotated[int, Field(ge=1, le=2**53)]
Factor = Annotated[float, Field(gt=0, le=1_000, allow_inf_nan=False)]
Name = Annotated[str, AfterValidator(key_name)]
HttpUrl = Annotated[
    str, AfterValidator(check(urls.http_url_problem, "use a URL such as https://host/path"))
]


class Redacting(BaseModel):
    """Shows URLs without their passwords wherever it is printed."""

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            if isinstance(value, str) and "url" in str(name):
                value = redacted(value)
            elif isinstance(value, tuple):
                value = tuple(redacted(v) if isinstance(v, str) else v for v in value)
            yield name, value


class Group(Redacting):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
