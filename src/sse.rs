//! Decodes the `data:` of server-sent events (WHATWG HTML, section 9.2), and streams of model servers that are no such events:
//! one JSON object per line, with or without `data:`.

/// Maximum size of an event, in bytes, unless the caller sets another.
const MAX_EVENT: usize = 8 << 20;

/// Decodes a stream that arrives in pieces of any size.
pub(crate) struct Decoder {
    /// Received part of the current line.
    line: Vec<u8>,
    /// Data of the current event; `None` before its first `data:` line.
    data: Option<Vec<u8>>,
    /// Whether the last line ended with CR. A following LF belongs to the same line end.
    after_return: bool,
    most: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new(MAX_EVENT)
    }
}

/// An event exceeds the maximum size.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooLong;

impl Decoder {
    /// Creates a decoder for events of up to `most` bytes.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            line: Vec::new(),
            data: None,
            after_return: false,
            most,
        }
    }

    /// Decodes the next bytes and returns the data of each completed event. Replaces invalid UTF-8.
    pub(crate) fn push(&mut self, mut bytes: &[u8]) -> Result<Vec<String>, TooLong> {
        let mut events = Vec::new();
        while !bytes.is_empty() {
            if std::mem::take(&mut self.after_return) && bytes[0] == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|b| matches!(b, b'\n' | b'\r'));
            let (line, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
            self.line.extend_from_slice(line);
            if self.line.len() + self.data.as_ref().map_or(0, Vec::len) > self.most {
                return Err(TooLong);
            }
            bytes = rest;
            if let Some((end, rest)) = rest.split_first() {
                (self.after_return, bytes) = (*end == b'\r', rest);
                events.extend(self.end_line());
            }
        }
        Ok(events)
    }

    /// Returns the last events, which may lack their final line end or blank line.
    pub(crate) fn finish(&mut self) -> impl Iterator<Item = String> {
        [self.end_line(), self.end_line()].into_iter().flatten()
    }

    fn end_line(&mut self) -> Option<String> {
        let line = std::mem::take(&mut self.line);
        // The stream may start with a byte order mark.
        let line = line
            .strip_prefix(b"\xef\xbb\xbf")
            .unwrap_or(&line)
            .trim_ascii_end();
        if line.is_empty() {
            return self.data.take().map(text);
        }
        let value = match line.iter().position(|byte| *byte == b':') {
            _ if line.starts_with(b"{") => line,
            Some(colon) if &line[..colon] == b"data" => line[colon + 1..].trim_ascii_start(),
            _ => return None,
        };
        // Some gateways write the prefix of the host again.
        let value = value.strip_prefix(b"data: ").unwrap_or(value);
        match &mut self.data {
            // No JSON continues like this, so the blank line between two events is missing.
            Some(data)
                if data.ends_with(b"}") && (value.starts_with(b"{") || value == b"[DONE]") =>
            {
                self.data.replace(value.to_vec()).map(text)
            }
            Some(data) => {
                data.push(b'\n');
                data.extend_from_slice(value);
                None
            }
            None => {
                self.data = Some(value.to_vec());
                None
            }
        }
    }
}

fn text(data: Vec<u8>) -> String {
    String::from_utf8(data).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(pieces: &[&[u8]]) -> Vec<String> {
        let (mut decoder, mut events) = (Decoder::default(), Vec::new());
        for piece in pieces {
            events.extend(decoder.push(piece).unwrap());
        }
        events.extend(decoder.finish());
        events
    }

    #[test]
    fn real_world_event_streams_are_parsed() {
        let cases: [(&str, &[&str]); 15] = [
            ("data: a\n\ndata: b\n\n", &["a", "b"]),
            ("data:a\r\n\r\ndata: b\n\ndata: c\n\n", &["a", "b", "c"]),
            (": OPENROUTER PROCESSING\n\ndata: a\n\n", &["a"]),
            ("event: x\nid: 3\ndata: a\n\n", &["a"]),
            ("data: a\ndata: b\n\n", &["a\nb"]),
            ("\u{feff}data: a\r\rdata: b\r\r", &["a", "b"]),
            ("data: a\r\ndata: b\r\n\r\n", &["a\nb"]),
            ("data: a", &["a"]),
            ("data:\n\n", &[""]),
            ("data: data: a\n\ndata:\tb\n\n", &["a", "b"]),
            ("\n\n\n", &[]),
            (
                "data: {}\ndata: {\"a\":1}\ndata: [DONE]\n",
                &["{}", "{\"a\":1}", "[DONE]"],
            ),
            (
                "event: x\r\ndata: {}\r\nevent: x\r\ndata: {}",
                &["{}", "{}"],
            ),
            (
                "{\"a\":\"data: b\"}\n{}\n\n{}",
                &["{\"a\":\"data: b\"}", "{}", "{}"],
            ),
            ("data: [\ndata: {},\ndata: {}]\n\n", &["[\n{},\n{}]"]),
        ];
        for (stream, want) in cases {
            assert_eq!(decode(&[stream.as_bytes()]), want, "{stream:?}");
            let bytes: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
            assert_eq!(decode(&bytes), want, "{stream:?} byte by byte");
        }
    }

    #[test]
    fn split_characters_are_rejoined() {
        let euro = "data: €\n\n".as_bytes();
        assert_eq!(decode(&[&euro[..7], &euro[7..]]), ["€"]);
        assert_eq!(decode(&[b"data: \xff\n\n"]), ["\u{fffd}"]);
    }

    #[test]
    fn an_endless_line_is_refused_before_it_fills_memory() {
        let mut decoder = Decoder::default();
        let piece = vec![b'x'; 1 << 20];
        let refused = (0..9).any(|_| decoder.push(&piece) == Err(TooLong));
        assert!(refused);
    }
}
