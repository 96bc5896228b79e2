// A worker in Node, of 18 or newer: it needs no package.
// import { work } from "./worker.mjs";
// await work({ url, token, types: ["page"], slots: 4, tasks: { "shop.render": async ([path], kwargs, job, signal) => ... } });
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

export async function work({ url, token, types, slots = 1, tasks, until = new AbortController().signal }) {
    let worker, secret;

    // Send a request until it is answered, and return its status and reply.
    async function ask(method, path, body) {
        const headers = { Authorization: `Bearer ${token}`, "Worker-Secret": secret ?? "", "Content-Type": "application/json" };
        for (;;) {
            const said = typeof body === "function" ? body() : body; // a heartbeat's list is made anew for each try
            const text = typeof said === "string" ? said : JSON.stringify(said);
            const options = { method, headers, body: text, signal: AbortSignal.timeout(40_000) };
            try {
                const answer = await fetch(url + path, options);
                const reply = JSON.parse((await answer.text()) || "null"); // a proxy's own page is no answer
                if (answer.status < 500) return { status: answer.status, reply };
            } catch {} // nobody answers
            await sleep(1000);
        }
    }

    const running = new Map(); // by fence
    function begin(job) {
        const stop = new AbortController();
        const done = run(job, stop.signal).finally(() => running.delete(job.fence));
        running.set(job.fence, { job, stop, done });
    }
    async function run(job, signal) {
        const place = `/api/jobs/${encodeURIComponent(job.id)}`;
        const { fence } = job;
        if ((await ask("POST", `${place}/start`, { fence })).status !== 200) return;
        let end;
        try {
            if (!(job.task in tasks)) throw new TypeError(`this worker has no task ${job.task}`);
            const result = (await tasks[job.task](job.args, job.kwargs, job, signal)) ?? null;
            end = JSON.stringify({ fence, state: "done", result }); // a result that JSON does not have has failed
        } catch (thrown) {
            const { name, message, stack } = thrown instanceof Error ? thrown : new Error(String(thrown));
            end = { fence, state: "failed", error: { type: name, message, traceback: stack } };
            if (signal.reason === "revoked") end = { fence, state: "revoked" };
        }
        const { status, reply } = await ask("POST", `${place}/end`, end);
        if ([400, 413].includes(status)) { // a result that is too large, or a strange name of an error
            const error = { type: "RefusedEnd", message: reply.error.message };
            await ask("POST", `${place}/end`, { fence, state: "failed", error });
        }
    }

    for (; !until.aborted; running.forEach(({ stop }) => stop.abort("gone"))) {
        const joined = await ask("POST", "/api/workers", { name: `node-${hostname()}-${process.pid}`, types, slots });
        if (joined.status !== 201) throw new Error(joined.reply.error.message);
        ({ id: worker, secret } = joined.reply);
        const beat = async () => {
            const mine = () => ({ running: [...running.values()].map(({ job }) => [job.id, job.fence]) });
            const { status, reply } = await ask("POST", `/api/workers/${worker}/heartbeat`, mine);
            if (status === 200) for (const each of [...reply.stop, ...reply.gone]) running.get(each.fence)?.stop.abort(each.reason ?? "gone");
        };
        const beats = setInterval(beat, joined.reply.heartbeat_s * 1000);
        let status = 200;
        while (status < 400 && !until.aborted) {
            if (running.size >= slots) await Promise.race([...running.values()].map(({ done }) => done));
            const polled = await ask("GET", `/api/workers/${worker}/jobs?wait=20&held=${[...running.keys()]}`);
            ({ status } = polled);
            polled.reply?.jobs?.forEach(begin);
        }
        clearInterval(beats);
        if (until.aborted) await ask("DELETE", `/api/workers/${worker}`);
    }
}
