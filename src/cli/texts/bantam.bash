# bash completion for bantam: source it, or put it into
# ~/.local/share/bash-completion/completions/bantam
_bantam() {
    local words last names name
    # COMP_WORDS would split at colons.
    read -ra words <<<"${COMP_LINE:0:COMP_POINT}."
    last=${words[-1]%.}
    COMPREPLY=()
    if names=$("$1" __complete "${words[@]:1:${#words[@]}-2}" "$last" 2>/dev/null); then
        while read -r name; do
            # bash replaces only what follows a colon or an equals sign.
            [[ -z $name ]] || COMPREPLY+=("$(printf %q "${name#"${last%"${last##*[:=]}"}"}")")
        done <<<"$names"
    else
        compopt -o default
    fi
}
complete -F _bantam bantam
