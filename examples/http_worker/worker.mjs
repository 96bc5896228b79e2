// A worker in Node 18 or newer, without dependencies.
// import { work } from "./worker.mjs";
// await work({ url, token, types: ["page"], slots: 4, tasks: { "shop.render": async ([path], kwargs, job, signal) => ... } });
import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

export async function work({ url, token, types, slots = 1, tasks, until = new AbortController().signal }) {
    let worker, secret;

    // Send a request, repeat it until the server answers, and return the status and the reply.
    async function request(method, path, body) {
        const headers = { Authorization: `Bearer ${token}`, "Worker-Secret": secret ?? "", "Content-Type": "application/json" };
        for (;;) {
            const content = typeof body === "function" ? body() : body; // a repeated heartbeat lists the current jobs
            const text = typeof content === "string" ? content : JSON.stringify(content);
            const options = { method, headers, body: text, signal: AbortSignal.timeout(40_000) };
            try {
                const answer = await fetch(url + path, options);
                const reply = JSON.parse((await answer.text()) || "null"); // fails on the error page of a proxy
                if (answer.status < 500) return { status: answer.status, reply };
            } catch {} // no connection, or no valid answer
            await sleep(1000);
        }
    }

    const running = new Map(); // by fencing token
    function start(job) {
        const stop = new AbortController();
        const done = run(job, stop.signal).finally(() => running.delete(job.fence));
        running.set(job.fence, { job, stop, done });
    }
    async function run(job, signal) {
        const jobPath = `/api/jobs/${encodeURIComponent(job.id)}`;
        const { fence } = job;
        if ((await request("POST", `${jobPath}/start`, { fence })).status !== 200) return;
        let end;
        try {
            if (!(job.task in tasks)) throw new TypeError(`this worker has no task ${job.task}`);
            const result = (await tasks[job.task](job.args, job.kwargs, job, signal)) ?? null;
            end = JSON.stringify({ fence, state: "done", result }); // throws if JSON cannot represent the result
        } catch (exception) {
            const { name, message, stack } = exception instanceof Error ? exception : new Error(String(exception));
            end = { fence, state: "failed", error: { type: name, message, traceback: stack } };
            if (signal.reason === "revoked") end = { fence, state: "revoked" };
        }
        const { status, reply } = await request("POST", `${jobPath}/end`, end);
        if ([400, 413].includes(status)) { // the result is too large, or the error name is invalid
            const error = { type: "RefusedEnd", message: reply.error.message };
            await request("POST", `${jobPath}/end`, { fence, state: "failed", error });
        }
    }

    for (; !until.aborted; running.forEach(({ stop }) => stop.abort("gone"))) {
        const joined = await request("POST", "/api/workers", { name: `node-${hostname()}-${process.pid}`, types, slots });
        if (joined.status !== 201) throw new Error(joined.reply.error.message);
        ({ id: worker, secret } = joined.reply);
        const sendHeartbeat = async () => {
            const runningJobs = () => ({ running: [...running.values()].map(({ job }) => [job.id, job.fence]) });
            const { status, reply } = await request("POST", `/api/workers/${worker}/heartbeat`, runningJobs);
            if (status === 200) for (const lost of [...reply.stop, ...reply.gone]) running.get(lost.fence)?.stop.abort(lost.reason ?? "gone");
        };
        const heartbeats = setInterval(sendHeartbeat, joined.reply.heartbeat_s * 1000);
        let status = 200;
        while (status < 400 && !until.aborted) {
            if (running.size >= slots) await Promise.race([...running.values()].map(({ done }) => done));
            const polled = await request("GET", `/api/workers/${worker}/jobs?wait=20&held=${[...running.keys()]}`);
            ({ status } = polled);
            polled.reply?.jobs?.forEach(start);
        }
        clearInterval(heartbeats);
        if (until.aborted) await request("DELETE", `/api/workers/${worker}`);
    }
}
