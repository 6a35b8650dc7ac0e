//! Tools that a client of the HTTP endpoint runs itself. A call ends the turn and is sent to the client.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::{Function, Owner, Risk, SUBAGENT, ToolOutput, ToolSpec};
use crate::error::Error;
use crate::message::ToolCall;
use crate::sync;

/// Calls for the client, in the order of the model.
pub(crate) type ClientCalls = Arc<Mutex<Vec<ToolCall>>>;

/// Makes a client's tool. `request` makes the ids of calls unique in a conversation that only the client stores.
pub(crate) fn client_tool(
    name: String,
    description: String,
    schema: String,
    request: &str,
    calls: &ClientCalls,
) -> Function {
    let spec = ToolSpec {
        name: name.clone().into(),
        description: description.into(),
        schema: schema.into(),
        risk: Risk::Writes, // so that calls keep their order
        source: "the client".into(),
    };
    let (calls, request) = (calls.clone(), request.to_owned());
    Function::owned(Owner::Client, spec, &[], move |args, turn| {
        if turn.origin.channel == SUBAGENT {
            return Err(Error::failed(
                "a subagent cannot use the client's tools: report what is needed",
            ));
        }
        let mut calls = sync::lock(&calls);
        let id = format!("call_{request}_{}", calls.len());
        calls.push(ToolCall {
            id,
            name: name.clone(),
            arguments: args.to_string(),
            ..ToolCall::default()
        });
        turn.is_handed_over.store(true, Ordering::SeqCst);
        Ok(ToolOutput::text("[the client runs this tool]"))
    })
}
