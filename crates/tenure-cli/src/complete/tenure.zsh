#compdef tenure
# Completions of tenure for zsh. What may follow is asked of tenure itself.
_tenure() {
    local -a answer items
    local line
    local -i first
    answer=("${(@f)$("${(Q)words[1]}" __complete -- "${(@Q)words[1,CURRENT]}" 2>/dev/null)}")
    case $answer[1] in
    command)
        first=${words[(ie)--]}
        words=("${(@)words[first + 1,-1]}")
        ((CURRENT -= first))
        _normal
        ;;
    files)
        _files
        ;;
    words)
        for line in "${(@)answer[2,-1]}"; do
            items+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        done
        _describe -t tenure tenure items
        ;;
    esac
}
if [ "$funcstack[1]" = _tenure ]; then
    _tenure "$@"
else
    compdef _tenure tenure
fi
