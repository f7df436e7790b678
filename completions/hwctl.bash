# Made from the command tree by python -m hwctl.cli.manual; do not edit.

_hwctl_paths() {
    local IFS=$'\n'
    COMPREPLY=($(compgen -f -- "$current"))
    compopt -o filenames 2>/dev/null
}

_hwctl() {
    local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}"
    local command=hwctl commands= options= word index
    for ((index = 1; index < COMP_CWORD; index++)); do
        word="${COMP_WORDS[index]}"
        case "$word" in
        --) _hwctl_paths; return ;;
        -*) continue ;;
        esac
        commands=
        case "$command" in
        'hwctl') commands='publish verify inspect quarantine reclaim-stale evict consume exec' ;;
        'hwctl publish') commands='hostweights ktint8 pageweights' ;;
        esac
        if [[ " $commands " == *" $word "* ]]; then
            command="$command $word"
        fi
    done
    case "$command $previous" in
        'hwctl publish hostweights --from') _hwctl_paths; return ;;
        'hwctl publish hostweights --store') _hwctl_paths; return ;;
        'hwctl publish hostweights --identity') _hwctl_paths; return ;;
        'hwctl publish hostweights --model-id') COMPREPLY=(); return ;;
        'hwctl publish hostweights --revision') COMPREPLY=(); return ;;
        'hwctl publish hostweights --format-metadata') _hwctl_paths; return ;;
        'hwctl publish hostweights --scope') COMPREPLY=($(compgen -W 'node numa' -- "$current")); return ;;
        'hwctl publish hostweights --domain-id') COMPREPLY=(); return ;;
        'hwctl publish hostweights --max-artifact-size') COMPREPLY=(); return ;;
        'hwctl publish hostweights --max-store-size') COMPREPLY=(); return ;;
        'hwctl publish hostweights --min-free') COMPREPLY=(); return ;;
        'hwctl publish hostweights --jobs') COMPREPLY=(); return ;;
        'hwctl publish hostweights --wait') COMPREPLY=(); return ;;
        'hwctl publish hostweights --color') COMPREPLY=($(compgen -W 'auto always never' -- "$current")); return ;;
        'hwctl publish hostweights --family') COMPREPLY=($(compgen -W 'hostweights ktint8 pageweights' -- "$current")); return ;;
        'hwctl publish ktint8 --from') _hwctl_paths; return ;;
        'hwctl publish ktint8 --run-id') COMPREPLY=(); return ;;
        'hwctl publish ktint8 --numa') COMPREPLY=(); return ;;
        'hwctl publish ktint8 --layers') COMPREPLY=(); return ;;
        'hwctl publish ktint8 --persistent') _hwctl_paths; return ;;
        'hwctl publish ktint8 --base') _hwctl_paths; return ;;
        'hwctl publish ktint8 --jobs') COMPREPLY=(); return ;;
        'hwctl publish ktint8 --wait') COMPREPLY=(); return ;;
        'hwctl publish ktint8 --color') COMPREPLY=($(compgen -W 'auto always never' -- "$current")); return ;;
        'hwctl publish ktint8 --family') COMPREPLY=($(compgen -W 'hostweights ktint8 pageweights' -- "$current")); return ;;
        'hwctl publish pageweights --page') _hwctl_paths; return ;;
        'hwctl publish pageweights --cache') _hwctl_paths; return ;;
        'hwctl publish pageweights --authority') _hwctl_paths; return ;;
        'hwctl publish pageweights --source') _hwctl_paths; return ;;
        'hwctl publish pageweights --source-format-revision') COMPREPLY=(); return ;;
        'hwctl publish pageweights --page-id') COMPREPLY=(); return ;;
        'hwctl publish pageweights --budget') COMPREPLY=(); return ;;
        'hwctl publish pageweights --wait') COMPREPLY=(); return ;;
        'hwctl publish pageweights --color') COMPREPLY=($(compgen -W 'auto always never' -- "$current")); return ;;
        'hwctl publish pageweights --family') COMPREPLY=($(compgen -W 'hostweights ktint8 pageweights' -- "$current")); return ;;
        'hwctl verify --level') COMPREPLY=($(compgen -W 'marker size full' -- "$current")); return ;;
        'hwctl verify --identity') _hwctl_paths; return ;;
        'hwctl verify --authority') _hwctl_paths; return ;;
        'hwctl verify --source') _hwctl_paths; return ;;
        'hwctl verify --for') _hwctl_paths; return ;;
        'hwctl verify --numa') COMPREPLY=(); return ;;
        'hwctl verify --expect') COMPREPLY=(); return ;;
        'hwctl verify --paths-from') _hwctl_paths; return ;;
        'hwctl verify --jobs') COMPREPLY=(); return ;;
        'hwctl verify --wait') COMPREPLY=(); return ;;
        'hwctl verify --timeout') COMPREPLY=(); return ;;
        'hwctl verify --rate') COMPREPLY=(); return ;;
        'hwctl verify --metrics') _hwctl_paths; return ;;
        'hwctl verify --color') COMPREPLY=($(compgen -W 'auto always never' -- "$current")); return ;;
        'hwctl verify --family') COMPREPLY=($(compgen -W 'hostweights ktint8 pageweights' -- "$current")); return ;;
        'hwctl inspect --state') COMPREPLY=($(compgen -W 'staging ready incomplete damaged consuming denied quarantined temporary orphan foreign unreadable vanished absent' -- "$current")); return ;;
        'hwctl inspect --match') COMPREPLY=(); return ;;
        'hwctl inspect --sort') COMPREPLY=($(compgen -W 'key size used' -- "$current")); return ;;
        'hwctl inspect --metrics') _hwctl_paths; return ;;
        'hwctl inspect --color') COMPREPLY=($(compgen -W 'auto always never' -- "$current")); return ;;
        'hwctl inspect --family') COMPREPLY=($(compgen -W 'hostweights ktint8 pageweights' -- "$current")); return ;;
        'hwctl quarantine --reason') COMPREPLY=(); return ;;
        'hwctl quarantine --restore') _hwctl_paths; return ;;
        'hwctl quarantine --wait') COMPREPLY=(); return ;;
        'hwctl quarantine --jobs') COMPREPLY=(); return ;;
        'hwctl quarantine --color') COMPREPLY=($(compgen -W 'auto always never' -- "$current")); return ;;
        'hwctl quarantine --family') COMPREPLY=($(compgen -W 'hostweights ktint8 pageweights' -- "$current")); return ;;
        'hwctl reclaim-stale --older-than') COMPREPLY=(); return ;;
        'hwctl reclaim-stale --match') COMPREPLY=(); return ;;
        'hwctl reclaim-stale --run-id') COMPREPLY=(); return ;;
        'hwctl reclaim-stale --wait') COMPREPLY=(); return ;;
        'hwctl reclaim-stale --metrics') _hwctl_paths; return ;;
        'hwctl reclaim-stale --color') COMPREPLY=($(compgen -W 'auto always never' -- "$current")); return ;;
        'hwctl reclaim-stale --family') COMPREPLY=($(compgen -W 'hostweights ktint8 pageweights' -- "$current")); return ;;
        'hwctl evict --max-size') COMPREPLY=(); return ;;
        'hwctl evict --min-free') COMPREPLY=(); return ;;
        'hwctl evict --older-than') COMPREPLY=(); return ;;
        'hwctl evict --keep') COMPREPLY=(); return ;;
        'hwctl evict --match') COMPREPLY=(); return ;;
        'hwctl evict --exclude') COMPREPLY=(); return ;;
        'hwctl evict --min-age') COMPREPLY=(); return ;;
        'hwctl evict --wait') COMPREPLY=(); return ;;
        'hwctl evict --metrics') _hwctl_paths; return ;;
        'hwctl evict --color') COMPREPLY=($(compgen -W 'auto always never' -- "$current")); return ;;
        'hwctl evict --family') COMPREPLY=($(compgen -W 'hostweights ktint8 pageweights' -- "$current")); return ;;
        'hwctl consume --to') _hwctl_paths; return ;;
        'hwctl consume --each') COMPREPLY=(); return ;;
        'hwctl consume --layers') COMPREPLY=(); return ;;
        'hwctl consume --jobs') COMPREPLY=(); return ;;
        'hwctl consume --wait') COMPREPLY=(); return ;;
        'hwctl consume --color') COMPREPLY=($(compgen -W 'auto always never' -- "$current")); return ;;
        'hwctl consume --family') COMPREPLY=($(compgen -W 'hostweights ktint8 pageweights' -- "$current")); return ;;
        'hwctl exec --with') _hwctl_paths; return ;;
        'hwctl exec --level') COMPREPLY=($(compgen -W 'marker size full' -- "$current")); return ;;
        'hwctl exec --jobs') COMPREPLY=(); return ;;
        'hwctl exec --wait') COMPREPLY=(); return ;;
        'hwctl exec --color') COMPREPLY=($(compgen -W 'auto always never' -- "$current")); return ;;
        'hwctl exec --family') COMPREPLY=($(compgen -W 'hostweights ktint8 pageweights' -- "$current")); return ;;
    esac
    case "$command" in
        'hwctl') options='--version -h --help' ;;
        'hwctl publish') options='-h --help' ;;
        'hwctl publish hostweights') options='--from --store --identity --trust-identity --model-id --revision --format-metadata --ordered --scope --domain-id --max-artifact-size --max-store-size --min-free --jobs -n --dry-run -y --yes --wait --json -q --quiet -v --verbose --color --family -h --help' ;;
        'hwctl publish ktint8') options='--from --run-id --numa --layers --persistent --base --jobs -n --dry-run -y --yes --wait --json -q --quiet -v --verbose --color --family -h --help' ;;
        'hwctl publish pageweights') options='--page --cache --authority --source --source-format-revision --page-id --budget -n --dry-run -y --yes --wait --json -q --quiet -v --verbose --color --family -h --help' ;;
        'hwctl verify') options='--level --identity --authority --source --for --numa --expect --paths-from -0 --null --jobs --wait --timeout --rate --metrics --json -q --quiet -v --verbose --color --family -h --help' ;;
        'hwctl inspect') options='--state --match --sort --manifest --metrics --json -q --quiet -v --verbose --color --family -h --help' ;;
        'hwctl quarantine') options='--reason --restore -n --dry-run -y --yes --wait --jobs --other-users --json -q --quiet -v --verbose --color --family -h --help' ;;
        'hwctl reclaim-stale') options='--older-than --match --run-id --leaseless --ready --other-users -n --dry-run -y --yes --wait --metrics --json -q --quiet -v --verbose --color --family -h --help' ;;
        'hwctl evict') options='--max-size --min-free --older-than --keep --all --match --exclude --min-age --quarantined --other-users -n --dry-run -y --yes --wait --metrics --json -q --quiet -v --verbose --color --family -h --help' ;;
        'hwctl consume') options='--to --each --discard --check-only --layers --jobs -n --dry-run -y --yes --wait --json -q --quiet -v --verbose --color --family -h --help' ;;
        'hwctl exec') options='--with --level --jobs --wait --json -q --quiet -v --verbose --color --family -h --help' ;;
    esac
    if [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$options" -- "$current"))
        return
    fi
    commands=
    case "$command" in
        'hwctl') commands='publish verify inspect quarantine reclaim-stale evict consume exec' ;;
        'hwctl publish') commands='hostweights ktint8 pageweights' ;;
    esac
    case "$command" in
    'hwctl'|'hwctl publish') COMPREPLY=($(compgen -W "$commands" -- "$current")) ;;
    *) _hwctl_paths ;;
    esac
}

complete -F _hwctl hwctl
