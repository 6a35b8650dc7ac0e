//! Web addresses: validates them, and resolves the links of a page (RFC 3986, section 5).

use crate::error::{Error, Result};

/// Normalizes an address that a model wrote: `http` or `https`, without a user or a fragment, special characters
/// percent-encoded.
///
/// # Errors
/// Describes the invalid part, for the model.
pub(crate) fn normalize(address: &str) -> Result<String> {
    let address = address.trim();
    let (scheme, rest) = address.split_once("://").unwrap_or(("https", address));
    let scheme = scheme.to_ascii_lowercase();
    if scheme != "http" && scheme != "https" {
        let why = format!("only http and https addresses can be fetched, not {scheme}:");
        return Err(Error::failed(why));
    }
    let rest = rest.split('#').next().unwrap_or_default();
    let end = rest.find(['/', '?', '\\']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    if authority.contains('@') {
        let why = "an address with a user name or password cannot be fetched";
        return Err(Error::failed(why));
    }
    if authority.is_empty() {
        return Err(Error::failed("the address names no host"));
    }
    Ok(format!("{scheme}://{authority}{}", encode(path)))
}

/// Resolves a link on a page at `base`; `None` if the scheme is of no use to a reader.
pub(crate) fn join(base: &str, link: &str) -> Option<String> {
    // Browsers ignore line ends and tabs within an address.
    let link = link.trim().replace(['\n', '\r', '\t'], "");
    let scheme = link.split_once(':').map(|(scheme, _)| scheme);
    let scheme = scheme.filter(|s| {
        !s.is_empty()
            && s.chars()
                .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    });
    if let Some(scheme) = scheme {
        let is_useful = ["http", "https", "mailto", "tel", "ftp", "magnet"]
            .iter()
            .any(|s| scheme.eq_ignore_ascii_case(s));
        return is_useful.then(|| encode(&link));
    }
    let (scheme, rest) = base.split_once("://")?;
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let path = path.split('#').next().unwrap_or_default();
    let (directory, query) = path.split_at(path.find('?').unwrap_or(path.len()));
    let joined = if let Some(rest) = link.strip_prefix("//") {
        return Some(format!("{scheme}://{}", encode(rest)));
    } else if link.starts_with('/') {
        without_dots(&link)
    } else if link.starts_with('?') {
        format!("{directory}{link}")
    } else if link.starts_with('#') || link.is_empty() {
        format!("{directory}{query}{link}")
    } else {
        let parent = directory.rsplit_once('/').map_or("", |(parent, _)| parent);
        without_dots(&format!("{parent}/{link}"))
    };
    let slash = if joined.starts_with('/') { "" } else { "/" };
    Some(format!("{scheme}://{authority}{slash}{}", encode(&joined)))
}

/// Resolves `.` and `..` in the path of an address.
fn without_dots(address: &str) -> String {
    let (path, rest) = address.split_at(address.find(['?', '#']).unwrap_or(address.len()));
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split('/').skip(1) {
        match segment {
            ".." => drop(kept.pop()),
            "." => {}
            segment => kept.push(segment),
        }
    }
    if path.ends_with("/.") || path.ends_with("/..") {
        kept.push("");
    }
    format!("/{}{rest}", kept.join("/"))
}

/// Percent-encodes what browsers encode anywhere in an address; encoded characters remain unchanged.
fn encode(text: &str) -> String {
    let is_kept = |byte: u8| byte.is_ascii_graphic() && !b"\"<>\\^`{|}".contains(&byte);
    let mut encoded = String::new();
    for byte in text.bytes() {
        if is_kept(byte) {
            encoded.push(char::from(byte));
        } else {
            encoded += &format!("%{byte:02X}");
        }
    }
    encoded
}
