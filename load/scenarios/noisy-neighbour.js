// One tenant works as always; with FIRN_LOAD_STORM=1 another one asks as fast as it can. load/run does both and compares.
import { Trend } from "k6/metrics";
import { beat, handleSummary, measured, options as common, pick, seconds, send, tenants } from "../service.js";

const storm = new Trend("storm", true);
const LOOKS = ["", "/volumes", "/quota", "/edges"];

export const options = common(
  10,
  __ENV.FIRN_LOAD_STORM === "1"
    ? { storm: { executor: "constant-vus", exec: "rage", vus: 8, duration: `${seconds}s` } }
    : {},
);

export function setup() {
  return tenants(2);
}

export function work([ours]) {
  send(measured, "GET", `${ours.base}${pick(LOOKS)}`, ours.token, null);
}

export function rage([, theirs]) {
  send(storm, "GET", `${theirs.base}/volumes`, theirs.token, null);
}

export { beat, handleSummary };
