// Operators make and end things: a volume from its first day to its erasing, an invited node, a key.
import { beat, handleSummary, hex, measured, options as common, pick, send, tenants, unique } from "../service.js";

export const options = common(4);

export function setup() {
  return tenants(5);
}

export function work(all) {
  const tenant = pick(all);
  const at = (path) => `${tenant.base}/${path}`;
  const region = { kind: "managed", region: "eu" };
  const made = send(measured, "POST", at("volumes"), tenant.token, { name: unique(), bucket: region }, 201);
  if (made) {
    const volume = at(`volumes/${made.json("id")}`);
    send(measured, "PATCH", volume, tenant.token, { snapshot_policy: { last: 9, hourly: 9, daily: 9, weekly: 9, monthly: 9 } });
    send(measured, "DELETE", volume, tenant.token, null);
    send(measured, "POST", `${volume}/erase`, tenant.token, {});
  }
  const invitation = { name: unique(), failure_domain: "rack-1", authenticator_hash: hex(32) };
  const node = send(measured, "POST", at("nodes"), tenant.token, invitation, 201);
  if (node) send(measured, "DELETE", at(`nodes/${node.json("id")}`), tenant.token, null);
  const key = send(measured, "POST", at("keys"), tenant.token, { name: unique(), role: "reader" }, 201);
  if (key) send(measured, "DELETE", at(`keys/${key.json("key.id")}`), tenant.token, null, 204);
}

export { beat, handleSummary };
