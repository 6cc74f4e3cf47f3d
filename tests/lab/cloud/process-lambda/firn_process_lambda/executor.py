"""One execution environment: the emulator with the function's bootstrap below it, in a session of their own."""

import glob
import json
import os
import signal
import socket
import stat
import subprocess
import time

import requests
from localstack import config
from localstack.services.lambda_.invocation.lambda_models import InvocationResult
from localstack.services.lambda_.invocation.runtime_executor import RuntimeExecutor

EMULATOR = os.environ.get("LAMBDA_RIE_BIN", "aws-lambda-rie")
START_SECONDS = 20      # it takes 50 ms; a loaded machine many times that
CALL_SECONDS = 910      # AWS's own limit of 15 minutes ends a call before this does
LOG_BYTES_MAX = 1 << 20  # what of a call's log is passed on


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class ProcessExecutor(RuntimeExecutor):
    process = None

    def start(self, env_vars):
        code = str(self.function_version.config.code.get_unzipped_code_location())
        bootstrap = os.path.join(code, "bootstrap")
        os.chmod(bootstrap, os.stat(bootstrap).st_mode | stat.S_IXUSR)
        self.port = free_port()
        # The emulator starts the function itself; what would make it call LocalStack back is left out.
        environment = {k: str(v) for k, v in env_vars.items() if not k.startswith("LOCALSTACK_RUNTIME")}
        environment |= {"PATH": os.environ["PATH"], "LAMBDA_TASK_ROOT": code}
        self.log_path = os.path.join(config.dirs.tmp, f"lambda-{self.id}.log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [EMULATOR, "--runtime-interface-emulator-address", f"127.0.0.1:{self.port}",
                 "--runtime-api-address", f"127.0.0.1:{free_port()}", "--log-level", "error", bootstrap],
                cwd=code, env=environment, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise RuntimeError(f"the function's process did not start: {self.get_logs()}") from None
                time.sleep(0.02)

    def stop(self):
        # In LocalStack's own process group, so that whatever ends LocalStack by its group ends this, too.
        if self.process is None or self.process.poll() is not None:
            return
        children = []
        for listed in glob.glob(f"/proc/{self.process.pid}/task/*/children"):
            with open(listed) as names:
                children += names.read().split()
        self.process.terminate()
        try:
            self.process.wait(3)
        except subprocess.TimeoutExpired:
            self.process.kill()
        for child in children:
            try:
                os.kill(int(child), signal.SIGTERM)
            except ProcessLookupError:
                pass

    def invoke(self, payload):
        before = os.path.getsize(self.log_path)
        answer = requests.post(
            f"http://127.0.0.1:{self.port}/2015-03-31/functions/function/invocations",
            data=payload["payload"].encode(), headers={"X-Amzn-RequestId": payload["invoke-id"]},
            proxies={"http": "", "https": ""}, timeout=CALL_SECONDS)
        with open(self.log_path, "rb") as log:
            log.seek(before)
            logs = log.read(LOG_BYTES_MAX).decode("utf8", "replace")
        body, failed = answer.content, answer.status_code != 200
        try:
            read = json.loads(body)
            failed = failed or (isinstance(read, dict) and "errorType" in read)
        except ValueError:
            # The emulator says in words that the time was up, and that the process ended.
            failed, body = True, json.dumps({"errorMessage": body.decode("utf8", "replace")}).encode()
        return InvocationResult(payload["invoke-id"], body, is_error=failed, logs=logs or " ")

    def get_logs(self):
        try:
            with open(self.log_path, errors="replace") as log:
                return log.read(LOG_BYTES_MAX)
        except OSError:
            return ""

    def get_address(self):
        return "127.0.0.1"

    def get_endpoint_from_executor(self):
        return "127.0.0.1"

    def get_runtime_endpoint(self):
        return f"http://127.0.0.1:{config.GATEWAY_LISTEN[0].port}/_localstack_lambda/{self.id}"

    @classmethod
    def prepare_version(cls, function_version):
        if function_version.config.code:
            function_version.config.code.prepare_for_execution()

    @classmethod
    def cleanup_version(cls, function_version):
        pass
