// A day of ordinary customers, an hour in a twenty-fourth of the time: mostly looking, sometimes changing, more at ten than at three.
import {
  beat, handleSummary, logIn, measured, options as common, pick, scaled, seconds, send, tenants, unique,
} from "../service.js";

// Requests a second in each two hours of the day.
const DAY = [4, 2, 2, 6, 14, 24, 20, 24, 18, 10, 8, 6];

export const options = common(1, {
  measured: {
    executor: "ramping-arrival-rate",
    exec: "work",
    startRate: scaled(DAY[DAY.length - 1]),
    timeUnit: "1s",
    preAllocatedVUs: 20,
    maxVUs: 60,
    stages: DAY.map((rate) => ({ target: scaled(rate), duration: `${Math.max(1, Math.round(seconds / DAY.length))}s` })),
  },
});

export function setup() {
  return tenants(8);
}

const MONTH = new Date().toISOString().slice(0, 7);
const LOOKS = ["", "/volumes", "/edges", "/quota", "/nodes", "/disks", `/usage/${MONTH}`, "/forecast", "/audit?limit=20", "/budget"];

export function work(all) {
  const tenant = pick(all);
  const luck = Math.random();
  if (luck < 0.85) {
    send(measured, "GET", `${tenant.base}${pick(LOOKS)}`, tenant.token, null);
  } else if (luck < 0.9) {
    logIn(measured, tenant);
  } else if (luck < 0.95) {
    send(measured, "PUT", `${tenant.base}/budget`, tenant.token, { alert_nano_dollars: Math.floor(luck * 1e9) });
  } else {
    const body = { name: unique(), bucket: { kind: "managed", region: "eu" } };
    const made = send(measured, "POST", `${tenant.base}/volumes`, tenant.token, body, 201);
    if (made) send(measured, "DELETE", `${tenant.base}/volumes/${made.json("id")}`, tenant.token, null);
  }
}

export { beat, handleSummary };
