from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import httpx
import pytest

import dressage
from dressage import Client, api, control_token, models

from .fake import URL, FakeServer, event, finished, refusal, reply, row, stream

R = "/api/v1/rollouts"


def test_a_spec_is_sent_as_the_api_has_it(fake: FakeServer) -> None:
    fake.on("POST", R, reply(202, rollouts=[{"id": "r1", "group": "g", "sample": 0, "task_id": None}] * 2))
    taken = fake.client().submit(
        "do it", n=2, endpoint="demo", hold=True, priority=3, idempotency_key="once", api_key="caller-key"
    )
    assert [submitted.id for submitted in taken] == ["r1", "r1"]
    assert fake.sent("POST", R) == [
        {
            "task": {"instruction": "do it"},
            "n": 2,
            "endpoint": "demo",
            "hold": True,
            "priority": 3,
            "api_key": "caller-key",
        }
    ]
    assert fake.requests[0].headers["idempotency-key"] == "once"


def test_several_specs_are_one_request(fake: FakeServer) -> None:
    fake.on("POST", R, reply(202, rollouts=[]))
    fake.client().submit_all([{"preset": "fizzbuzz"}, {"task": {"instruction": "x"}}])
    assert fake.sent("POST", R) == [{"rollouts": [{"preset": "fizzbuzz"}, {"task": {"instruction": "x"}}]}]


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (400, "invalid_json", dressage.InvalidRequestError),
        (401, "unauthorized", dressage.UnauthorizedError),
        (403, "forbidden_host", dressage.UnauthorizedError),
        (404, "unknown_rollout", dressage.NotFoundError),
        (409, "not_held", dressage.ConflictError),
        (422, "invalid_request", dressage.InvalidRequestError),
        (429, "queue_full", dressage.QueueFullError),
        (500, "store_failed", dressage.ServerError),
        (503, "draining", dressage.ServerError),
    ],
)
def test_an_error_says_what_the_server_said(
    fake: FakeServer, status: int, code: str, kind: type[dressage.ApiError]
) -> None:
    details = [{"path": "task.agent.nam", "message": "unknown key"}]
    answer = refusal(status, code, "it is wrong", hint="did you mean `name`?", details=details)
    answer.headers["retry-after"] = "7"
    fake.on("GET", f"{R}/r1", answer)
    with pytest.raises(kind) as caught:
        fake.client().get("r1")
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):  # noqa: S301 - made here
        assert type(error) is kind
        assert (error.status, error.code, error.message) == (status, code, "it is wrong")
        assert error.details == (("task.agent.nam", "unknown key"),)
        assert error.retry_after_s == 7.0
        assert str(error) == f"it is wrong ({code})\nhint: did you mean `name`?"


@pytest.mark.parametrize("answer", [httpx.Response(502, text="<html>"), httpx.Response(500, json=[1])])
def test_an_error_of_another_program_is_an_error_too(fake: FakeServer, answer: httpx.Response) -> None:
    fake.on("GET", f"{R}/r1", answer)
    with pytest.raises(dressage.ServerError, match=f"status {answer.status_code}"):
        fake.client().get("r1")


def test_a_reply_of_another_program_is_said_to_be_one(fake: FakeServer) -> None:
    fake.on("GET", f"{R}/r1", httpx.Response(200, text="hello"))
    with pytest.raises(dressage.DressageError, match="none of this API"):
        fake.client().get("r1")


def test_what_httpx_raises_is_translated(fake: FakeServer) -> None:
    fake.on("GET", f"{R}/r1", httpx.ReadTimeout("slow"), httpx.ConnectError("refused"))
    with pytest.raises(TimeoutError), fake.client() as client:
        client.get("r1")
    with pytest.raises(ConnectionError, match="refused"), fake.client() as client:
        client.get("r1")


def test_what_does_no_more_when_sent_twice_is_sent_again(fake: FakeServer) -> None:
    closed = httpx.RemoteProtocolError("server disconnected without sending a response")
    fake.on("GET", f"{R}/r1", closed, reply(**row()))
    fake.on("POST", R, closed, reply(202, rollouts=[{"id": "r1"}]))
    client = fake.client()
    assert client.get("r1").id == "r1"
    assert client.submit("x", idempotency_key="once")[0].id == "r1"
    fake.on("POST", R, closed)
    with pytest.raises(dressage.ConnectionFailedError):
        client.submit("x")
    assert len(fake.all("POST", R)) == 3


def test_pages_follow_one_another(fake: FakeServer) -> None:
    fake.on("GET", R, reply(rollouts=[row("r2")], next_cursor="r2"), reply(rollouts=[row("r1")], next_cursor=None))
    found = list(fake.client().rollouts(state=["queued", "running"], reward_min=0.5, agent=None))
    assert [rollout.id for rollout in found] == ["r2", "r1"]
    first, second = (dict(request.url.params) for request in fake.requests)
    assert first == {"state": "queued,running", "reward_min": "0.5"}
    assert second == {**first, "cursor": "r2"}


def test_a_rollout_is_waited_for(fake: FakeServer) -> None:
    fake.on("POST", R, reply(202, rollouts=[{"id": "r1"}]))
    fake.on("GET", f"{R}/r1", reply(**row(state="queued")), reply(**row(stage="agent")), reply(**finished()))
    rollout = fake.client().run("x", endpoint="demo")
    assert (rollout.reward, rollout.ended, rollout.fault) == (1.0, "completed", None)


def test_no_verdict_is_none_and_never_zero(fake: FakeServer) -> None:
    fake.on("GET", f"{R}/r1", reply(**finished(ended="timeout", reward=None)))
    assert fake.client().wait("r1").reward is None


def test_a_wait_that_ends_too_soon_cancels_what_it_waits_for(fake: FakeServer) -> None:
    fake.on("POST", R, reply(202, rollouts=[{"id": "r1"}, {"id": "r2"}]))
    fake.on("GET", f"{R}/r1", reply(**finished("r1")))
    fake.on("GET", f"{R}/r2", reply(**row("r2", stage="agent")))
    fake.on("POST", f"{R}/r2/cancel", reply(202, **row("r2")))
    with pytest.raises(TimeoutError, match="r2 is not over"):
        fake.client().run_all([{"preset": "fizzbuzz", "n": 2}], timeout_s=0.05)
    assert len(fake.all("POST", f"{R}/r2/cancel")) == 1
    assert not fake.all("POST", f"{R}/r1/cancel")


def test_a_wait_can_end_at_the_hold(fake: FakeServer) -> None:
    fake.on("GET", f"{R}/r1", reply(**row(stage="agent")), reply(**row(held_until_unix_ms=5)))
    assert fake.client().wait("r1", or_held=True).is_held


def test_a_held_sandbox_is_worked_in(fake: FakeServer) -> None:
    fake.on("POST", f"{R}/r1/exec", reply(command="true", exit_code=3, stdout="out", stderr="", output_bytes=3))
    fake.on("GET", f"{R}/r1/files/%2Fhome%2Fuser%2F%C3%A9%3F.txt", httpx.Response(200, content=b"\xff\x00"))
    fake.on("PUT", f"{R}/r1/files/a%20b.txt", httpx.Response(204))
    fake.on("POST", f"{R}/r1/finish", reply(202, **row()))
    client = fake.client(timeout_s=2.0)
    assert client.exec("r1", "true", timeout_s=500, env={"A": "1"}).exit_code == 3
    assert client.read_file("r1", "/home/user/é?.txt") == b"\xff\x00"
    client.write_file("r1", "a b.txt", "é")
    client.finish("r1", 0.25, {"why": "half"})
    assert fake.sent("POST", f"{R}/r1/exec") == [{"command": "true", "timeout_s": 500, "env": {"A": "1"}}]
    # The answer comes when the command has ended.
    assert fake.requests[0].extensions["timeout"]["read"] == 502.0
    assert fake.requests[2].content == "é".encode()
    assert fake.sent("POST", f"{R}/r1/finish") == [{"reward": 0.25, "detail": {"why": "half"}}]


def test_an_id_cannot_lead_elsewhere(fake: FakeServer) -> None:
    with pytest.raises(dressage.NotFoundError):
        fake.client().get("../queue?x=1#y")
    assert fake.requests[0].url.raw_path == b"/api/v1/rollouts/..%2Fqueue%3Fx%3D1%23y"


def test_keys_are_sent_and_never_shown(fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.on("GET", "/api/v1/queue", reply(waiting=1, running=2))
    client = fake.client(api_key="secret-key")
    assert client.queue().running == 2
    assert fake.requests[0].headers["authorization"] == "Bearer secret-key"
    assert "secret-key" not in repr(client)
    monkeypatch.setenv("DRESSAGE_API_KEY", "environment-key")
    fake.client().queue()
    assert "authorization" not in fake.requests[1].headers, "the key is for the server of the environment"
    monkeypatch.setenv("DRESSAGE_URL", URL + "/")
    fake.client().queue()
    assert fake.requests[2].headers["authorization"] == "Bearer environment-key"


def test_what_a_newer_server_adds_is_kept(fake: FakeServer) -> None:
    fake.on("GET", f"{R}/r1", reply(**row(state="paused", new_member=[1])))
    rollout = fake.client().get("r1")
    assert rollout.state == "paused"
    assert rollout.model_extra == {"owner": "o", "new_member": [1]}


def test_catalogue(fake: FakeServer) -> None:
    fake.on("GET", "/api/v1/endpoints", reply(endpoints=[{"name": "demo", "usable": True}], default=None))
    fake.on("GET", "/api/v1/agents", reply(agents=[{"name": "opencode", "version": "1", "installed": True}]))
    fake.on("GET", "/api/v1/backends", reply(backends=[{"name": "local", "summary": "Local"}], default="local"))
    fake.on("GET", "/api/v1/presets", reply(presets=[{"name": "p", "title": "t", "task": {"instruction": "x"}}]))
    client = fake.client()
    assert client.endpoints()[0].usable
    assert client.agents()[0].installed
    assert (client.backends()[0].name, client.backends()[0].summary) == ("local", "Local")
    assert client.presets()[0].task == {"instruction": "x"}


def view(**more: Any) -> dict[str, Any]:
    return {"name": "a/b", "base_url": "http://m/v1", "model": "m", "in_flight": 0, "waiting": 0, **more}


def test_an_endpoint_is_paused_resumed_and_probed(fake: FakeServer) -> None:
    at = "/api/v1/endpoints/a%2Fb"
    fake.on("GET", at, reply(**view(max_calls_at_once=8)))
    fake.on("POST", f"{at}/pause", reply(**view(paused=True, in_flight=2)))
    fake.on("POST", f"{at}/resume", reply(**view(policy_version="step-121")))
    fake.on("POST", f"{at}/probe", reply(**view(probe={"capture": "stream"})))
    client = fake.client(timeout_s=2.0)
    assert (client.endpoint("a/b").max_calls_at_once, client.endpoint("a/b").probe) == (8, None)
    paused = client.pause_endpoint("a/b", wait=True, timeout_s=100)
    assert (paused.paused, paused.in_flight) == (True, 2)
    assert fake.requests[-1].extensions["timeout"]["read"] == 102.0
    client.pause_endpoint("a/b")
    assert fake.requests[-1].extensions["timeout"]["read"] == 2.0
    assert fake.sent("POST", f"{at}/pause") == [
        {"wait": True, "timeout_s": 100},
        {"wait": False, "timeout_s": 600.0},
    ]
    assert client.resume_endpoint("a/b", "step-121").policy_version == "step-121"
    client.resume_endpoint("a/b")
    assert fake.sent("POST", f"{at}/resume") == [{"policy_version": "step-121"}, {}]
    assert client.probe_endpoint("a/b").probe == {"capture": "stream"}
    assert fake.requests[-1].content == b""


def test_a_server_says_what_it_is(fake: FakeServer) -> None:
    schemas = {"trajectory": 1, "training": 1}
    fake.on("GET", "/api/v1/version", reply(name="dressage", version="0.1.0", api="v1", schemas=schemas))
    version = fake.client().version()
    assert (version.name, version.version, version.api, version.schemas) == ("dressage", "0.1.0", "v1", schemas)


# --- events ---

QUEUED = event(0, "queued", position=0)
STAGE = event(1, "stage_started", stage="boot")
SPOKE = event(2, "agent", event={"kind": "text", "text": "a\u2028b"})
NEW = event(3, "something_new", weight=1)
FINISHED = event(4, "finished", ended="completed", fault=None)
ALL = [QUEUED, STAGE, SPOKE, NEW, FINISHED]


def test_events_are_typed(fake: FakeServer) -> None:
    fake.on("GET", f"{R}/r1/events", stream(*ALL))
    events = [told.event for told in fake.client().events("r1")]
    assert [type(told) for told in events] == [
        models.Queued,
        models.StageStarted,
        models.AgentSaid,
        models.OtherEvent,
        models.Finished,
    ]
    assert isinstance(events[2], models.AgentSaid)
    assert events[2].event["text"] == "a\u2028b"
    assert events[3].model_extra == {"weight": 1}


@pytest.mark.parametrize("cut", range(len(ALL)))
@pytest.mark.parametrize("inside", [0, 10])
def test_events_go_on_after_a_cut_with_nothing_missed_or_doubled(fake: FakeServer, cut: int, inside: int) -> None:
    whole = b"".join(ALL)
    at = len(b"".join(ALL[:cut])) + inside

    def resumed(request: httpx.Request) -> httpx.Response:
        last = int(request.headers.get("last-event-id", "-1"))
        return stream(b"".join(ALL[last + 1 :]))

    fake.on("GET", f"{R}/r1/events", stream(whole[:at], httpx.ReadError("cut")), httpx.ConnectError("no"), resumed)
    assert [told.sequence for told in fake.client().events("r1")] == [0, 1, 2, 3, 4]


def test_events_go_on_after_a_stream_that_ended_early(fake: FakeServer) -> None:
    fake.on("GET", f"{R}/r1/events", stream(QUEUED, STAGE), stream(SPOKE, NEW, FINISHED))
    assert len(list(fake.client().events("r1"))) == 5
    assert fake.requests[1].headers["last-event-id"] == "1"


def test_events_of_a_rollout_that_was_interrupted_end(fake: FakeServer) -> None:
    fake.on("GET", f"{R}/r1/events", stream(QUEUED), stream())
    fake.on("GET", f"{R}/r1", reply(**row(state="interrupted")))
    assert len(list(fake.client().events("r1"))) == 1


def test_events_of_an_unknown_rollout_are_an_error(fake: FakeServer) -> None:
    fake.on("GET", f"{R}/r1/events", refusal(404, "unknown_rollout", "no rollout has the id `r1`"))
    with pytest.raises(dressage.NotFoundError):
        list(fake.client().events("r1"))
    assert len(fake.requests) == 1


def test_a_server_that_stays_away_is_given_up(fake: FakeServer) -> None:
    fake.on("GET", f"{R}/r1/events", stream(QUEUED), httpx.ConnectError("refused"))
    told = fake.client().events("r1")
    assert next(told).sequence == 0
    with pytest.raises(ConnectionError):
        next(told)


def test_the_feed_of_all_says_where_something_is_missing(fake: FakeServer) -> None:
    position = b"event: position\nid: e-0\ndata: {}\n\n"
    missed = b"event: missed\nid: e-9\ndata: {}\n\n"
    fake.on("GET", "/api/v1/events", stream(position, QUEUED), stream(missed, STAGE))
    feed = fake.client().all_events()
    got: list[Any] = [next(feed), next(feed), next(feed)]
    assert isinstance(got[1], dressage.Missed)
    assert [told.sequence for told in (got[0], got[2])] == [0, 1]
    assert fake.requests[1].headers["last-event-id"] == "0"


def test_models_read_what_they_write() -> None:
    told = models.RolloutEvent.model_validate_json(json.dumps(json.loads(SPOKE.split(b"data: ")[1])))
    assert models.RolloutEvent.model_validate_json(told.model_dump_json()) == told


def test_the_default_server_is_local() -> None:
    assert Client().base_url == "http://127.0.0.1:8000"


def test_the_token_of_this_users_server_goes_to_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def key_for(url: str | None = None, api_key: str | None = None) -> str | None:
        headers: dict[str, str] = api.connection(url, api_key)["headers"]
        return headers.get("Authorization")

    digits = "0123456789abcdef" * 4
    monkeypatch.setenv("DRESSAGE_DATA_DIR", str(tmp_path))
    file = tmp_path / "control-token"
    assert key_for() is None
    file.write_text(f"{digits}\n")
    file.chmod(0o600)
    assert key_for() == key_for(api.DEFAULT_URL) == f"Bearer {digits}"
    assert key_for(api_key="mine") == "Bearer mine"
    assert key_for("http://127.0.0.1:9") is None
    monkeypatch.setenv("DRESSAGE_URL", "https://gpu.example")
    assert key_for() is None
    monkeypatch.setenv("DRESSAGE_URL", "http://localhost:9000")
    assert key_for() == f"Bearer {digits}"
    monkeypatch.setenv("DRESSAGE_API_KEY", "a key")
    assert key_for() == "Bearer a key"
    monkeypatch.delenv("DRESSAGE_API_KEY")
    # What others can read or write is no secret, and nobody's word.
    file.chmod(0o640)
    assert key_for() is None
    file.chmod(0o600)
    file.write_text("GET / HTTP/1.1")
    assert key_for() is None


def test_data_is_where_the_program_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRESSAGE_DATA_DIR", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert control_token.data_dir() == Path("/var/lib/dressage")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/a")
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert control_token.data_dir() == Path("/home/a/.local/share/dressage")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert control_token.data_dir() == Path("/data/dressage")


def test_an_export_is_read_row_by_row(fake: FakeServer) -> None:
    fake.on("GET", f"{api.PREFIX}/export", httpx.Response(200, content=b'{"leaf": 1}\n{"leaf": 2}\n'))
    rows = fake.client().export("verl", where="reward>=0.5", ids=["a", "b"], truncated="drop")
    assert list(rows) == [{"leaf": 1}, {"leaf": 2}]
    (request,) = fake.requests
    assert dict(request.url.params) == {"shape": "verl", "filter": "reward>=0.5", "ids": "a,b", "truncated": "drop"}
