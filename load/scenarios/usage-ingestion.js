// A component of the service delivers what it observed, a thousand records at a time, by its certificate.
import encoding from "k6/encoding";
import http from "k6/http";
import exec from "k6/execution";
import { batch } from "../batch.js";
import { MACHINES, beat, check, handleSummary, measured, options as common, tenants } from "../service.js";

const RECORDS = 1000;

export const options = Object.assign(common(5), {
  tlsAuth: [
    {
      domains: ["localhost"],
      cert: open(`${__ENV.FIRN_LOAD_DIRECTORY}/cleaner/certificate.pem`),
      key: open(`${__ENV.FIRN_LOAD_DIRECTORY}/cleaner/key.pem`),
    },
  ],
});

export function setup() {
  return tenants(10);
}

// Each virtual user is one life of a spool: its numbers follow each other.
const incarnation = Math.floor(Math.random() * 2 ** 52);
let next = 1;

export function work(all) {
  const names = all.map((tenant) => tenant.id);
  const bytes = batch("cleaner", incarnation + exec.vu.idInTest, next, RECORDS, names);
  const body = JSON.stringify({ batch: encoding.b64encode(bytes, "rawstd") });
  const answer = http.post(`${MACHINES}/v1/usage`, body, { headers: { "content-type": "application/json" } });
  const kept = check(answer, { kept: (answer) => answer.status === 200 && answer.json("kept") === RECORDS });
  if (!kept) {
    console.error(`${answer.status} ${answer.body}`);
    return;
  }
  next += RECORDS;
  measured.add(answer.timings.duration);
}

export { beat, handleSummary };
