// Questions to the server, and what to say when it does not answer.

import { byId } from "./dom.js";

let key = "";

const send = (path, body) => {
  const headers = { "Content-Type": "application/json", ...(key && { "X-API-Key": key }) };
  const request = body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) };
  return fetch(path, request).catch(() => {
    throw new Error("The server does not answer. Is it still running?");
  });
};

// Waits for the key to be typed, as often as it takes.
const askForKey = () =>
  new Promise((resolve) => {
    byId("key").hidden = false;
    byId("key-input").focus();
    byId("key").addEventListener(
      "submit",
      (event) => {
        event.preventDefault();
        key = byId("key-input").value;
        byId("key").hidden = true;
        resolve();
      },
      { once: true },
    );
  });

const reason = async (response) => {
  const busy = response.status === 429 || response.status === 503;
  if (busy) return "The server has too much to do just now. Try again in a moment.";
  const body = await response.json().catch(() => ({}));
  return body.error?.message ?? body.message ?? `The server answered ${response.status}.`;
};

export const ask = async (path, body) => {
  let response = await send(path, body);
  while (response.status === 401) {
    await askForKey();
    response = await send(path, body);
  }
  if (!response.ok) throw new Error(await reason(response));
  return response.json();
};

let complains; // whose problem is shown

// Runs what asks the server; of several runs only the last one's answer is used. A problem is shown until the same
// thing has been done without one.
export const latest = (run) => {
  let newest = 0;
  const runLatest = async (...given) => {
    const mine = ++newest;
    try {
      const show = await run(...given);
      if (mine !== newest) return;
      if (complains === runLatest) byId("problem").hidden = true;
      show();
    } catch (error) {
      if (mine !== newest) return;
      complains = runLatest;
      byId("problem").textContent = error.message;
      byId("problem").hidden = false;
    }
  };
  return runLatest;
};
