"""All settings of an installation: those that every module shares, and a group for each module.

`load` answers with settings that can be used, or raises `SettingInvalid` that names the setting as
the user wrote it. The groups are declared by the modules; a group's keys that follow a setting
are in the module's manifest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ValidationError, model_validator

from angarium.conversations.limits import ConversationsLimits
from angarium.conversations.settings import ConversationsSettings
from angarium.dispatch.limits import DispatchLimits
from angarium.dispatch.settings import DispatchSettings
from angarium.lake.settings import LakeSettings
from angarium.modules import MODULES
from angarium.pickup.limits import PickupLimits
from angarium.pickup.settings import PickupSettings
from angarium.redis.options import Durability
from angarium.routing.limits import RoutingLimits
from angarium.routing.settings import Layout, RoutingSettings
from angarium.runtime.keyspace import Key, Keyspace
from angarium.runtime.runtime import RuntimeOptions
from angarium.runtime.setting_group import AccessMode, refusal
from angarium.runtime.setting_sources import Sources
from angarium.runtime.settings import CommonSettings
from angarium.runtime.urls import redacted
from angarium.transactions.limits import TransactionsLimits
from angarium.transactions.settings import TransactionsSettings

__all__ = ["AccessMode", "AllLimits", "Durability", "Layout", "Settings", "load", "redacted"]

Setting = tuple[str, str]


@dataclass(frozen=True)
class AllLimits(
    TransactionsLimits, PickupLimits, ConversationsLimits, RoutingLimits, DispatchLimits
):
    """The limits of all modules."""


class Settings(CommonSettings):
    limits: AllLimits = AllLimits()
    dispatch: DispatchSettings = DispatchSettings()
    routing: RoutingSettings = RoutingSettings()
    conversations: ConversationsSettings = ConversationsSettings()
    pickup: PickupSettings = PickupSettings()
    transactions: TransactionsSettings = TransactionsSettings()
    lake: LakeSettings = LakeSettings()

    @model_validator(mode="after")
    def _each_key_has_its_own_name(self) -> Self:
        names = dict(self._key_names())
        owners: dict[str, Key] = {}
        for key in (key for module in MODULES for key in module.keys):
            if key.type == "channel":  # channels and keys do not see each other in Redis
                continue
            name = names[key][1] if key in names else key.name
            other = owners.setdefault(name, key)
            if other is not key:
                setting, _ = names[key if key in names else other]
                problem = f"'{name}' is also the name of another key"
                raise refusal(problem, "choose another", setting)
        return self

    def key_settings(self) -> dict[Key, Setting]:
        """The setting that each key follows, where it follows one."""
        return {key: setting for key, (setting, _) in self._key_names()}

    def runtime_options(self) -> RuntimeOptions:
        names = {key: name for key, (_, name) in self._key_names()}
        keys = tuple(key for module in MODULES for key in module.keys)
        return RuntimeOptions(
            redis=self.redis_options(),
            keyspace=Keyspace(self.prefix, self.partitions, names, keys),
            journal_bytes_max=self.journal.bytes_max if self.journal.enabled else 0,
            journal_refuses=self.journal.full == "refuse",
            limits=self.limits,
        )

    def _key_names(self) -> Iterator[tuple[Key, tuple[Setting, str]]]:
        """Each key whose name can be set: the setting, and the name that it gives."""
        for module in MODULES:
            for each in module.key_names:
                value = getattr(getattr(self, module.name), each.setting)
                yield each.key, ((module.name, each.setting), value + each.ending)


def load(**overrides: Any) -> Settings:
    """Settings to start with; a group is overridden by a dict of its members."""
    sources = Sources.read(Settings, overrides)
    sources.refuse_unknown()
    try:
        return Settings(**overrides)
    except ValidationError as error:
        # Without the original: its text could show what must stay secret.
        raise sources.invalid(error) from None
