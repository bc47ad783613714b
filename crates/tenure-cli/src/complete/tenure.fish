# Completions of tenure for fish. What may follow is asked of tenure itself.
function __tenure_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l answer ($words[1] __complete -- $words 2>/dev/null)
    switch "$answer[1]"
        case command
            set -l first (math (contains -i -- -- $words) + 1)
            set -l before
            if test $first -lt (count $words)
                set before (string escape -- $words[$first..-2])
            end
            complete -C (string join ' ' -- $before $words[-1])
        case files
            __fish_complete_path $words[-1]
        case words
            printf '%s\n' $answer[2..-1]
    end
end
complete -c tenure -f -a '(__tenure_complete)'
