"""Exports to a store that speaks S3 (moto, on a loopback port), and reads from there."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

BUCKET = "rollouts"
# A part has 16 MB; what is exported is to have two and a bit.
LEAST_BYTES = 34 << 20
MOST_MEMORY_KB = 200_000


class Store:
    """The store, with what happens to parts of uploads in the way."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self.app = DomainDispatcherApplication(create_backend_app)
        self.refuse_part: int | None = None
        self.hold_part: int | None = None
        self.held, self.release = threading.Event(), threading.Event()
        self.server = make_server("127.0.0.1", 0, self, threaded=True)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __call__(self, environ, start_response):
        query = environ.get("QUERY_STRING", "")
        if environ["REQUEST_METHOD"] == "PUT" and "partNumber=" in query:
            number = int(query.split("partNumber=")[1].split("&")[0])
            if number == self.refuse_part:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start_response("403 Forbidden", [("content-type", "application/xml")])
                return [b"<Error><Code>AccessDenied</Code><Message>Not this one</Message></Error>"]
            if number == self.hold_part:
                self.held.set()
                self.release.wait()
        return self.app(environ, start_response)

    def post(self, path: str, body: bytes) -> None:
        urllib.request.urlopen(urllib.request.Request(self.url + path, body, {"content-type": "text/plain"})).read()


def main(dressage: str) -> None:
    store = Store()
    admin = {"endpoint_url": store.url, "region_name": "us-east-1"}
    admin |= {"aws_access_key_id": "admin", "aws_secret_access_key": "admin"}
    iam, s3 = boto3.client("iam", **admin), boto3.client("s3", **admin)
    iam.create_user(UserName="trainer")
    key = iam.create_access_key(UserName="trainer")["AccessKey"]
    allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_user_policy(UserName="trainer", PolicyName="all", PolicyDocument=json.dumps(allowed))
    s3.create_bucket(Bucket=BUCKET)
    # From here on keys are looked at.
    store.post("/moto-api/reset-auth", b"0")
    own = admin | {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
    s3 = boto3.client("s3", **own)
    with tempfile.TemporaryDirectory(prefix="dressage-objects-") as folder:
        place = Path(folder)
        place.chmod(0o755)
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            del os.environ[name]
        os.environ |= {
            "DRESSAGE_DATA_DIR": str(place / "data"),
            "AWS_ENDPOINT_URL": store.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }
        many_rollouts(dressage, place)
        written_and_read_back(dressage, place, s3)
        failures_are_told(dressage, key["SecretAccessKey"])
        what_fails_or_is_interrupted_leaves_nothing(dressage, store, s3)
    print("a store that speaks S3 has whole exports, or nothing")


def many_rollouts(dressage: str, place: Path) -> None:
    run(dressage, "demo")
    run(dressage, "export", "--output", str(place / "one.jsonl"))
    row = (place / "one.jsonl").read_text()
    own = json.loads(row)["rollout"]["id"]
    with (place / "many.jsonl").open("w") as many:
        for number in range(LEAST_BYTES // len(row) + 1):
            many.write(row.replace(own, f"{own[:-6]}{number:06x}"))
    run(dressage, "import", str(place / "many.jsonl"))


def written_and_read_back(dressage: str, place: Path, s3) -> None:
    run(dressage, "export", "--output", str(place / "here.jsonl"))
    said, memory_kb = measured(dressage, "export", "--to", f"s3://{BUCKET}/runs/7/")
    print(said.strip(), f"({memory_kb // 1000} MB of memory)")
    expect(memory_kb < MOST_MEMORY_KB, "an upload takes too much memory")
    expect(listed(s3) == ["runs/7/native.jsonl"], f"there is {listed(s3)}")
    there = s3.get_object(Bucket=BUCKET, Key="runs/7/native.jsonl")["Body"].read()
    expect(len(there) >= LEAST_BYTES and there == (place / "here.jsonl").read_bytes(), "what is there is not what was exported")
    for name in ("verl.parquet", "a b/verl.jsonl.zst"):
        run(dressage, "export", "--shape", "verl", "--to", f"s3://{BUCKET}/{name}")
        run(dressage, "validate", f"s3://{BUCKET}/{name}")
    expect("a b/verl.jsonl.zst" in listed(s3), f"there is {listed(s3)}")
    run(dressage, "import", f"s3://{BUCKET}/runs/7/native.jsonl", "--data-dir", str(place / "elsewhere"))
    run(dressage, "export", "--output", str(place / "again.jsonl"), "--data-dir", str(place / "elsewhere"))
    expect((place / "again.jsonl").read_bytes() == there, "what was taken in elsewhere is exported otherwise there")


def failures_are_told(dressage: str, secret: str) -> None:
    missing = fails(dressage, 3, "export", "--to", "s3://nowhere/x.jsonl")
    expect("NoSuchBucket" in missing and "hint: make the bucket first" in missing, missing)
    unread = fails(dressage, 2, "validate", f"s3://{BUCKET}/nothing.jsonl")
    expect("NoSuchKey" in unread and "hint: check the name" in unread, unread)
    wrong = fails(dressage, 3, "export", "--to", f"s3://{BUCKET}/x.jsonl", AWS_SECRET_ACCESS_KEY="wrong-" + secret[6:])
    expect("SignatureDoesNotMatch" in wrong and "hint: check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in wrong, wrong)
    unknown = fails(dressage, 3, "export", "--to", f"s3://{BUCKET}/x.jsonl", AWS_ACCESS_KEY_ID="AKIAUNKNOWN")
    expect("InvalidAccessKeyId" in unknown and "hint: check AWS_ACCESS_KEY_ID" in unknown, unknown)
    plain = fails(dressage, 3, "export", "--to", f"s3://{BUCKET}/x.jsonl", AWS_ALLOW_HTTP="false")
    expect("hint: AWS_ALLOW_HTTP=true" in plain, plain)
    away = fails(dressage, 3, "export", "--to", f"s3://{BUCKET}/x.jsonl", AWS_ENDPOINT_URL="http://127.0.0.1:1")
    expect("hint: check AWS_ENDPOINT_URL" in away, away)
    for said in (missing, unread, wrong, unknown, plain, away):
        expect(secret not in said and secret[6:] not in said, "a message has the secret key in it")


def what_fails_or_is_interrupted_leaves_nothing(dressage: str, store: Store, s3) -> None:
    before = listed(s3)
    store.refuse_part = 2
    refused = fails(dressage, 3, "export", "--to", f"s3://{BUCKET}/refused.jsonl")
    expect("AccessDenied: Not this one" in refused, refused)
    store.refuse_part = None
    expect(listed(s3) == before and uploads(s3) == [], f"a failed upload leaves {listed(s3)} and {uploads(s3)}")

    store.hold_part = 1
    command = [dressage, "export", "--to", f"s3://{BUCKET}/interrupted.jsonl"]
    exporting = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    expect(store.held.wait(60), "the upload does not begin")
    exporting.send_signal(signal.SIGINT)
    out, err = exporting.communicate(timeout=60)
    store.release.set()
    expect(exporting.returncode == 130, f"an interrupted upload ends with {exporting.returncode}: {out}{err}")
    expect(listed(s3) == before and uploads(s3) == [], f"an interrupted upload leaves {listed(s3)} and {uploads(s3)}")


def listed(s3) -> list[str]:
    return [entry["Key"] for entry in s3.list_objects_v2(Bucket=BUCKET).get("Contents", [])]


def uploads(s3) -> list[str]:
    return [entry["Key"] for entry in s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])]


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"error: {' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stderr


def measured(*command: str) -> tuple[str, int]:
    """What it said, and the most memory that it had, in kB."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        text = said.read()
    expect(process.returncode == 0, f"{' '.join(command)} ended with {process.returncode}\n{text}")
    return text, usage.ru_maxrss


def fails(dressage: str, code: int, *arguments: str, **environment: str) -> str:
    done = subprocess.run([dressage, *arguments], capture_output=True, text=True, check=False, env=os.environ | environment)
    expect(done.returncode == code, f"{arguments} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def expect(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"error: {what}")


if __name__ == "__main__":
    main(sys.argv[1])
