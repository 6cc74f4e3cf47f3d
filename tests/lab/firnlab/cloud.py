"""Cloud servers of a run's own (tests/lab/cloud), and the requests that an administrator of their buckets makes by hand."""

import hashlib
import os
import re
import subprocess

from . import LAB, LabError

KEY, SECRET = "firntest", "firntestsecret"


class Cloud:
    """Servers by the names of `cloud/start`, with their data below `directory`; an S3 server among them must be versitygw."""

    def __init__(self, directory):
        self.directory, self.ports = directory, {}
        # With it, programs have the credentials for them, too.
        self.environment = {
            **os.environ, "FIRN_LAB_RUN": str(directory), "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
        }

    def start(self, *servers):
        said = self.run([str(LAB / "cloud/start"), *servers])
        self.ports = {name: int(re.search(rf"FIRN_TEST_{name.upper()}=\S*:(\d+)", said)[1]) for name in servers}

    def stop(self):
        subprocess.run([str(LAB / "cloud/stop"), *self.ports], env=self.environment, capture_output=True)

    def s3(self, method, path):
        """A request about a bucket (`/bucket`) or an object in it (`/bucket/key`)."""
        return self.run([
            "curl", "-sSf", "-X", method, "--aws-sigv4", "aws:amz:us-east-1:s3", "--user", f"{KEY}:{SECRET}",
            "-H", f"x-amz-content-sha256: {hashlib.sha256().hexdigest()}", f"http://127.0.0.1:{self.ports['versitygw']}{path}",
        ])

    def bucket(self, name):
        """The directory in which the S3 server has what is in a bucket, each object a file."""
        return self.directory / "cloud/versitygw/data/buckets" / name

    def run(self, command, timeout_s=180):
        """What a program says that has the credentials."""
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, env=self.environment
        )
        if done.returncode != 0:
            raise LabError(f"{' '.join(map(str, command))} ends with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout
