// What all scenarios share: the service as a customer sees it through the gateway, and how figures are kept.
//
// `measured` is what a scenario is about, `health` the same gateway's health check at the same time: the two meet the same machine,
// so their ratio says something on any machine. Refusals by a limit (429) are counted, not timed: they are what a limit is for.
import crypto from "k6/crypto";
import http from "k6/http";
import { check, fail, sleep } from "k6";
import { Counter, Rate, Trend } from "k6/metrics";

export const API = __ENV.FIRN_LOAD_API;
export const MACHINES = __ENV.FIRN_LOAD_MACHINES;
const MAILBOX = __ENV.FIRN_LOAD_MAILBOX;
const SECONDS = Number(__ENV.FIRN_LOAD_SECONDS || 30);
const SCALE = Number(__ENV.FIRN_LOAD_SCALE || 1);

export const measured = new Trend("measured", true);
const health = new Trend("health", true);
const refused = new Counter("refused_by_limit");
const wrong = new Rate("wrong");

/// Requests a second, for so long; and the health check beside it.
export function options(perSecond, more) {
  const rate = Math.max(1, Math.round(perSecond * SCALE));
  return {
    discardResponseBodies: false,
    summaryTrendStats: ["count", "avg", "p(50)", "p(95)", "p(99)", "max"],
    setupTimeout: "120s",
    thresholds: { wrong: ["rate==0"], dropped_iterations: ["count<1e9"] },
    scenarios: Object.assign(
      {
        measured: {
          executor: "constant-arrival-rate",
          exec: "work",
          rate: rate,
          timeUnit: "1s",
          duration: `${SECONDS}s`,
          preAllocatedVUs: 10,
          maxVUs: 50,
        },
        health: {
          executor: "constant-arrival-rate",
          exec: "beat",
          rate: 20,
          timeUnit: "1s",
          duration: `${SECONDS}s`,
          preAllocatedVUs: 2,
          maxVUs: 20,
        },
      },
      more || {},
    ),
  };
}

export const seconds = SECONDS;
export const scaled = (perSecond) => Math.max(1, Math.round(perSecond * SCALE));

export function beat() {
  const answer = http.get(`${API}/healthz`);
  wrong.add(answer.status !== 200);
  health.add(answer.timings.duration);
}

function hex(bytes) {
  return Array.from(new Uint8Array(crypto.randomBytes(bytes)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/// Sends a request; `trend` keeps its time. Anything but the wanted status or a limit's refusal is wrong.
export function send(trend, method, path, token, body, wanted) {
  const headers = { "content-type": "application/json", "idempotency-key": hex(16) };
  if (token) headers.authorization = `Bearer ${token}`;
  const answer = http.request(method, `${API}${path}`, body === null ? null : JSON.stringify(body), {
    headers: headers,
    tags: { name: path.replace(/[a-z]{2,4}_[0-9a-f]{32}|\/[0-9a-f]{32}/g, "/ID") },
  });
  if (answer.status === 429) {
    refused.add(1);
    return null;
  }
  const right = answer.status === (wanted || 200);
  wrong.add(!right);
  if (!right) console.error(`${method} ${path}: ${answer.status} ${answer.body}`);
  if (right && trend) trend.add(answer.timings.duration);
  return right ? answer : null;
}

/// Signs up as a person would, letter and all; gives the tenant and its owner's key.
export function signUp(trend) {
  const address = `load-${hex(8)}@firn.example`;
  const noted = send(trend, "POST", "/v1/signups", null, { email: address, tenant_name: `Load ${address}` }, 202);
  if (!noted) return null;
  const code = letter(address);
  const welcome = send(
    trend,
    "POST",
    `/v1/signups/${noted.json("signup")}/confirm`,
    null,
    { code: code, tenant_key: hex(32), recovery_key: hex(32) },
    201,
  );
  if (!welcome) return null;
  return { base: `/v1/tenants/${welcome.json("tenant.id")}`, id: welcome.json("tenant.id"), key: welcome.json("api_key") };
}

function letter(address) {
  for (let tries = 0; tries < 100; tries += 1) {
    const answer = http.get(`${MAILBOX}/${address}`, { tags: { name: "mailbox" } });
    if (answer.status === 200) return answer.body;
    sleep(0.05);
  }
  fail(`no letter for ${address}`);
}

/// A token of five minutes.
export function logIn(trend, tenant) {
  const issued = send(trend, "POST", `${tenant.base}/tokens`, null, { api_key: tenant.key }, 201);
  return issued ? issued.json("token") : null;
}

/// So many tenants, logged in, for a scenario's `setup`.
export function tenants(count) {
  const made = [];
  for (let index = 0; index < count; index += 1) {
    const tenant = signUp(null);
    if (!tenant) fail("a tenant could not sign up");
    tenant.token = logIn(null, tenant);
    made.push(tenant);
  }
  return made;
}

export const pick = (list) => list[Math.floor(Math.random() * list.length)];
export const unique = () => hex(8);
export { check, hex };

/// Figures for load/report, on the path that load/run names.
export function handleSummary(data) {
  const trend = (name) => (data.metrics[name] ? data.metrics[name].values : null);
  const count = (name) => (data.metrics[name] ? data.metrics[name].values.count : 0);
  const figures = {
    measured: trend("measured"),
    health: trend("health"),
    refused: count("refused_by_limit"),
    dropped: count("dropped_iterations"),
    wrong: data.metrics.wrong ? data.metrics.wrong.values.passes : 0,
    seconds: SECONDS,
  };
  return { [__ENV.FIRN_LOAD_OUT]: JSON.stringify(figures) };
}
