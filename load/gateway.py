"""Envoy and Open Policy Agent before firn-api, as services/api/gateway ships them: people come through one port, machines through another."""

import json
import pathlib
import re
import subprocess
import urllib.request

from world import API, Process

HTTPS, MACHINES, ADMIN, OPA, OPA_HTTP = 7410, 7411, 7412, 7413, 7414
SERVICE = pathlib.Path(__file__).resolve().parents[1] / "services/api"
AT_ONCE = "100000"


class Gateway:
    def __init__(self, world):
        self.world, self.place = world, world.directory / "gateway"
        said = subprocess.run([SERVICE.parents[1] / "tests/lab/cloud/start", "envoy", "opa"], env=world.lab, stdout=subprocess.PIPE, text=True, check=True).stdout
        self.programs = dict(line.split("=", 1) for line in said.split())
        self.people, self.machines = f"https://localhost:{HTTPS}", f"https://localhost:{MACHINES}"

    def begin(self):
        world, place = self.world, self.place
        world.run("firn-api", "certify", "gateway", "--directory", place, "--secret", world.directory / "secret")
        # What an installation gets from a public authority.
        key, certificate = place / "public-key.pem", place / "public.pem"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", key, "-out", certificate], check=True, capture_output=True,
        )
        self.authority = place / "roots.pem"
        self.authority.write_text(certificate.read_text() + world.authority.read_text())
        values = {
            "LISTEN": "127.0.0.1", "HTTPS_PORT": HTTPS, "MACHINE_PORT": MACHINES, "ADMIN_PORT": ADMIN, "OPA_PORT": OPA, "CERTIFICATE": certificate,
            "KEY": key, "AUTHORITY": world.authority, "API_ADDRESS": "127.0.0.1", "API_PORT": API, "API_NAME": "localhost",
            "ISSUER": f"https://localhost:{API}", "ADDRESS_RATE": AT_ONCE, "ADDRESS_BURST": AT_ONCE,
        }
        subprocess.run([SERVICE / "gateway/render", place, *(f"{name}={value}" for name, value in values.items())], check=True)
        world.add("opa", [
            self.programs["FIRN_TEST_OPA"], "run", "--server", "--disable-telemetry", "--log-level", "info", "--addr", f"127.0.0.1:{OPA_HTTP}",
            "--config-file", place / "opa.yaml", SERVICE / "policy/authz.rego", SERVICE / "policy/gateway.rego",
        ], "Initializing server|gRPC server")
        world.add("envoy", [self.programs["FIRN_TEST_ENVOY"], "-c", place / "envoy.yaml", "--use-dynamic-base-id", "--log-level", "info"], "starting main dispatch loop")

    def counted(self):
        """Requests of people that were let through, and connections of machines, by Envoy's own count."""
        text = urllib.request.urlopen(f"http://127.0.0.1:{ADMIN}/stats?format=json", timeout=30).read()
        stats = {one["name"]: one["value"] for one in json.loads(text)["stats"] if isinstance(one.get("value"), int)}
        asked = sum(value for name, value in stats.items() if re.fullmatch(r"http\.\w+\.downstream_rq_total", name) and ".admin." not in name)
        machines = sum(value for name, value in stats.items() if re.fullmatch(r"tcp\.\w+\.downstream_cx_total", name))
        return asked, machines
