#!/bin/sh
# An MCP server for machines without Python: its one tool says a text.
while read -r line; do
    id=$(expr "$line" : '.*"id":\([0-9]*\)')
    case $line in
        *'"method":"initialize"'*)
            result='{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},"serverInfo":{"name":"sh","version":"1"}}' ;;
        *'"method":"tools/list"'*)
            result='{"tools":[{"name":"say","description":"Says a text.","inputSchema":{"type":"object","properties":{"text":{"type":"string"}}}}]}' ;;
        *'"method":"tools/call"'*)
            text=$(expr "$line" : '.*"text":"\([^"]*\)"')
            result='{"content":[{"type":"text","text":"You said '$text'"}]}' ;;
        *) continue ;;
    esac
    printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$result"
done
