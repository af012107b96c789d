"""Settings are checked where they are made, and a key is nowhere to be seen."""

from __future__ import annotations

import base64
import copy
import io
import json
import logging
import pickle
import traceback
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from pydantic import BaseModel, SecretStr, TypeAdapter, ValidationError

from agent import errors
from agent.types import AgentConfig, RetryConfig, Secret, ToolLoopConfig, redact

KEY = "sk-live-4f9a+/=&é"
LATIN_KEY = "sk-live-4f9a+/=&"


def render_all(config: AgentConfig) -> list[str]:
    """Every way in which a config comes to be seen."""
    stream = io.StringIO()
    logger = logging.Logger("shown")
    logger.addHandler(logging.StreamHandler(stream))
    logger.warning("%s %r %s", config, config, vars(config))
    return [
        repr(config),
        str(config),
        f"{config}",
        str(vars(config)),
        str(dict(config)),
        str(config.model_dump()),
        str(config.model_dump(mode="json")),
        config.model_dump_json(),
        str(config.to_dict()),
        pickle.dumps(config).decode("latin-1"),
        str(config.api_key),
        repr(config.api_key),
        stream.getvalue(),
    ]


def test_a_key_is_nowhere_to_be_seen() -> None:
    config = AgentConfig(provider="openai", api_key=LATIN_KEY)
    for text in render_all(config):
        assert LATIN_KEY not in text
        assert "4f9a" not in text


def test_a_key_is_equal_to_its_text_and_can_be_read() -> None:
    key: Any = AgentConfig(provider="openai", api_key=LATIN_KEY).api_key
    assert key == LATIN_KEY
    assert key == SecretStr(LATIN_KEY)
    assert key != "other"
    assert key != 5
    assert hash(key) == hash(LATIN_KEY)
    assert key.get_secret_value() == LATIN_KEY
    assert type(AgentConfig(provider="x", api_key=SecretStr(LATIN_KEY)).api_key) is Secret


def test_a_key_stays_in_copies_and_is_lost_in_pickles() -> None:
    config = AgentConfig(provider="openai", api_key=LATIN_KEY)
    assert copy.deepcopy(config).api_key == LATIN_KEY
    assert copy.deepcopy({"key": config.api_key})["key"] is config.api_key
    assert copy.copy(config.api_key) is config.api_key
    assert config.with_overrides(model="m").api_key == LATIN_KEY
    assert pickle.loads(pickle.dumps(config)).api_key is None


def test_a_mask_reads_back_as_no_key() -> None:
    config = AgentConfig(provider="openai", api_key=LATIN_KEY)
    assert AgentConfig.from_dict(config.to_dict()).api_key is None
    assert AgentConfig.model_validate_json(config.model_dump_json()) == config.with_overrides(api_key=None)


@pytest.mark.parametrize(
    "fields",
    [
        {"apikey": LATIN_KEY},
        {"api_key": f"{LATIN_KEY} "},
        {"api_key": f"{LATIN_KEY}\n"},
        {"api_key": f"{LATIN_KEY}\0"},
        {"api_key": f"{LATIN_KEY}\u2028"},
        {"api_key": f"{LATIN_KEY}\u20ac"},
        {"api_key": [LATIN_KEY]},
        {"api_key": LATIN_KEY, "provider": None},
        {"api_key": LATIN_KEY, "timeout": LATIN_KEY},
        {"base_url": f"https://user:{LATIN_KEY.replace('/', '')}@host/"},
        {"base_url": f"https://host/?key={LATIN_KEY}"},
        {"base_url": f"ftp://{LATIN_KEY}"},
        {"headers": {"Authorization": f"Bearer {LATIN_KEY}\r\nX: y"}},
        {"headers": {f"X\n{LATIN_KEY}": "y"}},
        {"headers": LATIN_KEY},
    ],
)
def test_no_error_about_a_config_tells_the_key(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # pydantic's, or ours for an unknown name
        AgentConfig(**{"provider": "openai", **fields})
    error = caught.value
    said = [str(error), repr(error), "".join(traceback.format_exception(error))]
    if isinstance(error, ValidationError):
        said += [str(error.errors()), error.json()]
    for text in said:
        assert "4f9a" not in text.replace('"apikey": LATIN_KEY', "")


def test_errors_of_a_surrounding_model_do_not_tell_it_either() -> None:
    class App(BaseModel):
        agent: AgentConfig

    with pytest.raises(ValidationError) as caught:
        App.model_validate({"agent": {"provider": "x", "apikey": LATIN_KEY}})
    assert "4f9a" not in str(caught.value)
    assert "apikey" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "complaint"),
    [
        ("a b", "whitespace or control"),
        (" a", "whitespace or control"),
        ("a\x7f", "whitespace or control"),
        ("", "must not be empty"),
        ("\u0416", "HTTP headers cannot hold"),
    ],
)
def test_a_key_that_cannot_be_sent_is_refused(key: str, complaint: str) -> None:
    with pytest.raises(ValidationError, match=f"api_key\n.*{complaint}"):
        AgentConfig(provider="x", api_key=key)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("provider", ""),
        ("provider", "a b"),
        ("timeout", 0),
        ("timeout", float("inf")),
        ("connect_timeout", -1),
        ("first_byte_timeout", 0),
        ("idle_timeout", 0),
        ("deadline", 0),
        ("max_retries", -1),
        ("max_retries", 11),
        ("temperature", 3),
        ("top_p", 0),
        ("max_tokens", 0),
        ("thinking", "much"),
        ("base_url", "example.com"),
        ("base_url", "https://"),
        ("base_url", "https://h:99999/"),
        ("base_url", "https://h/ x"),
        ("base_url", "https://h/#f"),
        ("base_url", "https://h/?"),
        ("base_url", "https://u@h/"),
        ("base_url", "https://[h/"),
        ("headers", {"a b": "c"}),
        ("headers", {"a": 1}),
        ("headers", {"a": "b\0"}),
    ],
)
def test_a_bad_setting_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        AgentConfig(**{"provider": "x", field: value})
    assert caught.value.errors()[0]["loc"] == (field,)


@pytest.mark.parametrize("url", ["https://h", "http://localhost:11434/v1", "https://[::1]:8080/v1/"])
def test_a_good_address_is_kept_as_given(url: str) -> None:
    assert AgentConfig(provider="x", base_url=url).base_url == url


def test_headers_are_sent_but_not_printed() -> None:
    config = AgentConfig(provider="x", headers={"Authorization": "Bearer t0ken"})
    assert config.headers == {"Authorization": "Bearer t0ken"}
    assert "t0ken" not in repr(config)
    with pytest.raises(TypeError, match="read-only"):
        config.headers["X"] = "y"


def test_the_defaults_of_a_config() -> None:
    config = AgentConfig(provider="x")
    assert (config.timeout, config.connect_timeout, config.idle_timeout, config.max_retries) == (600, 10, 300, 2)
    assert (config.deadline, config.first_byte_timeout, config.allow_insecure) == (None, None, False)


def test_overrides_are_checked() -> None:
    with pytest.raises(ValidationError, match="temperature"):
        AgentConfig(provider="x").with_overrides(temperature=9)


# --- redaction --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spelling",
    [
        KEY,
        quote(KEY),
        quote(KEY, safe=""),
        quote(KEY, safe="").lower().replace("sk-live-4f9a", "sk-live-4f9a"),
        quote_plus(KEY),
        base64.b64encode(KEY.encode()).decode(),
        base64.urlsafe_b64encode(KEY.encode()).decode(),
        base64.urlsafe_b64encode(KEY.encode()).decode().rstrip("="),
        json.dumps(KEY)[1:-1],
    ],
)
def test_every_spelling_of_a_secret_is_redacted(spelling: str) -> None:
    assert redact(f"before {spelling} after {spelling}", [KEY]) == "before *** after ***"


def test_redaction_leaves_the_rest_alone() -> None:
    assert redact("nothing here", [KEY, ""]) == "nothing here"
    assert redact("abc", []) == "abc"
    assert redact("a longer secret and a long", ["a long", "a longer secret"]) == "*** and ***"
    assert redact('say "quoted\\n"', ["quoted\n"]) == 'say "***"'


# --- retries ----------------------------------------------------------------------------------------------------------


def test_only_what_may_help_is_tried_again() -> None:
    config = RetryConfig(max_retries=2, retryable_errors=[ValueError])
    assert config.should_retry(errors.RateLimitError("x"), attempt=1)
    assert config.should_retry(errors.RateLimitError("x"), attempt=2)
    assert not config.should_retry(errors.RateLimitError("x"), attempt=3)
    assert not config.should_retry(errors.AuthenticationError("x"), attempt=1)
    assert config.should_retry(ValueError(), attempt=1)
    assert not config.should_retry(KeyError(), attempt=1)
    assert not RetryConfig(max_retries=0).should_retry(errors.OverloadedError("x"), attempt=1)


def test_no_retry_after_the_deadline_or_after_the_caller_saw_a_part() -> None:
    config = RetryConfig(retryable_errors=[errors.TimeoutError, errors.StreamInterrupted])
    assert config.should_retry(errors.TimeoutError("x"), attempt=1)
    assert not config.should_retry(errors.TimeoutError("x", deadline=True), attempt=1)
    assert not config.should_retry(errors.StreamInterrupted("x"), attempt=1)


def test_waits_grow_to_a_limit() -> None:
    config = RetryConfig(initial_delay=1, max_delay=10, jitter=False)
    assert [config.get_delay(attempt=n) for n in (1, 2, 3, 4, 5)] == [1, 2, 4, 8, 10]
    assert config.get_delay(attempt=100_000) == 10


def test_jitter_takes_a_share_that_can_be_replayed() -> None:
    config = RetryConfig(initial_delay=1, max_delay=10)
    assert config.get_delay(attempt=2, rand=0.25) == 0.5
    assert all(0 <= config.get_delay(attempt=3) <= 4 for _ in range(50))
    assert len({config.get_delay(attempt=3) for _ in range(50)}) > 1


def test_a_wait_that_was_asked_for_is_never_undercut() -> None:
    error = errors.RateLimitError("x", retry_after=90)
    assert RetryConfig(jitter=False).get_delay(attempt=1, error=error) == 90
    assert RetryConfig(initial_delay=1).get_delay(attempt=1, error=error, rand=0.5) == 90.5
    assert all(RetryConfig().get_delay(attempt=1, error=error) >= 90 for _ in range(50))
    nonsense = errors.RateLimitError("x", retry_after=float("nan"))
    assert RetryConfig(initial_delay=1).get_delay(attempt=1, error=nonsense, rand=1.0) == 1


def test_errors_are_named_in_json_and_found_only_where_allowed() -> None:
    config = RetryConfig(retryable_errors=[errors.TimeoutError, TimeoutError, ValueError])
    assert config.to_dict()["retryable_errors"] == ["TimeoutError", "builtins.TimeoutError", "ValueError"]
    assert RetryConfig.from_dict(config.to_dict()) == config
    names: list[Any] = ["RateLimitError"]
    assert RetryConfig(retryable_errors=names).retryable_errors == (errors.RateLimitError,)


@pytest.mark.parametrize("name", ["os.system", "print", "Sequence", "KeyboardInterrupt", "json.JSONDecodeError", ""])
def test_other_names_of_errors_are_refused(name: Any) -> None:
    with pytest.raises(ValidationError, match="retryable_errors"):
        RetryConfig(retryable_errors=[name])


def test_loop_limits_are_checked() -> None:
    with pytest.raises(ValidationError, match="max_iterations"):
        ToolLoopConfig(max_iterations=0)
    with pytest.raises(ValidationError, match="timeout_per_tool"):
        ToolLoopConfig(timeout_per_tool=0)


def test_a_secret_is_a_type_of_its_own_to_pydantic() -> None:
    secret = TypeAdapter(Secret).validate_python("x")
    assert type(secret) is Secret
