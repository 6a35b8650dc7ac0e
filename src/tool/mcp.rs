//! Tools of MCP servers: `NAME__TOOL` for the tool TOOL of the server NAME.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::function::Function;
use super::registry::valid_name;
use super::{Owner, Risk, ToolOutput, ToolSpec, plain};
use crate::error::Kind;
use crate::mcp::{RemoteTool, Server};
use crate::message::Media;
use crate::redact::Redactor;
use crate::text::{fenced, foreign};

/// Makes the tools of a server, with names that providers accept.
pub(crate) fn mcp_tools(server: &Arc<Server>, tools: &[RemoteTool]) -> Vec<Function> {
    let tool = |remote: &RemoteTool| {
        let name = valid_name(&format!("{}__{}", server.definition.name, remote.name));
        let description = format!(
            "(described by the MCP server {}) {}",
            server.definition.name, remote.description
        );
        let spec = ToolSpec {
            name: name.into(),
            description: description.into(),
            schema: remote.schema.clone().into(),
            risk: Risk::Runs,
            source: server.definition.name.clone().into(),
        };
        let (server, own) = (server.clone(), remote.clone());
        let mut function = Function::owned(Owner::Server, spec, &[], move |args, turn| {
            let params = json!({"name": own.name, "arguments": args});
            let unchanged = turn.is_confirmed.then_some(&own);
            match server.call(&params, unchanged, turn.cancel, turn.events) {
                Ok(result) => Ok(output(&result, &server.definition.redactor)),
                Err(e) if matches!(e.kind, Kind::Interrupted | Kind::Limit) => Err(e),
                // Most of the message comes from the server.
                Err(e) => Ok(ToolOutput {
                    failed: true,
                    ..ToolOutput::text(foreign("error:", &e.message))
                }),
            }
        });
        function.always_parallel = remote.read_only;
        function
    };
    tools.iter().map(tool).collect()
}

/// Converts the result of a call: texts in a fence that they cannot close, and media.
fn output(result: &Value, redactor: &Redactor) -> ToolOutput {
    let mut output = ToolOutput {
        failed: result["isError"] == true,
        ..ToolOutput::default()
    };
    // Some servers write the content as one text, and old ones put the result into `toolResult`.
    let mut texts = Vec::from_iter(result["content"].as_str().map(str::to_owned));
    for part in result["content"].as_array().into_iter().flatten() {
        let text = |name: &str| part[name].as_str().unwrap_or_default();
        match text("type") {
            "text" => texts.push(text("text").to_owned()),
            "image" | "audio" => match media(text("data")) {
                Some(media) => output.images.push(media),
                None => texts.push(format!("[{} of a kind that cannot be shown]", text("type"))),
            },
            "resource" => {
                let resource = &part["resource"];
                let uri = redactor.foreign(resource["uri"].as_str().unwrap_or_default(), 500);
                let shown = resource["blob"].as_str().and_then(media);
                let text = match (&shown, resource["text"].as_str()) {
                    (Some(media), _) => format!("[{}]", media.mime),
                    (None, Some(text)) => text.to_owned(),
                    (None, None) => {
                        let kind = resource["mimeType"].as_str().unwrap_or("not text");
                        format!("[{}: cannot be shown]", redactor.foreign(kind, 60))
                    }
                };
                texts.push(format!("{uri}:\n{text}"));
                output.images.extend(shown);
            }
            "resource_link" => {
                let about = [text("name"), text("uri"), text("description")]
                    .map(|text| redactor.foreign(text, 500));
                texts.push(about.join(" "));
            }
            kind => texts.push(format!("[{}: cannot be shown]", redactor.foreign(kind, 40))),
        }
    }
    let mut others = [&result["structuredContent"], &result["toolResult"]].into_iter();
    if texts.iter().all(String::is_empty) {
        texts.extend(others.find(|value| !value.is_null()).map(plain));
    }
    output.text = fenced(&texts.join("\n\n"));
    if output.failed {
        // The OpenAI API has no field for that.
        output.text.insert_str(0, "error:\n");
    }
    if output.text.is_empty() && output.images.is_empty() {
        "(no output)".clone_into(&mut output.text);
    }
    output
}

/// Decodes an image, a recording or a PDF, detected by its bytes.
fn media(base64: &str) -> Option<Media> {
    let bytes = STANDARD.decode(base64).ok()?;
    Media::detect(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secret::Secret;

    #[test]
    fn a_key_across_the_cut_of_a_link_is_removed() {
        let redactor: Redactor = [Secret::new("hunter2hunter2hunter2")].into_iter().collect();
        let uri = format!("http://h/{}hunter2hunter2hunter2", "x".repeat(480));
        let link = json!({"content": [{"type": "resource_link", "name": "a", "uri": uri}]});
        let text = output(&link, &redactor).text;
        assert!(
            text.contains("[secret") && !text.contains("hunter2"),
            "{text}"
        );
    }
}
