//! Server-sent events, as model APIs send them.
//!
//! The format is the WHATWG HTML standard's, section 9.2 "Server-sent events". `event:`, `id:` and `retry:` are read
//! over: no model API needs them once the data is JSON.

/// A decoder fed with whatever pieces the network gives.
#[derive(Default)]
pub struct Decoder {
    line: Vec<u8>,
    data: Vec<u8>,
    has_data: bool,
    started: bool,
    after_cr: bool,
}

/// An event longer than this is a fault of the server.
pub const MAX_EVENT: usize = 8 << 20;

/// An event grew beyond [`MAX_EVENT`].
#[derive(Debug, PartialEq, Eq)]
pub struct TooLong;

impl Decoder {
    /// Takes the next bytes and calls `event` with the data of each event that they complete. Bytes that are not UTF-8
    /// are replaced.
    pub fn push(&mut self, bytes: &[u8], event: &mut dyn FnMut(&str)) -> Result<(), TooLong> {
        for &b in bytes {
            // CR, LF and CRLF all end a line.
            if b == b'\n' && std::mem::take(&mut self.after_cr) {
                continue;
            }
            self.after_cr = b == b'\r';
            if b == b'\n' || b == b'\r' {
                self.end_line(event);
            } else {
                self.line.push(b);
                if self.line.len() + self.data.len() > MAX_EVENT {
                    return Err(TooLong);
                }
            }
        }
        Ok(())
    }

    /// The stream has ended: what came last counts even without the blank line that should end it.
    pub fn finish(&mut self, event: &mut dyn FnMut(&str)) {
        if !self.line.is_empty() {
            self.end_line(event);
        }
        self.end_line(event);
    }

    fn end_line(&mut self, event: &mut dyn FnMut(&str)) {
        let mut line = std::mem::take(&mut self.line);
        if !std::mem::replace(&mut self.started, true) && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        if line.is_empty() {
            if std::mem::take(&mut self.has_data) {
                event(&String::from_utf8_lossy(&std::mem::take(&mut self.data)));
            }
        } else if let Some(value) = line.strip_prefix(b"data:") {
            if std::mem::replace(&mut self.has_data, true) {
                self.data.push(b'\n');
            }
            self.data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        }
        line.clear();
        self.line = line;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(pieces: &[&[u8]]) -> Vec<String> {
        let (mut decoder, mut events) = (Decoder::default(), Vec::new());
        let mut take = |e: &str| events.push(e.to_owned());
        for piece in pieces {
            decoder.push(piece, &mut take).unwrap();
        }
        decoder.finish(&mut take);
        events
    }

    #[test]
    fn what_servers_really_send_is_understood() {
        let cases: [(&str, &[&str]); 9] = [
            ("data: a\n\ndata: b\n\n", &["a", "b"]),
            ("data:a\r\n\r\ndata: b\r\rdata: c\n\n", &["a", "b", "c"]),
            (": OPENROUTER PROCESSING\n\ndata: a\n\n", &["a"]),
            ("event: x\nid: 3\ndata: a\n\n", &["a"]),
            ("data: a\ndata: b\n\n", &["a\nb"]),
            ("data: a", &["a"]),
            ("data:\n\n", &[""]),
            ("\u{feff}data: a\n\n", &["a"]),
            ("\n\n\n", &[]),
        ];
        for (stream, want) in cases {
            assert_eq!(decode(&[stream.as_bytes()]), want, "{stream:?}");
            let bytes: Vec<&[u8]> = stream.as_bytes().chunks(1).collect();
            assert_eq!(decode(&bytes), want, "{stream:?} byte by byte");
        }
    }

    #[test]
    fn a_character_split_over_pieces_stays_whole_and_bad_bytes_are_replaced() {
        let euro = "data: €\n\n".as_bytes();
        assert_eq!(decode(&[&euro[..7], &euro[7..]]), ["€"]);
        assert_eq!(decode(&[b"data: \xff\n\n"]), ["\u{fffd}"]);
    }

    #[test]
    fn an_endless_line_is_refused_before_it_fills_memory() {
        let mut decoder = Decoder::default();
        let piece = vec![b'x'; 1 << 20];
        let refused = (0..9).any(|_| decoder.push(&piece, &mut |_| ()) == Err(TooLong));
        assert!(refused);
    }
}
