# A kept shell: evaluates code sent by the agent in one lasting bash.
#
# Descriptors: 3 requests, 4 answers. A request is fields, each ended by a NUL: `run`, the number of variables, each as
# NAME=VALUE, the code; or `reseed` and a number. An answer is a little-endian length of four bytes and JSON.

__forkd_send() {
    local length=${#1}
    printf "$(printf '\\x%02x\\x%02x\\x00\\x00' $((length & 255)) $((length >> 8)))" >&4
    printf '%s' "$1" >&4
}

__forkd_done() {
    local error=null
    [ "$1" -eq 0 ] || error="{\"name\":\"ExitCode\",\"value\":\"$1\",\"traceback\":\"the last command ended with $1\"}"
    __forkd_send "{\"kind\":\"done\",\"result\":null,\"result_json\":null,\"error\":$error,\"truncated\":false,\"micros\":0}"
}

# An interrupt is for what runs, not for the shell.
trap : INT
__forkd_send "{\"kind\":\"ready\",\"python\":\"bash $BASH_VERSION\"}"
while IFS= read -r -d '' -u 3 __forkd_op; do
    if [ "$__forkd_op" = reseed ]; then
        IFS= read -r -d '' -u 3 __forkd_field
        RANDOM=$__forkd_field
        __forkd_send '{"kind":"reseeded","error":null}'
        continue
    fi
    declare -A __forkd_old=()
    __forkd_new=()
    IFS= read -r -d '' -u 3 __forkd_count
    for ((__forkd_n = 0; __forkd_n < __forkd_count; __forkd_n++)); do
        IFS= read -r -d '' -u 3 __forkd_field
        __forkd_name=${__forkd_field%%=*}
        if [ -n "${!__forkd_name+set}" ]; then __forkd_old[$__forkd_name]=${!__forkd_name}; else __forkd_new+=("$__forkd_name"); fi
        export "$__forkd_field"
    done
    IFS= read -r -d '' -u 3 __forkd_code
    eval "$__forkd_code" 3<&- 4>&- </dev/null
    __forkd_status=$?
    for __forkd_name in "${!__forkd_old[@]}"; do export "$__forkd_name=${__forkd_old[$__forkd_name]}"; done
    for __forkd_name in "${__forkd_new[@]}"; do unset "$__forkd_name"; done
    __forkd_done "$__forkd_status"
done
