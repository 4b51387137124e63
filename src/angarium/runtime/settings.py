"""The settings that all modules share; `group` returns the settings of one module.

A value comes from a keyword given to `angarium.settings.load`, else from the environment
(`ANGARIUM_*`, or the name that the setting had in a system that Angarium replaces), else from
`angarium.toml`, else from the default below. This file opens no connection and creates no folder.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self, TypeVar

from pydantic import (
    BeforeValidator,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from angarium.redis import url as redis_url
from angarium.redis.options import Durability, OptionNames, RedisOptions
from angarium.runtime import urls
from angarium.runtime.limits import Limits
from angarium.runtime.setting_group import (
    AccessMode,
    Group,
    HttpSettings,
    JournalSettings,
    Redacting,
    RedisSettings,
    check,
    key_text,
    read_home,
    refusal,
)
from angarium.runtime.setting_sources import FormerName, Sources

if TYPE_CHECKING:
    from angarium.runtime.runtime import RuntimeOptions

ModuleSettings = TypeVar("ModuleSettings", bound=Group)
ModuleLimits = TypeVar("ModuleLimits", bound=Limits)


class CommonSettings(Redacting, BaseSettings):
    """`angarium.settings.Settings` adds a group for each module."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True
    )

    # First: the checks of other fields read them.
    limits: Limits = Limits()
    home: Annotated[Path, BeforeValidator(read_home)] = Field(
        Path(".angarium"),
        description="Folder for all files that Angarium writes.",
    )
    redis_url: Annotated[str, FormerName("REDIS_SERVER_URL")] = Field(
        "embedded",
        description="`embedded`, or a `redis://`, `rediss://`, `redis+cluster://` or "
        "`redis+sentinel://` URL.",
    )
    database_url: str = Field(
        default_factory=lambda data: f"sqlite:///{data.get('home', '')}/angarium.sqlite",
        description="`sqlite:///` or `postgresql://` URL of the database; by default a file in the "
        "home folder.",
    )
    lake_url: str = Field(
        default_factory=lambda data: f"{data.get('home', '')}/lake",
        description="Folder or object store of the lake; by default in the home folder.",
    )
    partitions: int = Field(
        1,
        ge=1,
        le=16_384,
        description="Number of partitions of the keys. It is fixed on first use, and at least 2 on "
        "a cluster.",
    )
    prefix: str = Field(
        "", description="Beginning of every key, such as `app:`, so that systems share a server."
    )
    durability: Durability = Field(
        Durability.MEMORY,
        description="Where a write is stored before it is acknowledged: `memory`, `local` (disk) "
        "or `replica`.",
    )
    app: str | None = Field(
        None,
        description="The application whose functions the roles run, as `module:app`.",
    )
    allow_private_addresses: bool = Field(
        False, description="Whether outbound requests may go to private and loopback addresses."
    )
    access: AccessMode = Field(
        AccessMode.AUTO,
        description="Who may use the API and the gateway without a token: `auto`, everybody on "
        "loopback until the first token exists, and nobody from then on, also when the last one "
        "is revoked or lost; `open`, everybody on loopback, always; `tokens`, nobody.",
    )
    http: HttpSettings = HttpSettings()
    journal: JournalSettings = JournalSettings()
    redis: RedisSettings = RedisSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        sources = Sources.read(settings_cls, {})
        return (
            init_settings,
            InitSettingsSource(settings_cls, sources.from_environment()),
            InitSettingsSource(settings_cls, dict(sources.config)),
        )

    @field_validator("redis_url")
    @classmethod
    def _redis_url_is_known(cls, value: str) -> str:
        return check(urls.redis_url_problem, redis_url.FIX)(value)

    @field_validator("database_url")
    @classmethod
    def _database_url_is_known(cls, value: str) -> str:
        fix = "use sqlite:///file or postgresql://user:password@host/database"
        return check(urls.database_url_problem, fix)(value)

    @field_validator("lake_url")
    @classmethod
    def _lake_url_is_known(cls, value: str) -> str:
        return check(urls.lake_url_problem, "use a folder or a URL such as s3://bucket/lake")(value)

    @field_validator("prefix")
    @classmethod
    def _prefix_fits_into_keys(cls, value: str, info: ValidationInfo) -> str:
        limits: Limits = info.data.get("limits", Limits())
        return key_text(value, limits.prefix_bytes_max)

    @model_validator(mode="after")
    def _a_cluster_needs_partitions(self) -> Self:
        if "+cluster://" in self.redis_url and self.partitions == 1:
            raise refusal(
                "one partition can't be used on a cluster, its keys carry no hash tag",
                "set it to at least 2, 16 is a good start",
                at=("partitions",),
            )
        return self

    def group(self, kind: type[ModuleSettings]) -> ModuleSettings:
        """The group of one module, by its class."""
        for name, field in type(self).model_fields.items():
            if field.annotation is kind:
                found: ModuleSettings = getattr(self, name)
                return found
        raise TypeError(f"{kind.__name__} is no group of these settings")

    def limits_of(self, kind: type[ModuleLimits]) -> ModuleLimits:
        """The limits, as those of one module."""
        assert isinstance(self.limits, kind), f"{kind.__name__} are not among these settings"
        return self.limits

    def redis_options(self) -> RedisOptions:
        return RedisOptions(
            url=self.redis_url,
            home=self.home,
            durability=self.durability,
            call_timeout_s=self.redis.call_timeout_ms / 1000,
            unavailable_timeout_s=self.redis.unavailable_timeout_ms / 1000,
            connections_max=self.redis.connections_max,
            names=OptionNames("ANGARIUM_REDIS_URL", "ANGARIUM_DURABILITY", "ANGARIUM_HOME"),
        )

    @abstractmethod
    def runtime_options(self) -> RuntimeOptions:
        """The options of a runtime with all modules."""
