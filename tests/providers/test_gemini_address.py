"""URLs and credentials of the Gemini API, Vertex AI and SDK clients."""

from __future__ import annotations

import json

import pytest

from agent import AgentConfig, errors
from agent.engine.wire import Reply, WireRequest
from agent.providers import load_provider
from agent.providers.base import ApiAddress
from agent.providers.gemini import VERTEX, GeminiCodec
from agent.types import AgentRequest, ToolSpec

MODEL = "gemini-2.5-flash"
TOKEN = "ya29.token"


@pytest.fixture(autouse=True)
def _no_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GOOGLE_CLOUD_PROJECT", "GOOGLE_CLOUD_LOCATION", "GOOGLE_CLOUD_ACCESS_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def encode(provider: str, *, model: str = MODEL, stream: bool = False, **config: object) -> WireRequest:
    codec = load_provider(provider)(AgentConfig.from_dict({"provider": provider, **config}))
    return codec.encode(AgentRequest(model=model, input="hi"), stream=stream)


def url_of(provider: str, **config: object) -> str:
    return encode(provider, **config).url  # type: ignore[arg-type]


def credentials(wire: WireRequest) -> dict[bytes, bytes]:
    return {name: value for name, value in wire.headers if name in (b"authorization", b"x-goog-api-key")}


# The Gemini API


@pytest.mark.parametrize("variable", ["GEMINI_API_KEY", "GOOGLE_API_KEY"])
def test_a_key_comes_from_the_environment_and_travels_in_a_header(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "secret")
    wire = encode("gemini")
    assert wire.url == "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.5-flash:generateContent"
    assert credentials(wire) == {b"x-goog-api-key": b"secret"}
    assert "secret" not in wire.url + repr(wire)


def test_a_missing_key_is_named() -> None:
    with pytest.raises(errors.AuthenticationError, match="GEMINI_API_KEY or GOOGLE_API_KEY"):
        encode("gemini")


def test_streams_are_asked_for_as_events() -> None:
    url = url_of("gemini", api_key="k", stream=True)
    assert url.endswith("/models/gemini-2.5-flash:streamGenerateContent?alt=sse")


@pytest.mark.parametrize(
    ("base_url", "root"),
    [
        ("https://proxy.example", "https://proxy.example/v1beta"),
        ("https://proxy.example/", "https://proxy.example/v1beta"),
        ("https://proxy.example/v1beta", "https://proxy.example/v1beta"),
        ("https://proxy.example/v1", "https://proxy.example/v1"),
        ("https://proxy.example/gemini/v1alpha/", "https://proxy.example/gemini/v1alpha"),
        ("https://v1.example/gemini", "https://v1.example/gemini/v1beta"),
    ],
)
def test_an_address_may_name_a_version_or_not(base_url: str, root: str) -> None:
    assert url_of("gemini", api_key="k", base_url=base_url) == f"{root}/models/{MODEL}:generateContent"


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gemini-x", "models/gemini-x"),
        ("models/gemini-x", "models/gemini-x"),
        ("tunedModels/mine-1", "tunedModels/mine-1"),
        ("gemini-x@001", "models/gemini-x@001"),
        ("../files/x", "models/..%2Ffiles%2Fx"),
        ("x:deleteModel?y=", "models/x%3AdeleteModel%3Fy%3D"),
        ("models/../x", "models/models%2F..%2Fx"),
        ("x#y", "models/x%23y"),
        ("ä b", "models/%C3%A4%20b"),
    ],
)
def test_a_model_is_one_segment_whatever_its_name(model: str, path: str) -> None:
    root = "https://generativelanguage.googleapis.com/v1beta"
    assert url_of("gemini", api_key="k", model=model) == f"{root}/{path}:generateContent"


def test_a_request_without_a_model_is_refused() -> None:
    with pytest.raises(errors.ConfigurationError, match="No model is set"):
        GeminiCodec(ApiAddress("", None)).encode(AgentRequest(input="hi"), stream=False)


def test_headers_of_the_callers_own_replace_the_key() -> None:
    assert credentials(encode("gemini", headers={"X-Goog-Api-Key": "mine"})) == {b"x-goog-api-key": b"mine"}


def test_beside_credentials_of_the_callers_own_the_key_of_the_environment_stays_at_home(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GEMINI_API_KEY", "secret")
    wire = encode("gemini", headers={"Authorization": "Bearer mine"})
    assert credentials(wire) == {b"authorization": b"Bearer mine"}


# Relative addresses, for a brought client


def test_without_an_address_paths_are_relative() -> None:
    codec = GeminiCodec(ApiAddress("", None))
    request = AgentRequest(model=MODEL, input="hi")
    assert codec.encode(request, stream=False).url == "models/gemini-2.5-flash:generateContent"
    assert codec.encode(request, stream=True).url == "models/gemini-2.5-flash:streamGenerateContent?alt=sse"
    assert codec.encode_count(request).url == "models/gemini-2.5-flash:countTokens"
    on_vertex = GeminiCodec(ApiAddress("", None), platform=VERTEX)
    assert on_vertex.encode(request, stream=False).url == "publishers/google/models/gemini-2.5-flash:generateContent"


# Vertex AI


def test_an_express_key_knows_no_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "AIza-key")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "us-central1")
    wire = encode("vertex")
    assert wire.url == f"https://aiplatform.googleapis.com/v1/publishers/google/models/{MODEL}:generateContent"
    assert credentials(wire) == {b"x-goog-api-key": b"AIza-key"}


@pytest.mark.parametrize(
    ("location", "host"),
    [
        (None, "aiplatform.googleapis.com"),
        ("global", "aiplatform.googleapis.com"),
        ("us-central1", "us-central1-aiplatform.googleapis.com"),
        ("eu", "aiplatform.eu.rep.googleapis.com"),
    ],
)
def test_a_token_goes_to_the_project_and_location_of_the_environment(
    location: str | None, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p1")
    if location is not None:
        monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", location)
    wire = encode("vertex", api_key=TOKEN)
    place = f"projects/p1/locations/{location or 'global'}"
    assert wire.url == f"https://{host}/v1/{place}/publishers/google/models/{MODEL}:generateContent"
    assert credentials(wire) == {b"authorization": b"Bearer ya29.token"}


@pytest.mark.parametrize(
    ("base_url", "root"),
    [
        (
            "https://us-east5-aiplatform.googleapis.com",
            "https://us-east5-aiplatform.googleapis.com/v1/projects/p1/locations/us-east5",
        ),
        ("https://proxy.example/v1beta1", "https://proxy.example/v1beta1/projects/p1/locations/asia-east1"),
        ("https://proxy.example/v1/projects/p2/locations/l2", "https://proxy.example/v1/projects/p2/locations/l2"),
        (
            "https://proxy.example/v1/projects/p2/locations/l2/publishers/google",
            "https://proxy.example/v1/projects/p2/locations/l2",
        ),
    ],
)
def test_an_address_may_say_all_or_part_of_it(base_url: str, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p1")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "asia-east1")
    url = url_of("vertex", api_key=TOKEN, base_url=base_url)
    assert url == f"{root}/publishers/google/models/{MODEL}:generateContent"


def test_a_token_of_the_environment_may_look_like_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_ACCESS_TOKEN", "federated")
    monkeypatch.setenv("GOOGLE_API_KEY", "AIza-key")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p1")
    wire = encode("vertex")
    assert credentials(wire) == {b"authorization": b"Bearer federated"}
    assert "/projects/p1/locations/global/" in wire.url


def test_a_key_that_was_passed_wins_over_a_token_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_ACCESS_TOKEN", TOKEN)
    wire = encode("vertex", api_key="AIza-key")
    assert credentials(wire) == {b"x-goog-api-key": b"AIza-key"}
    assert "/projects/" not in wire.url


def test_an_authorization_of_the_callers_own_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "AIza-key")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p1")
    wire = encode("vertex", headers={"Authorization": "Bearer mine"})
    assert credentials(wire) == {b"authorization": b"Bearer mine"}
    assert "/projects/p1/locations/global/" in wire.url


def test_a_token_without_a_project_is_refused_with_the_fix() -> None:
    with pytest.raises(errors.ConfigurationError, match="requires a project") as caught:
        encode("vertex", api_key=TOKEN)
    assert caught.value.fix is not None
    assert "GOOGLE_CLOUD_PROJECT" in caught.value.fix


def test_nothing_to_authenticate_with_is_refused_by_name() -> None:
    with pytest.raises(errors.AuthenticationError, match="GOOGLE_CLOUD_ACCESS_TOKEN or GOOGLE_API_KEY"):
        encode("vertex")


def test_a_project_cannot_change_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p1/../../x")
    with pytest.raises(errors.ConfigurationError, match="GOOGLE_CLOUD_PROJECT"):
        encode("vertex", api_key=TOKEN)


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("publishers/google/models/gemini-x", "publishers/google/models/gemini-x"),
        ("endpoints/123", "endpoints/123"),
        ("projects/p/locations/l/endpoints/123", "endpoints/123"),
        ("projects/p/locations/l/publishers/google/models/gemini-x", "publishers/google/models/gemini-x"),
    ],
)
def test_tuned_models_are_endpoints_of_the_project(model: str, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "l")
    assert url_of("vertex", api_key=TOKEN, model=model).endswith(f"/v1/projects/p/locations/l/{path}:generateContent")


def test_a_model_that_is_named_with_its_project_is_asked_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuned models are named by the project's number, and may be another project's."""
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p")
    monkeypatch.setenv("GOOGLE_CLOUD_LOCATION", "us-central1")
    model = "projects/1234/locations/us-central1/endpoints/5678"
    root = "https://us-central1-aiplatform.googleapis.com/v1"
    assert url_of("vertex", api_key=TOKEN, model=model) == f"{root}/{model}:generateContent"
    assert url_of("vertex", api_key=TOKEN, model="projects/a?b/locations/l/endpoints/1/2") == (
        f"{root}/projects/a%3Fb/locations/l/publishers/google/models/endpoints%2F1%2F2:generateContent"
    )


# Counting


def test_vertex_is_asked_to_count_only_what_it_counts() -> None:
    tool = ToolSpec(name="look")
    request = AgentRequest(
        model=MODEL, input="hi", system="Be brief.", tools=[tool], tool_choice="required", temperature=0.5,
        metadata={"team": "a"}, extra={"safetySettings": [], "cachedContent": "c"},
    )  # fmt: skip
    body = json.loads(GeminiCodec(ApiAddress("", None), platform=VERTEX).encode_count(request).body)
    assert body.keys() == {"contents", "systemInstruction", "tools", "generationConfig"}
    whole = json.loads(GeminiCodec(ApiAddress("", None)).encode_count(request).body)["generateContentRequest"]
    assert {"toolConfig", "safetySettings", "cachedContent"} <= whole.keys()


def test_counting_wraps_the_request_for_the_gemini_api_and_not_for_vertex() -> None:
    request = AgentRequest(model="models/gemini-x", input="hi", system="Be brief.")
    wrapped = json.loads(GeminiCodec(ApiAddress("", None)).encode_count(request).body)
    plain = json.loads(GeminiCodec(ApiAddress("", None), platform=VERTEX).encode_count(request).body)
    assert wrapped == {"generateContentRequest": {"model": "models/gemini-x", **plain}}
    assert plain["contents"] == [{"role": "user", "parts": [{"text": "hi"}]}]


def test_a_count_that_is_none_is_an_error() -> None:
    codec, request = GeminiCodec(ApiAddress("", None)), AgentRequest(model=MODEL, input="hi")
    for body in (b"", b"{}", b"[]", b'{"totalTokens": null}', b'{"totalTokens": 1e400}'):
        with pytest.raises(errors.ProtocolError):
            codec.decode_count(Reply(200, {}, body), request)
