//! `bantam onboard http`: switches the HTTP endpoint on, with a token, and shows how to use it.

use std::io::Read;

use serde_json::Value;

use super::{load, print, tell};
use crate::config::{Env, edit};
use crate::error::{Context, Result};
use crate::http_api;
use crate::paths::Home;

/// Bytes of a new token: as many as a key of AES-192 has.
const TOKEN_BYTES: usize = 24;

/// Makes a token if there is none, and needs no terminal.
pub(super) fn connect(home: &Home, env: &Env) -> Result<()> {
    let before = load(env)?.1.config;
    let set = |name: &str, value: Value| edit::set(home, env, &["channels", "http", name], &value);
    let known = before.channels.http.token.reveal();
    // The gateway takes no shorter one; a short text may also say where the token is.
    let is_useless = known.len() < http_api::MIN_TOKEN && !known.contains(['$', ':']);
    let shown = if is_useless {
        let token = new_token()?;
        set("token", token.clone().into())?;
        if !before.channels.http.token.is_empty() {
            tell("The configured token was too short, so there is a new one.");
        }
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

/// A prefix and random hexadecimal digits.
fn new_token() -> Result<String> {
    let mut source = fs_err::File::open("/dev/urandom")?;
    let mut bytes = [0; TOKEN_BYTES];
    source.read_exact(&mut bytes).doing("making a token")?;
    let mut token = "bantam-".to_owned();
    for byte in bytes {
        token.push_str(&format!("{byte:02x}"));
    }
    Ok(token)
}
