//! `bantam onboard http`: switches the HTTP endpoint on, with a token, and shows how to use it.

use serde_json::Value;

use super::{load, print, tell};
use crate::config::{Env, edit};
use crate::error::Result;
use crate::http_api;
use crate::paths::Home;

/// Makes a token if there is none, and needs no terminal.
pub(super) fn connect(home: &Home, env: &Env) -> Result<()> {
    let set = |name: &str, value: Value| edit::set(home, env, &["channels", "http", name], &value);
    let shown = if load(env)?.1.config.channels.http.token.is_empty() {
        let token = http_api::new_token()?;
        set("token", token.clone().into())?;
        token
    } else {
        tell("Keeping the token that is already configured.");
        "YOUR_TOKEN".to_owned()
    };
    let config = set("enabled", true.into())?.config;
    let address = &config.channels.http.listen;
    print(&format!(
        "The gateway now answers OpenAI's chat API. Start the gateway; one that is
running picks up the change:

    bantam gateway

and ask it:

    curl http://{address}/v1/chat/completions \\
        -H \"Authorization: Bearer {shown}\" \\
        -H \"Content-Type: application/json\" \\
        -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"How are you?\"}}]}}'

Whoever has the token can make the agent do everything that its tools can do.
From another computer, reach it through

    ssh -L 7475:{address} USER@THIS_MACHINE

or through a reverse proxy with TLS; bantam help http has both, and recipes for
clients.
"
    ))
}
