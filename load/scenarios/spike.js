// Everybody looks at once: ten times as many requests within two seconds, for a third of the time, and back.
import { beat, handleSummary, measured, options as common, pick, scaled, seconds, send, tenants } from "../service.js";

const third = Math.max(2, Math.round(seconds / 3));

export const options = common(1, {
  measured: {
    executor: "ramping-arrival-rate",
    exec: "work",
    startRate: scaled(6),
    timeUnit: "1s",
    preAllocatedVUs: 30,
    maxVUs: 120,
    stages: [
      { target: scaled(6), duration: `${third}s` },
      { target: scaled(60), duration: "2s" },
      { target: scaled(60), duration: `${third}s` },
      { target: scaled(6), duration: "2s" },
      { target: scaled(6), duration: `${third}s` },
    ],
  },
});

export function setup() {
  return tenants(8);
}

export function work(all) {
  const tenant = pick(all);
  send(measured, "GET", `${tenant.base}${pick(["", "/volumes", "/quota"])}`, tenant.token, null);
}

export { beat, handleSummary };
