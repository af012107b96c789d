"""Strict scripts reject invalid requests in the vendors' words, and accept their own signatures."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, get_args

import anthropic
import openai
import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from google import genai
from google.genai import errors as genai_errors
from google.genai import types as genai_types
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import completion_create_params
from openai.types.responses import input_token_count_params, response_create_params
from typing_extensions import get_type_hints

from agent import Agent, errors
from agent.engine.wire import Answer
from agent.testing import LoopbackServer, VendorScript, Violation, find_violations
from agent.testing.rules import anthropic as anthropic_rules
from agent.testing.rules import gemini, openai_chat, openai_responses
from agent.testing.rules.gemini import SCHEMA_KEYS
from agent.types import Message, Role, ThinkingContent, ToolCall, ToolResult, ToolSpec
from tests.support.cases import examples
from tests.support.drivers import Driver
from tests.testing.rules import chat_cases, gemini_cases, messages_cases, responses_cases
from tests.testing.rules.cases import CHAT, GEMINI_2, MESSAGES, RESPONSES, USER, Bad, valid

TABLES = (chat_cases, responses_cases, messages_cases, gemini_cases)
BAD: list[Bad] = [bad for table in TABLES for bad in table.BAD]
GOOD: list[tuple[str, str, dict[str, Any]]] = [good for table in TABLES for good in table.GOOD]
DECLARED = ("declared",)
MODELS = ("openai-chat:gpt-4o", "openai-responses:gpt-4o", "anthropic:claude-sonnet-4-5", "gemini:gemini-2.5-pro")


def post(url: str, body: bytes) -> tuple[int, Any]:
    """Send a request without a client's validation; return status and body."""
    request = urllib.request.Request(url, data=body, headers={"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def strict() -> Iterator[tuple[LoopbackServer, VendorScript]]:
    script = VendorScript("Kept.", strict=True, signatures=DECLARED)
    with LoopbackServer(script) as server:
        yield server, script
        # After all that was refused, the only line is still there.
        status, answer = post(f"{server.url}{CHAT}", json.dumps(valid(CHAT)).encode())
        assert (status, json.loads(answer)["choices"][0]["message"]["content"]) == (200, "Kept.")


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad.path.rsplit('/', 1)[-1].partition('?')[0]}-{bad.what}")
def test_a_bad_request_is_refused_in_the_words_and_the_format_of_its_api(
    bad: Bad, strict: tuple[LoopbackServer, VendorScript]
) -> None:
    server, script = strict
    status, answer = post(f"{server.url}{bad.path}", json.dumps(bad.body).encode())
    assert status == 400
    refusal = script.refusals[-1]
    assert bad.says in refusal.message
    assert bad.at in (None, refusal.field)
    check_format(bad.path, answer, refusal)


def check_format(path: str, answer: Any, refusal: Violation) -> None:
    match path:
        case "/v1/chat/completions" | "/v1/responses":
            kept = {"param": refusal.field, "code": refusal.code}
            assert answer == {"error": {"message": refusal.message, "type": "invalid_request_error", **kept}}
        case "/v1/messages":
            assert answer == {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": refusal.message},
            }
        case _:
            error = answer["error"]
            assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
            assert error["message"] == refusal.message
            named = [found["field"] for detail in error.get("details", ()) for found in detail["fieldViolations"]]
            assert named == ([refusal.field] if refusal.field else [])


@pytest.mark.parametrize(("what", "path", "body"), GOOD, ids=lambda value: value if isinstance(value, str) else "")
def test_the_neighbour_of_a_bad_request_is_taken(what: str, path: str, body: dict[str, Any]) -> None:
    assert list(find_violations(path, body, signatures=DECLARED)) == []


def test_the_tables_are_large() -> None:
    counted = Counter(bad.path.rsplit("/", 1)[-1].partition(":")[0] for bad in BAD)
    assert all(count >= 30 for name, count in counted.items() if name != "gemini-3-pro-preview"), counted
    assert len(BAD) >= 185
    assert len({(bad.path, bad.what) for bad in BAD}) == len(BAD)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, GEMINI_2])
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'"hi"', b"null"])
def test_what_is_no_object_is_refused(path: str, body: bytes, strict: tuple[LoopbackServer, VendorScript]) -> None:
    status, answer = post(f"{strict[0].url}{path}", body)
    assert status == 400
    assert "JSON" in answer["error"]["message"]


# Whatever anybody sends, it is judged: rules never fail

JUNK: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
PLACES = st.lists(st.integers(0, 9), min_size=1, max_size=8)


def with_junk(value: Any, place: list[int], junk: Any) -> Any:
    """The value with junk in one place, found by taking turns."""
    if not place or not isinstance(value, dict | list) or not value:
        return junk
    step, rest = place[0] % len(value), place[1:]
    if isinstance(value, list):
        return [with_junk(item, rest, junk) if n == step else item for n, item in enumerate(value)]
    return {key: with_junk(inner, rest, junk) if n == step else inner for n, (key, inner) in enumerate(value.items())}


@settings(max_examples=examples(150, 600))
@given(st.sampled_from([(bad.path, bad.body) for bad in BAD] + [(path, body) for _, path, body in GOOD]), PLACES, JUNK)
def test_junk_anywhere_in_a_request_is_judged_like_anything_else(
    request: tuple[str, Any], place: list[int], junk: Any
) -> None:
    path, body = request
    changed = with_junk(body, place, junk)
    if isinstance(changed, dict):
        for violation in find_violations(path, changed, signatures=DECLARED):
            assert violation.message


# Errors of clients


def call_sdk(url: str, path: str, body: dict[str, Any]) -> Exception:
    """Return the error that the official SDK raises for a body."""
    with pytest.raises((openai.BadRequestError, anthropic.BadRequestError, genai_errors.ClientError)) as caught:
        match path:
            case "/v1/chat/completions" | "/v1/responses":
                with openai.OpenAI(api_key="sk-test", base_url=f"{url}/v1", max_retries=0) as client:
                    client.post(path.removeprefix("/v1"), cast_to=object, body=body)
            case "/v1/messages":
                with anthropic.Anthropic(api_key="sk-test", base_url=url, max_retries=0) as other:
                    other.post(path, cast_to=object, body=body)
            case _:
                with genai.Client(api_key="test", http_options={"base_url": url}) as google:
                    google._api_client.request("post", path.removeprefix("/v1beta/").partition("?")[0], body)
    return caught.value


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.__name__.rsplit(".", 1)[-1])
def test_official_sdks_raise_their_error_for_bad_requests(
    table: Any, strict: tuple[LoopbackServer, VendorScript]
) -> None:
    for bad in table.BAD[1::5]:
        raised: Any = call_sdk(strict[0].url, bad.path, bad.body)
        assert (getattr(raised, "status_code", None) or raised.code) == 400
        assert bad.says in str(raised.message)
        if isinstance(raised, openai.BadRequestError):
            refusal = strict[1].refusals[-1]
            assert (raised.param, raised.code, raised.type) == (refusal.field, refusal.code, "invalid_request_error")


SDK_CALLS: dict[str, Callable[[str], Any]] = {
    "chat": lambda url: openai.OpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0).chat.completions.create(
        model="gpt-4o", messages=[{"role": "tool", "tool_call_id": "call_1", "content": "?"}]
    ),
    "responses": lambda url: openai.OpenAI(api_key="k", base_url=f"{url}/v1", max_retries=0).responses.create(
        model="gpt-4o", input=[{"type": "function_call_output", "call_id": "call_1", "output": "?"}]
    ),
    "messages": lambda url: anthropic.Anthropic(api_key="k", base_url=url, max_retries=0).messages.create(
        model="claude-sonnet-5",
        max_tokens=9,
        messages=[{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "?"}]}],
    ),
}


@pytest.mark.parametrize("name", SDK_CALLS)
def test_an_orphan_sent_through_an_sdk_is_its_bad_request(
    name: str, strict: tuple[LoopbackServer, VendorScript]
) -> None:
    with pytest.raises((openai.BadRequestError, anthropic.BadRequestError), match=r"call_1|toolu_1|preceeding"):
        SDK_CALLS[name](strict[0].url)


@pytest.mark.parametrize("model", MODELS)
def test_an_agent_raises_bad_request_which_is_not_retried(drive: Driver, model: str) -> None:
    script = VendorScript("never said", strict=True)
    extra = {"gemini": {"generationConfig": {"nonsense": 1}}}.get(model.partition(":")[0], {"nonsense": 1})
    outcome = drive.complete(script, agent=model, extra=extra, max_retries=3)
    assert type(outcome.failed) is errors.BadRequestError
    assert "nonsense" in outcome.failed.message
    assert outcome.failed.status_code == 400
    assert not outcome.failed.retryable
    assert len(script.refusals) == len(outcome.requests) == 1


# Signatures

CALL = ToolCall(id="call_1", name="get_weather", arguments={"city": "Bern"})
WEATHER = ToolSpec(name="get_weather", description="Weather", parameters={"type": "object", "properties": {}})
SIGNED = ToolCall(id="call_1", name="get_weather", arguments={"city": "Bern"}, signature="c2lnbmVk")
THINKING_MODELS = ("openai-responses:gpt-5", "anthropic:claude-sonnet-4-5", "gemini:gemini-3-pro-preview")


@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("model", THINKING_MODELS)
def test_a_signature_that_the_script_has_issued_is_known_again(model: str, streaming: bool) -> None:
    script = VendorScript([ThinkingContent(thinking="Rain ?"), SIGNED], "Sunny.", strict=True)
    question = Message.user("And the weather?")
    result = Message(Role.TOOL, [ToolResult(tool_call_id="call_1", name="get_weather", content="7 C")])
    with LoopbackServer(script) as server:
        agent = thinker(server, model)
        first = agent.stream(question).collect() if streaming else agent.complete(question)
        assert agent.complete([question, first.message, result]).text == "Sunny."
        assert not script.refusals
    stranger = LoopbackServer(VendorScript("Sunny.", strict=True))
    with stranger, pytest.raises(errors.BadRequestError, match=r"signature|encrypted content"):
        thinker(stranger, model).complete([question, first.message, result])
    declared = {"sealed", "c2lnbmVk"}
    with LoopbackServer(VendorScript("Sunny.", strict=True, signatures=declared)) as told:
        assert thinker(told, model).complete([question, first.message, result]).text == "Sunny."


def thinker(server: LoopbackServer, model: str) -> Agent:
    base_url = f"{server.url}/v1" if model.startswith("openai") else server.url
    return Agent(model, base_url=base_url, api_key="test", tools=[WEATHER], thinking="low")


THINKING_BODY = {
    "model": "claude-sonnet-4-5",
    "max_tokens": 4096,
    "messages": [USER],
    "thinking": {"type": "enabled", "budget_tokens": 1024},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_thought_may_not_be_edited(stream: bool) -> None:
    script = VendorScript([ThinkingContent(thinking="Rain, I fear.", signature="sig"), CALL], "ok", strict=True)
    with LoopbackServer(script) as server:
        url = f"{server.url}{MESSAGES}"
        assert post(url, json.dumps({**THINKING_BODY, "stream": stream}).encode())[0] == 200

        def again(thought: str) -> tuple[int, Any]:
            use = {"type": "tool_use", "id": "call_1", "name": "get_weather", "input": {}}
            said = [{"type": "thinking", "thinking": thought, "signature": "sig"}, use]
            results = [{"type": "tool_result", "tool_use_id": "call_1", "content": "7 C"}]
            messages = [USER, {"role": "assistant", "content": said}, {"role": "user", "content": results}]
            return post(url, json.dumps({**THINKING_BODY, "messages": messages}).encode())

        status, answer = again("Sun, I hope.")
        assert (status, "cannot be modified" in answer["error"]["message"]) == (400, True)
        assert again("Rain, I fear.")[0] == 200


def test_a_call_is_not_taken_back_without_the_reasoning_that_led_to_it() -> None:
    script = VendorScript([ThinkingContent(thinking="Hm."), CALL], "ok", strict=True)
    with LoopbackServer(script) as server:
        url = f"{server.url}{RESPONSES}"
        _, data = post(url, json.dumps(valid(RESPONSES)).encode())
        answer = json.loads(data)
        reasoning, call = answer["output"]
        output = {"type": "function_call_output", "call_id": "call_1", "output": "7 C"}

        def again(*items: Any) -> tuple[int, Any]:
            return post(url, json.dumps({"model": "gpt-4o", "input": [USER, *items, output]}).encode())

        status, refusal = again(call)
        needed = f"Item '{call['id']}' of type 'function_call' was provided without its required 'reasoning' item"
        assert (status, refusal["error"]["message"]) == (400, f"{needed}: '{reasoning['id']}'.")
        assert again(reasoning, call)[0] == 200


def test_the_script_knows_its_own_answers_by_their_ids() -> None:
    script = VendorScript("one", "two", strict=True)
    with LoopbackServer(script) as server:
        url = f"{server.url}{RESPONSES}"
        first = json.loads(post(url, json.dumps(valid(RESPONSES)).encode())[1])["id"]
        assert post(url, json.dumps({**valid(RESPONSES), "previous_response_id": "resp_x"}).encode())[0] == 400
        assert post(url, json.dumps({**valid(RESPONSES), "previous_response_id": first}).encode())[0] == 200


def test_signatures_in_bytes_that_a_test_wrote_itself_are_known_again() -> None:
    block = {"type": "thinking", "thinking": "Hm.", "signature": "handmade"}
    answer = Answer([json.dumps({"content": [block]}).encode()], headers={"content-type": "application/json"})
    with LoopbackServer(VendorScript(answer, "ok", strict=True)) as server:
        url = f"{server.url}{MESSAGES}"
        said = {"role": "assistant", "content": [block, {"type": "text", "text": "x"}]}
        again = json.dumps({**valid(MESSAGES), "messages": [USER, said, USER]}).encode()
        assert post(url, again)[0] == 400
        assert post(url, json.dumps(valid(MESSAGES)).encode())[0] == 200
        assert post(url, again)[0] == 200


def test_a_signature_of_one_api_is_not_known_to_another() -> None:
    script = VendorScript([ThinkingContent(thinking="Hm.", signature="sig"), CALL], "ok", strict=True)
    with LoopbackServer(script) as server:
        assert post(f"{server.url}{MESSAGES}", json.dumps(valid(MESSAGES)).encode())[0] == 200
        signed = {"functionCall": {"name": "f", "args": {}}, "thoughtSignature": "sig"}
        response = {"functionResponse": {"name": "f", "response": {}}}
        contents = [
            {"role": "user", "parts": [{"text": "Hi"}]},
            {"role": "model", "parts": [signed]},
            {"role": "user", "parts": [response]},
        ]
        assert post(f"{server.url}{GEMINI_2}", json.dumps({"contents": contents}).encode())[0] == 400


# Ways around


def test_without_strict_nothing_is_judged() -> None:
    with LoopbackServer(VendorScript("fine")) as server:
        assert post(f"{server.url}{CHAT}", b'{"messages": []}')[0] == 200


def test_keys_of_a_dialect_can_be_declared() -> None:
    body = json.dumps({**valid(CHAT), "enable_thinking": True}).encode()
    with LoopbackServer(VendorScript("fine", strict=True, extra_keys={"enable_thinking"})) as server:
        assert post(f"{server.url}{CHAT}", body)[0] == 200


def test_refused_requests_are_on_record_with_what_was_wrong() -> None:
    script = VendorScript("fine", strict=True)
    with LoopbackServer(script) as server:
        post(f"{server.url}{CHAT}", b'{"model": "gpt-4o", "messages": []}')
        post(f"{server.url}{CHAT}", json.dumps(valid(CHAT)).encode())
    assert [len(body["messages"]) for body in script.requests] == [0, 1]
    assert [refusal.code for refusal in script.refusals] == ["empty_array"]


def test_counting_tokens_is_judged_too() -> None:
    counting = {key: value for key, value in valid(MESSAGES).items() if key != "max_tokens"}
    with LoopbackServer(VendorScript(strict=True)) as server:
        url = f"{server.url}/v1/messages/count_tokens"
        assert post(url, json.dumps(counting).encode())[0] == 200
        assert post(url, json.dumps(valid(MESSAGES)).encode())[0] == 400
        assert post(f"{server.url}/v1beta/models/gemini-2.5-pro:countTokens", b'{"contents": []}')[0] == 400
        assert post(f"{server.url}/v1/responses/input_tokens", json.dumps(valid(RESPONSES)).encode())[0] == 200


def test_only_the_four_apis_have_rules() -> None:
    with pytest.raises(ValueError, match="no wire format"):
        find_violations("/v1/embeddings", {})


# The lists of keys are those of the official SDKs

LOOKED_AT = {"openai": (3, 51, 0), "anthropic": (2, 10, 0), "google-genai": (3, 3, 0)}
"""Versions of the SDKs from which the lists were made."""


def keys_of(*params: Any) -> set[str]:
    kinds = [kind for one in params for kind in (get_args(one) or (one,))]
    return {key for kind in kinds for key in get_type_hints(kind)}


def check_against(package: str, theirs: set[str], ours: frozenset[str]) -> None:
    installed = tuple(int(number) for number in version(package).split(".")[:3])
    if installed > LOOKED_AT[package]:
        pytest.skip(f"{package} {version(package)} is newer than the list: {sorted(theirs ^ ours) or 'no difference'}")
    assert theirs <= ours
    assert installed < LOOKED_AT[package] or theirs == ours


def test_the_known_keys_of_chat_completions_are_those_of_the_sdk() -> None:
    check_against("openai", keys_of(completion_create_params.CompletionCreateParams), openai_chat.KEYS)


def test_the_known_keys_of_responses_are_those_of_the_sdk() -> None:
    params = (response_create_params.ResponseCreateParams, input_token_count_params.InputTokenCountParams)
    check_against("openai", keys_of(*params), openai_responses.KEYS)


def test_the_known_keys_of_messages_are_those_of_the_sdk() -> None:
    params = (
        message_create_params.MessageCreateParams,
        beta_message_create_params.MessageCreateParams,
        message_count_tokens_params.MessageCountTokensParams,
    )
    # The SDK has given up keys of the API's older version, which is still served; `betas` becomes a header.
    older = {"temperature", "top_p", "top_k", "output_format"}
    check_against("anthropic", (keys_of(*params) | older) - {"betas"}, anthropic_rules.KEYS)


def test_the_known_settings_of_gemini_are_those_of_the_sdk() -> None:
    config = {field.alias or name for name, field in genai_types.GenerationConfig.model_fields.items()}
    check_against("google-genai", config | {"imageConfig"}, gemini.CONFIG_KEYS)


def test_the_known_fields_of_a_schema_are_those_of_the_sdk() -> None:
    """But for those that only the other platform takes."""
    fields = {field.alias or name for name, field in genai_types.Schema.model_fields.items()}
    check_against("google-genai", fields - {"additionalProperties", "defs", "ref"}, SCHEMA_KEYS)
