// Requests to the HTTP interface, with the token of this tab; and the stream of news.

const KEY = "celery_affinity token";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// Asks for a token, and returns it; set by main.js.
let askForToken = async () => null;
export function onToken(ask) {
  askForToken = ask;
}

function headers() {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

async function send(path, options = {}) {
  for (;;) {
    const response = await fetch(path, { ...options, headers: { ...headers(), ...options.headers } });
    if (response.status !== 401) return response;
    const token = await askForToken(sessionStorage.getItem(KEY) !== null);
    if (token === null) return response;
    sessionStorage.setItem(KEY, token);
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
  if (!response.ok) throw new Refused(response.status, found?.error?.message ?? `HTTP ${response.status}`);
  return found;
}

export const get = (path) => call("GET", path);

// Calls hear(name, data) with each event, for ever; gone(words) when the server is not there. Comes back by itself.
export async function listen(hear, gone) {
  for (let pause = 500; ; pause = Math.min(pause * 2, 5000)) {
    try {
      const response = await send("api/events");
      if (!response.ok) throw new Error(`HTTP ${response.status}`);
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
      gone(error.message);
    }
    await new Promise((go) => setTimeout(go, pause));
  }
}
