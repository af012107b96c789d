"""Region, API key and AWS credentials.

An API key is a bearer token: `api_key`, or AWS_BEARER_TOKEN_BEDROCK. Without one, each request is signed (SigV4) with
the credentials that botocore finds: environment variables, profiles, SSO, roles of containers and instances. botocore
renews them. Only signing imports botocore.
"""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ... import errors
from ...engine.wire import WireRequest
from ...types import AgentConfig
from ..base import ApiAddress, first_variable, resolve_address
from .models import API, region_in

if TYPE_CHECKING:
    from botocore.session import Session

KEY_VARIABLE = "AWS_BEARER_TOKEN_BEDROCK"
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_URL_VARIABLES = ("AWS_ENDPOINT_URL_BEDROCK_RUNTIME", "AWS_ENDPOINT_URL")
_REGION = re.compile(r"[a-z]{2,}(?:-[a-z0-9]+)+")
_HOST = re.compile(r"bedrock-runtime(?:-fips)?\.([a-z0-9-]+)\.")
_EXTRA = "pip install 'agent-llm-router[bedrock]'"
_NO_CREDENTIALS = (
    f"There are no AWS credentials: set {KEY_VARIABLE}, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE."
)


def resolve_endpoint(config: AgentConfig, *, signed_by_caller: bool) -> tuple[ApiAddress, str | None]:
    """Return the address, and the region if it is known.

    Raises:
        ConfigurationError: There is neither a region nor a base URL.
    """
    region = _find_region(config)
    address = resolve_address(
        config,
        default_base_url=None if region is None else _regional_url(region),
        key_variables=() if signed_by_caller else (KEY_VARIABLE,),
        base_url_variables=_URL_VARIABLES,
        key_required=False,
    )
    return address, region


def _regional_url(region: str) -> str:
    return f"https://bedrock-runtime.{region}.amazonaws.com{'.cn' if region.startswith('cn-') else ''}"


def _find_region(config: AgentConfig) -> str | None:
    """Find the region: in base_url, in an ARN, in the environment, or in the AWS profile."""
    if host := _HOST.match(urlsplit(config.base_url or "").hostname or ""):
        return host[1]
    region = region_in(config.model) or first_variable(_REGION_VARIABLES) or _read_profile_region()
    if region is not None and not _REGION.fullmatch(region):
        raise errors.ConfigurationError(
            f"{region!r} is not the name of an AWS region.", field="region", fix="Set AWS_REGION, such as us-east-1."
        )
    if region is None and config.base_url is None and first_variable(_URL_VARIABLES) is None:
        raise errors.ConfigurationError(
            "There is no AWS region for Bedrock.",
            field="region",
            fix=f"Set AWS_REGION, or pass base_url={_regional_url('us-east-1')!r}.",
        )
    return region


def _read_profile_region() -> str | None:
    """Read the region of the AWS profile; None without botocore or a profile."""
    try:
        from botocore.exceptions import BotoCoreError  # lazy: an optional package
        from botocore.session import Session  # lazy: an optional package
    except ImportError:
        return None
    try:
        region = Session().get_config_variable("region")
    except BotoCoreError as error:
        raise errors.ConfigurationError(
            f"The AWS profile cannot be read: {error}.", field="region", fix="Correct AWS_PROFILE or ~/.aws/config."
        ) from None
    return region if isinstance(region, str) and region else None


class Signer:
    """Signs requests with the AWS credentials of this process. May be shared by threads."""

    def __init__(self, region: str | None) -> None:
        self._region = region
        self._session: Session | None = None
        self._lock = threading.Lock()
        self.secrets: tuple[str, ...] = ()
        """Secrets of the latest two sets of credentials, which errors must not quote."""
        try:
            import botocore.auth  # noqa: F401  # lazy: an optional package
        except ImportError:
            raise errors.ConfigurationError(
                "Requests to Bedrock without an API key are signed with botocore, which is not installed.",
                field="api_key",
                fix=f"Run {_EXTRA}, or set {KEY_VARIABLE}.",
            ) from None

    def sign(self, request: WireRequest) -> WireRequest:
        """Return the request with its signature. Loading credentials may block."""
        from botocore.auth import SigV4Auth  # lazy: an optional package
        from botocore.awsrequest import AWSRequest  # lazy: an optional package
        from botocore.exceptions import BotoCoreError, ProfileNotFound  # lazy: an optional package

        if self._region is None:
            raise errors.ConfigurationError(
                "There is no AWS region to sign requests for.", field="region", fix="Set AWS_REGION, such as us-east-1."
            )
        try:
            credentials = self._load_credentials()
        except BotoCoreError as error:
            fix = "Correct AWS_PROFILE." if isinstance(error, ProfileNotFound) else "Log in again, or check the role."
            raise errors.AuthenticationError(
                f"The AWS credentials cannot be loaded ({type(error).__name__}). {fix}", provider=API
            ) from None
        content_type = {"content-type": "application/json"}
        signed = AWSRequest(method="POST", url=request.url, data=request.body, headers=content_type)
        SigV4Auth(credentials, "bedrock", self._region).add_auth(signed)
        added = ((name.lower(), value) for name, value in signed.headers.items() if name.lower() != "content-type")
        headers = tuple((name.encode("ascii"), value.encode("latin-1")) for name, value in added)
        return replace(request, headers=(*request.headers, *headers))

    def _load_credentials(self) -> Any:  # Any: botocore has no types
        with self._lock:
            if self._session is None:
                from botocore.session import Session  # lazy: an optional package

                self._session = Session()
            found = self._session.get_credentials()
        if found is None:
            raise errors.AuthenticationError(_NO_CREDENTIALS, provider=API)
        credentials = found.get_frozen_credentials()
        current = tuple(filter(None, (credentials.secret_key, credentials.token)))
        if not set(current) <= set(self.secrets):
            self.secrets = (*current, *self.secrets[:2])
        return credentials
