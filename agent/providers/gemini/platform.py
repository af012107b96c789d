"""Addresses and differences of the two platforms that serve Gemini: the Gemini API and Vertex AI.

* **Gemini API** (`gemini`): a key in `api_key`, GEMINI_API_KEY or GOOGLE_API_KEY. `base_url` may end in a version.
* **Vertex AI** (`vertex`) with an access token: in `api_key` if it begins with `ya29.`, in GOOGLE_CLOUD_ACCESS_TOKEN,
  or in your own `authorization` header. Project and location are part of `base_url` (…/projects/P/locations/L), or come
  from GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION; the default location is "global".
* **Vertex AI in express mode**: any other key, in `api_key` or GOOGLE_API_KEY, without project and location.

Keys are sent in a header, never in the URL. Tokens are not renewed; for that, pass the official SDK's client.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

from ... import errors
from ...types import AgentConfig
from ..base import ApiAddress, resolve_address

TOKEN_VARIABLE = "GOOGLE_CLOUD_ACCESS_TOKEN"  # noqa: S105  # the name of a variable
_TOKEN = "ya29."  # noqa: S105  # how tokens begin
_VERSION = re.compile(r"/v\d+(?:alpha|beta)?\d*(?:/|$)")
_IN_VERTEX_URL = re.compile(r"/projects/[^/]+/locations/[^/]+")
_RESOURCE = re.compile(r"(projects/[^/]+/locations/[^/]+)/(.+)")
_MODEL = re.compile(r"(?:publishers/google/)?models/([^/]+)")
_OTHER_MODEL = re.compile(r"(tunedModels|endpoints)/([^/]+)")
_PLAIN_ID = re.compile(r"[a-zA-Z0-9:._-]+")
_MULTI_REGIONS = ("us", "eu")


@dataclass(frozen=True, slots=True)
class Platform:
    """Differences of one platform."""

    version: str
    """Version of the API, if the base URL contains none."""
    models: str
    """Path of the models below the base URL."""
    labels: bool
    """Requests can carry labels."""
    shows_server_tools: bool
    """Can report the calls of server-side tools, and must be told to where they are mixed with functions."""
    wraps_counted: bool
    """Counts the tokens of a whole request, inside another object; otherwise only those of `COUNTED_KEYS`."""
    any_ids: bool
    """Accepts any id of a call; otherwise only its own."""

    def root(self, base_url: str) -> str:
        """Return the base URL with a version. An empty one stays empty, for paths that an SDK client completes."""
        root = re.sub(r"/publishers/google(?:/models)?$", "", base_url.rstrip("/"))
        return root if not root or _VERSION.search(urlsplit(root).path) else f"{root}/{self.version}"

    def path(self, model: str, method: str) -> str:
        """Return a method's path below the root. Whatever the model's name contains, it is one segment."""
        kind, name = self.models, model
        if found := _MODEL.fullmatch(model):
            name = found[1]
        elif found := _OTHER_MODEL.fullmatch(model):
            kind, name = found[1], found[2]
        return f"{kind}/{quote(name, safe='@')}:{method}"

    def url(self, root: str, model: str, method: str) -> str:
        """Return a method's URL. A model named with its project and location replaces those of the root."""
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
COUNTED_KEYS = frozenset(("contents", "systemInstruction", "tools", "generationConfig"))
"""Keys of a body that Vertex AI counts tokens of. It rejects others."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A platform, its address, and whether the key is an access token."""

    platform: Platform
    address: ApiAddress
    token: bool


def gemini_endpoint(config: AgentConfig) -> Endpoint:
    given = _credentials_in(config.headers)
    address = resolve_address(
        config,
        default_base_url="https://generativelanguage.googleapis.com",
        key_variables=() if given else ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        base_url_variables=("GOOGLE_GEMINI_BASE_URL",),
        key_required=not given,
    )
    return Endpoint(GEMINI_API, address, is_token(address))


def vertex_endpoint(config: AgentConfig) -> Endpoint:
    location = _from_environment("GOOGLE_CLOUD_LOCATION")
    given = _credentials_in(config.headers)
    if config.api_key is None:
        token = "authorization" in given or (not given and bool(os.environ.get(TOKEN_VARIABLE, "").strip()))
    else:
        token = config.api_key.get_secret_value().startswith(_TOKEN)
    address = resolve_address(
        config,
        default_base_url=_host(location) if token else _host("global"),
        key_variables=() if given else (TOKEN_VARIABLE, "GOOGLE_API_KEY"),
        base_url_variables=("GOOGLE_VERTEX_BASE_URL",),
        key_required=not given,
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
    return Endpoint(VERTEX, ApiAddress(root, address.key), token)


def is_token(address: ApiAddress) -> bool:
    return address.key is not None and address.key.get_secret_value().startswith(_TOKEN)


def _credentials_in(headers: Mapping[str, str]) -> set[str]:
    return {name.lower() for name in headers} & {"authorization", "x-goog-api-key"}


def _host(location: str | None) -> str:
    if location is None or location == "global":
        return "https://aiplatform.googleapis.com"
    if location in _MULTI_REGIONS:
        return f"https://aiplatform.{location}.rep.googleapis.com"
    return f"https://{location}-aiplatform.googleapis.com"


def _location_in(root: str) -> str | None:
    """The location in the host name."""
    found = re.match(r"([a-z0-9-]+)-aiplatform\.|aiplatform\.(us|eu)\.rep\.", urlsplit(root).hostname or "")
    return (found[1] or found[2]) if found else None


def _from_environment(variable: str) -> str | None:
    """Read a name that becomes part of the URL."""
    value = os.environ.get(variable, "").strip()
    if value and not _PLAIN_ID.fullmatch(value):
        raise errors.ConfigurationError(
            f"{variable} does not look like one: it holds characters that have no place in an address.",
            field="base_url",
            fix=f"Set {variable} to the plain name, such as my-project or us-central1.",
        )
    return value or None
