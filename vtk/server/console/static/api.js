/** Requests to the server that this page came from, with the key that was typed. */

const KEY = "vtk-api-key";

/** Events: "key-needed" when the server asks for a key, "key-changed", "models-changed" after a load or unload. */
export const signals = new EventTarget();

export class ApiError extends Error {
  constructor(message, status, body) {
    super(message);
    this.status = status;
    this.body = body;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** The answer, whatever its status. body: a FormData, or what becomes JSON. Throws ApiError if there is no answer. */
export async function ask(path, { body, signal } = {}) {
  const headers = key.get() ? { Authorization: `Bearer ${key.get()}` } : {};
  const options = { headers, signal, cache: "no-store" };
  if (body !== undefined) {
    const isForm = body instanceof FormData;
    if (!isForm) headers["Content-Type"] = "application/json";
    Object.assign(options, { method: "POST", body: isForm ? body : JSON.stringify(body) });
  }
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached.", 0, null);
  }
}

/** The answer if it is a success. Throws ApiError with the server's own words otherwise. */
export async function request(path, options) {
  const response = await ask(path, options);
  if (response.ok) return response;
  if (response.status === 401) signals.dispatchEvent(new Event("key-needed"));
  const body = await response.json().catch(() => null);
  const told = body?.error?.message ?? body?.error;
  throw new ApiError(typeof told === "string" ? told : `The server answered ${response.status}.`, response.status, body);
}

export async function getJson(path, options) {
  return (await request(path, options)).json();
}

/** Server-sent events of a body as {event, data}. Leaving the loop early cancels the body. */
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      yield* blocks.map(parseEvent);
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

function parseEvent(block) {
  const found = { event: "message", data: "" };
  for (const line of block.split("\n")) {
    const [, field, value] = /^(event|data): ?(.*)$/.exec(line) ?? [];
    if (field === "event") found.event = value;
    if (field === "data") found.data += value;
  }
  return found;
}
