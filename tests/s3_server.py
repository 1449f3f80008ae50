"""Run moto's S3 server, which checks signatures, in a virtual environment in the tests' cache."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Self

from servers import cache, free_port
from servers.run import run

if TYPE_CHECKING:
    from pathlib import Path

_PACKAGES = ("moto[s3]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5", "boto3==1.44.8", "werkzeug==3.1.9")
BUCKET = "incidents"
#: The server. It listens on a port of its own for the setup and then, after a line on standard input, on the
#: given port, so that a client that retries finds either no server or the account and the bucket.
_SERVE = """
import sys
from moto.server import ThreadedMotoServer
for port in (0, int(sys.argv[1])):
    server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    sys.stdin.readline()
"""
#: moto checks no signatures during the first three requests, which create an account with an access key.
_SET_UP = f"""
import boto3, json, sys
url = sys.argv[1]
anyone = dict(
    endpoint_url=url, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
)
iam = boto3.client("iam", **anyone)
iam.create_user(UserName="agent")
allow = {{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}}
document = json.dumps({{"Version": "2012-10-17", "Statement": [allow]}})
iam.put_user_policy(UserName="agent", PolicyName="s3", PolicyDocument=document)
key = iam.create_access_key(UserName="agent")["AccessKey"]
pair = key["AccessKeyId"], key["SecretAccessKey"]
known = dict(anyone, aws_access_key_id=pair[0], aws_secret_access_key=pair[1])
boto3.client("s3", **known).create_bucket(Bucket="{BUCKET}")
print(":".join(pair))
"""
_READ = f"""
import boto3, sys
url, (key_id, secret) = sys.argv[1], sys.argv[2].split(":")
s3 = boto3.client(
    "s3", endpoint_url=url, region_name="us-east-1", aws_access_key_id=key_id, aws_secret_access_key=secret
)
names = [one["Key"] for one in s3.list_objects_v2(Bucket="{BUCKET}").get("Contents", [])]
for name in names:
    print(name, s3.get_object(Bucket="{BUCKET}", Key=name)["Body"].read().hex())
"""


class S3:
    """Context manager: an S3 server on a loopback port, with an account and a bucket.

    ``key`` has the form of ``upload.access_key_file``. It is written to ``key_file`` before the server
    listens. A restarted server has another key, and no files.
    """

    def __init__(self, key_file: Path) -> None:
        self._python = str(_environment() / "bin" / "python")
        self._key_file = key_file
        self.key = ""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        self._process = process = subprocess.Popen(
            [self._python, "-c", _SERVE, str(self.port)],
            env={**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "3"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        own_port = process.stdout.readline().strip()
        self.key = self._run(_SET_UP, f"http://127.0.0.1:{own_port}").strip()
        self._key_file.write_text(self.key)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == str(self.port)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def files(self) -> dict[str, bytes]:
        """Return the contents of all objects."""
        lines = self._run(_READ, self.url, self.key).splitlines()
        return {name: bytes.fromhex(content) for name, content in (line.split() for line in lines)}

    def _run(self, program: str, *arguments: str) -> str:
        command = [self._python, "-c", program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert not done.returncode, done.stderr
        return done.stdout


def _environment() -> Path:
    home = cache.root() / "tools" / f"moto-5.2.5-{sys.version_info.major}.{sys.version_info.minor}"
    home.parent.mkdir(parents=True, exist_ok=True)
    with cache.locked("moto"):
        if not (home / "ready").exists():
            run([sys.executable, "-m", "venv", "--clear", str(home)], home.parent)
            pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet"]
            run([*pip, "--disable-pip-version-check", *_PACKAGES], home.parent)
            (home / "ready").touch()
    return home
