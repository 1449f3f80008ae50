"""Run moto's S3 server, which checks signatures, in a virtual environment in the tests' cache."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Self

from servers import cache, free_port
from servers.run import run
from waiting import until

if TYPE_CHECKING:
    from pathlib import Path

_PACKAGES = ("moto[s3]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5", "boto3==1.44.8", "werkzeug==3.1.9")
BUCKET = "incidents"
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

    ``key`` has the form of ``upload.access_key_file``. A restarted server has another key, and no files.
    """

    def __init__(self) -> None:
        self._python = str(_environment() / "bin" / "python")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.key = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        command = [self._python, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        environment = {**os.environ, "INITIAL_NO_AUTH_ACTION_COUNT": "3"}
        self._process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until(self._listens, within_s=60)
        self.key = self._run(_SET_UP, self.url).strip()

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def files(self) -> dict[str, bytes]:
        """Return the contents of all objects."""
        lines = self._run(_READ, self.url, self.key).splitlines()
        return {name: bytes.fromhex(content) for name, content in (line.split() for line in lines)}

    def _listens(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def _run(self, program: str, *arguments: str) -> str:
        command = [self._python, "-c", program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
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
