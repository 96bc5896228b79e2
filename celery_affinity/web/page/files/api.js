// Requests to the HTTP interface, with the token of this tab; and the stream of news.

const KEY = "celery_affinity token";

export class Refused extends Error {
  // found: what a reply says of which nothing was found, such as a job that nobody knows.
  constructor(status, message, found = null) {
    super(message);
    this.status = status;
    this.found = found;
  }
}

// Asks for a token, and returns it, or null; set by main.js. Requests that come together ask once. Who leaves the
// question is not asked again before askAgain.
let askForToken = async () => null;
let asking = null;
let left = false;
export function onToken(ask) {
  askForToken = ask;
}

export function askAgain() {
  left = false;
}

async function newToken(used) {
  if (left) return null;
  const known = sessionStorage.getItem(KEY);
  if (known !== used) return known; // another request has asked meanwhile
  asking ??= askForToken(used !== null).finally(() => (asking = null));
  const token = await asking;
  if (token === null) left = true;
  else sessionStorage.setItem(KEY, token);
  return token;
}

function headers(token) {
  return token ? { Authorization: `Bearer ${token}` } : {};
}

async function send(path, options = {}) {
  for (;;) {
    const used = sessionStorage.getItem(KEY);
    const response = await fetch(path, { ...options, headers: { ...headers(used), ...options.headers } });
    if (response.status !== 401 || (await newToken(used)) === null) return response;
  }
}

// Returns what a request answers. Throws Refused with the words of the server.
export async function call(method, path, body) {
  const options = { method };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "Content-Type": "application/json" };
  }
  const response = await send(path, options);
  const found = await response.json().catch(() => null);
  if (!response.ok) throw new Refused(response.status, found?.error?.message ?? `HTTP ${response.status}`, found);
  return found;
}

export const get = (path) => call("GET", path);

// Calls hear(name, data) with each event, for ever; gone(words) when the server is not there. Comes back by itself.
export async function listen(hear, gone) {
  for (let pause = 500; ; pause = Math.min(pause * 2, 5000)) {
    try {
      const response = await send("api/events");
      if (!response.ok) throw new Refused(response.status, `HTTP ${response.status}`);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ""; ; ) {
        const { value, done } = await reader.read();
        if (done) throw new Error("the connection was closed");
        text += value;
        for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
          const found = /^event: (.*)\ndata: (.*)$/.exec(text.slice(0, end));
          if (found) {
            pause = 500;
            hear(found[1], JSON.parse(found[2]));
          }
        }
      }
    } catch (error) {
      gone(error.message, error.status);
    }
    await new Promise((go) => setTimeout(go, pause));
  }
}
