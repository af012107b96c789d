"""Where Gemini is served, and how the two places differ: the Gemini API, and Vertex AI.

* **Gemini API** (`gemini`): a key in `api_key`, GEMINI_API_KEY or GOOGLE_API_KEY. `base_url` may end in a version.
* **Vertex AI** (`vertex`) with an access token: in `api_key` if it begins with `ya29.`, in GOOGLE_CLOUD_ACCESS_TOKEN,
  or in an `authorization` header of your own. Project and location stand in `base_url` (…/projects/P/locations/L), or
  come from GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION; without a location it is "global".
* **Vertex AI in express mode**: any other key, in `api_key` or GOOGLE_API_KEY. It knows neither project nor location.

A key travels in a header, never in the address. Tokens are not renewed here: for that, bring the official SDK's client.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from ... import errors
from ...types import AgentConfig
from ..credentials import Address, resolve

TOKEN_VARIABLE = "GOOGLE_CLOUD_ACCESS_TOKEN"  # noqa: S105  # the name of a variable
_TOKEN = "ya29."  # noqa: S105  # how tokens begin
_VERSION = re.compile(r"/v\d+(?:alpha|beta)?\d*(?:/|$)")
_IN_VERTEX_URL = re.compile(r"/projects/[^/]+/locations/[^/]+")
_RESOURCE = re.compile(r"(projects/[^/]+/locations/[^/]+)/(.+)")
_PLAIN_ID = re.compile(r"[a-zA-Z0-9:._-]+")
_MULTI_REGIONS = ("us", "eu")


@dataclass(frozen=True, slots=True)
class Platform:
    """One of the places where Gemini is served."""

    version: str
    """Of the API, where the address names none."""
    models: str
    """Where a model stands below the address."""
    labels: bool
    """Takes labels with a request."""
    shows_server_tools: bool
    """Can be told to show what its own tools did, and must be where they are mixed with the caller's."""
    wraps_counted: bool
    """Counts the tokens of a whole request, inside another object; otherwise only those of what `COUNTED` names."""
    any_ids: bool
    """Takes any id of a call; otherwise only those that it gave itself."""

    def root(self, base_url: str) -> str:
        """The address with a version. An empty one stays empty: paths are then relative to whoever sends them."""
        root = re.sub(r"/publishers/google(?:/models)?$", "", base_url.rstrip("/"))
        return root if not root or _VERSION.search(urlsplit(root).path) else f"{root}/{self.version}"

    def path(self, model: str, method: str) -> str:
        """A model's path below the root. A name can hold anything: it never becomes more than one segment."""
        kind, name = self.models, model
        if found := re.fullmatch(r"(?:publishers/google/)?models/([^/]+)", model):
            name = found[1]
        elif found := re.fullmatch(r"(tunedModels|endpoints)/([^/]+)", model):
            kind, name = found[1], found[2]
        return f"{kind}/{quote(name, safe='@')}:{method}"

    def url(self, root: str, model: str, method: str) -> str:
        """Where a model is asked. One that is named with its project and location is asked there."""
        if found := _RESOURCE.fullmatch(model):
            where, model = "/".join(quote(step, safe=":") for step in found[1].split("/")), found[2]
            root = _IN_VERTEX_URL.sub("", root)
            root = f"{root}/{where}" if root else where
        path = self.path(model, method)
        return f"{root}/{path}" if root else path


GEMINI_API = Platform("v1beta", "models", labels=False, shows_server_tools=True, wraps_counted=True, any_ids=True)
VERTEX = Platform(
    "v1", "publishers/google/models", labels=True, shows_server_tools=False, wraps_counted=False, any_ids=False
)
COUNTED = frozenset(("systemInstruction", "tools", "generationConfig"))
"""What of a body Vertex AI counts besides the conversation; it refuses a request to count anything else."""


@dataclass(frozen=True, slots=True)
class Place:
    """A platform, its address, and whether the key is an access token."""

    platform: Platform
    address: Address
    token: bool


def gemini_place(config: AgentConfig) -> Place:
    brought = _brings_credentials(config.headers)
    address = resolve(
        config,
        default_base_url="https://generativelanguage.googleapis.com",
        key_variables=() if brought else ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        base_url_variables=("GOOGLE_GEMINI_BASE_URL",),
        key_required=not brought,
    )
    return Place(GEMINI_API, address, is_token(address))


def vertex_place(config: AgentConfig) -> Place:
    location = _from_environment("GOOGLE_CLOUD_LOCATION")
    brought = _brings_credentials(config.headers)
    if config.api_key is None:
        token = "authorization" in brought or (not brought and bool(os.environ.get(TOKEN_VARIABLE, "").strip()))
    else:
        token = config.api_key.get_secret_value().startswith(_TOKEN)
    address = resolve(
        config,
        default_base_url=_host(location) if token else _host("global"),
        key_variables=() if brought else (TOKEN_VARIABLE, "GOOGLE_API_KEY"),
        base_url_variables=("GOOGLE_VERTEX_BASE_URL",),
        key_required=not brought,
    )
    root = VERTEX.root(address.base_url)
    if token and not _IN_VERTEX_URL.search(root):
        project = _from_environment("GOOGLE_CLOUD_PROJECT")
        if project is None:
            raise errors.ConfigurationError(
                "With an access token, Vertex AI needs to know the project.",
                field="base_url",
                fix="Set GOOGLE_CLOUD_PROJECT (and GOOGLE_CLOUD_LOCATION), or pass "
                "base_url='https://LOCATION-aiplatform.googleapis.com/v1/projects/PROJECT/locations/LOCATION'.",
            )
        root = f"{root}/projects/{project}/locations/{_location_in(root) or location or 'global'}"
    return Place(VERTEX, Address(root, address.key), token)


def is_token(address: Address) -> bool:
    return address.key is not None and address.key.get_secret_value().startswith(_TOKEN)


def _brings_credentials(headers: Mapping[str, str]) -> set[str]:
    return {name.lower() for name in headers} & {"authorization", "x-goog-api-key"}


def _host(location: str | None) -> str:
    if location is None or location == "global":
        return "https://aiplatform.googleapis.com"
    if location in _MULTI_REGIONS:
        return f"https://aiplatform.{location}.rep.googleapis.com"
    return f"https://{location}-aiplatform.googleapis.com"


def _location_in(root: str) -> str | None:
    """The location whose own host this is."""
    found = re.match(r"([a-z0-9-]+)-aiplatform\.|aiplatform\.(us|eu)\.rep\.", urlsplit(root).hostname or "")
    return (found[1] or found[2]) if found else None


def _from_environment(variable: str) -> str | None:
    """A name that will stand in the address."""
    value = os.environ.get(variable, "").strip()
    if value and not _PLAIN_ID.fullmatch(value):
        raise errors.ConfigurationError(
            f"{variable} does not look like one: it holds characters that have no place in an address.",
            field="base_url",
            fix=f"Set {variable} to the plain name, such as my-project or us-central1.",
        )
    return value or None
