#!/bin/sh
# A worker in shell. It runs PROGRAM for each job of TYPE. PROGRAM reads the job as JSON on stdin and prints the result as JSON.
# Usage: URL=http://localhost:5556 TOKEN=... worker.sh TYPE PROGRAM [ARGUMENT ...]
folder=$(mktemp -d) || exit
type=$1

# request METHOD PATH [BODY]: sends a request, and repeats it until the server answers.
# It prints the status and writes the reply to $folder/reply.
request() {
    while :; do
        status=$(curl -s -o "$folder/reply" -w '%{http_code}' --max-time 40 -X "$1" "$URL$2" ${3:+-d "$3"} \
            -H 'Content-Type: application/json' -H "Authorization: Bearer $TOKEN" -H "Worker-Secret: $secret")
        case $status in [234]*) echo "$status"; return ;; esac
        [ -z "$stopping" ] || return # a worker that stops does not wait for a server that is down
        sleep 1
    done
}
field() { sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p" "$folder/reply"; }

status=$(request POST /api/workers "{\"name\": \"shell-$(hostname)-$$\", \"types\": [\"$type\"]}")
[ "$status" = 201 ] || { cat "$folder/reply" >&2; exit 1; }
worker=$(field id) secret=$(field secret) pause=$(field heartbeat_s)
trap 'stopping=yes; kill $program; request DELETE "/api/workers/$worker" >/dev/null; rm -r "$folder"; exit' INT TERM
trap : USR1

while :; do
    request GET "/api/workers/$worker/jobs?wait=20&held=" >"$folder/status" & program=$!
    until wait $program; do :; done # the shell handles signals during `wait`, but not during a foreground program
    case $(cat "$folder/status") in
    404) rm -r "$folder"; exec "$0" "$@" ;; # the server has removed this worker, which was silent for too long: join again
    200) ;;
    204) continue ;;
    *) sleep 1; continue ;; # an error, such as 401
    esac
    claim=$(sed -n 's/^{"jobs":\[{"id":"\([^"]*\)","fence":\([0-9]*\),.*/\1 \2/p' "$folder/reply")
    id=${claim% *} fence=${claim#* }
    sed 's/^{"jobs":\[\(.*\)\],"stop":\[.*/\1/' "$folder/reply" >"$folder/job"
    [ "$(request POST "/api/jobs/$id/start" "{\"fence\": $fence}")" = 200 ] || continue
    rm -f "$folder/exit"
    stopped=
    (
        trap 'kill $child' TERM
        shift
        "$@" <"$folder/job" >"$folder/result" & child=$!
        wait $child
        echo $? >"$folder/exit"
        kill -USR1 $$ # ends the sleep between two heartbeats
    ) & program=$!
    while sleep "$pause" & wait $!; [ ! -s "$folder/exit" ]; do
        request POST "/api/workers/$worker/heartbeat" "{\"running\": [[\"$id\", $fence]]}" >/dev/null
        grep -q "\"fence\":$fence[,}]" "$folder/reply" && kill $program && stopped=yes # revoked, or another worker has the job
    done
    status=$(cat "$folder/exit")
    end="\"failed\", \"error\": {\"type\": \"ExitStatus\", \"message\": \"$status\"}"
    [ "$status" != 0 ] || end="\"done\", \"result\": $(cat "$folder/result")"
    [ -z "$stopped" ] || end='"revoked"'
    status=$(request POST "/api/jobs/$id/end" "{\"fence\": $fence, \"state\": $end}")
    [ "$status" != 400 ] || request POST "/api/jobs/$id/end" \
        "{\"fence\": $fence, \"state\": \"failed\", \"error\": {\"type\": \"NoJSON\"}}" >/dev/null
done
