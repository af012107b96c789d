"""Proxies from the environment: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY, as httpx2 reads them."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from typing_extensions import override

from .. import errors
from ..errors import printable

if TYPE_CHECKING:
    import ssl

_SCHEMES = ("http", "https", "socks5", "socks5h")


class ProxySettings(NamedTuple):
    """Proxies by URL scheme, and the hosts that bypass them."""

    by_scheme: tuple[tuple[str, str], ...] = ()
    no_proxy: tuple[str, ...] = ()

    @override
    @printable
    def __repr__(self) -> str:
        return "ProxySettings()"  # a proxy's URL may hold a password

    @classmethod
    def from_environment(cls) -> ProxySettings:
        proxies = _read_environment()
        by_scheme = tuple((scheme, proxies[scheme]) for scheme in ("http", "https", "all") if proxies.get(scheme))
        excluded = tuple(entry.strip().lower() for entry in proxies.get("no", "").split(",") if entry.strip())
        return cls(by_scheme, excluded)

    @classmethod
    def always(cls, proxy: str) -> ProxySettings:
        return cls((("all", proxy),))

    def for_url(self, url: str) -> str | None:
        """The proxy for a URL; None to connect directly."""
        parts = urlsplit(url)
        proxies = dict(self.by_scheme)
        proxy = proxies.get(parts.scheme) or proxies.get("all")
        if proxy is None or any(_is_excluded(parts, entry) for entry in self.no_proxy):
            return None
        return proxy if "://" in proxy else f"http://{proxy}"


def _read_environment() -> Mapping[str, str]:
    """Proxies by scheme, as from `urllib.request.getproxies`, which is slow to import."""
    if sys.platform in ("darwin", "win32"):
        # These systems also have proxy settings outside the environment.
        from urllib.request import getproxies  # lazy: slow to import, and loads `ssl`

        return getproxies()
    variables = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    proxies = {name.lower()[:-6]: value for name, value in variables.items() if value}
    if "REQUEST_METHOD" in os.environ:
        proxies.pop("http", None)  # in a CGI program, a client could set it with a header named Proxy
    for name, value in variables.items():  # lower-case names take precedence, even if empty
        if name.endswith("_proxy"):
            proxies[name[:-6].lower()] = value
    return {scheme: value for scheme, value in proxies.items() if value}


def _is_excluded(url: SplitResult, entry: str) -> bool:
    """Whether a NO_PROXY entry matches: `domain`, `.domain` for its subdomains only, or a CIDR network."""
    if entry == "*":
        return True
    if "://" in entry:
        pattern = _split(entry)
        if pattern is None:
            return False
        same_port = pattern.port is None or pattern.port == url.port
        return pattern.scheme in ("all", url.scheme) and pattern.hostname == url.hostname and same_port
    host = url.hostname or ""
    network = _network(entry)
    if network is not None:
        address = _address(host)
        return address is not None and address.version == network.version and address in network
    name, port = _host_and_port(entry)
    if port and (not port.isdigit() or int(port) != (url.port or _default_port(url.scheme))):
        return False
    if name == "localhost":
        return host == name
    if name.startswith("."):
        return host.endswith(name)
    return host == name or host.endswith(f".{name}")


def _split(url: str) -> SplitResult | None:
    """Split a URL; None if it is invalid."""
    try:
        parts = urlsplit(url)
        return parts if parts.port is None or parts.port > 0 else None
    except ValueError:
        return None


def _host_and_port(entry: str) -> tuple[str, str]:
    """Split `example.com:80` or `[::1]:80`, and remove the brackets."""
    if entry.startswith("["):
        name, _, rest = entry[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = entry.partition(":")
    return name, port


def _default_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(entry.strip("[]"), strict=False)
    except ValueError:
        return None


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def client_proxy(library: Any, proxy: str, ssl_context: ssl.SSLContext) -> Any:
    """Create the proxy object for a client of httpx2 or httpx. HTTPS proxies are verified like vendors."""
    parts = _split(proxy)
    if parts is None:  # not quoted, because it may hold a password
        raise errors.ConfigurationError("The proxy URL is invalid.", field="proxy", fix="Write it as http://host:port.")
    if parts.scheme not in _SCHEMES or not parts.hostname:
        raise errors.ConfigurationError(
            f"The proxy URL has an unknown scheme {parts.scheme!r}.",
            field="proxy",
            fix=f"Use one of {', '.join(_SCHEMES)}.",
        )
    if parts.scheme.startswith("socks"):
        _require_socks()
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = "" if parts.port is None else f":{parts.port}"
    auth = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    trusted = ssl_context if parts.scheme == "https" else None
    return library.Proxy(f"{parts.scheme}://{host}{port}/", auth=auth, ssl_context=trusted)


def _require_socks() -> None:
    try:
        import socksio  # noqa: F401
    except ImportError:
        raise errors.ConfigurationError(
            "A SOCKS proxy is configured, but the package socksio is not installed.",
            field="proxy",
            fix="Install the extra: pip install 'agent-llm-router[socks]'.",
        ) from None
