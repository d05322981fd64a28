"""What all configuration is made of: frozen models that take no unknown key, and the forms they share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

SHA256_PATTERN, NAME_PATTERN = r"^[0-9a-f]{64}$", r"^[a-z0-9][a-z0-9-]{0,40}$"
BYTE_SIZE_PATTERN = r"^\d+(\.\d+)?(KiB|MiB|GiB)$"
ACCEPTED_BY_PATTERN = {
    SHA256_PATTERN: "accepted: 64 hexadecimal digits, as sha256sum prints them",
    NAME_PATTERN: "accepted: up to 41 small letters, digits and hyphens, not a hyphen first",
    BYTE_SIZE_PATTERN: "accepted: a number and a unit, such as 512MiB or 1.5GiB",
}
Sha256 = Annotated[str, Field(pattern=SHA256_PATTERN)]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
ByteSize = Annotated[str, Field(pattern=BYTE_SIZE_PATTERN)]
Port = Annotated[int, Field(ge=1, le=65535)]


class Frozen(BaseModel):
    """A part of the configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")
