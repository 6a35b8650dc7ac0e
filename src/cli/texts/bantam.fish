# fish completion for bantam: ~/.config/fish/completions/bantam.fish
function __bantam_complete
    set -l words (commandline -opc)
    set -l last (commandline -ct)
    $words[1] __complete $words[2..] "$last" 2>/dev/null
    or __fish_complete_path "$last"
end
complete -c bantam -f -a '(__bantam_complete)'
