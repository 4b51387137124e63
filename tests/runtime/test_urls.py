from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from angarium.runtime.urls import (
    database_url_problem,
    http_url_problem,
    lake_url_problem,
    redacted,
    redis_url_problem,
)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("embedded", "embedded"),
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://:secret@host", "redis://:***@host"),
        ("redis://user:secret@host:1/2", "redis://user:***@host:1/2"),
        ("redis://user:se/cr@et@host", "redis://user:***@host"),
        ("user:secret@host", "user:***@host"),
        ("redis+cluster://u:secret@a:1,b:2", "redis+cluster://u:***@a:1,b:2"),
        ("https://secret@host/path", "https://***@host/path"),
        ("https://host/path?jwt=secret#top", "https://host/path?jwt=***#top"),
        ("https://host/a@b", "https://host/a@b"),
        ("https://host/path?token=secret&x=1", "https://host/path?token=***&x=***"),
        (
            "postgresql://host/db?user=u&password=secret",
            "postgresql://host/db?user=***&password=***",
        ),
        (
            "s3://bucket/lake?AWS_SECRET_ACCESS_KEY=secret",
            "s3://bucket/lake?AWS_SECRET_ACCESS_KEY=***",
        ),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert redacted(url) == shown


@given(password=st.text(min_size=1), user=st.from_regex(r"[a-z]{0,5}", fullmatch=True))
def test_no_password_survives_redaction(password: str, user: str) -> None:
    marked = f"<{password}>"
    assert redacted(f"redis://{user}:{marked}@host:6379/0") == f"redis://{user}:***@host:6379/0"


@pytest.mark.parametrize(
    "url",
    [
        "embedded",
        "redis://localhost",
        "redis://localhost:6379/3",
        "redis://user:p%40ss@localhost:6379",
        "rediss://host:6380/0?verify=false",
        "redis://[::1]:6379",
        "redis+cluster://a:7000,b:7001,c:7002",
        "redis+cluster://a:7000/0",
        "rediss+cluster://a:7000",
        "redis+sentinel://a:26379,b:26379/mymaster",
        "redis+sentinel://:pw@a/mymaster/2",
    ],
)
def test_redis_urls_of_every_kind_are_taken(url: str) -> None:
    assert redis_url_problem(url) is None


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "it is not a URL"),
        ("localhost:6379", "it is not a URL"),
        ("Embedded", "it is not a URL"),
        ("http://localhost", "the scheme 'http' is not known"),
        ("redis://", "it names no server"),
        ("redis://:pw@/0", "it names no server"),
        ("redis+cluster://a:1,", "it names no server"),
        ("redis://host:port", "its server is not host:port"),
        ("redis://:secret", "its server is not host:port"),
        ("redis://host:99999", "its server has a port that is not between 1 and 65535"),
        ("redis://host:0", "its server has a port that is not between 1 and 65535"),
        ("redis://a:1,b:2", "it names 2 servers, and redis:// takes one"),
        ("redis://host/zero", "its database is not a number"),
        ("redis+cluster://host/1", "a cluster has only database 0"),
        ("redis+sentinel://host", "it does not name the primary behind its sentinels"),
        ("redis+sentinel://host/primary/x", "its database is not a number"),
    ],
)
def test_a_redis_url_that_can_not_be_used_is_explained(url: str, problem: str) -> None:
    assert redis_url_problem(url) == problem


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("sqlite:////var/lib/angarium.sqlite", None),
        ("sqlite:///angarium.sqlite", None),
        ("postgresql://user:pw@host:5432/angarium", None),
        ("postgresql:///angarium?host=/run/postgresql", None),
        ("sqlite://", "it names no file"),
        ("sqlite:///:memory:", "it names no file"),
        ("mysql://host/db", "the scheme 'mysql' is not known"),
        ("angarium.sqlite", "it is not a URL"),
        ("postgresql://host:port/db", "its host or port is malformed"),
        ("postgresql://[::1/db", "its host or port is malformed"),
        ("postgresql://ho st/db", "its host or port is malformed"),
    ],
)
def test_a_database_url_is_sqlite_or_postgresql(url: str, problem: str | None) -> None:
    assert database_url_problem(url) == problem


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("https://push.example/send", None),
        ("http://127.0.0.1:8080", None),
        ("http://", "it names no host"),
        ("http://:80/x", "it names no host"),
        ("http://host:x/", "its host or port is malformed"),
        ("ftp://host", "the scheme 'ftp' is not known"),
        ("host/path", "it is not a URL"),
    ],
)
def test_an_http_url_has_a_host(url: str, problem: str | None) -> None:
    assert http_url_problem(url) == problem


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("/var/lake", None),
        ("lake", None),
        ("s3://bucket/lake", None),
        ("abfss://box@account.example/lake", None),
        (" ", "it is empty"),
        ("s3://", "it is neither a folder nor a URL"),
        ("://bucket", "it is neither a folder nor a URL"),
        ("ftp://host/lake", "the scheme 'ftp' is not known"),
    ],
)
def test_a_lake_is_a_folder_or_an_object_store(url: str, problem: str | None) -> None:
    assert lake_url_problem(url) == problem


@given(
    st.sampled_from(["redis://", "rediss+cluster://", "redis+sentinel://", "postgresql://", ""]),
    st.text(),
)
def test_no_text_breaks_a_check_or_comes_back_from_it(start: str, rest: str) -> None:
    secret = f"s3cr3t{rest}s3cr3t"
    for check in (redis_url_problem, database_url_problem, http_url_problem, lake_url_problem):
        problem = check(start + secret)
        assert problem is None or "s3cr3t" not in problem


@pytest.mark.parametrize("part", ["x", "?", "&a", ":", "@", "://x", "?a", "a@"])
def test_a_long_text_is_redacted_in_one_pass(part: str) -> None:
    """From each position to the end, this would take minutes."""
    assert len(redacted(part * 200_000)) <= len(part) * 200_000
