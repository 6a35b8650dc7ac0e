//! OpenAI's Responses API, the only one that takes thinking together with tools for newer models.
//!
//! A conversation is a list of items: messages, calls, results, and encrypted thoughts, which go back as they came. Nothing is
//! stored at the host. Source: the API reference of OpenAI, `responses/create` and `responses-streaming`.

use serde_json::{Value, json};

use super::body::{BodyWriter, Draft, Step, data_url, file_name, labelled};
use super::host::HostApi;
use super::reply::{ReadError, ReplyBuilder, Stage, THOUGHT_ITEMS};
use super::values::{count, list, read_call, string};
use crate::message::{Media, MediaKind};

pub(super) const API: HostApi = HostApi {
    chat: "/responses",
    has_audio: false,
    write,
    read,
};

/// Format of a declared tool. If `strict` were omitted, the schema would have to follow the rules of strict mode.
const TOOL: [&str; 3] = [r#"{"type":"function","strict":false,"#, "parameters", "}"];

/// Writes the body of a request.
fn write<'a>(draft: &Draft<'a>) -> BodyWriter<'a> {
    let mut body = draft.begin_body();
    body.field("model", &draft.model.id);
    body.field("max_output_tokens", draft.max_tokens());
    body.field("store", false);
    body.optional_field("stream", draft.streams().then_some(true));
    body.optional_field("temperature", draft.temperature());
    let effort = draft.effort().map(|effort| json!({ "effort": effort }));
    body.optional_field("reasoning", effort);
    body.field("include", ["reasoning.encrypted_content"]);
    body.optional_field("instructions", draft.whole_system());
    body.field("input", items(draft));
    body.tools(draft, TOOL);
    body.finish()
}

/// Returns the conversation.
fn items(draft: &Draft) -> Vec<Value> {
    let mut items = Vec::new();
    let message = |role: &str, content: Vec<Value>| json!({"type": "message", "role": role, "content": content});
    for step in draft.steps() {
        match step {
            Step::User(text, media) => {
                let mut content = vec![input_text(&text)];
                let parts = |media| labelled(media, input_text, media_part(media));
                content.extend(media.into_iter().flat_map(parts));
                items.push(message("user", content));
            }
            Step::Reply(reply) => {
                // The API rejects thoughts that nothing follows.
                if !reply.text.is_empty() || !reply.calls.is_empty() {
                    let thoughts = draft.echo(reply, THOUGHT_ITEMS).and_then(Value::as_array);
                    items.extend(thoughts.into_iter().flatten().cloned());
                }
                if !reply.text.is_empty() {
                    let text = json!({"type": "output_text", "text": reply.text});
                    items.push(message("assistant", vec![text]));
                }
                items.extend(reply.calls.iter().map(|call| {
                    let (id, arguments) = (draft.id(&call.id), call.object());
                    json!({"type": "function_call", "call_id": id, "name": call.name, "arguments": arguments})
                }));
            }
            Step::Result(result) => {
                let output = result.content.clone() + &draft.replacements(&result.images);
                let id = draft.id(&result.call_id);
                items
                    .push(json!({"type": "function_call_output", "call_id": id, "output": output}));
            }
        }
    }
    items
}

fn input_text(text: &str) -> Value {
    json!({"type": "input_text", "text": text})
}

fn media_part(media: &Media) -> Value {
    match media.kind() {
        MediaKind::Image => json!({"type": "input_image", "image_url": data_url(media)}),
        _ => {
            json!({"type": "input_file", "filename": file_name(media), "file_data": data_url(media)})
        }
    }
}

/// Reads an event of a stream, or a whole body.
pub(crate) fn read(event: &str, into: &mut ReplyBuilder) -> Result<(), ReadError> {
    let event = into.parse(event)?;
    let (index, item) = (count(&event["output_index"]), &event["item"]);
    let delta = string(&event["delta"]);
    match string(&event["type"]) {
        "response.output_text.delta" => into.text(delta),
        "response.refusal.delta" => into.refusal(delta),
        "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
            into.thought("", delta);
        }
        "response.function_call_arguments.delta" => {
            into.call(index, read_call(&json!({ "arguments": delta })));
        }
        "response.output_item.added" if item["type"] == "function_call" => {
            read_item(item, index, into);
        }
        // A message was read from its deltas.
        "response.output_item.done" if item["type"] != "message" => read_item(item, index, into),
        "response.completed" | "response.incomplete" | "response.failed" => {
            read_end(&event["response"], into)?;
            into.stage = Stage::Ended;
        }
        "error" => return Err(ReadError::refusal(&event)),
        _ if event["output"].is_array() => read_end(&event, into)?,
        _ => {}
    }
    Ok(())
}

/// Reads an item of the output, which may be incomplete. A later version of a call replaces it.
fn read_item(item: &Value, index: Option<u64>, into: &mut ReplyBuilder) {
    match string(&item["type"]) {
        "message" => {
            for part in list(&item["content"]) {
                into.refusal(string(&part["refusal"]));
                into.content(&part["text"]);
            }
        }
        "function_call" => {
            let mut call = read_call(item);
            string(&item["call_id"]).clone_into(&mut call.id);
            into.replace_call(index, call);
        }
        "reasoning" if !string(&item["encrypted_content"]).is_empty() => {
            let mut thought = json!({"type": "reasoning"});
            for name in ["id", "summary", "encrypted_content"] {
                thought[name] = item[name].clone();
            }
            into.detail(THOUGHT_ITEMS, json!([thought]));
        }
        "image_generation_call" => into.picture(&json!({"b64_json": item["result"]})),
        _ => {}
    }
}

/// Reads the whole response at the end, which repeats what events have told.
fn read_end(response: &Value, into: &mut ReplyBuilder) -> Result<(), ReadError> {
    if !response["error"].is_null() {
        return Err(ReadError::refusal(&response["error"]));
    }
    if into.is_empty() {
        for (index, item) in list(&response["output"]).iter().enumerate() {
            read_item(item, u64::try_from(index).ok(), into);
        }
    }
    into.usage(&response["usage"]);
    let reason = string(&response["incomplete_details"]["reason"]);
    match string(&response["status"]) {
        "failed" | "cancelled" => return Err(ReadError::refusal(&"the response failed".into())),
        "incomplete" if reason.is_empty() => into.stop("length", ""),
        "incomplete" => into.stop(reason, ""),
        status => into.stop(status, ""),
    }
    Ok(())
}
