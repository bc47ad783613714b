# Completions of tenure for bash. What may follow is asked of tenure itself.
_tenure() {
    local line=${COMP_LINE:0:COMP_POINT} answer=() words=() candidate taken index
    # Not COMP_WORDS: bash breaks URLs and names at colons.
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    mapfile -t answer < <("${words[0]}" __complete -- "${words[@]}" 2>/dev/null)
    case ${answer[0]} in
    command)
        for ((index = 1; index < COMP_CWORD; index++)); do
            [[ ${COMP_WORDS[index]} == -- ]] && break
        done
        ((index++))
        if declare -F _comp_command_offset >/dev/null; then
            _comp_command_offset "$index"
        elif declare -F _command_offset >/dev/null; then
            _command_offset "$index"
        elif ((index == COMP_CWORD)); then
            mapfile -t COMPREPLY < <(compgen -c -- "${COMP_WORDS[COMP_CWORD]}")
        else
            compopt -o filenames
            mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
        fi
        ;;
    files)
        compopt -o filenames
        mapfile -t COMPREPLY < <(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")
        ;;
    words)
        # What stands before the last colon or equals sign, bash has taken already.
        taken=${words[-1]}
        taken=${taken%"${taken##*[:=]}"}
        COMPREPLY=()
        for candidate in "${answer[@]:1}"; do
            candidate=${candidate%%$'\t'*}
            COMPREPLY+=("${candidate#"$taken"}")
        done
        [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[:/] ]] && compopt -o nospace
        ;;
    esac
    return 0
}
complete -F _tenure tenure
