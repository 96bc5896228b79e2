#!/bin/sh
# A worker in shell. It runs PROGRAM for each job of TYPE: the job comes as JSON on stdin, the result leaves as JSON on stdout.
# Usage: URL=http://localhost:5556 TOKEN=... worker.sh TYPE PROGRAM [ARGUMENT ...]
folder=$(mktemp -d) || exit
type=$1

# ask METHOD PATH [BODY]: sends a request until it is answered. Prints the status; the reply is in $folder/reply.
ask() {
    while :; do
        status=$(curl -s -o "$folder/reply" -w '%{http_code}' --max-time 40 -X "$1" "$URL$2" ${3:+-d "$3"} \
            -H 'Content-Type: application/json' -H "Authorization: Bearer $TOKEN" -H "Worker-Secret: $secret")
        case $status in [234]*) echo "$status"; return ;; esac
        [ -z "$leaves" ] || return # who is to end does not wait for a server that is down
        sleep 1
    done
}
field() { sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p" "$folder/reply"; }

status=$(ask POST /api/workers "{\"name\": \"shell-$(hostname)-$$\", \"types\": [\"$type\"]}")
[ "$status" = 201 ] || { cat "$folder/reply" >&2; exit 1; }
worker=$(field id) secret=$(field secret) pause=$(field heartbeat_s)
trap 'leaves=yes; kill $program; ask DELETE "/api/workers/$worker" >/dev/null; rm -r "$folder"; exit' INT TERM
trap : USR1

while :; do
    ask GET "/api/workers/$worker/jobs?wait=20&held=" >"$folder/status" & program=$!
    until wait $program; do :; done # unlike a program in the foreground, this lets a signal through
    case $(cat "$folder/status") in
    404) rm -r "$folder"; exec "$0" "$@" ;; # it was silent for too long: join again
    200) ;;
    204) continue ;;
    *) sleep 1; continue ;; # such as 401
    esac
    claim=$(sed -n 's/^{"jobs":\[{"id":"\([^"]*\)","fence":\([0-9]*\),.*/\1 \2/p' "$folder/reply")
    id=${claim% *} fence=${claim#* }
    sed 's/^{"jobs":\[\(.*\)\],"stop":\[.*/\1/' "$folder/reply" >"$folder/job"
    [ "$(ask POST "/api/jobs/$id/start" "{\"fence\": $fence}")" = 200 ] || continue
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
        ask POST "/api/workers/$worker/heartbeat" "{\"running\": [[\"$id\", $fence]]}" >/dev/null
        grep -q "\"fence\":$fence[,}]" "$folder/reply" && kill $program && stopped=yes # or it is another's by now
    done
    status=$(cat "$folder/exit")
    end="\"failed\", \"error\": {\"type\": \"ExitStatus\", \"message\": \"$status\"}"
    [ "$status" != 0 ] || end="\"done\", \"result\": $(cat "$folder/result")"
    [ -z "$stopped" ] || end='"revoked"'
    status=$(ask POST "/api/jobs/$id/end" "{\"fence\": $fence, \"state\": $end}")
    [ "$status" != 400 ] || ask POST "/api/jobs/$id/end" \
        "{\"fence\": $fence, \"state\": \"failed\", \"error\": {\"type\": \"NoJSON\"}}" >/dev/null
done
