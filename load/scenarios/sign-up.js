// People sign up: a letter, its code, the first log-in, the first look.
import { beat, handleSummary, logIn, measured, options as common, send, signUp } from "../service.js";

export const options = common(3);

export function work() {
  const tenant = signUp(measured);
  if (!tenant) return;
  const token = logIn(measured, tenant);
  if (token) send(measured, "GET", tenant.base, token, null);
}

export { beat, handleSummary };
