"""The clouds of one run: LocalStack and DynamoDB Local, asked by hand as an administrator would with the provider's tools."""

import json
import os
import re
import subprocess
import urllib.error
import urllib.request
import xml.etree.ElementTree

CLOUD = None  # the folder of start and stop; set by whoever imports this
REGION = "eu-central-1"
CALL_S = 120  # the first call of a service makes LocalStack load it


class Refused(Exception):
    """The service's answer was an error; its text is the answer."""


class Emulators:
    def __init__(self, cloud, directory):
        self.cloud, self.environment = cloud, dict(os.environ, FIRN_LAB_RUN=str(directory))
        said = subprocess.run(
            [cloud / "start", "localstack", "dynamodb"], env=self.environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        addresses = dict(line.split("=", 1) for line in said.split())
        self.endpoint, self.dynamodb = addresses["FIRN_TEST_LOCALSTACK"], addresses["FIRN_TEST_DYNAMODB"]

    def stop(self):
        subprocess.run([self.cloud / "stop", "localstack", "dynamodb"], env=self.environment, check=True)

    def ask(self, service, method, path, body=b"", headers=None, address=None):
        """One request; emulators take any signature and route by its scope."""
        scope = f"firntest/20260101/{REGION}/{service}/aws4_request"
        request = urllib.request.Request((address or self.endpoint) + path, data=body or None, method=method)
        request.add_header("Authorization", f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0")
        request.add_header("X-Amz-Date", "20260101T000000Z")
        for name, value in (headers or {"Content-Type": "application/xml"}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=CALL_S) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            raise Refused(error.read().decode(errors="replace")) from None

    def action(self, service, target, body, address=None, version="1.0"):
        headers = {"Content-Type": f"application/x-amz-json-{version}", "X-Amz-Target": target}
        return json.loads(self.ask(service, "POST", "/", json.dumps(body).encode(), headers, address) or b"null")

    def table_action(self, name, **body):
        return self.action("dynamodb", f"DynamoDB_20120810.{name}", body, self.dynamodb)

    def query(self, service, version, action):
        body = f"Action={action}&Version={version}".encode()
        return self.ask(service, "POST", "/", body, {"Content-Type": "application/x-www-form-urlencoded"}).decode()

    def versions(self, bucket):
        """Bytes of all versions of segments, hidden ones included: what the account pays for."""
        tree = xml.etree.ElementTree.fromstring(self.ask("s3", "GET", f"/{bucket}?versions"))
        named = lambda element, name: next((child.text for child in element if child.tag.endswith("}" + name)), "")
        found = [(named(one, "Key"), int(named(one, "Size"))) for one in tree if one.tag.endswith("}Version")]
        assert named(tree, "IsTruncated") == "false", "fewer than a thousand versions are expected"
        return found

    def segment_bytes(self, bucket):
        return sum(size for key, size in self.versions(bucket) if "/log/" in key)

    def leftovers(self):
        """Everything of this account, by service."""
        names = lambda text, tag: re.findall(f"<{tag}>([^<]*)</{tag}>", text)
        watched = self.query("cloudwatch", "2010-08-01", "DescribeAlarms") + self.query("cloudwatch", "2010-08-01", "ListDashboards")
        return {
            "buckets": names(self.ask("s3", "GET", "/").decode(), "Name"),
            "tables": self.table_action("ListTables")["TableNames"],
            "functions": [f["FunctionName"] for f in json.loads(self.ask("lambda", "GET", "/2015-03-31/functions/"))["Functions"]],
            "mappings": json.loads(self.ask("lambda", "GET", "/2015-03-31/event-source-mappings/"))["EventSourceMappings"],
            "queues": self.action("sqs", "AmazonSQS.ListQueues", {}).get("QueueUrls", []),
            "rules": [rule["Name"] for rule in self.action("events", "AWSEvents.ListRules", {}, version="1.1")["Rules"]],
            "log groups": [g["logGroupName"] for g in self.action("logs", "Logs_20140328.DescribeLogGroups", {}, version="1.1")["logGroups"]],
            "users": names(self.query("iam", "2010-05-08", "ListUsers"), "UserName"),
            "roles": names(self.query("iam", "2010-05-08", "ListRoles"), "RoleName"),
            "alarms and dashboards": names(watched, "AlarmName") + names(watched, "DashboardName"),
        }
