"""Lambda functions of LocalStack as processes of this machine.

LocalStack runs functions in Docker, which a test machine need not have. A custom runtime (`provided.*`) is one executable,
`bootstrap`, that asks an HTTP server for events; AWS's own emulator of that server, aws-lambda-rie, starts it. So one emulator
a function, on two free ports of the loopback, is all that is needed.

LocalStack finds this by the entry point in the `.dist-info` directory beside it: the directory above goes into PYTHONPATH,
and nothing is installed. Function URLs are made to ask for a signature where one was asked for (`function_urls.py`). `LAMBDA_RUNTIME_EXECUTOR=process` chooses it, `LAMBDA_RIE_BIN` names the emulator.
"""

from localstack.services.lambda_.invocation.plugins import RuntimeExecutorPlugin


class ProcessExecutorPlugin(RuntimeExecutorPlugin):
    name = "process"

    def load(self, *args, **kwargs):
        from . import function_urls
        from .executor import ProcessExecutor

        function_urls.install()
        return ProcessExecutor
