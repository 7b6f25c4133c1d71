// Requests to this server: JSON, and streams of server-sent events.

const page = document.body.dataset;
const KEY = "firth-api-key"; // in the session storage: the browser forgets it with the tab
const UNREACHABLE = "The server does not answer. Check that `firth serve` is still running.";

/** An error with a sentence for the reader, and the status of the response. */
export class RequestError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

export const keyRequired = page.keyRequired === "true";
export const keyVariable = page.keyVariable;
export const origin = new URL(".", location.href).href.replace(/\/$/, "");

/** Ask for the API key until there is one. */
export function askForKey(reason = "") {
  const dialog = document.getElementById("key-dialog"),
    field = document.getElementById("key");
  if (reason) document.getElementById("key-reason").textContent = reason;
  field.value = "";
  return new Promise((resolve) => {
    dialog.addEventListener(
      "close",
      () => {
        if (field.value) sessionStorage.setItem(KEY, field.value);
        resolve(field.value !== "");
      },
      { once: true },
    );
    dialog.showModal();
  });
}

/** Send a request and return the response, or throw a RequestError. */
async function send(path, body, signal) {
  if (keyRequired && !sessionStorage.getItem(KEY)) await askForKey();
  const headers = { "Content-Type": "application/json" };
  if (keyRequired) headers.Authorization = `Bearer ${sessionStorage.getItem(KEY) ?? ""}`;
  const how =
    body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body) };
  const response = await received(
    fetch(`${origin}${path}`, { ...how, signal, credentials: "omit" }),
  );
  if (response.status === 401 && keyRequired) {
    sessionStorage.removeItem(KEY);
    if (await askForKey("The server did not accept this key. Try another one."))
      return send(path, body, signal);
  }
  if (!response.ok) throw new RequestError(await reason(response), response.status);
  return response;
}

/** Wait for something from the server; if nothing comes, say so. */
async function received(promise) {
  try {
    return await promise;
  } catch (error) {
    throw error.name === "AbortError" ? error : new RequestError(UNREACHABLE);
  }
}

/** Say in words why a request failed. */
async function reason(response) {
  let message = "";
  try {
    message = (await response.json()).error.message;
  } catch {
    /* the body is no JSON: the status has to do */
  }
  if (response.status === 429) {
    const seconds = response.headers.get("Retry-After");
    return `The server is busy. Try again ${seconds ? `in ${seconds} s` : "later"}.`;
  }
  return message || `The server answered with the status ${response.status}.`;
}

export const getJson = async (path) => received((await send(path)).json());

export async function postJson(path, body, signal) {
  const response = await send(path, body, signal);
  return received(response.json());
}

/** Yield the JSON value of each server-sent event of a response until [DONE]. */
export async function* postStream(path, body, signal) {
  const response = await send(path, { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await received(reader.read());
      if (done) throw new RequestError("The server ended the stream before the text was complete.");
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new RequestError(event.error.message);
        yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // it may have failed already
  }
}
