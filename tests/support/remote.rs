//! An MCP server over HTTP.

use serde_json::{Value, json};

use super::model::{Model, Reply};

/// Starts a server over HTTP that answers by method.
pub fn remote(events: bool) -> Model {
    Model::answering(move |request, _| {
        let method = request.body["method"].as_str().unwrap_or_default();
        let result = match method {
            "initialize" => {
                json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {} })
            }
            "tools/list" => {
                json!({ "tools": [{ "name": "say", "inputSchema": { "type": "object" } }] })
            }
            "tools/call" => json!({ "content": [{ "type": "text", "text": "from afar" }] }),
            _ => return Reply::json(202, &Value::Null),
        };
        let answer = json!({ "jsonrpc": "2.0", "id": request.body["id"], "result": result });
        let progress = json!({ "jsonrpc": "2.0", "method": "notifications/message", "params": {} });
        let reply = if events {
            Reply::stream([
                format!("data: {progress}\n\n"),
                format!("data: {answer}\n\n"),
            ])
        } else {
            Reply::json(200, &answer)
        };
        reply.header("Mcp-Session-Id", "session-7")
    })
}
